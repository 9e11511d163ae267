"""The logarithm of the gamma function, its derivatives, and the Hurwitz zeta function.

In float64, the same approximations as XLA's: Lanczos' for the first ones, the Euler-Maclaurin formula for zeta. For
floats of fewer bits, Stirling's series is shorter, and negative numbers, which are rare, cost time only where there are
any.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jax2onnx import compat
from jax2onnx.decompose.registry import decomposes
from jax2onnx.decompose.special_elementary import at_least_float32, horner, in_float64
from jax2onnx.dimensions import likely_size

# Lanczos' approximation with g = 7: gamma(x) is about (t/e)^(x - 1/2) (c0 + c1 / x + c2 / (x + 1) + ...), where
# t = x + 6.5, for x >= 1/2. The other half comes from the reflection formula.
SCALE = math.sqrt(2 * math.pi) * math.exp(-7)
BASE = SCALE * 0.99999999999980993227684700473478
LANCZOS = [SCALE * c for c in (
    676.520368121885098567009190444019, -1259.13921672240287047156078755283, 771.3234287776530788486528258894,
    -176.61502916214059906584551354, 12.507343278686904814458936853, -0.13857109526572011689554707,
    9.984369578019570859563e-6, 1.50563273514931155834e-7,
)]  # fmt: skip


MANY = 1024
"""For fewer elements, what is hardly ever needed is computed in no more time than it takes to ask."""


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
def lgamma(x: Array, **_: Any) -> Array:
    """The logarithm of the absolute value of the gamma function."""
    return _lgamma(x) if x.dtype == np.float64 else _lgamma_of_floats(x)


@in_float64
def _lgamma(x: Array) -> Array:
    is_less, z = reflected(x)
    series = lax.full_like(x, BASE)
    for i, c in enumerate(LANCZOS):
        series = series + c / (z + i)
    log_gamma = (z - 0.5) * (lax.log(z + 6.5) - 1) + lax.log(series)
    return lax.select(is_pole(x), lax.full_like(x, np.inf), lax.select(is_less, _mirrored(x, log_gamma), log_gamma))


def _mirrored(x: Array, log_gamma: Array) -> Array:
    """The logarithm of |gamma(x)| from that of gamma(1 - x)."""
    return lax.log(math.pi / lax.abs(lax.sin(math.pi * (x - nearest(x))))) - log_gamma


@in_float64
def _lgamma_of_floats(x: Array) -> Array:
    """Stirling's series six steps further, right to 1e-11, and the logarithm of what lies between.

    The first two coefficients are -1 / 1680 and 1 / 1260 but for what makes the zeros at 1 and 2 exact.
    """
    is_less = x <= 0
    z = lax.min(lax.select(is_less, 1 - x, x), 1e40)  # so that infinities are not subtracted
    t = z + 6
    r = 1 / t
    u = z * (z + 5)
    steps = u * (u + 4) * (u + 6)  # z * (z + 1) * ... * (z + 5)
    series = r * horner(r * r, [-0.0005666470480670451, 0.0007934026062285214, -1 / 360, 1 / 12])
    log_gamma = (z + 5.5) * lax.log(t) - z + (math.log(2 * math.pi) / 2 - 6) + series - lax.log(steps)

    def reflect() -> Array:
        return lax.select(is_pole(x), lax.full_like(x, np.inf), _mirrored(x, log_gamma))

    return _in_rare_cases(is_less, reflect, log_gamma)


def _in_rare_cases(is_rare: Array, rare: Callable[[], Array], usual: Array) -> Array:
    """`rare` where that is so, computed only if it is so somewhere."""
    if likely_size(is_rare.shape) < MANY:
        return lax.select(is_rare, rare(), usual)
    return lax.cond(jnp.any(is_rare), lambda: lax.select(is_rare, rare(), usual), lambda: usual)


@decomposes(lax.digamma_p)
def digamma(x: Array, **_: Any) -> Array:
    """The derivative of `lgamma`."""
    return _digamma(x) if x.dtype == np.float64 else _digamma_of_floats(x)


@in_float64
def _digamma(x: Array) -> Array:
    is_less, z = reflected(x)
    series, derivative = lax.full_like(x, BASE), lax.full_like(x, 0)
    for i, c in enumerate(LANCZOS):
        term = c / (z + i)
        series, derivative = series + term, derivative + term / (z + i)
    t = z + 6.5
    psi = lax.log(t) - derivative / series - 7 / t
    return _digamma_at_poles(x, lax.select(is_less, _digamma_mirrored(x, psi), psi))


def _digamma_mirrored(x: Array, psi: Array) -> Array:
    """psi(x) from psi(1 - x)."""
    angle = math.pi * (x - nearest(x))
    return psi - math.pi * lax.cos(angle) / lax.sin(angle)


def _digamma_at_poles(x: Array, value: Array) -> Array:
    value = lax.select(is_pole(x), lax.full_like(x, np.nan), value)
    return lax.select(x == 0, lax.full_like(x, compat.definitions.DIGAMMA_OF_ZERO), value)


@in_float64
def _digamma_of_floats(x: Array) -> Array:
    """The derivative of the same series, right to 2e-10."""
    is_less = x <= 0
    z = lax.select(is_less, 1 - x, x)
    t = z + 6
    r = 1 / t
    near = lax.min(z, 1e40)  # so that infinities are not divided
    u = near * (near + 5)
    steps = (2 * near + 5) * (1 / u + 1 / (u + 4) + 1 / (u + 6))  # 1 / z + 1 / (z + 1) + ... + 1 / (z + 5)
    w = r * r
    psi = lax.log(t) - r / 2 - w * horner(w, [-1 / 240, 1 / 252, -1 / 120, 1 / 12]) - steps
    return _in_rare_cases(is_less, lambda: _digamma_at_poles(x, _digamma_mirrored(x, psi)), psi)


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
