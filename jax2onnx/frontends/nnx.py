"""Flax NNX: a module is traced as a copy, so that its state (batch statistics, RNG counters) stays as it is."""

from __future__ import annotations

import inspect
from typing import Any

from flax import nnx

from jax2onnx.frontends import Source


def source_of(target: Any) -> Source | None:
    """An NNX module, or a method of one."""
    module, name = target, "__call__"
    if inspect.ismethod(target) and isinstance(target.__self__, nnx.Module):
        module, name = target.__self__, target.__name__
    if not isinstance(module, nnx.Module):
        return None
    graph, state = nnx.split(module)

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(nnx.merge(graph, state, copy=True), name)(*args, **kwargs)

    call.__signature__ = inspect.signature(getattr(module, name))  # type: ignore[attr-defined]
    call.__name__ = type(module).__name__
    arrays = {"/".join(map(str, path)): variable[...] for path, variable in state.flat_state()}
    return Source(call, arrays)
