"""Sorting: what the decompositions of sort and top_k leave over is ONNX's TopK, and the sign of a NaN."""

from __future__ import annotations

from typing import Any

import numpy as np

from jax2onnx.decompose.sort import ordered_p, sign_bit_p
from jax2onnx.lower.bitcast import BITCAST_OPSET
from jax2onnx.lower.context import Builder, Val
from jax2onnx.lower.dtypes import BOOL, INT32
from jax2onnx.lower.registry import lowers
from jax2onnx.targets import sign_bit as target


@lowers(ordered_p)
def ordered(g: Builder, key: Val, *, k: Any, axis: int, descending: bool) -> list[Val]:
    """The first k keys in order, and where they were. Stable, as TopK is in ONNX Runtime."""
    values, indices = g.TopK(key, (k,), axis=axis, largest=1 if descending else 0)
    return [values, g.cast(indices, INT32)]


@lowers(sign_bit_p)
def sign_bit(g: Builder, x: Val) -> Val:
    """Before opset 26, the standard has nothing that reads it: how to do it is left to the target."""
    if g.opset >= BITCAST_OPSET:
        return g.Less(g.BitCast(x, to=INT32), np.zeros((), INT32))
    return g.op(target.NAME, x, domain=target.DOMAIN, out=(x.shape, BOOL))
