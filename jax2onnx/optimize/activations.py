"""Activation functions, recognised by their maths: Relu, Clip, Gelu, Softplus, Elu and relatives."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from jax2onnx.optimize.engine import Rewriter, RuleSet, first, some
from jax2onnx.optimize.queries import SPLATS, dims, has_many, is_zero, only_user, producer, scalar, splat

RULES = RuleSet()
rewrites = RULES.rewrites

RELU_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16)
GELU_OPSET, MISH_OPSET, SWISH_OPSET = 20, 18, 24


def operand_and_scalar(node: ir.Node | None) -> tuple[ir.Value, Any] | None:
    """(x, c) if one operand of a commutative node is the same constant everywhere and the other is not."""
    if node is None or len(node.inputs) != 2:
        return None
    for i in (0, 1):
        c, x = splat(node.inputs[i]), node.inputs[1 - i]
        if c is not None and x is not None and dims(x) == dims(node.outputs[0]):
            return x, c
    return None


def factors(
    value: ir.Value | None, x: ir.Value | None = None, depth: int = 5, *, keep_shared: bool = False
) -> tuple[list[ir.Value], float]:
    """A product as its factors that vary, and the product of its constant ones (divisors included).

    What a formula is about may be a product itself: `x` is taken as one factor, and so is all that is used more than
    once, if that is to be kept. No deeper than any formula is: a power by repeated squaring has more factors than can
    be counted.
    """
    node = producer(value, "Mul", "Div", "Neg") if depth and value is not x else None
    if node is None or value is None:
        return ([value], 1.0) if value is not None else ([], 1.0)

    def inside(side: ir.Value) -> tuple[list[ir.Value], float]:
        if keep_shared and len(side.uses()) > 1:
            return [side], 1.0
        return factors(side, x, depth - 1, keep_shared=keep_shared)

    left, right = node.inputs[0], node.inputs[-1]
    assert left is not None and right is not None
    if node.op_type == "Neg":
        varying, constant = inside(left)
        return varying, -constant
    if node.op_type == "Div":
        divisor = splat(right)
        if divisor is None or divisor == 0:
            return [value], 1.0
        varying, constant = inside(left)
        return varying, constant / float(divisor)
    varying, constant = [], 1.0
    for side in (left, right):
        c = splat(side)
        if c is not None:
            constant *= float(c)
        else:
            inner, inner_constant = inside(side)
            varying += inner
            constant *= inner_constant
    return varying, constant


def is_close(a: float, b: float, like: ir.Value) -> bool:
    """Equal up to the rounding of a constant of the dtype of `like` (in less precise ones, JAX computes in float32)."""
    return math.isclose(a, b, rel_tol=1e-15 if like.dtype == ir.DataType.DOUBLE else 2e-7)


@rewrites("Max", given=some(*SPLATS))
def recognise_relu(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """max(x, 0)."""
    found = operand_and_scalar(node)
    if found is None or not is_zero(found[1]) or node.outputs[0].dtype not in RELU_TYPES:
        return None
    return r.op("Relu", found[0], like=node.outputs[0])


@rewrites("Mul", "Div", given=some("Add", "erfc", "Mul", "Div", "Neg"), needs=("Erf", "Tanh", "erfc"))
def recognise_gelu(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """x * 0.5 * (1 + tanh(0.798 * (x + 0.0447 * x**3))), or x * 0.5 * (1 + erf(x / sqrt 2)), or with erfc."""
    if r.opset < GELU_OPSET:
        return None
    y = node.outputs[0]
    for keep_shared in (False, True):
        varying, constant = factors(y, keep_shared=keep_shared)
        for x, gate in (varying, varying[::-1]) if len(varying) == 2 else ():
            kind, weight = _gelu_gate(x, gate)
            if kind is not None and dims(x) == dims(y) and is_close(constant * weight, 0.5, y):
                return r.op("Gelu", x, like=y, approximate=kind)
    return None


def _gelu_gate(x: ir.Value, gate: ir.Value) -> tuple[str | None, float]:
    """Which kind of Gelu x times the gate is, and the factor in the gate, as in 1 + erf(...), 0.5 + 0.5 * tanh(...)."""
    complement = producer(gate, "erfc")
    if complement is not None:
        varying, constant = factors(complement.inputs[0], x)
        return ("none", 1.0) if varying == [x] and is_close(constant, -math.sqrt(0.5), x) else (None, 0.0)
    one_more = operand_and_scalar(producer(gate, "Add"))
    functions, weight = factors(one_more[0]) if one_more is not None else ([], 0.0)
    if one_more is None or len(functions) != 1 or one_more[1] != weight:
        return None, 0.0
    error, tangent = producer(functions[0], "Erf"), producer(functions[0], "Tanh")
    if error is not None:
        varying, constant = factors(error.inputs[0], x)
        return ("none" if varying == [x] and is_close(constant, math.sqrt(0.5), x) else None), weight
    return ("tanh" if tangent is not None and _is_gelu_cubic(x, tangent.inputs[0]) else None), weight


def _is_gelu_cubic(x: ir.Value, value: ir.Value | None) -> bool:
    """Is it 0.798 * (x + 0.0447 * x**3), or 0.798 * x * (1 + 0.0447 * x**2)?"""
    varying, constant = factors(value, x)
    if len(varying) not in (1, 2) or not is_close(constant, math.sqrt(2 / math.pi), x):
        return False
    if len(varying) == 2:
        for a, b in (varying, varying[::-1]):
            one_more = operand_and_scalar(producer(b, "Add"))
            if a is x and one_more is not None and one_more[1] == 1:
                square, weight = factors(one_more[0], x)
                return is_close(weight, 0.044715, x) and square == [x, x]
        return False
    inner = producer(varying[0], "Add")
    for a, cubic in (inner.inputs, inner.inputs[::-1]) if inner is not None else ():
        if a is x:
            cube, weight = factors(cubic, x)
            if is_close(weight, 0.044715, x) and _is_cube(cube, x):
                return True
    return False


def _is_cube(cube: list[ir.Value], x: ir.Value) -> bool:
    if len(cube) == 1:
        power = producer(cube[0], "Pow")
        return power is not None and power.inputs[0] is x and scalar(power.inputs[1]) == 3
    return len(cube) == 3 and all(v is x for v in cube)


@rewrites("Where", given=first("IsNaN", "Not"))
def recognise_softplus(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """max(x, 0) + log1p(exp(-|x|)), guarded against NaN as `jnp.logaddexp` does it.

    For many elements the operator takes more than twice the time of the formula, which needs no guard.
    """
    condition, on_nan, value = node.inputs
    guard = producer(condition, "IsNaN", "Not")
    if guard is None:
        return None
    if guard.op_type == "Not":
        same = producer(guard.inputs[0], "Equal")
        if same is None or same.inputs[0] is not same.inputs[1]:
            return None
        checked = same.inputs[0]
    else:
        checked = guard.inputs[0]
    x = _softplus_operand(value)
    if x is None or _without_sign(checked) is not _without_sign(x):
        return None
    moved = operand_and_scalar(producer(on_nan, "Add"))
    if _without_sign(on_nan if moved is None else moved[0]) is not _without_sign(x):
        return None  # something else than NaN
    y = node.outputs[0]
    return r.op("Softplus", x, like=y) if not has_many(x) else _softplus(r, x, y)


@rewrites("Add", given=some("Relu"))
def recognise_unguarded_softplus(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """max(x, 0) + log1p(exp(-|x|))."""
    y = node.outputs[0]
    x, guard = _softplus_operand(y), only_user(y)
    if x is None or (guard is not None and guard.op_type == "Where" and producer(guard.inputs[0], "IsNaN", "Not")):
        return None
    return r.op("Softplus", x, like=y) if not has_many(x) else _softplus(r, x, y)


def _softplus(r: Rewriter, x: ir.Value, y: ir.Value) -> ir.Value:
    """max(x, 0) + log(1 + t) with t = exp(-|x|), where what rounding takes from u = 1 + t is added to log(u)."""
    assert y.dtype is not None
    one = r.const(1, y.dtype.numpy())
    t = r.op("Exp", r.op("Neg", r.op("Abs", x, like=y), like=y), like=y)
    u = r.op("Add", t, one, like=y)
    lost = r.op("Sub", t, r.op("Sub", u, one, like=y), like=y)
    logarithm = r.op("Add", r.op("Log", u, like=y), r.op("Div", lost, u, like=y), like=y)
    return r.op("Add", r.op("Relu", x, like=y), logarithm, like=y)


def _softplus_operand(value: ir.Value | None) -> ir.Value | None:
    total = producer(value, "Add")
    if total is None:
        return None
    for positive, rest in (tuple(total.inputs), tuple(total.inputs)[::-1]):
        relu, log = producer(positive, "Relu"), producer(rest, "log1p")
        exponential = producer(log.inputs[0], "Exp") if log is not None else None
        negative = producer(exponential.inputs[0], "Neg") if exponential is not None else None
        magnitude = producer(negative.inputs[0], "Abs") if negative is not None else None
        if relu is None or magnitude is None:
            continue
        if _without_sign(magnitude.inputs[0]) is _without_sign(relu.inputs[0]):
            return relu.inputs[0]
    return None


def _without_sign(value: ir.Value | None) -> ir.Value | None:
    negation = producer(value, "Neg")
    return negation.inputs[0] if negation is not None else value


COMPARISONS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")


class Cases(NamedTuple):
    """x where it is positive, something else where it is negative."""

    x: ir.Value
    negative: ir.Value
    comparison: str


def by_sign(node: ir.Node) -> Cases | None:
    """What a Where chooses by the sign of a value, if that is the value itself where it is positive."""
    condition, a, b = node.inputs
    compared = producer(condition, *COMPARISONS)
    if compared is None or a is None or b is None or scalar(compared.inputs[1]) != 0:
        return None
    x, negative = (a, b) if compared.op_type.startswith("Greater") else (b, a)
    if compared.inputs[0] is not x or dims(x) != dims(node.outputs[0]):  # a factor may have more axes
        return None
    return Cases(x, negative, compared.op_type)


@rewrites("Where", given=first("Less", "LessOrEqual"))
def recognise_relu_by_cases(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """0 where x < 0, x elsewhere. (The other way round, NaN would become 0.)"""
    found = by_sign(node)
    if found is None or not is_zero(splat(found.negative)) or node.outputs[0].dtype not in RELU_TYPES:
        return None
    return r.op("Relu", found.x, like=node.outputs[0])


@rewrites("Where", given=first(*COMPARISONS))
def recognise_elu(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """x where x > 0, alpha * expm1(x) elsewhere; with expm1(x / alpha), it is Celu."""
    found, y = by_sign(node), node.outputs[0]
    varying, alpha = factors(found.negative, found.x) if found is not None else ([], 0.0)
    argument = _grown(varying[0]) if len(varying) == 1 else None
    if found is None or argument is None or not 0 < alpha < math.inf or float(np.float32(alpha)) != alpha:
        return None
    attribute = None if alpha == 1 else alpha
    if _where_negative(argument, node) is found.x:
        return r.op("Elu", found.x, like=y, alpha=attribute)
    inner, slope = factors(argument, found.x)
    if inner != [found.x] or not is_close(alpha * slope, 1.0, y) or y.dtype != ir.DataType.FLOAT:
        return None
    return r.op("Celu", found.x, like=y, alpha=attribute)


def _grown(value: ir.Value) -> ir.Value | None:
    """t if `value` is expm1(t), or exp(t) - 1, as ONNX Runtime has it; of many, that is faster than the operator."""
    node = producer(value, "expm1", "Sub")
    if node is None or node.op_type == "expm1":
        return node.inputs[0] if node is not None else None
    exponential = producer(node.inputs[0], "Exp")
    if exponential is None or splat(node.inputs[1]) != 1 or value.dtype != ir.DataType.FLOAT or has_many(value):
        return None
    return exponential.inputs[0]


def _where_negative(value: ir.Value | None, cases: ir.Node) -> ir.Value | None:
    """`value` without what is done to it only where nobody looks: min(x, 0), or 0 where x is positive."""
    lowered = operand_and_scalar(producer(value, "Min"))
    if lowered is not None and lowered[1] == 0:
        return lowered[0]
    inner = producer(value, "Where")
    if inner is None or inner.inputs[0] is not cases.inputs[0]:
        return value
    _, a, b = inner.inputs
    compared = producer(cases.inputs[0], *COMPARISONS)
    positive, negative = (a, b) if compared is not None and compared.op_type.startswith("Greater") else (b, a)
    return negative if splat(positive) == 0 else value


@rewrites("Where", given=first(*COMPARISONS))
def recognise_leaky_relu(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """x where x >= 0, alpha * x elsewhere."""
    found = by_sign(node)
    varying, alpha = factors(found.negative, found.x) if found is not None else ([], 0.0)
    if found is None or varying != [found.x] or float(np.float32(alpha)) != alpha or found.x.dtype not in RELU_TYPES:
        return None
    if found.comparison in ("Greater", "LessOrEqual") and not 0 <= alpha < math.inf:  # 0 becomes -0.0, or NaN
        return None
    return r.op("LeakyRelu", found.x, like=node.outputs[0], alpha=alpha)


@rewrites("Max", given=some("Mul"))
def recognise_leaky_relu_by_maximum(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """max(x, alpha * x)."""
    for x, lower in (node.inputs, node.inputs[::-1]) if len(node.inputs) == 2 else ():
        varying, alpha = factors(lower, x)
        if x is None or varying != [x] or not 0 < alpha < 1 or x.dtype not in RELU_TYPES:
            continue
        if float(np.float32(alpha)) == alpha and dims(x) == dims(node.outputs[0]):
            return r.op("LeakyRelu", x, like=node.outputs[0], alpha=alpha)
    return None


@rewrites("Mul", given=some("Tanh"))
def recognise_mish(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """x * tanh(softplus(x)). There log1p(exp(x)) is as good: where exp(x) is inf, its tangent is 1, too."""
    if r.opset < MISH_OPSET:
        return None
    for x, gate in (tuple(node.inputs), tuple(node.inputs)[::-1]):
        tangent = producer(gate, "Tanh")
        softplus = producer(tangent.inputs[0], "Softplus", "log1p") if tangent is not None else None
        argument = softplus.inputs[0] if softplus is not None else None
        if softplus is not None and softplus.op_type == "log1p":
            exponential = producer(argument, "Exp")
            argument = exponential.inputs[0] if exponential is not None and x is not None and not has_many(x) else None
        if argument is not None and argument is x:
            return r.op("Mish", x, like=node.outputs[0])
    return None


@rewrites("Mul", given=some("Elu"))
def recognise_selu(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """gamma * elu(x)."""
    found = operand_and_scalar(node)
    elu = producer(found[0], "Elu") if found is not None else None
    if found is None or elu is None or node.outputs[0].dtype != ir.DataType.FLOAT or found[1] <= 1:
        return None
    alpha = elu.attributes.get_float("alpha", 1.0)
    return r.op("Selu", elu.inputs[0], like=node.outputs[0], alpha=alpha, gamma=float(found[1]))


@rewrites("Add", given=some("Relu"))
def recognise_celu(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """max(x, 0) + alpha * expm1(min(x, 0) / alpha)."""
    for positive, negative in (tuple(node.inputs), tuple(node.inputs)[::-1]):
        relu = producer(positive, "Relu")
        varying, alpha = factors(negative)
        grown = producer(varying[0], "expm1") if len(varying) == 1 else None
        if relu is None or grown is None or node.outputs[0].dtype != ir.DataType.FLOAT:
            continue
        inner, slope = factors(grown.inputs[0])
        below = operand_and_scalar(producer(inner[0], "Min")) if len(inner) == 1 else None
        if (
            below is None
            or below[1] != 0
            or below[0] is not relu.inputs[0]
            or not is_close(alpha * slope, 1.0, below[0])
        ):
            continue
        if alpha > 0 and float(np.float32(alpha)) == alpha and dims(below[0]) == dims(node.outputs[0]):
            return r.op("Celu", below[0], like=node.outputs[0], alpha=None if alpha == 1 else alpha)
    return None


@rewrites("Div", given=some("Add"), needs=("Abs",))
def recognise_softsign(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """x / (|x| + 1)."""
    x = node.inputs[0]
    found = operand_and_scalar(producer(node.inputs[1], "Add"))
    magnitude = producer(found[0], "Abs") if found is not None and found[1] == 1 else None
    if x is None or magnitude is None or magnitude.inputs[0] is not x or node.outputs[0].dtype != ir.DataType.FLOAT:
        return None
    return r.op("Softsign", x, like=node.outputs[0])
