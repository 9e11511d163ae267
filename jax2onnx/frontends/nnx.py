"""Flax NNX: a module is traced as a copy, so that its state (batch statistics, RNG counters) stays as it is.

So are all modules that a function holds on to: NNX does not let it change theirs while it is traced.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from flax import nnx

from jax2onnx.frontends import Source, arrays_inside
from jax2onnx.frontends.holders import Library, copied
from jax2onnx.frontends.scopes import scoped


def source_of(target: Any) -> Source | None:
    """An NNX module, a method of one, or a function that holds on to some."""
    module, method = target, type(target).__call__
    if inspect.ismethod(target) and isinstance(target.__self__, nnx.Module):
        module, method = target.__self__, target.__func__
    if not isinstance(module, nnx.Module):
        return _source_of_holder(target)
    graph, state = nnx.split(module)

    def call(*args: Any, **kwargs: Any) -> Any:
        copy = nnx.merge(graph, state, copy=True)
        _open_scopes(copy)
        return method(copy, *args, **kwargs)

    call.__signature__ = inspect.signature(method.__get__(module))  # type: ignore[attr-defined]
    call.__name__ = type(module).__name__
    arrays = {"/".join(map(str, path)): variable[...] for path, variable in nnx.to_flat_state(state)}
    return Source(call, arrays)


_KINDS = (nnx.Pytree, nnx.Variable)
_COMPILED = (type(nnx.jit(lambda: None)),)


def _source_of_holder(target: Any) -> Source | None:
    """A function that holds on to modules (or streams of random numbers, variables, ...)."""
    held: dict[int, Any] = {}
    copied(target, Library(_KINDS, _COMPILED, lambda module, *_: held.setdefault(id(module), module)))
    if not held:
        return None
    graph, state = nnx.split(list(held.values()))

    @functools.wraps(target)
    def call(*args: Any, **kwargs: Any) -> Any:
        modules: Any = nnx.merge(graph, state, copy=True)  # type: ignore[arg-type]
        copies = dict(zip(held, modules, strict=True))
        for copy in copies.values():
            _open_scopes(copy)

        def copy_module(module: Any, name: str, _: Any) -> Any:
            copy = copies[id(module)]
            if name and isinstance(copy, nnx.Module) and callable(copy) and type(copy) is type(module):
                scoped(copy, name)
            return copy

        return copied(target, Library(_KINDS, _COMPILED, copy_module))(*args, **kwargs)

    return Source(call, dict(arrays_inside(target)))


def _open_scopes(module: Any) -> None:
    """Let each module inside `module`, a private copy, be called in a scope named by its path below its holder."""
    modules = {path: inner for path, inner in nnx.iter_modules(module) if path}
    callers = {path for path, inner in modules.items() if callable(inner)}
    for path in callers:
        holder = max((p for p in callers if p == path[: len(p)] and p != path), key=len, default=())
        scoped(modules[path], "_".join(map(str, path[len(holder) :])))
