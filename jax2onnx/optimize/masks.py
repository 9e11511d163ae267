"""Causal masks: a comparison of row numbers with column numbers is a triangle of ones."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from jax2onnx.optimize.engine import Rewriter, RuleSet, first, some
from jax2onnx.optimize.queries import KNOWN, attribute, constant, dims, is_zero, only_user, producer, scalar
from jax2onnx.optimize.simplify import RESHAPES, reshaped

RULES = RuleSet()

# Which triangle `row + a OP column + b` is, and what to add to a - b for its diagonal.
TRIANGLES = {"GreaterOrEqual": (0, 0), "Greater": (0, -1), "LessOrEqual": (1, 0), "Less": (1, 1)}
SWAPPED = {"GreaterOrEqual": "LessOrEqual", "Greater": "Less", "LessOrEqual": "GreaterOrEqual", "Less": "Greater"}
SMALL = 16
"""Known masks of up to so many elements are stored. A larger triangle is made, as where the size is not known: then the
graph says what it is, `where` with zeros is one Trilu, and ONNX Runtime makes it once, when it loads the model."""
WIDE = (ir.DataType.INT32, ir.DataType.INT64)
TRIANGULAR = (*WIDE, ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""Types that ONNX Runtime has a kernel of Trilu for."""
LARGEST_OFFSET = 1 << 30
"""Counters of int32 that start further away may wrap."""


