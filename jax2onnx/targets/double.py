"""Elementary functions and activations in float64, from those that have a double kernel (Exp, Log, Sin, Cos, Sqrt).

Each is accurate to a few units in the last place, for tiny, huge, infinite and NaN arguments too. The rational
approximations (atan, expm1, erf) are those of the Cephes library.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from jax2onnx.targets.emitter import Emitter
from jax2onnx.targets.plans import expands

BOOL = ir.DataType.BOOL
TINY = 2.0**-27  # below, an odd function with slope one is its argument: x^3 is under half a unit in the last place
HUGE = 2.0**28  # above, 1 + x^2 is x^2

PI_HALVES = (
    1.57079632673412561417,
    6.07710050630396597660e-11,
    2.02226624879595063154e-21,
)  # 33 bits each, and the rest
TAN_P = (-1.30936939181383734205e4, 1.15351664838587416140e6, -1.79565251976484877988e7)
TAN_Q = (1.0, 1.36812963470692954678e4, -1.32089234440210967447e6, 2.50083801823357915839e7, -5.38695755929454629881e7)
ATAN_P = (
    -8.750608600031904122785e-1, -1.615753718733365076637e1, -7.500855792314704667340e1, -1.228866684490136173410e2,
    -6.485021904942025371773e1,
)  # fmt: skip
ATAN_Q = (
    1.0, 2.485846490142306297962e1, 1.650270098316988542046e2, 4.328810604912902668951e2, 4.853903996359136964868e2,
    1.945506571482613964425e2,
)  # fmt: skip
EXPM1_P = (1.2617719307481059087798e-4, 3.0299440770744196129956e-2, 9.9999999999999999991025e-1)
EXPM1_Q = (3.0019850513866445504159e-6, 2.5244834034968410419224e-3, 2.2726554820815502876593e-1, 2.0)
ERF_T = (
    9.60497373987051638749e0, 9.00260197203842689217e1, 2.23200534594684319226e3, 7.00332514112805075473e3,
    5.55923013010394962768e4,
)  # fmt: skip
ERF_U = (
    1.0, 3.35617141647503099647e1, 5.21357949780152679795e2, 4.59432382970980127987e3, 2.26290000613890934246e4,
    4.92673942608635921086e4,
)  # fmt: skip
ERFC_P = (
    2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687e0, 4.86371970985681366614e1,
    1.96520832956077098242e2, 5.26445194995477358631e2, 9.34528527171957607540e2, 1.02755188689515710272e3,
    5.57535335369399327526e2,
)  # fmt: skip
ERFC_Q = (
    1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2, 9.75708501743205489753e2,
    1.82390916687909736289e3, 2.24633760818710981792e3, 1.65666309194161350182e3, 5.57535340817727675546e2,
)  # fmt: skip


def polynomial(e: Emitter, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
    """The polynomial with these coefficients, the highest first."""
    first, second, *rest = coefficients
    result = e.Add(x, second) if first == 1.0 else e.Add(e.Mul(x, first), second)
    for c in rest:
        result = e.Add(e.Mul(result, x), c)
    return result


def select(e: Emitter, condition: ir.Value, a: ir.Value | float, b: ir.Value | float) -> ir.Value:
    """`a` where the condition holds, `b` elsewhere."""
    dtype = next(v.dtype for v in (a, b) if isinstance(v, ir.Value))
    a, b = (v if isinstance(v, ir.Value) else e.const(v, dtype) for v in (a, b))
    return e.Where(condition, a, b, dtype=dtype)


def less(e: Emitter, a: ir.Value, b: float) -> ir.Value:
    """Whether a < b (False for NaN)."""
    return e.Less(a, b, dtype=BOOL)


def greater(e: Emitter, a: ir.Value, b: float) -> ir.Value:
    """Whether a > b (False for NaN)."""
    return e.Greater(a, b, dtype=BOOL)


def with_sign(e: Emitter, x: ir.Value, of_size: ir.Value) -> ir.Value:
    """An odd function of x from its value at |x|, for x = -0.0 too (where x < 0 is false and Where drops the sign)."""
    inverse = e.Reciprocal(e.Max(x, -1e300))  # negative for -0.0 and all negative numbers, -inf too
    return e.Mul(of_size, select(e, less(e, inverse, 0.0), e.const(-1.0), 1.0))


def odd(e: Emitter, x: ir.Value, size: ir.Value, of_size: ir.Value) -> ir.Value:
    """An odd function with slope one at zero, from its value `of_size` at `size` = |x|."""
    return with_sign(e, x, select(e, less(e, size, TINY), size, of_size))


def atan_of_size(e: Emitter, a: ir.Value) -> ir.Value:
    """atan of a nonnegative number."""
    large, medium = greater(e, a, 2.41421356237309504880), greater(e, a, 0.66)
    reduced = select(e, medium, e.Div(e.Sub(a, 1.0), e.Add(a, 1.0)), a)
    t = select(e, large, e.Div(e.const(-1.0), a), reduced)
    start = select(e, large, e.const(math.pi / 2), select(e, medium, e.const(math.pi / 4), 0.0))
    rest = select(
        e, large, e.const(6.123233995736765886130e-17), select(e, medium, e.const(3.061616997868382943065e-17), 0.0)
    )
    z = e.Mul(t, t)
    ratio = e.Div(e.Mul(z, polynomial(e, z, ATAN_P)), polynomial(e, z, ATAN_Q))
    return e.Add(start, e.Add(e.Add(e.Mul(t, ratio), t), rest))


def expm1(e: Emitter, x: ir.Value) -> ir.Value:
    """exp(x) - 1 without cancellation."""
    xx = e.Mul(x, x)
    p = e.Mul(x, polynomial(e, xx, EXPM1_P))
    ratio = e.Div(p, e.Sub(polynomial(e, xx, EXPM1_Q), p))
    return select(e, greater(e, e.Abs(x), 0.5), e.Sub(e.Exp(x), 1.0), e.Add(ratio, ratio))


def log1p(e: Emitter, u: ir.Value) -> ir.Value:
    """log(1 + u) for u >= 0, with the rounding error of the sum made good."""
    w = e.Add(u, 1.0)
    correction = e.Div(e.Sub(u, e.Sub(w, 1.0)), w)
    return select(e, e.IsInf(w, dtype=BOOL), w, e.Add(e.Log(w), correction))


def softplus(e: Emitter, x: ir.Value) -> ir.Value:
    """log(1 + exp(x)) without overflow."""
    return e.Add(e.Max(x, 0.0), log1p(e, e.Exp(e.Neg(e.Abs(x)))))


def half_exp(e: Emitter, a: ir.Value) -> ir.Value:
    """exp(a) / 2, finite also where just exp(a) overflows."""
    root = e.Exp(e.Mul(a, 0.5))
    return e.Mul(e.Mul(root, 0.5), root)


# ------------------------------------------------------------------------------------------------ trigonometric


@expands("Tan")
def tan(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    # Sin and Cos have a small absolute, but no small relative error near their zeros. Only far out, where the reduction
    # by multiples of pi/2 in three parts runs out of digits, is their ratio the better answer.
    (x,) = e.operands
    a = e.Abs(x)
    n = e.Round(e.Mul(a, 2 / math.pi))
    r = a
    for part in PI_HALVES:
        r = e.Sub(r, e.Mul(n, part))
    z = e.Mul(r, r)
    ratio = e.Div(e.Mul(z, polynomial(e, z, TAN_P)), polynomial(e, z, TAN_Q))
    y = e.Add(r, e.Mul(r, ratio))
    is_even = e.Equal(e.Mul(e.Floor(e.Mul(n, 0.5)), 2.0), n, dtype=BOOL)
    near = select(e, is_even, y, e.Div(e.const(-1.0), y))
    return [with_sign(e, x, select(e, less(e, a, 2.0**20), near, e.Div(e.Sin(a), e.Cos(a))))]


@expands("Atan")
def atan(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    (x,) = e.operands
    a = e.Abs(x)
    return [odd(e, x, a, atan_of_size(e, a))]


@expands("Asin")
def asin(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    (x,) = e.operands
    a = e.Abs(x)
    one = e.const(1.0)
    tangent = e.Div(a, e.Sqrt(e.Mul(e.Sub(one, a), e.Add(a, 1.0))))
    return [odd(e, x, a, atan_of_size(e, tangent))]


@expands("Acos")
def acos(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    (x,) = e.operands
    half_tangent = e.Sqrt(e.Div(e.Sub(e.const(1.0), x), e.Add(x, 1.0)))
    return [e.Mul(atan_of_size(e, half_tangent), 2.0)]


# ------------------------------------------------------------------------------------------------ hyperbolic


@expands("Sinh")
def sinh(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    (x,) = e.operands
    a = e.Abs(x)
    t = expm1(e, a)
    small = e.Mul(e.Add(t, e.Div(t, e.Add(t, 1.0))), 0.5)
    return [odd(e, x, a, select(e, greater(e, a, 22.0), half_exp(e, a), small))]


@expands("Cosh")
def cosh(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    (x,) = e.operands
    a = e.Abs(x)
    exp = e.Exp(a)
    small = e.Mul(e.Add(exp, e.Reciprocal(exp)), 0.5)
    return [select(e, greater(e, a, 22.0), half_exp(e, a), small)]


@expands("Asinh")
def asinh(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    (x,) = e.operands
    a = e.Abs(x)
    square = e.Mul(a, a)
    small = log1p(e, e.Add(a, e.Div(square, e.Add(e.Sqrt(e.Add(square, 1.0)), 1.0))))
    large = e.Add(e.Log(a), math.log(2.0))
    return [odd(e, x, a, select(e, greater(e, a, HUGE), large, small))]


@expands("Acosh")
def acosh(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    (x,) = e.operands
    above = e.Sub(x, 1.0)
    small = log1p(e, e.Add(above, e.Sqrt(e.Mul(above, e.Add(x, 1.0)))))
    large = e.Add(e.Log(x), math.log(2.0))
    return [select(e, less(e, x, 1.0), math.nan, select(e, greater(e, x, HUGE), large, small))]


@expands("Atanh")
def atanh(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    (x,) = e.operands
    a = e.Abs(x)
    ratio = e.Mul(e.Div(a, e.Sub(e.const(1.0), a)), 2.0)
    return [odd(e, x, a, e.Mul(log1p(e, ratio), 0.5))]


# ------------------------------------------------------------------------------------------------ error function


@expands("Erf")
def erf(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    (x,) = e.operands
    a = e.Min(e.Abs(x), 6.0)  # erf(6) is 1
    z = e.Mul(a, a)
    small = e.Div(e.Mul(a, polynomial(e, z, ERF_T)), polynomial(e, z, ERF_U))
    erfc = e.Div(e.Mul(e.Exp(e.Neg(z)), polynomial(e, a, ERFC_P)), polynomial(e, a, ERFC_Q))
    return [with_sign(e, x, select(e, less(e, a, 1.0), small, e.Sub(e.const(1.0), erfc)))]


# ------------------------------------------------------------------------------------------------ activations


def attribute(node: ir.Node, name: str, default: float) -> float:
    """A float attribute of the node. ONNX keeps them, and their defaults, in single precision."""
    return float(np.float32(node.attributes.get_float(name, default)))


@expands("Gelu")
def gelu(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    (x,) = e.operands
    if node.attributes.get_string("approximate", "none") == "tanh":
        inner = e.Mul(e.Add(x, e.Mul(e.Mul(e.Mul(x, x), x), 0.044715)), math.sqrt(2 / math.pi))
        gate = e.Tanh(inner)
    else:
        gate = e.Erf(e.Mul(x, math.sqrt(0.5)))
    return [e.Mul(e.Mul(x, 0.5), e.Add(gate, 1.0))]


@expands("Softplus")
def softplus_(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    (x,) = e.operands
    return [softplus(e, x)]


@expands("Mish")
def mish(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    (x,) = e.operands
    return [e.Mul(x, e.Tanh(softplus(e, x)))]


@expands("Elu")
def elu(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    (x,) = e.operands
    return [select(e, less(e, x, 0.0), e.Mul(expm1(e, x), attribute(node, "alpha", 1.0)), x)]


@expands("Selu")
def selu(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    (x,) = e.operands
    alpha, gamma = (
        attribute(node, "alpha", 1.67326319217681884765625),
        attribute(node, "gamma", 1.05070102214813232421875),
    )
    return [e.Mul(select(e, less(e, x, 0.0), e.Mul(expm1(e, x), alpha), x), gamma)]


@expands("LeakyRelu")
def leaky_relu(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    (x,) = e.operands
    return [select(e, less(e, x, 0.0), e.Mul(x, attribute(node, "alpha", 0.01)), x)]


@expands("Swish", "f32 f64 f16 bf16")
def swish(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    (x,) = e.operands
    wide = ir.DataType.DOUBLE if e.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    x = e.cast(x, wide)
    alpha = attribute(node, "alpha", 1.0)
    return [e.cast(e.Mul(x, e.Sigmoid(x if alpha == 1.0 else e.Mul(x, alpha))), e.dtype)]


@expands("HardSigmoid")
def hard_sigmoid(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    (x,) = e.operands
    line = e.Add(e.Mul(x, attribute(node, "alpha", 0.2)), attribute(node, "beta", 0.5))
    return [e.Max(e.Min(line, 1.0), 0.0)]


@expands("HardSwish")
def hard_swish(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    (x,) = e.operands
    return [e.Mul(x, e.Max(e.Min(e.Div(e.Add(x, 3.0), 6.0), 1.0), 0.0))]


@expands("Softsign")
def softsign(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    (x,) = e.operands
    return [e.Div(x, e.Add(e.Abs(x), 1.0))]


@expands("ThresholdedRelu")
def thresholded_relu(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    (x,) = e.operands
    return [select(e, greater(e, x, attribute(node, "alpha", 1.0)), x, 0.0)]


@expands("Mean")
def mean(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    return [e.Div(e.Sum(*e.operands), float(len(e.operands)))]
