"""Activation functions, recognised by their maths: Relu, Clip, Gelu, Softplus, Elu and relatives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from jax2onnx.optimize.engine import Rewriter, RuleSet, first, some
from jax2onnx.optimize.queries import SPLATS, dims, has_many, is_zero, producer, scalar, splat

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


def factors(value: ir.Value | None, depth: int = 5) -> tuple[list[ir.Value], float]:
    """A product as its factors that vary, and the product of its constant ones (divisors included).

    No deeper than any formula is: a power by repeated squaring has more factors than can be counted.
    """
    node = producer(value, "Mul", "Div", "Neg") if depth else None
    if node is None or value is None:
        return ([value], 1.0) if value is not None else ([], 1.0)
    if node.op_type == "Neg":
        varying, constant = factors(node.inputs[0], depth - 1)
        return varying, -constant
    left, right = node.inputs
    assert left is not None and right is not None
    if node.op_type == "Div":
        divisor = splat(right)
        if divisor is None or divisor == 0:
            return [value], 1.0
        varying, constant = factors(left, depth - 1)
        return varying, constant / float(divisor)
    varying, constant = [], 1.0
    for side in (left, right):
        c = splat(side)
        if c is not None:
            constant *= float(c)
        else:
            inner, inner_constant = factors(side, depth - 1)
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


@rewrites("Mul", given=some("Add", "erfc", "Mul", "Div", "Neg"), needs=("Erf", "Tanh", "erfc"))
def recognise_gelu(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """x * 0.5 * (1 + tanh(0.798 * (x + 0.0447 * x**3))), or x * 0.5 * (1 + erf(x / sqrt 2)), or with erfc."""
    if r.opset < GELU_OPSET or _feeds_product(node):
        return None
    varying, constant = factors(node.outputs[0])
    if len(varying) != 2 or not is_close(constant, 0.5, node.outputs[0]):
        return None
    for x, gate in (varying, varying[::-1]):
        kind = _gelu_gate(x, gate)
        if kind is not None:
            return r.op("Gelu", x, like=node.outputs[0], approximate=kind)
    return None


def _feeds_product(node: ir.Node) -> bool:
    """Is the result only a factor of a larger product, which will be looked at as a whole?"""
    y = node.outputs[0]
    uses = y.uses()
    return len(uses) == 1 and not y.is_graph_output() and next(iter(uses)).node.op_type == "Mul"


def _gelu_gate(x: ir.Value, gate: ir.Value) -> str | None:
    complement = producer(gate, "erfc")
    if complement is not None:
        varying, constant = factors(complement.inputs[0])
        return "none" if varying == [x] and is_close(constant, -math.sqrt(0.5), x) else None
    one_more = operand_and_scalar(producer(gate, "Add"))
    if one_more is None or one_more[1] != 1:
        return None
    error = producer(one_more[0], "Erf")
    if error is not None:
        varying, constant = factors(error.inputs[0])
        return "none" if varying == [x] and is_close(constant, math.sqrt(0.5), x) else None
    tangent = producer(one_more[0], "Tanh")
    if tangent is None:
        return None
    varying, constant = factors(tangent.inputs[0])
    if len(varying) != 1 or not is_close(constant, math.sqrt(2 / math.pi), x):
        return None
    inner = producer(varying[0], "Add")
    if inner is None:
        return None
    for a, cubic in (tuple(inner.inputs), tuple(inner.inputs)[::-1]):
        if a is x:
            cube, weight = factors(cubic)
            if is_close(weight, 0.044715, x) and _is_cube(cube, x):
                return "tanh"
    return None


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
    if x is None or checked is not x:
        return None
    if on_nan is not x and operand_and_scalar(producer(on_nan, "Add")) not in ((x, 0), None):
        return None
    y = node.outputs[0]
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
        if relu is not None and magnitude is not None and magnitude.inputs[0] is relu.inputs[0]:
            return relu.inputs[0]
    return None


@rewrites("Where", given=first("Greater"))
def recognise_elu(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """x where x > 0, alpha * expm1(x) elsewhere."""
    condition, x, negative = node.inputs
    above = producer(condition, "Greater")
    if above is None or x is None or above.inputs[0] is not x or scalar(above.inputs[1]) != 0:
        return None
    varying, alpha = factors(negative)
    grown = producer(varying[0], "expm1") if len(varying) == 1 else None
    if grown is None or alpha <= 0:
        return None
    argument = grown.inputs[0]
    inner = producer(argument, "Where")
    if inner is not None and inner.inputs[0] is condition and splat(inner.inputs[1]) == 0:
        argument = inner.inputs[2]
    if argument is not x or float(np.float32(alpha)) != alpha:
        return None
    return r.op("Elu", x, like=node.outputs[0], alpha=None if alpha == 1 else alpha)


@rewrites("Where", given=first("Greater", "GreaterOrEqual"))
def recognise_leaky_relu(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """x where x >= 0, alpha * x elsewhere."""
    condition, x, negative = node.inputs
    above = producer(condition, "Greater", "GreaterOrEqual")
    if above is None or x is None or above.inputs[0] is not x or scalar(above.inputs[1]) != 0:
        return None
    varying, alpha = factors(negative)
    if varying != [x] or float(np.float32(alpha)) != alpha or x.dtype not in RELU_TYPES:
        return None
    if above.op_type == "Greater" and alpha < 0:  # 0 becomes -0.0
        return None
    return r.op("LeakyRelu", x, like=node.outputs[0], alpha=alpha)


@rewrites("Mul", given=some("Tanh"))
def recognise_mish(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """x * tanh(softplus(x))."""
    if r.opset < MISH_OPSET:
        return None
    for x, gate in (tuple(node.inputs), tuple(node.inputs)[::-1]):
        tangent = producer(gate, "Tanh")
        softplus = producer(tangent.inputs[0], "Softplus") if tangent is not None else None
        if softplus is not None and softplus.inputs[0] is x:
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
        if alpha > 0 and float(np.float32(alpha)) == alpha:
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