@RULES.rewrites(*TRIANGLES)
def recognise_triangle(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Trilu of ones, of a size that is known when the model runs."""
    a, b = node.inputs
    y = node.outputs[0]
    shape, op_type = dims(y), node.op_type
    if a is None or b is None or len(shape) < 2 or any(d != 1 for d in shape[:-2]) or shape[-1] == 1:
        return None
    if dims(a)[-1:] == shape[-1:]:
        a, b, op_type = b, a, SWAPPED[op_type]
    if dims(a)[-2:] != (shape[-2], 1) or dims(b)[-2:] not in ((1, shape[-1]), shape[-1:]):
        return None
    rows, columns = _counter(r, a), _counter(r, b)
    if rows is None or columns is None:
        return None
    upper, correction = TRIANGLES[op_type]
    size = r.op("Concat", rows[0], columns[0], like=rows[0], shape=[2], axis=0)
    return reshaped(r, _triangle(r, size, rows[1] - columns[1] + correction, upper, y), y)


def _triangle(r: Rewriter, size: ir.Value, diagonal: int, upper: int, like: ir.Value) -> ir.Value:
    """A triangle of the size of the last two axes of the mask `like`."""
    ones = r.op("Expand", r.const(True), size, like=like, shape=dims(like)[-2:])
    return r.op("Trilu", ones, r.const(diagonal, np.int64), like=ones, upper=upper)


@RULES.rewrites("Where", "And", "Or", given=some(KNOWN))
def make_known_triangle(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Trilu of ones instead of a mask that was computed while exporting."""
    y = node.outputs[0]
    for i, mask in enumerate(node.inputs):
        array = constant(mask) if mask is not None and mask.dtype == ir.DataType.BOOL else None
        if array is None or array.ndim < 2 or not array.size or 1 in array.shape[-2:] or array.all():
            continue
        is_broadcast = any(v is not None and v is not mask and dims(v) == dims(y) for v in node.inputs)
        ones = array.reshape(-1, *array.shape[-2:])[0]
        if ones.size <= SMALL or (array.size > ones.size and not (is_broadcast and (array == ones).all())):
            continue
        for upper, lower_one in ((0, ones), (1, ~ones)):
            k = _diagonal(lower_one)
            if k is None:
                continue
            operands = list(node.inputs)
            triangle = _triangle(r, r.const(ones.shape, np.int64), k + upper, upper, mask)
            operands[i] = triangle if is_broadcast else reshaped(r, triangle, mask)
            return r.op(node.op_type, *operands, like=y)
    return None


def _diagonal(ones: np.ndarray) -> int | None:
    """The last diagonal of the lower triangle that `ones` is."""
    ends = ones.sum(1)
    filled = np.flatnonzero(ends)
    if not filled.size:
        return None
    k = int(ends[filled[0]]) - 1 - int(filled[0])
    return k if np.array_equal(ones, np.tri(ones.shape[0], ones.shape[1], k, bool)) else None


@RULES.rewrites("Where", given=first("Trilu"))
def triangle_of_the_size_of_scores(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A mask for one array takes its size from that array."""
    mask, x, other = node.inputs
    triangle = producer(mask, "Trilu")
    ones = producer(triangle.inputs[0], "Expand") if triangle is not None else None
    size = producer(ones.inputs[1], "Concat") if ones is not None else None
    if triangle is None or ones is None or size is None or mask is None or x is None:
        return None
    if any(only_user(n.outputs[0]) is None for n in (triangle, ones, size)) or dims(x)[-2:] != dims(mask):
        return None
    shape = r.op("Shape", x, like=size.outputs[0], start=-2)
    again = r.op("Expand", ones.inputs[0], shape, like=mask)
    whole = r.op("Trilu", again, *triangle.inputs[1:], like=mask, upper=attribute(triangle, "upper", 1))
    return r.op("Where", whole, x, other, like=node.outputs[0])


@RULES.rewrites("Where", given=first("Trilu"))
def triangle_of_the_array(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """An array with zeros outside of a triangle, or inside of it."""
    mask, *cases = node.inputs
    y, triangle = node.outputs[0], producer(mask, "Trilu")
    inside = 0 if scalar(cases[1]) is not None else 1
    x, zero = cases[inside], scalar(cases[1 - inside])
    if triangle is None or mask is None or x is None or not is_zero(zero):
        return None
    ones, diagonal = producer(triangle.inputs[0], "Expand"), scalar(triangle.inputs[1])
    if ones is None or diagonal is None or not scalar(ones.inputs[0]) or y.dtype not in TRIANGULAR:
        return None
    if dims(x) != dims(y) or dims(x)[-2:] != dims(mask)[-2:] or any(d != 1 for d in dims(mask)[:-2]):
        return None
    upper = attribute(triangle, "upper", 1)
    if inside == 1:  # all but the triangle: what is on the other side of its diagonal
        diagonal, upper = diagonal + (-1 if upper else 1), 1 - upper
    return r.op("Trilu", x, r.const(diagonal, np.int64), like=y, upper=upper)


def _counter(r: Rewriter, value: ir.Value | None) -> tuple[ir.Value, int] | None:
    """(n, c) if `value` is c, c + 1, ... along one axis: n is its size, a vector of one element."""
    offset = 0
    while value is not None:
        if value.dtype not in WIDE:
            return None
        known = constant(value)
        if known is not None:
            numbers = known.reshape(-1)
            first = int(numbers[0]) if numbers.size else 0
            is_counter = np.array_equal(numbers, np.arange(first, first + numbers.size))
            return (r.const([numbers.size], np.int64), first + offset) if is_counter else None
        node = producer(value, "Range", "Cast", "Add", *RESHAPES)
        if node is None:
            return None
        if node.op_type == "Range":
            return _size(node, offset)
        if node.op_type == "Add":
            number = next((i for i, v in enumerate(node.inputs) if scalar(v) is not None), None)
            if number is None:
                return None
            offset += int(scalar(node.inputs[number]))
            value = node.inputs[1 - number]
            if abs(offset) > LARGEST_OFFSET:
                return None
        else:
            value = node.inputs[0]
    return None


def _size(node: ir.Node, offset: int) -> tuple[ir.Value, int] | None:
    start, limit, step = node.inputs
    vector = producer(limit, *RESHAPES)
    if scalar(start) != 0 or scalar(step) != 1 or vector is None or vector.inputs[0] is None:
        return None
    return (vector.inputs[0], offset) if dims(vector.inputs[0]) == (1,) else None
