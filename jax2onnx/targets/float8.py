"""Casts to 8-bit floats that do not saturate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from jax2onnx.targets import table
from jax2onnx.targets.emitter import Emitter, dtype_of
from jax2onnx.targets.plans import expands, no_kernel

BOOL = ir.DataType.BOOL
FLOAT = ir.DataType.FLOAT
BEYOND = {ir.DataType.FLOAT8E4M3FN: 464.0, ir.DataType.FLOAT8E5M2: 61440.0}
"""The middle between the largest number and the next one, if there were one; the even of both is the next for e5m2."""


@expands("Cast", "f8e4m3fn f8e5m2")
def to_float8(e: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """The kernel takes 480 for 448 and not NaN (e4m3fn), and 61440 for NaN and not an infinity (e5m2)."""
    (x,) = e.operands
    limit = BEYOND.get(e.dtype)
    if limit is None:
        return None
    _check_that_there_is(e, x)
    if not dtype_of(x).is_floating_point() or dtype_of(x).bitwidth <= 8:
        x = e.cast(x, FLOAT)
    size = e.Abs(x)
    if e.dtype == ir.DataType.FLOAT8E5M2:
        x = e.Where(e.GreaterOrEqual(size, limit, dtype=BOOL), e.Mul(x, np.inf), x, dtype=x.dtype)
    else:
        x = e.Where(e.Greater(size, limit, dtype=BOOL), e.const(np.nan, x.dtype), x, dtype=x.dtype)
    return [e.raw("Cast", x, to=int(e.dtype), saturate=0, dtype=e.dtype)]


def _check_that_there_is(e: Emitter, x: ir.Value) -> None:
    """Older opsets do not have all of these types."""
    if not table.has_kernel(e.legalizer.target, "Cast", e.opset, {"T1": FLOAT, "T2": e.dtype}):
        raise no_kernel(e.legalizer.target, "Cast", e.opset, [dtype_of(x), e.dtype])


LARGEST = 2.0**127


@expands("Cast", "f8e8m0")
def to_power_of_two(e: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """The kernel takes all above the largest power for NaN, also what is nearer to it than to the next."""
    (x,) = e.operands
    if e.dtype != ir.DataType.FLOAT8E8M0:
        return None
    _check_that_there_is(e, x)
    wide = x
    if dtype_of(x) == ir.DataType.DOUBLE or not dtype_of(x).is_floating_point() or dtype_of(x).bitwidth <= 8:
        x = e.cast(x, FLOAT)
    if dtype_of(wide) == ir.DataType.DOUBLE:  # what was rounded up must not end in the middle between two powers
        was_less = e.Less(wide, e.cast(x, ir.DataType.DOUBLE), dtype=BOOL)
        x = e.Where(was_less, e.Mul(x, np.float32(1 - 2.0**-24)), x, dtype=FLOAT)
    if dtype_of(x) != ir.DataType.FLOAT16:
        above, near = e.Greater(x, LARGEST, dtype=BOOL), e.Less(x, 1.5 * LARGEST, dtype=BOOL)
        x = e.Where(e.And(above, near), e.const(LARGEST, x.dtype), x, dtype=x.dtype)
    return [e.raw("Cast", x, to=int(e.dtype), saturate=0, round_mode="nearest", dtype=e.dtype)]
