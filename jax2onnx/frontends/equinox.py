"""Equinox: modules of your own are called in named scopes, as those of `equinox.nn` are by themselves.

What holds on to such modules (itself one, `jax.vmap` of one, a lambda) is traced as a copy, which holds on to copies of
them. The arrays in them are the same.
"""

from __future__ import annotations

import inspect
from types import CellType, FunctionType
from typing import Any

import equinox as eqx

from jax2onnx.frontends import Source, arrays_inside
from jax2onnx.frontends.scopes import scoped_class


def source_of(target: Any) -> Source | None:
    """The target, with scopes around the calls of its modules; None if it has none that need them."""
    copy = _copy(target, "", frozenset())
    return None if copy is target else Source(copy, dict(arrays_inside(target)))


def _copy(value: Any, name: str, inside: frozenset[int]) -> Any:
    """`value` with scopes around its modules, of which `name` is one; itself if there are none. A cycle has none."""
    if id(value) in inside:
        return value
    inside |= {id(value)}
    if isinstance(value, eqx.Module) and not isinstance(value, type):
        return _copy_module(value, name, inside)
    if type(value) in (list, tuple):
        items = [_copy(item, f"{name}_{i}", inside) for i, item in enumerate(value)]
        return value if all(a is b for a, b in zip(items, value, strict=True)) else type(value)(items)
    if type(value) is dict:
        named = {key: _copy(item, f"{name}_{key}", inside) for key, item in value.items()}
        return value if all(named[key] is value[key] for key in value) else named
    if inspect.isfunction(value) and value.__closure__:
        return _copy_function(value, name, inside)
    return value


def _copy_module(module: Any, name: str, inside: frozenset[int]) -> Any:
    kind: Any = type(module)
    fields = {key: _copy(value, key, inside) for key, value in vars(module).items()}
    scoped = _scoped_kind(kind, name) if name and callable(module) else kind
    if scoped is kind and all(fields[key] is value for key, value in vars(module).items()):
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


def _copy_function(fn: FunctionType, name: str, inside: frozenset[int]) -> FunctionType:
    cells = [_copy_cell(cell, name, inside) for cell in fn.__closure__ or ()]
    if all(new is old for new, old in zip(cells, fn.__closure__ or (), strict=True)):
        return fn
    copy = FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, tuple(cells))
    copy.__kwdefaults__ = fn.__kwdefaults__
    copy.__dict__.update(fn.__dict__)
    return copy


def _copy_cell(cell: CellType, name: str, inside: frozenset[int]) -> CellType:
    try:
        content = cell.cell_contents
    except ValueError:  # a variable that is assigned later
        return cell
    copy = _copy(content, name, inside)
    return cell if copy is content else CellType(copy)
