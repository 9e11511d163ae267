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
        return method(nnx.merge(graph, state, copy=True), *args, **kwargs)

    call.__signature__ = inspect.signature(method.__get__(module))  # type: ignore[attr-defined]
    call.__name__ = type(module).__name__
    arrays = {"/".join(map(str, path)): variable[...] for path, variable in nnx.to_flat_state(state)}
    return Source(call, arrays)
