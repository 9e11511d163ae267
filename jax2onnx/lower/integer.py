"""Integer division and bit shifts: total functions in JAX, with traps and open cases in ONNX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jax import lax

from jax2onnx.lower.context import Builder, Val
from jax2onnx.lower.convert import reinterpret
from jax2onnx.lower.dtypes import bit_width, is_float, is_unsigned, unsigned
from jax2onnx.lower.registry import lowers


@lowers(lax.div_p)
def div(g: Builder, x: Val, y: Val) -> Val:
    """Division; of integers it truncates, and x / 0 is -1 (all bits set) as XLA defines it."""
    if is_float(x.dtype):
        return g.Div(x, y)
    all_bits = np.asarray(-1, np.int64).astype(x.dtype)
    return _guarded(
        g, g.Div, x, y, by_zero=all_bits, by_minus_one=lambda: g.Sub(np.zeros((), x.dtype), x, out=(x.shape, x.dtype))
    )


@lowers(lax.rem_p)
def rem(g: Builder, x: Val, y: Val) -> Val:
    """The remainder with the sign of the dividend; x % 0 is x for integers, NaN for floats."""
    if is_float(x.dtype):
        return g.Mod(x, y, fmod=1)
    return _guarded(g, lambda a, b: g.Mod(a, b, fmod=1), x, y, by_zero=x, by_minus_one=lambda: np.zeros((), x.dtype))


def _guarded(g: Builder, op: Callable, x: Val, y: Val, *, by_zero: Any, by_minus_one: Callable[[], Any]) -> Val:
    """An integer division that never divides by 0, nor by -1 (the smallest integer divided by it traps)."""
    traps = (0,) if is_unsigned(y.dtype) else (0, -1)
    if y.const is not None and not np.isin(y.const, traps).any():
        return op(x, y)
    is_zero = g.Equal(y, 0)
    if is_unsigned(y.dtype):
        return g.Where(is_zero, by_zero, op(x, g.Where(is_zero, np.ones((), y.dtype), y)))
    is_minus_one = g.Equal(y, -1)
    quotient = op(x, g.Where(g.Or(is_zero, is_minus_one), np.ones((), y.dtype), y))
    return g.Where(is_zero, by_zero, g.Where(is_minus_one, by_minus_one(), quotient))


def _known_shift(x: Val, n: Val) -> int | None:
    """How far, if that is one known number, and less than the width; none of less than a byte."""
    if n.const is None or n.const.size != 1 or bit_width(x.dtype) < 8:
        return None
    by = int(n.const.reshape(()))
    return by if 0 <= by < bit_width(x.dtype) else None


def _power(by: int, dtype: np.dtype) -> np.ndarray:
    """2**by, where the highest bit of a signed integer is its sign."""
    return np.asarray(1 << by, np.uint64).astype(dtype)


def _shift(direction: str) -> Any:
    def rule(g: Builder, x: Val, n: Val) -> Val:
        known = _known_shift(x, n)
        if known is not None and direction == "LEFT":
            return g.Mul(x, _power(known, x.dtype), out=(x.shape, x.dtype))
        bits = unsigned(x.dtype)
        value, by = reinterpret(g, x, bits), reinterpret(g, n, bits)
        safe, too_far = _safe_shift(g, n, by, bit_width(x.dtype))
        result = g.BitShift(value, safe, direction=direction)
        if too_far is not None:
            result = g.Where(too_far, np.zeros((), bits), result)
        return reinterpret(g, result, x.dtype)

    return rule


def _safe_shift(g: Builder, n: Val, by: Val, width: int) -> tuple[Val, Val | None]:
    """The shift where it is less than the width (ONNX leaves the rest open), and where it is not."""
    if n.const is not None and ((n.const >= 0) & (n.const < width)).all():
        return by, None
    too_far = g.GreaterOrEqual(by, width)
    return g.Where(too_far, np.zeros((), by.dtype), by), too_far


lowers(lax.shift_left_p)(_shift("LEFT"))
lowers(lax.shift_right_logical_p)(_shift("RIGHT"))


@lowers(lax.shift_right_arithmetic_p)
def shift_right_arithmetic(g: Builder, x: Val, n: Val) -> Val:
    """Vacated bits are copies of the sign: ~(~x >> n) for a negative x. By a known n it is a division of multiples."""
    known = _known_shift(x, n)
    if known is not None and not is_unsigned(x.dtype):
        power = _power(known, x.dtype)
        upper = np.asarray(-1 << known, np.int64).astype(x.dtype)  # all bits but the lowest
        multiple = g.BitwiseAnd(x, upper, out=(x.shape, x.dtype))  # the rest is positive, so this rounds down
        quotient = g.Div(multiple, power, out=(x.shape, x.dtype))
        return g.Neg(quotient) if power < 0 else quotient  # the sign bit is -2**n
    bits, width = unsigned(x.dtype), bit_width(x.dtype)
    value, by = reinterpret(g, x, bits), reinterpret(g, n, bits)
    safe, too_far = _safe_shift(g, n, by, width)
    if too_far is not None:
        safe = g.Where(too_far, np.asarray(width - 1, bits), by)
    if is_unsigned(x.dtype):
        is_negative = g.GreaterOrEqual(x, np.asarray(1 << (width - 1), bits))
    else:
        is_negative = g.Less(x, 0)
    flip = g.Where(is_negative, np.asarray((1 << width) - 1, bits), np.zeros((), bits))
    return reinterpret(g, g.BitwiseXor(g.BitShift(g.BitwiseXor(value, flip), safe, direction="RIGHT"), flip), x.dtype)
