"""Elementary functions that ONNX has no operator for.

Each is written with as few operations as keep it accurate to a few units in the last place, because each operation
becomes a node; special values (infinities, NaN, signed zeros) fall out of the formula where that is possible. In a
selection, what may be -0.0 is the second choice: ONNX Runtime's Where loses the sign of a zero in the first one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jax2onnx import compat
from jax2onnx.decompose.registry import decomposes


def real_operands(in_avals, params) -> bool:
    """`when`: complex operands have their own definitions."""
    return not any(jnp.issubdtype(aval.dtype, jnp.complexfloating) for aval in in_avals)


def broadcast_operands(*args: Array) -> list[Array]:
    """Operands of one shape: those of a primitive may have axes of size 1 in place of longer ones."""
    shape = lax.broadcast_shapes(*(x.shape for x in args))
    return [x if x.shape == shape else lax.broadcast_in_dim(x, shape, range(x.ndim)) for x in args]


def at_least_float32(fn: Callable[..., Array]) -> Callable[..., Array]:
    """Compute float16 and bfloat16 in float32 and round once at the end, as XLA does."""

    @wraps(fn)
    def widened(*args: Array, **params: Any) -> Array:
        dtype = args[0].dtype
        args = tuple(broadcast_operands(*args))
        if jnp.finfo(dtype).bits >= 32:
            return fn(*args, **params)
        return fn(*(x.astype(np.float32) for x in args), **params).astype(dtype)

    return widened


def in_float64(fn: Callable[[Array], Array]) -> Callable[..., Array]:
    """Compute in float64 and round once at the end, where a cancellation would show in float32."""

    @wraps(fn)
    def widened(x: Array, **_: Any) -> Array:
        with compat.evaluation.x64(True):
            return fn(x.astype(np.float64)).astype(x.dtype)

    return widened


@decomposes(lax.log1p_p, when=real_operands)
@at_least_float32
def log1p(x: Array, **_) -> Array:
    """Kahan's formula x * log(u) / (u - 1) with u = 1 + x: the rounding errors of u and of u - 1 cancel.

    A tiny number makes 1 of the quotient 0 / 0 and changes no other. The bound keeps inf / inf infinite.
    """
    u = lax.optimization_barrier(1 + x)  # XLA would turn u - 1 into x
    d = lax.min(u - 1, jnp.finfo(x.dtype).max)
    tiny = 1e-36  # not smaller: ONNX Runtime drops the addition of a number that float32 rounds to 0
    return x * ((lax.log(u) + tiny) / (d + tiny))


@decomposes(lax.expm1_p, when=real_operands)
@at_least_float32
def expm1(x: Array, **_) -> Array:
    """tanh(x/2) * (e^x + 1): no cancellation near 0, and the limits at both ends are right."""
    return lax.tanh(x * 0.5) * (lax.exp(x) + 1)


@decomposes(lax.exp2_p, when=real_operands)
def exp2(x: Array, **_) -> Array:
    """e^(x log 2), as XLA computes it: the product is rounded in half precision too."""
    return lax.exp(x * math.log(2))


@decomposes(*compat.kinds.primitives("log2"), when=real_operands)
@at_least_float32
def log2(x: Array, **_) -> Array:
    """log(x) / log(2)."""
    return lax.log(x) / math.log(2)


@decomposes(lax.cbrt_p)
@at_least_float32
def cbrt(x: Array, **_) -> Array:
    """sign(x) * |x|^(1/3), and a Newton step because 1/3 is not representable: cubes get their exact roots."""
    y = lax.sign(x) * lax.pow(lax.abs(x), np.array(1 / 3, x.dtype))
    better = y - (y - x / (y * y)) * (1 / 3)
    return lax.select(better == better, better, y)  # not where y is 0 or infinite


def sign_bit_as_one(x: Array) -> Array:
    """-1 where the sign bit of x is set, also at -0.0, and 1 elsewhere: |x + 1/x| is never below 2."""
    one = np.ones((), x.dtype)
    return lax.clamp(-one, x + 1 / x, one)


@decomposes(lax.atan2_p, when=real_operands)
@at_least_float32
def atan2(y: Array, x: Array, **_) -> Array:
    """The angle of |y| over |x|, put into the quadrant that the sign bits say."""
    ay, ax = lax.abs(y), lax.abs(x)
    # Where both are 0 or both infinite the ratio has no value of its own: the angle is 0 or pi/4 there.
    angle = lax.atan(lax.select(ax == ay, lax.sign(ax), ay / ax))
    angle = lax.select(x + 1 / x < 0, math.pi - angle, angle)
    return angle * sign_bit_as_one(y)


@decomposes(*compat.kinds.primitives("one_minus_square"))
def one_minus_square(x: Array, **_) -> Array:
    """(1 - x) * (1 + x): accurate near |x| = 1, where 1 - x*x cancels."""
    return (1 - x) * (1 + x)


@decomposes(*compat.kinds.primitives("polynomial"))
def polynomial(x: Array, *coefficients: Array, **_) -> Array:
    """Horner's rule, for coefficients from the lowest to the highest."""
    return horner(x, coefficients[::-1])


def horner(x: Array, coefficients: Sequence) -> Array:
    """The polynomial with these coefficients, from the highest to the lowest."""
    y = coefficients[0]
    for c in coefficients[1:]:
        y = y * x + c
    return y
