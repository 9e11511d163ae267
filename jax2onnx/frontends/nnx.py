"""Flax NNX: a module is traced as a copy, so that its state (batch statistics, RNG counters) stays as it is."""

from __future__ import annotations

import inspect
from typing import Any

from flax import nnx

from jax2onnx.frontends import Source
from jax2onnx.frontends.scopes import scoped


def source_of(target: Any) -> Source | None:
    """An NNX module, or a method of one."""
    module, method = target, type(target).__call__
    if inspect.ismethod(target) and isinstance(target.__self__, nnx.Module):
        module, method = target.__self__, target.__func__
    if not isinstance(module, nnx.Module):
        return None
    graph, state = nnx.split(module)

    def call(*args: Any, **kwargs: Any) -> Any:
        copy = nnx.merge(graph, state, copy=True)
        _open_scopes(copy)
        return method(copy, *args, **kwargs)

    call.__signature__ = inspect.signature(method.__get__(module))  # type: ignore[attr-defined]
    call.__name__ = type(module).__name__
    arrays = {"/".join(map(str, path)): variable[...] for path, variable in nnx.to_flat_state(state)}
    return Source(call, arrays)


def _open_scopes(module: nnx.Module) -> None:
    """Let each module inside `module`, a private copy, be called in a scope named by its path below its holder."""
    modules = {path: inner for path, inner in nnx.iter_modules(module) if path}
    callers = {path for path, inner in modules.items() if callable(inner)}
    for path in callers:
        holder = max((p for p in callers if p == path[: len(p)] and p != path), key=len, default=())
        scoped(modules[path], "_".join(map(str, path[len(holder) :])))
