"""Callables that hold on to modules (a lambda, `jax.vmap` of a module, a partial function), with copies in them."""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import CellType, FunctionType, MethodType
from typing import Any, NamedTuple

import jax

from jax2onnx.frontends import held_by, parameter_names


def _nothing() -> None: ...


class Library(NamedTuple):
    """What the modules of a library are, and how one is copied."""

    kinds: tuple[type, ...]
    compiled: tuple[Any, ...]  # what its `jit` makes of a function: changes nothing but the speed, and is left out
    copy_module: Callable[[Any, str, frozenset[int]], Any]  # the module, its name, what is being copied


_JITTED: Any = type(jax.jit(_nothing))


def copied(value: Any, library: Library, name: str = "", inside: frozenset[int] = frozenset()) -> Any:
    """`value` with copies of the modules that it holds on to, each of which gets a name; itself if it has none.

    Functions, methods, partial functions and containers are looked through. A cycle has no modules.
    """
    if id(value) in inside:
        return value
    inside |= {id(value)}
    go = functools.partial(copied, library=library, inside=inside)
    if isinstance(value, (_JITTED, *library.compiled)):
        function: Any = value.__wrapped__  # type: ignore[attr-defined]
        copy = go(function, name=name)
        return value if copy is function else copy
    if isinstance(value, library.kinds):
        return library.copy_module(value, name, inside)
    if isinstance(value, functools.partial):
        return _copy_partial(value, name, go)
    if type(value) in (list, tuple):
        items = [go(item, name=f"{name}_{i}" if name else str(i)) for i, item in enumerate(value)]
        return value if same(items, value) else type(value)(items)
    if type(value) is dict:
        named = {key: go(item, name=f"{name}_{key}" if name else str(key)) for key, item in value.items()}
        return value if same(named.values(), value.values()) else named
    if inspect.ismethod(value) and isinstance(value.__self__, library.kinds):
        owner = go(value.__self__, name=name)
        return value if owner is value.__self__ else MethodType(value.__func__, owner)
    if inspect.isfunction(value):
        return _copy_function(value, name, library, go)
    return value


def same(new: Iterable[Any], old: Iterable[Any]) -> bool:
    """Are these the same objects?"""
    return all(a is b for a, b in zip(new, old, strict=True))


def _copy_partial(partial: functools.partial, name: str, go: Callable[..., Any]) -> Any:
    func = go(partial.func, name=name)
    names = parameter_names(partial.func, len(partial.args))
    args = [go(arg, name=n) for arg, n in zip(partial.args, names, strict=True)]
    keywords = {key: go(value, name=key) for key, value in partial.keywords.items()}
    if func is partial.func and same(args, partial.args) and same(keywords.values(), partial.keywords.values()):
        return partial
    return type(partial)(func, *args, **keywords)


def _copy_function(fn: FunctionType, name: str, library: Library, go: Callable[..., Any]) -> FunctionType:
    """A function that holds on to copies: those in its closure, and those among the global variables that it mentions.

    One module that it holds on to has the name of the whole, several have those of their variables.
    """
    # To follow the global functions that it calls would lead into all libraries: only data is looked at there.
    data = (*library.kinds, *library.compiled, list, tuple, dict, functools.partial)
    held = {k: v for k, v in held_by(fn).items() if k in fn.__code__.co_freevars or isinstance(v, data)}
    copies = {key: go(value, name=name) for key, value in held.items()}
    if sum(copies[key] is not value for key, value in held.items()) > 1:
        copies = {key: go(value, name=f"{name}_{key}" if name else key) for key, value in held.items()}
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


def _overlaid(fn: FunctionType, changed: Mapping[str, Any]) -> dict[str, Any]:
    names = [key for key in changed if key not in fn.__code__.co_freevars]
    return {**fn.__globals__, **{key: changed[key] for key in names}} if names else fn.__globals__


def _writes_globals(fn: FunctionType) -> bool:
    return any(i.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") for i in dis.get_instructions(fn))
