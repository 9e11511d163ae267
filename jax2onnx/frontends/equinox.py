"""Equinox: modules of your own are called in named scopes, as those of `equinox.nn` are by themselves.

What holds on to such modules (itself one, `jax.vmap` or `eqx.filter_jit` of one, a lambda) is traced as a copy, which
holds on to copies of them. The arrays in them are the same.
"""

from __future__ import annotations

import functools
from typing import Any

import equinox as eqx

from jax2onnx.frontends import Source, arrays_inside
from jax2onnx.frontends.holders import Library, copied, same
from jax2onnx.frontends.scopes import scoped_class


def source_of(target: Any) -> Source | None:
    """The target, with scopes around the calls of its modules; None if it has none that need them."""
    copy = copied(target, _EQUINOX)
    return None if copy is target else Source(copy, dict(arrays_inside(_plain_partial(target))))


def _plain_partial(target: Any) -> Any:
    """Equinox has a class of its own for functions with arguments filled in, such as methods under `filter_jit`."""
    if isinstance(target, eqx.Partial):
        return functools.partial(target.func, *target.args, **target.keywords)
    return target


def _copy_module(module: Any, name: str, inside: frozenset[int]) -> Any:
    kind: Any = type(module)
    # What a transformation is of has the name of the whole.
    wrapped = module.func if isinstance(module, eqx.Partial) else getattr(module, "__wrapped__", None)
    fields = {
        key: copied(value, _EQUINOX, name if value is wrapped else key, inside) for key, value in vars(module).items()
    }
    scoped = _scoped_kind(kind, name) if name and callable(module) else kind
    if scoped is kind and same(fields.values(), vars(module).values()):
        return module
    copy: Any = object.__new__(scoped)
    for key, value in fields.items():
        object.__setattr__(copy, key, value)
    return copy


def _scoped_kind(kind: Any, name: str) -> Any:
    if kind.__module__.partition(".")[0] == "equinox":
        return kind  # those have scopes
    try:
        return scoped_class(kind, name)
    except TypeError:  # a strict module: nothing may be derived from it
        return kind


_EQUINOX = Library((eqx.Module,), (type(eqx.filter_jit(lambda: None)),), _copy_module)
