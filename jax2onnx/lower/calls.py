"""Primitives that call another jaxpr: its equations are lowered in their place."""

from __future__ import annotations

from typing import Any

from jax2onnx import compat
from jax2onnx.functions import parse_mark
from jax2onnx.lower.context import Builder, Val
from jax2onnx.lower.functions import call_function
from jax2onnx.lower.registry import lowers


@lowers(*compat.kinds.CALL_PRIMITIVES)
def call(g: Builder, *args: Val, **params: Any) -> list[Val]:
    """Inline the callee, unless it is marked to stay a call."""
    mark = parse_mark(str(params.get("name", "")))
    if mark is not None:
        return call_function(g, compat.programs.callee(params), args, mark)
    return g.session.lower_closed(g, compat.programs.callee(params), args)


@lowers(*compat.kinds.DIMENSION_PRIMITIVES)
def dim_as_value(g: Builder, *, dim: Any) -> Val:
    """A symbolic dimension as a number of the program."""
    return g.cast(g.dim(dim), g.avals_out[0].dtype)


@lowers(*compat.kinds.primitives("dimension_size"))
def dimension_size(g: Builder, x: Val, *, dimension: int) -> Val:
    """The size of an axis as a number of the program."""
    return g.cast(g.dim(x.shape[dimension]), g.avals_out[0].dtype)


@lowers(*compat.kinds.PRINTS)
def no_operation(g: Builder, *_: Any, **__: Any) -> list[Val]:
    """Printing has no place in a model."""
    return []
