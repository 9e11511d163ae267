"""How large the numbers in an array can be, where it is known what it is made of."""

from __future__ import annotations

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np
import onnx_ir as ir

from jax2onnx.optimize.intervals import LIMITS, bounds
from jax2onnx.optimize.queries import constant, producer

MAX_DEPTH = 12
"""How many nodes back is looked."""

SAME_NUMBERS = {
    "Reshape",
    "Squeeze",
    "Unsqueeze",
    "Expand",
    "Transpose",
    "Slice",
    "Gather",
    "GatherElements",
    "GatherND",
}
SAME_NUMBERS |= {"Identity", "Neg", "Abs", "Trilu", "Tile", "Split"}
AT_MOST_ONE = {"Sin", "Cos", "Tanh", "Sigmoid", "Softmax"}
OF_ALL: dict[str, Callable[..., float]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a + b,
    "Mul": lambda a, b: a * b,
    "Max": max,
    "Min": max,
    "Concat": max,
}


def magnitude(value: ir.Value | None, depth: int = MAX_DEPTH) -> float | None:
    """A number that no element of a value is larger than, whatever its sign; then none is NaN or infinite either."""
    if value is None:
        return None
    array = constant(value)
    if array is not None:
        largest = float(np.abs(array.astype(np.float32, copy=False)).max(initial=0))
        return largest if math.isfinite(largest) else None
    if value.dtype in LIMITS:
        found = bounds(value) or (int(LIMITS[value.dtype].min), int(LIMITS[value.dtype].max))
        return float(max(map(abs, found)))
    node = value.producer()
    if value.dtype == ir.DataType.BOOL:
        return 1.0
    if node is None or depth == 0:
        return None
    if node.op_type in AT_MOST_ONE:
        return 1.0 if magnitude(node.inputs[0], depth - 1) is not None else None
    if node.op_type == "Cast":
        return _if_finite(magnitude(node.inputs[0], depth - 1), value)
    if node.op_type in SAME_NUMBERS:
        return magnitude(node.inputs[0], depth - 1)
    operands = node.inputs[1:] if producer(value, "Where") is not None else node.inputs
    combine = max if node.op_type == "Where" else OF_ALL.get(node.op_type)
    known = [magnitude(x, depth - 1) for x in operands] if combine is not None else [None]
    if combine is None or None in known:
        return None
    return _if_finite(float(combine(*known)), value)


def _if_finite(number: float | None, value: ir.Value) -> float | None:
    """A number, if the type of `value` has it, and float32 has it: -1e9 in half precision is -inf."""
    if number is None or value.dtype is None:
        return None
    most = min(float(ml_dtypes.finfo(dtype).max) for dtype in (value.dtype.numpy(), np.float32))
    return number if number < most else None
