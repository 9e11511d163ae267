"""Arithmetic, comparison, logic and selection, element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from jax import lax
from jax.extend.core import Literal

from jax2onnx import compat
from jax2onnx.lower.context import Builder, Val
from jax2onnx.lower.dtypes import BOOL, is_float, is_unsigned
from jax2onnx.lower.interleave import interleaved
from jax2onnx.lower.registry import lower_one_to_one, lowers

lower_one_to_one(
    {
        lax.sin_p: "Sin",
        lax.cos_p: "Cos",
        lax.tan_p: "Tan",
        lax.asin_p: "Asin",
        lax.acos_p: "Acos",
        lax.atan_p: "Atan",
        lax.sinh_p: "Sinh",
        lax.cosh_p: "Cosh",
        lax.tanh_p: "Tanh",
        lax.asinh_p: "Asinh",
        lax.acosh_p: "Acosh",
        lax.atanh_p: "Atanh",
        lax.exp_p: "Exp",
        lax.log_p: "Log",
        lax.sqrt_p: "Sqrt",
        lax.erf_p: "Erf",
        lax.logistic_p: "Sigmoid",
        lax.floor_p: "Floor",
        lax.ceil_p: "Ceil",
        lax.sub_p: "Sub",
    }
)


@lowers(lax.add_p, compat.kinds.add_any_p)
def add(g: Builder, x: Val, y: Val, **_: Any) -> Val:
    """A sum; one of arrays that have zeros in different places joins them. As in XLA, -0.0 + 0.0 is -0.0 where the
    second is a number in the program."""
    for written, other in zip(g.eqn.invars, (y, x), strict=True):
        is_zero = isinstance(written, Literal) and np.ndim(written.val) == 0 and written.val == 0
        if is_zero and other.shape == g.eqn.outvars[0].aval.shape:
            return other
    joined = interleaved(g, x, y)
    return g.Add(x, y) if joined is None else joined


CHOOSING = frozenset(map(np.dtype, (np.float16, np.float32, np.float64)))


@lowers(lax.mul_p)
def mul(g: Builder, x: Val, y: Val, **_: Any) -> Val:
    """A product; one with a condition chooses, as in XLA: (x > 0) * log(x) is 0 where the logarithm is NaN.

    XLA does that where the condition is converted and multiplied directly, and not in bfloat16.
    """
    for factor, other in ((x, y), (y, x)):
        if factor.home is g and factor.shape == g.eqn.outvars[0].aval.shape and factor.dtype in CHOOSING:
            cast = factor.value.producer()
            if cast is not None and cast.op_type == "Cast" and cast.inputs[0].dtype == ir.DataType.BOOL:
                condition = Val(cast.inputs[0], factor.shape, BOOL, g)
                return g.Where(condition, other, np.zeros((), other.dtype))
    return g.Mul(x, y)


@lowers(
    lax.copy_p,
    lax.stop_gradient_p,
    lax.optimization_barrier_p,
    *compat.kinds.primitives("name", "pvary", "sharding_constraint", "copy_to_host", "stage"),
)
def same(g: Builder, *xs: Val, **_: Any) -> list[Val]:
    """What only matters to autodiff or to XLA passes its operands on."""
    return list(xs)


@lowers(lax.neg_p)
def neg(g: Builder, x: Val) -> Val:
    """ONNX has no negation of unsigned integers; in JAX it wraps around."""
    return g.Sub(np.zeros((), x.dtype), x, out=(x.shape, x.dtype)) if is_unsigned(x.dtype) else g.Neg(x)


@lowers(lax.abs_p)
def abs_(g: Builder, x: Val) -> Val:
    """The absolute value; an unsigned integer is its own."""
    return x if is_unsigned(x.dtype) else g.Abs(x)


@lowers(lax.sign_p)
def sign(g: Builder, x: Val) -> Val:
    """JAX keeps NaN and the sign of zero, which ONNX leaves open."""
    if not is_float(x.dtype):
        return g.Sign(x)
    is_kept = g.Not(g.Greater(g.Abs(x), 0.0))  # zeros and NaN
    return g.Where(is_kept, x, g.Sign(x))


@lowers(lax.square_p)
def square(g: Builder, x: Val) -> Val:
    """x * x."""
    return g.Mul(x, x)


@lowers(lax.rsqrt_p)
def rsqrt(g: Builder, x: Val, **_: Any) -> Val:
    """1 / sqrt(x)."""
    return g.Reciprocal(g.Sqrt(x))


@lowers(lax.is_finite_p)
def is_finite(g: Builder, x: Val) -> Val:
    """Neither infinite nor NaN: its absolute value is smaller than infinity. Some types of 8 bits have none."""
    infinity = np.asarray(np.inf, x.dtype)
    return g.Less(g.Abs(x), infinity) if np.isinf(infinity) else g.Not(g.IsNaN(x))


@lowers(lax.round_p)
def round_(g: Builder, x: Val, *, rounding_method: Any, **_: Any) -> Val:
    """ONNX rounds halves to even; JAX also has "halves away from zero"."""
    if not is_float(x.dtype):
        return x
    if rounding_method == lax.RoundingMethod.TO_NEAREST_EVEN:
        return g.Round(x)
    # x - trunc(x) is exact, so the comparison with one half is too (floor(|x| + 0.5) would round up 0.49999997).
    magnitude = g.Abs(x)
    whole = g.Floor(magnitude)
    away = g.GreaterOrEqual(g.Sub(magnitude, whole), 0.5)
    rounded = g.Where(away, g.Add(whole, 1.0), whole)
    # The sign of the operand, also for results of zero.
    negative = g.Or(g.Less(x, 0.0), g.Less(g.Reciprocal(x), 0.0))
    return g.Mul(rounded, g.Where(negative, np.asarray(-1, x.dtype), np.asarray(1, x.dtype)))


@lowers(lax.max_p)
def max_(g: Builder, x: Val, y: Val) -> Val:
    """The larger one; NaN if either is."""
    return g.Or(x, y) if x.dtype == BOOL else g.Max(x, y)


@lowers(lax.min_p)
def min_(g: Builder, x: Val, y: Val) -> Val:
    """The smaller one; NaN if either is."""
    return g.And(x, y) if x.dtype == BOOL else g.Min(x, y)


@lowers(lax.eq_p)
def eq(g: Builder, x: Val, y: Val) -> Val:
    """Are they equal?"""
    return g.Equal(x, y)


@lowers(lax.ne_p)
def ne(g: Builder, x: Val, y: Val) -> Val:
    """Do they differ? Only NaN differs from itself."""
    if x is y and is_float(x.dtype):
        return g.IsNaN(x)
    return g.Xor(x, y) if x.dtype == BOOL else g.Not(g.Equal(x, y))


def _ordering(op_type: str, as_bool: Any) -> Any:
    def rule(g: Builder, x: Val, y: Val) -> Val:
        return as_bool(g, x, y) if x.dtype == BOOL else g.op(op_type, x, y)

    return rule


lowers(lax.lt_p)(_ordering("Less", lambda g, x, y: g.And(g.Not(x), y)))
lowers(lax.le_p)(_ordering("LessOrEqual", lambda g, x, y: g.Or(g.Not(x), y)))
lowers(lax.gt_p)(_ordering("Greater", lambda g, x, y: g.And(x, g.Not(y))))
lowers(lax.ge_p)(_ordering("GreaterOrEqual", lambda g, x, y: g.Or(x, g.Not(y))))


def _logic(on_bools: str, on_bits: str) -> Any:
    def rule(g: Builder, *xs: Val) -> Val:
        return g.op(on_bools if xs[0].dtype == BOOL else on_bits, *xs)

    return rule


lowers(lax.and_p)(_logic("And", "BitwiseAnd"))
lowers(lax.xor_p)(_logic("Xor", "BitwiseXor"))
lowers(lax.not_p)(_logic("Not", "BitwiseNot"))


@lowers(lax.or_p)
def or_(g: Builder, x: Val, y: Val) -> Val:
    """As a sum of arrays that have zeros in different places."""
    joined = interleaved(g, x, y)
    return _logic("Or", "BitwiseOr")(g, x, y) if joined is None else joined


@lowers(lax.select_n_p)
def select_n(g: Builder, which: Val, *cases: Val) -> Val:
    """cases[which], element by element: a chain of Where, halving the cases."""
    if which.const is not None and which.const.size and (which.const == (first := which.const.flat[0])).all():
        return cases[int(first)]
    if len(cases) == 1:
        return cases[0]
    if which.dtype == BOOL:
        return g.Where(which, cases[1], cases[0])

    def pick(first: int, last: int) -> Val:
        if last - first == 1:
            return cases[first]
        middle = (first + last) // 2
        return g.Where(g.Less(which, middle), pick(first, middle), pick(middle, last))

    return pick(0, len(cases))


@lowers(lax.clamp_p)
def clamp(g: Builder, low: Val, x: Val, high: Val) -> Val:
    """min(max(x, low), high): the upper bound wins where the bounds cross."""
    if x.dtype == BOOL:
        return g.And(g.Or(x, low), high)
    return g.Min(g.Max(x, low), high)


@lowers(lax.pow_p)
def pow_(g: Builder, x: Val, y: Val) -> Val:
    """x ** y; an exponent of another dtype is converted first, as in JAX."""
    return g.Pow(x, g.cast(y, x.dtype))


@lowers(lax.integer_pow_p)
def integer_pow(g: Builder, x: Val, *, y: int) -> Val:
    """x ** y by repeated squaring, in XLA's order of multiplications; the reciprocal for a negative y."""
    if y == 0:
        return g.full(x.shape, 1, x.dtype)
    result: Val | None = None
    factor, power = x, abs(y)
    while True:
        if power & 1:
            result = factor if result is None else g.Mul(result, factor)
        power >>= 1
        if not power:
            break
        factor = g.Mul(factor, factor)
    assert result is not None
    return g.Reciprocal(result) if y < 0 else result
