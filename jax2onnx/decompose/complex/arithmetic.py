"""Complex arithmetic, comparison, and what is built from them: products, powers, cumulative and windowed products."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax
from jax.extend.core import primitives as P

from jax2onnx.decompose.complex.pairs import Complex, on_complex, where


def modulus(re: Any, im: Any) -> Any:
    """|z| without overflow or underflow on the way."""
    a, b = lax.abs(re), lax.abs(im)
    large, small = lax.max(a, b), lax.min(a, b)
    # The ratio is 1 where both are 0 or both are infinite.
    ratio = where(small == large, 1, small / large)
    return large * lax.sqrt(1 + ratio * ratio)


@on_complex(P.abs_p)
def abs_(z: Complex) -> Any:
    return modulus(z.re, z.im)


@on_complex(P.eq_p)
def eq(a: Complex, b: Complex) -> Any:
    return lax.bitwise_and(lax.eq(a.re, b.re), lax.eq(a.im, b.im))


@on_complex(P.ne_p)
def ne(a: Complex, b: Complex) -> Any:
    return lax.bitwise_or(lax.ne(a.re, b.re), lax.ne(a.im, b.im))


@on_complex(P.div_p)
def div(a: Complex, b: Complex) -> Complex:
    """Smith's algorithm: multiply by the conjugate of the denominator, scaled by its larger part."""
    large = where(lax.abs(b.re) >= lax.abs(b.im), b.re, b.im)
    # x / 0 is infinite, and x / inf is 0.
    degenerate = (large == 0) | (lax.abs(large) == np.inf)
    re, im = where(degenerate, 1, b.re / large), where(degenerate, 0, b.im / large)
    scale = where(degenerate, large, b.re * re + b.im * im)
    return Complex((a.re * re + a.im * im) / scale, (a.im * re - a.re * im) / scale)
