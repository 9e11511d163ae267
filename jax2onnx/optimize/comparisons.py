"""Comparisons of floats: what makes no difference to them, and what they always say.

JAX makes numbers canonical before it sorts or searches, and asks for the sign of numbers that have none.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from jax2onnx.attributes import attributes_of
from jax2onnx.optimize.engine import Rewriter, RuleSet, first, some
from jax2onnx.optimize.intervals import LIMITS, MAX_SIZE, everywhere
from jax2onnx.optimize.queries import SPLATS, constant, dims, producer, scalar, splat

RULES = RuleSet()

READS = ("Gather", "GatherElements")


@RULES.rewrites("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "IsNaN", given=some("Where"))
def compare_as_it_was(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Compare what has not been made canonical."""
    operands = [_original(x) for x in node.inputs if x is not None]
    if operands == list(node.inputs):
        return None
    return r.op(node.op_type, *operands, like=node.outputs[0], **attributes_of(node))


def _original(value: ir.Value) -> ir.Value:
    """x of x == 0 ? 0 : x, and of IsNaN(x) ? NaN : x, and of both."""
    where = producer(value, "Where")
    if where is None:
        return value
    condition, number, x = producer(where.inputs[0], "Equal", "IsNaN"), scalar(where.inputs[1]), where.inputs[2]
    if condition is None or number is None or x is None or dims(x) != dims(value):
        return value
    original = _original(x)
    if condition.inputs[0] is not original:
        return value
    if condition.op_type == "IsNaN":
        return original if np.isnan(number) else value
    return original if number == 0 and scalar(condition.inputs[1]) == 0 else value


@RULES.rewrites("IsNaN", given=first(*READS))
def none_of_known_numbers(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Numbers that are read from a known array without NaN."""
    read = producer(node.inputs[0], *READS)
    table = read.inputs[0] if read is not None else None
    if table is None or table.const_value is None or table.const_value.size > MAX_SIZE:
        return None
    known = constant(table)
    return None if known is None or np.isnan(known).any() else everywhere(r, False, node, node.inputs[0])


@RULES.rewrites("Less", given=first("Abs"))
def nothing_below_zero(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """|x| < 0, also for NaN. (Only of integers, that of the least one is negative.)"""
    x, bound = node.inputs[0], scalar(node.inputs[1])
    if x is None or x.dtype is None or not x.dtype.is_floating_point() or bound is None or not bound <= 0:
        return None
    return everywhere(r, False, node, x)


FINITE = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""The floats that all integers have their place among."""
INFINITE = {
    # whether a number that is none of both is so beside infinity, and beside minus infinity
    "Less": (True, False),
    "LessOrEqual": (True, False),
    "Greater": (False, True),
    "GreaterOrEqual": (False, True),
    "Equal": (False, False),
}


@RULES.rewrites(*INFINITE, given=first("Cast"))
def no_integer_is_infinite(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """An integer compared with infinity, as where the number of steps has no limit."""
    cast, bound = producer(node.inputs[0], "Cast"), scalar(node.inputs[1])
    number = cast.inputs[0] if cast is not None else None
    if number is None or number.dtype not in LIMITS or cast.outputs[0].dtype not in FINITE:  # type: ignore[union-attr]
        return None
    if bound is None or not np.isinf(bound):
        return None
    return everywhere(r, INFINITE[node.op_type][int(bound < 0)], node, node.inputs[0])


@RULES.rewrites("Abs", given=first("Abs"))
def once_is_enough(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """||x|| = |x|."""
    return node.inputs[0]


DECISIVE = {"And": False, "Or": True}


@RULES.rewrites(*DECISIVE, given=some(*SPLATS))
def decided_by_one(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """x and false, x or true."""
    decisive = DECISIVE[node.op_type]
    for x, other in (node.inputs, node.inputs[::-1]):
        if splat(x) == decisive:
            return everywhere(r, decisive, node, other)
    return None
