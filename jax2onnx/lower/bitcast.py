"""The same bits read as another dtype of the same width.

ONNX has BitCast from opset 26 on. Before, floats are taken apart and put together by exact arithmetic: a float is
mantissa * 2**exponent, and a power of two from a table makes that product exact. (The payload of a NaN is lost.)
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from jax2onnx import compat
from jax2onnx.errors import UnsupportedError
from jax2onnx.lower.context import Builder, Val
from jax2onnx.lower.convert import reinterpret
from jax2onnx.lower.dtypes import BOOL, bit_width, is_integer, unsigned
from jax2onnx.lower.registry import lowers

BITCAST_OPSET = 26


@lowers(lax.bitcast_convert_type_p)
def bitcast_convert_type(g: Builder, x: Val, *, new_dtype: Any) -> Val:
    """A bit-for-bit conversion between dtypes of the same width (others are decomposed before)."""
    dtype = np.dtype(new_dtype)
    if x.dtype == dtype:
        return x
    if BOOL in (x.dtype, dtype):
        return g.cast(x, dtype)  # JAX has only bool <-> 8 bits of 0 or 1
    if is_integer(x.dtype) and is_integer(dtype):
        return reinterpret(g, x, dtype)
    if g.opset >= BITCAST_OPSET:
        return g.BitCast(x, to=dtype)
    if bit_width(x.dtype) < 16:
        raise UnsupportedError(f"A bitcast of {x.dtype} to {dtype} needs opset {BITCAST_OPSET}; it is {g.opset}.")
    if not is_integer(x.dtype):
        bits = _call_with_x64(g, _float_to_bits, x.dtype, x)
        return reinterpret(g, bits, dtype) if is_integer(dtype) else _from_bits(g, bits, dtype)
    return _from_bits(g, x, dtype)


def _from_bits(g: Builder, x: Val, dtype: np.dtype) -> Val:
    found = _fraction_and_power(x, dtype)
    if found is not None:
        fraction, power = found
        return g.Add(g.Mul(g.cast(fraction, dtype), power * 2.0 ** -_layout(dtype)[0]), power)
    return _call_with_x64(g, _bits_to_float, dtype, reinterpret(g, x, unsigned(dtype)))


def _fraction_and_power(x: Val, dtype: np.dtype) -> tuple[Val, float] | None:
    """(n, p) if `x` has the bits of p * (1 + n / 2**mantissa bits), as random numbers between 1 and 2 are made."""
    mantissa_bits, bias, uint = _layout(dtype)
    joined = x.value.producer()
    if joined is None or joined.op_type != "BitwiseOr" or x.dtype != uint:
        return None
    for fraction, known in (joined.inputs, joined.inputs[::-1]):
        shifted = fraction.producer() if fraction is not None and known is not None else None
        by = shifted.inputs[1].const_value if shifted is not None and shifted.op_type == "BitShift" else None
        if shifted is None or by is None or by.size != 1 or known.const_value is None or known.const_value.size != 1:
            continue
        bits, field = int(by.numpy().reshape(())), int(known.const_value.numpy().reshape(()))
        exponent = field >> mantissa_bits
        if bits < bit_width(uint) - mantissa_bits or shifted.attributes["direction"].value != "RIGHT":
            continue
        if exponent << mantissa_bits == field and 0 < exponent <= 2 * bias and fraction.shape == x.value.shape:
            return Val(fraction, x.shape, x.dtype, x.home), 2.0 ** (exponent - bias)
    return None


def _call_with_x64(g: Builder, fn: Any, dtype: np.dtype, x: Val) -> Val:
    with compat.evaluation.x64(True):  # the arithmetic is in float64 whatever the program uses
        return g.call_jax(_of_dtype(fn, dtype), x)


@functools.cache
def _of_dtype(fn: Any, dtype: np.dtype) -> Any:
    """`fn` for a dtype, always the same object, so that a session traces it once."""
    return functools.partial(fn, dtype)


def _layout(dtype: np.dtype) -> tuple[int, int, np.dtype]:
    """(bits of the mantissa, bias of the exponent, unsigned type) of a float dtype."""
    info = jnp.finfo(dtype)
    return int(info.nmant), -int(info.minexp) + 1, unsigned(dtype)


def _bits_to_float(dtype: np.dtype, bits: jax.Array) -> jax.Array:
    """mantissa * 2**exponent, in float64, where both are exact."""
    mantissa_bits, bias, uint = _layout(dtype)
    highest = 2 * bias + 1  # the exponent field of infinities and NaN
    field = lax.shift_right_logical(bits, jnp.asarray(mantissa_bits, uint)) & jnp.asarray(highest, uint)
    fraction = bits & jnp.asarray((1 << mantissa_bits) - 1, uint)
    mantissa = fraction + jnp.where(field > 0, jnp.asarray(1 << mantissa_bits, uint), jnp.asarray(0, uint))
    exponents = np.maximum(np.arange(highest + 1), 1) - bias - mantissa_bits
    magnitude = _scale(mantissa.astype(np.float64), exponents, field.astype(np.int32))
    magnitude = jnp.where(field == highest, np.inf, magnitude)
    magnitude = jnp.where((field == highest) & (fraction > 0), np.nan, magnitude)
    is_positive = bits < jnp.asarray(1 << (jnp.iinfo(uint).bits - 1), uint)
    return jnp.where(is_positive, magnitude, -magnitude).astype(dtype)  # the second choice of a Where may be -0.0


def _lookup(table: np.ndarray, index: jax.Array) -> jax.Array:
    return jnp.asarray(table).at[index].get(mode="promise_in_bounds")


def _scale(x: jax.Array, exponents: np.ndarray, index: jax.Array) -> jax.Array:
    """x * 2**exponents[index], in two steps because the power alone may be too large or too small for a float64."""
    half = exponents // 2
    return x * _lookup(np.ldexp(1.0, half), index) * _lookup(np.ldexp(1.0, exponents - half), index)


def _float_to_bits(dtype: np.dtype, x: jax.Array) -> jax.Array:
    """Find the exponent with a logarithm, correct it by comparison, and scale the mantissa to an integer."""
    mantissa_bits, bias, uint = _layout(dtype)
    value = x.astype(np.float64)
    magnitude = jnp.abs(value)
    is_special = ~(magnitude < np.inf)
    is_negative = (value < 0) | ((value == 0) & (1 / value < 0))
    finite = jnp.where(is_special, 0.0, magnitude)
    lowest = 1 - bias
    exponent = jnp.floor(jnp.log(finite) * (1 / np.log(2)))
    field = (jnp.clip(exponent, lowest, bias) - lowest).astype(np.int32)  # 0 for the smallest exponent
    powers = np.ldexp(1.0, np.arange(lowest, bias + 1))
    power = _lookup(powers, field)
    field = field + (finite >= 2 * power).astype(np.int32) - ((finite < power) & (field > 0)).astype(np.int32)
    mantissa = _scale(finite, mantissa_bits - np.arange(lowest, bias + 1), field)
    bits = field.astype(np.int64) * (1 << mantissa_bits) + mantissa.astype(np.int64)
    infinity = (2 * bias + 1) << mantissa_bits
    quiet_nan = infinity | 1 << (mantissa_bits - 1)
    bits = jnp.where(is_special, jnp.where(jnp.isnan(value), quiet_nan, infinity), bits)
    sign = np.asarray(1 << (jnp.iinfo(uint).bits - 1), np.uint64).astype(np.int64)
    return jnp.where(is_negative, bits + sign, bits).astype(uint)
