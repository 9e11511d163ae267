"""Sorting: what the decompositions of sort and top_k leave over is ONNX's TopK exactly."""

from __future__ import annotations

from typing import Any

from jax2onnx.decompose.sort import ordered_p
from jax2onnx.lower.context import Builder, Val
from jax2onnx.lower.dtypes import INT32
from jax2onnx.lower.registry import lowers


@lowers(ordered_p)
def ordered(g: Builder, key: Val, *, k: Any, axis: int, descending: bool) -> list[Val]:
    """The first k keys in order, and where they were. Stable, as TopK is in ONNX Runtime."""
    values, indices = g.TopK(key, (k,), axis=axis, largest=1 if descending else 0)
    return [values, g.cast(indices, INT32)]
