"""Distribution functions, recognised by their maths: the logistic one (Sigmoid) and the normal one (erfc).

Sigmoid is written out again where its kernel is not exact enough.
"""

from __future__ import annotations

import onnx_ir as ir

from jax2onnx.optimize.activations import COMPARISONS, operand_and_scalar
from jax2onnx.optimize.engine import Rewriter, RuleSet, first, some
from jax2onnx.optimize.queries import constant, dims, producer, scalar, splat
from jax2onnx.optimize.simplify import RESHAPES

RULES = RuleSet()
LAST = RuleSet()
"""For the end: what it writes would be recognised."""

TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""In half precision, exp(-x) is infinite from -11 on, where a sigmoid is not 0 yet."""


@RULES.rewrites("Div", "Reciprocal", given=some("Add"))
def recognise_sigmoid(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """1 / (1 + exp(-x)), and x / (1 + exp(-x)), which is x times that: NaN at -inf, both."""
    y = node.outputs[0]
    exponent = _one_and_exponential(node.inputs[-1])
    negation = producer(exponent, "Neg")
    x = negation.inputs[0] if negation is not None else None
    if x is None or y.dtype not in TYPES or dims(x) != dims(y):
        return None
    if node.op_type == "Div" and node.inputs[0] is x:
        return r.op("Mul", x, r.op("Sigmoid", x, like=y), like=y)
    return r.op("Sigmoid", x, like=y) if node.op_type == "Reciprocal" or splat(node.inputs[0]) == 1 else None


def _one_and_exponential(value: ir.Value | None) -> ir.Value | None:
    """t if `value` is 1 + exp(t)."""
    found = operand_and_scalar(producer(value, "Add"))
    exponential = producer(found[0], "Exp") if found is not None and found[1] == 1 else None
    return exponential.inputs[0] if exponential is not None else None


@RULES.rewrites("Where", given=first(*COMPARISONS))
def recognise_sigmoid_by_cases(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """1 / (1 + exp(-x)) where x >= 0, exp(x) / (1 + exp(x)) elsewhere, or with |x| in place of x or of -x."""
    condition, a, b = node.inputs
    compared = producer(condition, *COMPARISONS)
    if compared is None or scalar(compared.inputs[1]) != 0:
        return None
    positive, negative = (a, b) if compared.op_type.startswith("Greater") else (b, a)
    x, sigmoid, quotient = compared.inputs[0], producer(positive, "Sigmoid"), producer(negative, "Div")
    exponential = producer(quotient.inputs[0], "Exp") if quotient is not None else None
    if sigmoid is None or quotient is None or exponential is None or not _is_or_magnitude(sigmoid.inputs[0], x):
        return None
    exponent = exponential.inputs[0]
    negation = producer(exponent, "Neg")
    is_same = exponent is x or (negation is not None and _is_or_magnitude(negation.inputs[0], x, strict=True))
    if not is_same or _one_and_exponential(quotient.inputs[1]) is not exponent:
        return None
    return r.op("Sigmoid", x, like=node.outputs[0])


def _is_or_magnitude(value: ir.Value | None, x: ir.Value | None, *, strict: bool = False) -> bool:
    """Is it |x|, or x itself, unless that would be `strict`ly wrong?"""
    magnitude = producer(value, "Abs")
    return (value is x and not strict) or (magnitude is not None and magnitude.inputs[0] is x)


@RULES.rewrites("Where", given=some("Add"))
def recognise_complement_by_cases(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """1 + erf(x) where |x| is small, 2 - erfc(|x|) where x is positive, erfc(|x|) elsewhere: erfc(-x)."""
    condition, middle, ends = node.inputs
    small, outer, y = producer(condition, "Less"), producer(ends, "Where"), node.outputs[0]
    error = operand_and_scalar(producer(middle, "Add"))
    erf = producer(error[0], "Erf") if error is not None and error[1] == 1 else None
    x = erf.inputs[0] if erf is not None else None
    if small is None or outer is None or x is None or dims(x) != dims(y):
        return None
    is_positive, upper, lower = producer(outer.inputs[0], "Greater"), producer(outer.inputs[1], "Sub"), outer.inputs[2]
    complement, limit = producer(lower, "erfc"), scalar(small.inputs[1])
    if is_positive is None or upper is None or complement is None or limit is None or not 0 <= limit <= 1:
        return None
    if is_positive.inputs[0] is not x or scalar(is_positive.inputs[1]) != 0:
        return None
    if splat(upper.inputs[0]) != 2 or upper.inputs[1] is not lower or complement.inputs[0] is not small.inputs[0]:
        return None
    if not _is_or_magnitude(small.inputs[0], x, strict=True):
        return None
    result = r.op("erfc", r.op("Neg", x, like=y), like=y)
    made = result.producer()
    assert made is not None
    made.domain = complement.domain
    made.meta.update(complement.meta)
    return result


MAGNIFIERS = {"Log", "Sqrt", "Reciprocal", "Pow"}
"""Operators whose result depends on how small a small number is."""

CARRIERS = {*RESHAPES, *"Add Sub Mul Neg Abs Max Min Clip Where Transpose Slice Gather Concat Expand Identity".split()}
"""Operators behind which it may still be small."""

LARGE, SMALL = 1000, 1e-6
"""What small numbers are large after multiplying by, and what they are told from by comparing with it."""

MAX_CARRIED = 4
"""How many of them are looked through."""


def _is_magnified(small: ir.Value, steps: int = MAX_CARRIED) -> bool:
    """May it matter how small a value is?"""
    for node, operand in small.uses():
        if node.op_type in MAGNIFIERS or (node.op_type == "Div" and operand == 1) or _makes_large(node, operand):
            return True
        if node.op_type == "Div" and steps == MAX_CARRIED and constant(node.inputs[1]) is None:
            return True
        if steps and node.op_type in CARRIERS and _is_magnified(node.outputs[0], steps - 1):
            return True
    return False


def _makes_large(node: ir.Node, operand: int) -> bool:
    """Does a node multiply by a large number, or compare with a very small one?"""
    number = splat(node.inputs[1 - operand]) if node.op_type in ("Mul", "Div", "Equal", *COMPARISONS) else None
    if number is None:
        return False
    if node.op_type in ("Mul", "Div"):
        return bool(abs(number) >= LARGE if node.op_type == "Mul" else abs(number) <= 1 / LARGE)
    return bool(abs(number) <= SMALL)


@LAST.rewrites("Sigmoid")
def sigmoid_of_very_negative_numbers(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """ONNX Runtime's Sigmoid of float32 is right up to 1e-7, which is 0 from -18 on, that of float64 up to 1e-16, from
    -37 on. Where that matters, as in log(sigmoid(x) + 1e-12), the formula itself is better."""
    x, y = node.inputs[0], node.outputs[0]
    if x is None or y.dtype not in TYPES or not _is_magnified(y):
        return None
    one = r.const(1, y.dtype.numpy())
    return r.op("Div", one, r.op("Add", one, r.op("Exp", r.op("Neg", x, like=y), like=y), like=y), like=y)
