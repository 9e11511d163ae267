"""Conversions between dtypes, by value and by bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp

from jax2onnx.lower.context import Builder, Val
from jax2onnx.lower.dtypes import BOOL, bit_width, is_float, is_integer
from jax2onnx.lower.registry import lowers


@lowers(lax.convert_element_type_p)
def convert_element_type(g: Builder, x: Val, *, new_dtype: Any, **_: Any) -> Val:
    """To the nearest value of the new dtype; floats that no integer is near saturate, and NaN is 0."""
    dtype = np.dtype(new_dtype)
    if is_float(x.dtype) and is_integer(dtype):
        return _to_integer(g, x, dtype)
    if is_float(dtype) and bit_width(dtype) == 8 and dtype != x.dtype:
        # Beyond the range: NaN, or an infinity if the type has it. To powers of two, ONNX by default rounds up.
        rounds = "nearest" if dtype == jnp.float8_e8m0fnu and g.opset >= 24 else None
        return g.Cast(x, to=dtype, saturate=0, round_mode=rounds)
    if dtype == BOOL and is_float(x.dtype) and bit_width(x.dtype) == 8:
        x = g.cast(x, np.float32)  # whose -0.0 ONNX Runtime takes for zero
    return g.cast(x, dtype)


def _to_integer(g: Builder, x: Val, dtype: np.dtype) -> Val:
    """ONNX says nothing of floats beyond the range of the integer type; JAX saturates."""
    limits = jnp.iinfo(dtype)
    if bit_width(x.dtype) < 32:
        x = g.cast(x, np.float32)
    number = g.Where(g.IsNaN(x), np.zeros((), x.dtype), x)
    if bit_width(x.dtype) == bit_width(dtype) == 32:
        x = number = g.cast(number, np.float64)  # so that the limits are exact
    if bit_width(dtype) < 64:
        inside = g.Clip(number, np.asarray(limits.min, x.dtype), np.asarray(limits.max, x.dtype))
        # To types of less than a byte, casts from floats round; between integers there is nothing to round.
        return g.cast(inside if bit_width(dtype) >= 8 else g.cast(inside, np.int8), dtype)
    # 2**63 - 1 and 2**64 - 1 are not floats: cut at the float below, then repair what was above.
    above = np.asarray(float(limits.max) + 1, x.dtype)
    inside = g.Clip(number, np.asarray(limits.min, x.dtype), np.nextafter(above, np.zeros((), x.dtype)))
    return g.Where(g.GreaterOrEqual(number, above), np.asarray(limits.max, dtype), g.cast(inside, dtype))


def reinterpret(g: Builder, x: Val, dtype: np.dtype) -> Val:
    """The bits of an integer `x` as another integer type of the same width (ONNX's integer casts wrap around)."""
    return g.cast(x, dtype)
