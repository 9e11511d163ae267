"""Signs that cancel, and those of numbers that have none: exact for every input, so that a formula has one form.

As in JAX, the sign of a NaN means nothing.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from jax2onnx.optimize.engine import Rewriter, RuleSet, first, some
from jax2onnx.optimize.queries import KNOWN, constant, dims, producer, scalar

RULES = RuleSet()
rewrites = RULES.rewrites

MAX_DEPTH = 5
"""How many nodes back signs are looked for."""

MAX_SIZE = 100_000
"""Larger arrays are not searched for signs."""

UNSIGNED = {"Abs", "Exp", "Sigmoid", "Softmax"}
"""Operators whose results have no sign."""

KEEPING = {*"Add Mul Div Sqrt Reciprocal ReduceSum ReduceMean".split()}
"""Operators whose results have no sign if their operands have none."""

MOVING = {*"Reshape Squeeze Unsqueeze Expand Transpose Slice Gather Identity".split()}
"""The same, of which only the first operand counts."""

ROOTS = {-0.5: ("Sqrt", "Reciprocal"), 0.5: ("Sqrt",)}
"""What a power is."""


def has_no_sign(value: ir.Value | None, depth: int = MAX_DEPTH) -> bool:
    """Is every number in `value` positive, 0.0 or NaN for certain?"""
    if value is None or value.dtype is None or not value.dtype.is_floating_point():
        return False
    if value.const_value is not None:
        array = constant(value) if value.const_value.size <= MAX_SIZE else None
        return array is not None and not np.signbit(array).any()
    node = value.producer()
    if node is None or depth == 0:
        return False
    if node.op_type in UNSIGNED or is_square(node):
        return True
    if node.op_type == "Add" and any(_is_positive(a) and _is_rectified(b) for a, b in _orders(node)):
        return True
    if node.op_type in ("ReduceSum", "ReduceMean", *MOVING):
        return has_no_sign(node.inputs[0], depth - 1)
    return node.op_type in KEEPING and all(has_no_sign(v, depth - 1) for v in node.inputs)


def is_square(node: ir.Node) -> bool:
    """Is something multiplied by itself?"""
    if node.op_type == "Pow":
        return scalar(node.inputs[1]) == 2
    return node.op_type == "Mul" and node.inputs[0] is node.inputs[1]


def _is_positive(value: ir.Value | None) -> bool:
    number = scalar(value)
    return number is not None and bool(number > 0)


def _is_rectified(value: ir.Value | None) -> bool:
    """Is it max(x, 0)? Which may be -0.0, but not together with something positive."""
    node = producer(value, "Relu", "Max")
    if node is None or node.op_type == "Relu":
        return node is not None
    return any(number is not None and number >= 0 for number in map(scalar, node.inputs))


def _orders(node: ir.Node) -> tuple[tuple[ir.Value | None, ir.Value | None], ...]:
    a, b = node.inputs
    return (a, b), (b, a)


@rewrites("Neg", given=first("Neg"))
def cancel_negations(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """-(-x) = x."""
    inner = producer(node.inputs[0], "Neg")
    return inner.inputs[0] if inner is not None else None


@rewrites("Add", given=some("Neg"))
def subtract_what_is_negated(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """x + (-y) = x - y."""
    for x, negated in _orders(node):
        negation = producer(negated, "Neg")
        if negation is not None and scalar(x) != 0:  # 0 + (-y) says that y is negated, and what of
            return r.op("Sub", x, negation.inputs[0], like=node.outputs[0])
    return None


@rewrites("Sub", given=lambda origins: origins[1] == "Neg")
def add_what_is_negated(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """x - (-y) = x + y."""
    negation = producer(node.inputs[1], "Neg")
    return r.op("Add", node.inputs[0], negation.inputs[0], like=node.outputs[0]) if negation is not None else None


@rewrites("Abs")
def skip_sign(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """|-x| = |0 - x| = |x|, and |x| = x if that has no sign."""
    x, y = node.inputs[0], node.outputs[0]
    if has_no_sign(x):
        return x
    inner = producer(x, "Neg", "Sub")
    if inner is None or (inner.op_type == "Sub" and (scalar(inner.inputs[0]) != 0 or dims(inner.inputs[1]) != dims(y))):  # type: ignore[arg-type]
        return None
    return r.op("Abs", inner.inputs[-1], like=y)


@rewrites("IsNaN", given=first("Neg", "Abs", "Sub"))
def nan_without_sign(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """-x, |x| and c - x are NaN where x is."""
    inner, y = producer(node.inputs[0], "Neg", "Abs", "Sub"), node.outputs[0]
    assert inner is not None
    x = inner.inputs[-1]
    number = scalar(inner.inputs[0]) if inner.op_type == "Sub" else 0
    if x is None or dims(x) != dims(y) or number is None or not np.isfinite(number):
        return None
    return r.op("IsNaN", x, like=y)


@rewrites("Mul", given=some("Abs"))
def square_without_sign(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """|x| * |x| = x * x."""
    magnitude = producer(node.inputs[0], "Abs")
    if magnitude is None or node.inputs[0] is not node.inputs[1]:
        return None
    return r.op("Mul", magnitude.inputs[0], magnitude.inputs[0], like=node.outputs[0])


@rewrites("Max", given=some("Neg"))
def recognise_magnitude(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """max(x, -x) = |x|."""
    for x, negated in _orders(node) if len(node.inputs) == 2 else ():
        negation = producer(negated, "Neg")
        if negation is not None and negation.inputs[0] is x:
            return r.op("Abs", x, like=node.outputs[0])
    return None


@rewrites("Pow", given=some(KNOWN))
def power_to_root(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """x ** 0.5 is the square root of x unless that is -0.0 or -inf; and ** -0.5 its reciprocal.

    ONNX Runtime takes seven times as long for Pow.
    """
    (x, exponent), y = node.inputs, node.outputs[0]
    number = scalar(exponent)
    steps = ROOTS.get(float(number)) if number is not None else None
    if steps is None or y.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE) or dims(x) != dims(y):  # type: ignore[arg-type]
        return None
    if not has_no_sign(x):
        return None
    for op_type in steps:
        x = r.op(op_type, x, like=y)
    return x
