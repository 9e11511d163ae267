"""Softmax, LogSoftmax and LogSumExp, recognised by their maths."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from jax2onnx.optimize.engine import Rewriter, RuleSet, first, some
from jax2onnx.optimize.queries import attribute, axes_of, dims, only_user, producer, scalar, splat

RULES = RuleSet()
rewrites = RULES.rewrites


def reduction(value: ir.Value | None, op_type: str) -> tuple[ir.Value, tuple[int, ...]] | None:
    """(operand, axes) if `value` is a reduction by `op_type` that keeps its axes."""
    node = producer(value, op_type)
    if node is None or attribute(node, "keepdims", 1) != 1:
        return None
    x, axes = node.inputs[0], axes_of(node)
    if x is None or axes is None:
        return None
    rank = len(dims(x))
    return x, tuple(sorted(a % rank for a in axes))


def shifted_by_maximum(value: ir.Value | None) -> tuple[ir.Value, int] | None:
    """(x, axis) if `value` is x - max(x, axis)."""
    node = producer(value, "Sub")
    found = reduction(node.inputs[1], "ReduceMax") if node is not None else None
    if node is None or found is None or found[0] is not node.inputs[0] or len(found[1]) != 1:
        return None
    return found[0], found[1][0]


@rewrites("Transpose", given=first("ReduceMax"))
def maximum_of_what_is_transposed(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """transpose(max(x)) is the maximum of the transpose of x, where that is there, as in softmax(transpose(x)).

    The channels of images are moved the other way (`layout.py`).
    """
    reduced, y = node.inputs[0], node.outputs[0]
    reduce = producer(reduced, "ReduceMax")
    if reduce is None or reduced is None or only_user(reduced) is None:
        return None
    x, axes = reduce.inputs[0], axes_of(reduce)
    if x is None or axes is None:
        return None
    rank, keepdims = len(dims(x)), attribute(reduce, "keepdims", 1)
    gone = {axis % rank for axis in axes}
    kept = [axis for axis in range(rank) if keepdims or axis not in gone]
    order = [kept[i] for i in attribute(node, "perm")]
    for other in x.consumers():
        perm = list(attribute(other, "perm")) if other.op_type == "Transpose" else []
        if perm == [0, *range(2, rank), 1] or [axis for axis in perm if axis in kept] != order:
            continue
        turned = r.transpose(x, perm)
        places = [i for i, axis in enumerate(perm) if axis in gone]
        is_attribute = attribute(reduce, "axes") is not None
        operands = [turned] if is_attribute else [turned, r.const(places, np.int64)]
        return r.op("ReduceMax", *operands, like=y, keepdims=keepdims, axes=places if is_attribute else None)
    return None


@rewrites("Div", "Mul", given=some("Exp"))
def recognise_softmax(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """exp(x - max) / sum(exp(x - max)) over one axis; the sum is at least 1, so that its reciprocal is as good.

    What a mask leaves out of the sum may be there: in x, it is -inf.
    """
    top, bottom = node.inputs
    if node.op_type == "Mul":
        top, inverse = (top, bottom) if producer(top, "Exp") is not None else (bottom, top)
        bottom = _divisor(inverse)
    exponential = producer(top, "Exp")
    total = reduction(bottom, "ReduceSum")
    shifted = shifted_by_maximum(exponential.inputs[0]) if exponential is not None else None
    if shifted is None or total is None or total[1] != (shifted[1],):
        return None
    if total[0] is not top and not _leaves_out_nothing(total[0], top, shifted[0]):
        return None
    return r.op("Softmax", shifted[0], like=node.outputs[0], axis=_from_the_end(shifted))


@rewrites("Sub", given=some("Log"))
def recognise_log_softmax(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """(x - max) - log(sum(exp(x - max))) over one axis; ONNX Runtime's is wrong for NaN and inf in double precision."""
    difference, logarithm = node.inputs
    shifted = shifted_by_maximum(difference)
    log = producer(logarithm, "Log")
    total = reduction(log.inputs[0], "ReduceSum") if log is not None else None
    exponential = producer(total[0], "Exp") if total is not None else None
    if shifted is None or total is None or exponential is None or node.outputs[0].dtype == ir.DataType.DOUBLE:
        return None
    if exponential.inputs[0] is not difference or total[1] != (shifted[1],):
        return None
    return r.op("LogSoftmax", shifted[0], like=node.outputs[0], axis=_from_the_end(shifted))


@rewrites("Sub", given=lambda origins: origins[1] == "Add")
def subtract_the_maximum_first(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """x - (max + log(sum(exp(x - max)))) is (x - max) - log(...), where that difference is there."""
    x, total = node.inputs
    added = producer(total, "Add")
    if added is None or x is None:
        return None
    for maximum, logarithm in (added.inputs, added.inputs[::-1]):
        log = producer(logarithm, "Log")
        summed = reduction(log.inputs[0], "ReduceSum") if log is not None else None
        exponential = producer(summed[0], "Exp") if summed is not None else None
        difference = exponential.inputs[0] if exponential is not None else None
        found = shifted_by_maximum(difference)
        if difference is None or found is None or summed is None or summed[1] != (found[1],) or found[0] is not x:
            continue
        if maximum is difference.producer().inputs[1]:  # type: ignore[union-attr]
            return r.op("Sub", difference, logarithm, like=node.outputs[0])
    return None


def _leaves_out_nothing(summed: ir.Value, top: ir.Value | None, x: ir.Value) -> bool:
    """Is `summed` the exponentials `top` of x, but for those that are 0 already, since x is -inf there?

    (Where x is -inf all along, both sums are of NaN, or the one is 0, and all exponentials are NaN.)
    """
    mask, place = _choice(x, -np.inf)
    triangle, cleared = producer(mask, "Trilu"), producer(summed, "Trilu")
    if cleared is None or triangle is None:
        left_out, same_place = _choice(summed, 0)
        node = producer(summed, "Where")
        return mask is not None and mask is left_out and place == same_place and node.inputs[place] is top  # type: ignore[union-attr]
    ones = producer(triangle.inputs[0], "Expand")
    if ones is None or not scalar(ones.inputs[0]) or place != 1 or cleared.inputs[0] is not top:
        return False
    if dims(triangle.outputs[0])[-2:] != dims(x)[-2:]:
        return False
    sides = [(attribute(node, "upper", 1), scalar(node.inputs[1])) for node in (triangle, cleared)]
    return sides[0] == sides[1] and sides[0][1] is not None


def _choice(value: ir.Value | None, number: float) -> tuple[ir.Value | None, int]:
    """The mask by which this number replaces others, and the place of the others in its Where."""
    node = producer(value, "Where")
    for place in (1, 2):
        found = scalar(node.inputs[3 - place]) if node is not None else None
        if node is not None and found is not None and found == number:
            return node.inputs[0], place
    return None, 0


def _divisor(value: ir.Value | None) -> ir.Value | None:
    """d if `value` is 1 / d."""
    node = producer(value, "Reciprocal", "Div")
    if node is None or (node.op_type == "Div" and splat(node.inputs[0]) != 1):
        return None
    return node.inputs[-1]


def _from_the_end(shifted: tuple[ir.Value, int]) -> int:
    x, axis = shifted
    return -1 if axis == len(dims(x)) - 1 else axis
