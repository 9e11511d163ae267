"""What floats can be that become integers: places in an image that were clipped need no care when they are converted,
and no test as an index.

    x = jnp.clip(jnp.floor(x), 0, width - 2).astype(jnp.int32)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from jax2onnx.dimensions import is_static
from jax2onnx.optimize.queries import constant, dims, producer, scalar

MAX_DEPTH = 8
"""How many nodes back is looked."""

MAX_SIZE = 4096
"""Larger arrays are not searched for their extremes."""

FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
EPSILON = float(np.finfo(np.float32).eps)
LIMITS = {
    ir.DataType.from_numpy(np.dtype(name)): np.iinfo(name)
    for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
}
"""The least and the greatest of each type of integers."""

SAME_VALUES = {"Reshape", "Squeeze", "Unsqueeze", "Expand", "Transpose", "Slice", "Gather", "Identity"}
ROUNDED: dict[str, Callable[[float], float]] = {"Floor": np.floor, "Ceil": np.ceil, "Round": np.rint}


class Range(NamedTuple):
    """The least and the greatest number that an element may be, and whether it may be NaN."""

    low: float
    high: float
    has_nan: bool = True


ALL = Range(-math.inf, math.inf)


def range_of(value: ir.Value | None, depth: int = MAX_DEPTH) -> Range:
    """Between which numbers all elements of an array of floats are."""
    if value is None or value.dtype not in FLOATS:
        return ALL
    if value.const_value is not None:
        number = scalar(value)
        if number is not None:  # mostly, and NumPy takes long for one
            return ALL if math.isnan(number) else Range(float(number), float(number), False)
        array = constant(value) if 0 < value.const_value.size <= MAX_SIZE else None
        return ALL if array is None or np.isnan(array).any() else Range(float(array.min()), float(array.max()), False)
    node = value.producer()
    if node is None or depth == 0:
        return ALL
    x = range_of(node.inputs[0], depth - 1) if node.inputs else ALL
    op_type = node.op_type
    if op_type == "Cast" and (integers := LIMITS.get(node.inputs[0].dtype)) is not None:  # type: ignore[union-attr,arg-type]
        numpy_dtype = value.dtype.numpy()
        return Range(float(numpy_dtype.type(integers.min)), float(numpy_dtype.type(integers.max)), False)
    if op_type in SAME_VALUES or (op_type == "Cast" and value.dtype == ir.DataType.DOUBLE):
        return x
    if op_type == "Conv" and len(node.inputs) == 2:
        return _of_sum(dims(node.inputs[1])[1:], x, range_of(node.inputs[1], depth - 1))  # type: ignore[arg-type]
    if op_type in ROUNDED:
        return Range(float(ROUNDED[op_type](x.low)), float(ROUNDED[op_type](x.high)), x.has_nan)
    if op_type == "Clip" and len(node.inputs) == 3:
        low, high = scalar(node.inputs[1]), scalar(node.inputs[2])
        if low is not None and high is not None and low <= high:
            low, high = float(low), float(high)
            return Range(min(max(x.low, low), high), min(max(x.high, low), high), x.has_nan)
    if op_type in ("Max", "Min") and len(node.inputs) == 2:
        y, extreme = range_of(node.inputs[1], depth - 1), max if op_type == "Max" else min
        return Range(extreme(x.low, y.low), extreme(x.high, y.high), x.has_nan or y.has_nan)
    if op_type == "Where":
        return _of_choice(node, depth)
    return ALL


def _of_sum(sizes: Sequence[int | str], x: Range, y: Range) -> Range:
    """What sums of products are, of so many terms, or of some of them; and a little more, since each sum is rounded."""
    products = [a * b for a in (x.low, x.high) for b in (y.low, y.high)]
    if x.has_nan or y.has_nan or not is_static(sizes) or not np.isfinite(products).all():
        return ALL
    terms = math.prod(map(int, sizes)) * (1 + math.prod(map(int, sizes)) * EPSILON)
    return Range(min(*products, 0) * terms, max(*products, 0) * terms, False)


def _of_choice(node: ir.Node, depth: int) -> Range:
    """where(isnan(x), y, x) is never NaN if y is not."""
    condition, a, b = node.inputs
    first, second = range_of(a, depth - 1), range_of(b, depth - 1)
    is_nan = producer(condition, "IsNaN")
    has_nan = first.has_nan or (second.has_nan and not (is_nan is not None and is_nan.inputs[0] is b))
    return Range(min(first.low, second.low), max(first.high, second.high), has_nan)


def truncated(value: ir.Value | None, depth: int = MAX_DEPTH) -> tuple[int, int] | None:
    """Between which integers floats are once they are converted, if all of them are near integers."""
    found = range_of(value, depth)
    if found.has_nan or math.isinf(found.low) or math.isinf(found.high):
        return None
    return int(found.low), int(found.high)


def is_clipped(x: ir.Value, low: float, high: float) -> bool:
    """Does Clip(x, low, high) change nothing in `x`? (It leaves NaN, but may take the sign of a zero.)"""
    found = range_of(x)
    keeps_low = low < found.low or (low == found.low != 0)
    keeps_high = found.high < high or (high == found.high != 0)
    return keeps_low and keeps_high
