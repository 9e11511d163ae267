"""Equinox: modules of your own are called in named scopes, as those of `equinox.nn` are by themselves.

What holds on to such modules (itself one, `jax.vmap` or `eqx.filter_jit` of one, a lambda) is traced as a copy, which
holds on to copies of them. The arrays in them are the same.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Mapping
from types import CellType, FunctionType, MethodType
from typing import Any

import equinox as eqx
import jax

from jax2onnx.frontends import Source, arrays_inside, held_by, parameter_names
from jax2onnx.frontends.scopes import scoped_class


def source_of(target: Any) -> Source | None:
    """The target, with scopes around the calls of its modules; None if it has none that need them."""
    copy = _copy(target, "", frozenset())
    return None if copy is target else Source(copy, dict(arrays_inside(_plain_partial(target))))


def _plain_partial(target: Any) -> Any:
    """Equinox has a class of its own for functions with arguments filled in, such as methods under `filter_jit`."""
    if isinstance(target, eqx.Partial):
        return functools.partial(target.func, *target.args, **target.keywords)
    return target


def _nothing() -> None: ...


_COMPILED: tuple[Any, ...] = (type(jax.jit(_nothing)), type(eqx.filter_jit(_nothing)))
"""What `jit` makes of a function. It changes nothing but the speed, so that the function can take its place."""


def _copy(value: Any, name: str, inside: frozenset[int]) -> Any:
    """`value` with scopes around its modules, of which `name` is one; itself if there are none. A cycle has none."""
    if id(value) in inside:
        return value
    inside |= {id(value)}
    if isinstance(value, _COMPILED):
        function = value.__wrapped__
        copy = _copy(function, name, inside)
        return value if copy is function else copy
    if isinstance(value, eqx.Module) and not isinstance(value, type):
        return _copy_module(value, name, inside)
    if isinstance(value, functools.partial):
        return _copy_partial(value, name, inside)
    if type(value) in (list, tuple):
        items = [_copy(item, f"{name}_{i}", inside) for i, item in enumerate(value)]
        return value if _same(items, value) else type(value)(items)
    if type(value) is dict:
        named = {key: _copy(item, f"{name}_{key}", inside) for key, item in value.items()}
        return value if _same(named.values(), value.values()) else named
    if inspect.ismethod(value) and isinstance(value.__self__, eqx.Module):
        owner = _copy(value.__self__, name, inside)
        return value if owner is value.__self__ else MethodType(value.__func__, owner)
    if inspect.isfunction(value):
        return _copy_function(value, name, inside)
    return value


def _same(new: Any, old: Any) -> bool:
    return all(a is b for a, b in zip(new, old, strict=True))


def _copy_module(module: Any, name: str, inside: frozenset[int]) -> Any:
    kind: Any = type(module)
    # What a transformation is of has the name of the whole.
    wrapped = module.func if isinstance(module, eqx.Partial) else getattr(module, "__wrapped__", None)
    fields = {key: _copy(value, name if value is wrapped else key, inside) for key, value in vars(module).items()}
    scoped = _scoped_kind(kind, name) if name and callable(module) else kind
    if scoped is kind and _same(fields.values(), vars(module).values()):
        return module
    copy: Any = object.__new__(scoped)
    for key, value in fields.items():
        object.__setattr__(copy, key, value)
    return copy


def _copy_partial(partial: functools.partial, name: str, inside: frozenset[int]) -> Any:
    func = _copy(partial.func, name, inside)
    names = parameter_names(partial.func, len(partial.args))
    args = [_copy(arg, n, inside) for arg, n in zip(partial.args, names, strict=True)]
    keywords = {key: _copy(value, key, inside) for key, value in partial.keywords.items()}
    if func is partial.func and _same(args, partial.args) and _same(keywords.values(), partial.keywords.values()):
        return partial
    return type(partial)(func, *args, **keywords)


def _scoped_kind(kind: Any, name: str) -> Any:
    if kind.__module__.partition(".")[0] == "equinox":
        return kind  # those have scopes
    try:
        return scoped_class(kind, name)
    except TypeError:  # a strict module: nothing may be derived from it
        return kind


def _copy_function(fn: FunctionType, name: str, inside: frozenset[int]) -> FunctionType:
    """A function that holds on to copies: those in its closure, and those among the global variables that it mentions.

    One module that it holds on to has the name of the whole, several have those of their variables.
    """
    held = {key: value for key, value in held_by(fn).items() if key in fn.__code__.co_freevars or _may_hold(value)}
    copies = {key: _copy(value, name, inside) for key, value in held.items()}
    if sum(copies[key] is not value for key, value in held.items()) > 1:
        copies = {key: _copy(value, f"{name}_{key}" if name else key, inside) for key, value in held.items()}
    changed = {key: copy for key, copy in copies.items() if copy is not held[key]}
    if not changed or _writes_globals(fn):
        return fn
    cells = [
        CellType(changed[key]) if key in changed else cell
        for key, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
    ]
    copy = FunctionType(fn.__code__, _overlaid(fn, changed), fn.__name__, fn.__defaults__, tuple(cells))
    copy.__kwdefaults__ = fn.__kwdefaults__
    copy.__dict__.update(fn.__dict__)
    return copy


def _may_hold(value: Any) -> bool:
    """Is a global variable data of the program? To follow the functions that it calls would lead into all libraries."""
    return isinstance(value, eqx.Module | list | tuple | dict | functools.partial) and not isinstance(value, type)


def _overlaid(fn: FunctionType, changed: Mapping[str, Any]) -> dict[str, Any]:
    names = [key for key in changed if key not in fn.__code__.co_freevars]
    return {**fn.__globals__, **{key: changed[key] for key in names}} if names else fn.__globals__


def _writes_globals(fn: FunctionType) -> bool:
    return any(i.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") for i in dis.get_instructions(fn))
