"""Products of many small matrices: rotations, frames and covariances, one for each point.

ONNX Runtime takes 100 to 200 nanoseconds for each of them, however small it is. With the axes of the matrices before
those that count them, the same is one product of all elements that meet and one sum, each along rows as long as there
are matrices: 5,000 products of 3 x 3 matrices take 0.24 ms instead of 0.64.

When that is turned back, the two axes of the matrices are one. Between two Transposes of more axes ONNX Runtime would
move them out of the way, and compute along the short axes.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from jax2onnx.dimensions import is_static, likely_size
from jax2onnx.optimize.engine import Rewriter, RuleSet
from jax2onnx.optimize.queries import UNKNOWN, attribute, dims, producer
from jax2onnx.optimize.simplify import reshaped

LAST = RuleSet()
"""Formulas have matrix products."""

MANY = 512
"""With fewer of them, the other nodes cost what they save."""

MOST_TERMS = 64
"""With more multiplications in each, the matrix product is as fast."""

DTYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


@LAST.rewrites("MatMul")
def multiply_small_matrices(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """c[i, j] = sum over k of a[i, k] * b[k, j], each for all matrices at once."""
    a, b = node.inputs
    y = node.outputs[0]
    if a is None or b is None or y.dtype not in DTYPES or len(dims(a)) < 3 or len(dims(a)) != len(dims(b)):
        return None
    *batch, i, k = dims(a)
    j = dims(b)[-1]
    if dims(b)[:-1] != (*batch, k) or likely_size(batch) < MANY or not _is_small(i, k, j):
        return None
    count = batch[0] if len(batch) == 1 else _size(*batch) or UNKNOWN
    (left, is_left_turned), (right, is_right_turned) = _matrix_axes_first(r, a), _matrix_axes_first(r, b)
    # Which axis each of the two lacks that the terms have, and which of those is summed over.
    match is_left_turned, is_right_turned:
        case False, False:
            (lacks_left, lacks_right), terms = (2, 0), [i, k, j]
        case True, False:
            (lacks_left, lacks_right), terms = (2, 1), [k, i, j]
        case False, True:
            (lacks_left, lacks_right), terms = (1, 0), [i, j, k]
        case _:
            return None
    operands = [_with_axis(r, left, lacks_left), _with_axis(r, right, lacks_right)]
    product = r.op("Mul", *operands, like=y, shape=[*terms, *batch])
    axis = 1 - is_left_turned + is_right_turned
    reduce, keepdims = ("Squeeze", None) if k == 1 else ("ReduceSum", 0)  # the sum of one -0.0 is 0.0
    total = r.op(reduce, product, r.const([axis], np.int64), like=y, shape=[i, j, *batch], keepdims=keepdims)
    size = _size(i, j)
    columns = r.op("Reshape", total, r.const([size, -1], np.int64), like=y, shape=[size, count])
    return reshaped(r, r.transpose(columns, [1, 0]), y)


def _is_small(*sizes: int | str) -> bool:
    return 0 < (_size(*sizes) or 0) <= MOST_TERMS


def _size(*sizes: int | str) -> int | None:
    """The product of sizes, if they are known."""
    return math.prod(map(int, sizes)) if is_static(sizes) else None


def _with_axis(r: Rewriter, x: ir.Value, axis: int) -> ir.Value:
    """`x` with an axis of size 1 there; one before all others goes without saying."""
    shape = dims(x)
    if not axis:
        return x
    return r.op("Unsqueeze", x, r.const([axis], np.int64), like=x, shape=[*shape[:axis], 1, *shape[axis:]])


def _matrix_axes_first(r: Rewriter, x: ir.Value) -> tuple[ir.Value, bool]:
    """`x` with its last two axes before the others, and whether these two are exchanged.

    They are if there was a Transpose that did that. What comes from another such product had them first before.
    """
    known = _before_turning_back(x)
    if known is not None:
        return known, False
    last = len(dims(x)) - 1
    turn = producer(x, "Transpose")
    is_turned = turn is not None and tuple(attribute(turn, "perm")) == (*range(last - 1), last, last - 1)
    source = turn.inputs[0] if turn is not None and is_turned else x
    assert source is not None
    perm = [last - 1, last, *range(last - 1)]
    return r.transpose(source, perm), is_turned


def _before_turning_back(x: ir.Value) -> ir.Value | None:
    """What `x` was as `multiply_small_matrices` has computed it, with its last two axes first."""
    value, passed = x, []
    for op_type in ("Reshape", "Transpose", "Reshape"):
        node = producer(value, op_type)
        if node is None or node.inputs[0] is None:
            return None
        value = node.inputs[0]
        passed.append(value)
    *batch, i, j = dims(x)
    columns = dims(passed[1])
    return value if dims(value) == (i, j, *batch) and len(columns) == 2 and columns[0] == _size(i, j) else None
