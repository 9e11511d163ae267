"""Counting bits, and reading and changing the bits of numbers.

Bitcasts between dtypes of equal width are left to the lowering; before opset 26 they are long, so that casts and
arithmetic are used here wherever they give the same bits.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jax2onnx.decompose.registry import decomposes
from jax2onnx.decompose.sort import with_64_bits
from jax2onnx.decompose.special_elementary import broadcast_operands

UNSIGNED: dict[int, Any] = {2: jnp.uint2, 4: jnp.uint4, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def width(dtype: Any) -> int:
    """How many bits a number has."""
    return jnp.iinfo(dtype).bits if jnp.issubdtype(dtype, np.integer) else jnp.finfo(dtype).bits


def _shift_right(x: Array, by: int) -> Array:
    return lax.shift_right_logical(x, np.array(by, x.dtype))


@decomposes(lax.population_count_p)
@with_64_bits
def population_count(x: Array) -> Array:
    """Count in pairs of bits, then in fours, then in bytes, and add up the bytes with a multiplication."""
    bits = UNSIGNED[max(width(x.dtype), 32)]
    n = width(bits)

    def repeated(byte: int) -> np.ndarray:
        return np.array(byte * (((1 << n) - 1) // 255), bits)

    y = x.astype(UNSIGNED[width(x.dtype)]).astype(bits)
    y = y - (_shift_right(y, 1) & repeated(0x55))
    y = (y & repeated(0x33)) + (_shift_right(y, 2) & repeated(0x33))
    y = (y + _shift_right(y, 4)) & repeated(0x0F)
    return _shift_right(y * repeated(0x01), n - 8).astype(x.dtype)


@decomposes(lax.clz_p)
@with_64_bits
def clz(x: Array) -> Array:
    """The logarithm knows: 0.75 keeps it clear of the integers on both sides, and gives 0 the exponent -1."""
    n = width(x.dtype)
    y = x.astype(UNSIGNED[n])
    if n == 64:  # look at the upper half if it is not 0: a double has only 53 bits
        upper = _shift_right(y, 32)
        in_upper = upper != 0
        y = lax.select(in_upper, upper, y)
    exponent = lax.floor(lax.log(y.astype(np.float64) + 0.75) * (1 / math.log(2)))
    zeros = ((n - 1) - exponent).astype(x.dtype)
    return zeros - in_upper.astype(x.dtype) * 32 if n == 64 else zeros


@decomposes(lax.mulhi_p)
@with_64_bits
def mulhi(x: Array, y: Array) -> Array:
    """The upper half of the bits of the exact product."""
    n, dtype = width(x.dtype), x.dtype
    if n < 64:
        wide = np.int64 if jnp.issubdtype(dtype, np.signedinteger) else np.uint64
        product = x.astype(wide) * y.astype(wide)
        return _shift_right(product, n).astype(dtype)
    a, b = x.astype(np.uint64), y.astype(np.uint64)
    mask = np.uint64(0xFFFFFFFF)
    a_low, a_high, b_low, b_high = a & mask, _shift_right(a, 32), b & mask, _shift_right(b, 32)
    middle = a_high * b_low + _shift_right(a_low * b_low, 32)
    low = a_low * b_high + (middle & mask)
    high = a_high * b_high + _shift_right(middle, 32) + _shift_right(low, 32)
    if dtype == np.int64:  # a negative number was read as 2^64 more than it is
        zero = lax.full_like(high, 0)
        high = high - lax.select(x < 0, b, zero) - lax.select(y < 0, a, zero)
    return high.astype(dtype)


@decomposes(lax.nextafter_p)
def nextafter(x: Array, y: Array) -> Array:
    """Of floats of one sign, the next one has the next bits."""
    x, y = broadcast_operands(x, y)
    signed = np.dtype(f"int{width(x.dtype)}")
    away = ((x > 0) == (y > x)).astype(signed)
    bits = lax.bitcast_convert_type(x, signed) + (2 * away - 1)
    smallest = np.array(1, signed).view(x.dtype)
    from_zero = lax.select(y > 0, lax.full_like(x, smallest), lax.full_like(x, -smallest))
    moved = lax.select(x == 0, from_zero, lax.bitcast_convert_type(bits, x.dtype))
    return lax.select((x != x) | (y != y), x + y, lax.select((x < y) | (x > y), moved, y))


# Dtypes that round to so many bits of mantissa, for the values of (dtype, bits of mantissa).
_ROUNDERS: dict[tuple[str, int], Any] = {
    ("float32", 7): jnp.bfloat16,
    ("float32", 10): np.float16,
    ("float64", 23): np.float32,
}


@decomposes(lax.reduce_precision_p)
def reduce_precision(x: Array, *, exponent_bits: int, mantissa_bits: int) -> Array:
    """Round to so many bits; what the exponent cannot hold becomes infinite or zero."""
    info = jnp.finfo(x.dtype)
    exponent_bits, mantissa_bits = min(exponent_bits, info.nexp), min(mantissa_bits, info.nmant)
    if (exponent_bits, mantissa_bits) == (info.nexp, info.nmant):
        return x
    rounder = _ROUNDERS.get((x.dtype.name, mantissa_bits))
    if rounder is None or jnp.finfo(rounder).nexp != exponent_bits:
        return _reduce_bits(x, exponent_bits, mantissa_bits)
    rounded = x.astype(rounder).astype(x.dtype)
    if exponent_bits == info.nexp:
        return rounded
    # The narrow dtype has subnormals, which are zero here. What rounds up to the smallest normal number is not.
    smallest = float(jnp.finfo(rounder).tiny) * (1 - 2.0 ** -(mantissa_bits + 2))
    return lax.select(lax.abs(x) >= smallest, rounded, x * 0)


def _reduce_bits(x: Array, exponent_bits: int, mantissa_bits: int) -> Array:
    """Round half to even in the bits, and compare the exponent with the limits, as XLA does."""
    info = jnp.finfo(x.dtype)
    unsigned = UNSIGNED[info.bits]

    def constant(value: int) -> np.ndarray:
        return np.array(value, unsigned)

    sign = lax.bitcast_convert_type(x, unsigned) & constant(1 << (info.bits - 1))
    bits = lax.bitcast_convert_type(lax.abs(x), unsigned)
    drop = info.nmant - mantissa_bits
    if drop:
        last = _shift_right(bits, drop) & constant(1)
        bits = (bits + last + constant((1 << (drop - 1)) - 1)) & constant(((1 << info.bits) - 1) >> drop << drop)
    if exponent_bits < info.nexp:
        bias, reduced_bias = (1 << (info.nexp - 1)) - 1, (1 << (exponent_bits - 1)) - 1
        infinity = constant(((1 << info.nexp) - 1) << info.nmant)
        bits = lax.select(
            bits >= constant((bias + reduced_bias + 1) << info.nmant), lax.full_like(bits, infinity), bits
        )
        bits = lax.select(bits < constant((bias - reduced_bias + 1) << info.nmant), lax.full_like(bits, 0), bits)
    result = lax.bitcast_convert_type(bits | sign, x.dtype)
    return lax.select(x != x, x, result)


def _widths_differ(in_avals, params) -> bool:
    old, new = in_avals[0].dtype, np.dtype(params["new_dtype"])
    return old != new and width(old) != width(new)  # bool and complex numbers are only cast to themselves


@decomposes(lax.bitcast_convert_type_p, when=_widths_differ)
@with_64_bits
def bitcast_convert_type(x: Array, *, new_dtype: Any) -> Array:
    """A wide number is a trailing axis of narrow ones, the least significant bits first."""
    n, m = width(x.dtype), width(new_dtype)
    wide, narrow = UNSIGNED[max(n, m)], UNSIGNED[min(n, m)]
    offsets = np.arange(0, max(n, m), min(n, m)).astype(wide)
    if n > m:
        shape = (*x.shape, len(offsets))
        bits = lax.broadcast_in_dim(lax.bitcast_convert_type(x, wide), shape, range(x.ndim))
        parts = lax.shift_right_logical(bits, lax.broadcast_in_dim(offsets, shape, (x.ndim,)))
        return lax.bitcast_convert_type((parts & np.array((1 << m) - 1, wide)).astype(narrow), new_dtype)
    bits = lax.bitcast_convert_type(x, narrow).astype(wide)
    parts = lax.shift_left(bits, lax.broadcast_in_dim(offsets, x.shape, (x.ndim - 1,)))
    whole = lax.reduce_sum(parts, (x.ndim - 1,))  # no two parts have a bit in common
    return lax.bitcast_convert_type(whole, new_dtype)
