"""The logarithm of the gamma function, its derivatives, and the Hurwitz zeta function.

The same approximations as XLA's: Lanczos' for the first ones, the Euler-Maclaurin formula for zeta.
"""

from __future__ import annotations

import math

import numpy as np
from jax import Array, lax

from jax2onnx import compat
from jax2onnx.decompose.registry import decomposes
from jax2onnx.decompose.special_elementary import at_least_float32, in_float64

# Lanczos' approximation with g = 7: gamma(x) is about (t/e)^(x - 1/2) (c0 + c1 / x + c2 / (x + 1) + ...), where
# t = x + 6.5, for x >= 1/2. The other half comes from the reflection formula.
SCALE = math.sqrt(2 * math.pi) * math.exp(-7)
BASE = SCALE * 0.99999999999980993227684700473478
LANCZOS = [SCALE * c for c in (
    676.520368121885098567009190444019, -1259.13921672240287047156078755283, 771.3234287776530788486528258894,
    -176.61502916214059906584551354, 12.507343278686904814458936853, -0.13857109526572011689554707,
    9.984369578019570859563e-6, 1.50563273514931155834e-7,
)]  # fmt: skip


def reflected(x: Array) -> tuple[Array, Array]:
    """Where x is less than 1/2, and 1 - x there, x elsewhere."""
    is_less = x < 0.5
    return is_less, lax.select(is_less, 1 - x, x)


def nearest(x: Array) -> Array:
    """The nearest integer."""
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)


def is_pole(x: Array) -> Array:
    """Whether x is zero or a negative integer."""
    return (x <= 0) & (x == lax.floor(x))


@decomposes(lax.lgamma_p)
@in_float64
def lgamma(x: Array) -> Array:
    """The logarithm of the absolute value of the gamma function."""
    is_less, z = reflected(x)
    series = lax.full_like(x, BASE)
    for i, c in enumerate(LANCZOS):
        series = series + c / (z + i)
    log_gamma = (z - 0.5) * (lax.log(z + 6.5) - 1) + lax.log(series)
    sine = lax.abs(lax.sin(math.pi * (x - nearest(x))))
    reflection = lax.log(math.pi / sine) - log_gamma
    return lax.select(is_pole(x), lax.full_like(x, np.inf), lax.select(is_less, reflection, log_gamma))


@decomposes(lax.digamma_p)
@in_float64
def digamma(x: Array) -> Array:
    """The derivative of `lgamma`."""
    is_less, z = reflected(x)
    series, derivative = lax.full_like(x, BASE), lax.full_like(x, 0)
    for i, c in enumerate(LANCZOS):
        term = c / (z + i)
        series, derivative = series + term, derivative + term / (z + i)
    t = z + 6.5
    psi = lax.log(t) - derivative / series - 7 / t
    angle = math.pi * (x - nearest(x))
    reflection = psi - math.pi * lax.cos(angle) / lax.sin(angle)
    value = lax.select(is_less, reflection, psi)
    value = lax.select(is_pole(x), lax.full_like(x, np.nan), value)
    return lax.select(x == 0, lax.full_like(x, compat.definitions.DIGAMMA_OF_ZERO), value)


# (2k)! / B(2k) for k = 12, ..., 1, where B are the Bernoulli numbers.
ZETA = [
    -7.1661652561756670113e18, 1.8152105401943546773e17, -4.5979787224074726105e15, 1.1646782814350067249e14,
    -2.950130727918164224e12, 7.47242496e10, -1.8924375803183791606e9, 47900160.0, -1209600.0, 30240.0, -720.0, 12.0,
]  # fmt: skip


@decomposes(lax.zeta_p)
@at_least_float32
def zeta(x: Array, q: Array) -> Array:
    """The sum of (q + i)^-x: ten terms, and what the Euler-Maclaurin formula says of the others."""
    minus_x = -x
    total = lax.pow(q, minus_x)
    for i in range(1, 10):
        total = total + lax.pow(q + i, minus_x)
    a = q + 10
    power = lax.pow(a, minus_x)
    inverse = 1 / (a * a)
    rest = lax.full_like(x, 1 / ZETA[0])
    for k, c in zip(range(12, 1, -1), ZETA[1:], strict=True):
        rest = rest * ((x + (2 * k - 3)) * (x + (2 * k - 2)) * inverse) + 1 / c
    result = total + power * (a / (x - 1) + 0.5 + x / a * rest)
    return _zeta_outside(x, q, result)


def _zeta_outside(x: Array, q: Array, result: Array) -> Array:
    """Values at the pole x = 1 and at those of integer q <= 0, and none where the function is not defined."""
    nan, inf = lax.full_like(x, np.nan), lax.full_like(x, np.inf)
    is_integer = x == lax.floor(x)
    is_even = is_integer & (lax.rem(x, np.array(2, x.dtype)) == 0)
    result = lax.select((x < 1) | ((q <= 0) & ~is_integer), nan, result)
    result = lax.select(is_pole(q), lax.select(is_even, inf, nan), result)
    return lax.select(x == 1, inf, result)


@decomposes(lax.polygamma_p)
@at_least_float32
def polygamma(m: Array, x: Array) -> Array:
    """The derivative of order m of digamma: (-1)^(m + 1) m! zeta(m + 1, x)."""
    n = m + 1
    sign = 2 * lax.rem(m, np.array(2, m.dtype)) - 1
    result = sign * lax.exp(lax.lgamma(n)) * lax.zeta(n, x)
    result = lax.select(m == 0, lax.digamma(x), result)
    return lax.select((m < 0) | (m != lax.floor(m)), lax.full_like(x, np.nan), result)
