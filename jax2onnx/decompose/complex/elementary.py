"""Exponentials, logarithms, roots and powers of complex numbers, accurate and without needless overflow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jax import lax
from jax.extend.core import primitives as P

from jax2onnx.compat.kinds import primitives
from jax2onnx.decompose.complex.arithmetic import div, integer_pow, modulus, one_like, positive
from jax2onnx.decompose.complex.pairs import Complex, as_complex, on_complex, spread, where
from jax2onnx.decompose.complex.structural import mul


@on_complex(P.exp_p)
def exp(z: Complex, **_: Any) -> Complex:
    root = lax.exp(0.5 * z.re)  # squared bit by bit: exp(90) is too large for float32, but exp(90) * sin(1e-3) is not
    re, im = root * (root * lax.cos(z.im)), root * (root * lax.sin(z.im))
    return Complex(re, where(z.im == 0, z.im, im))


@on_complex(P.exp2_p)
def exp2(z: Complex, **_: Any) -> Complex:
    return exp(mul(z, Complex(lax.full_like(z.re, math.log(2)), lax.full_like(z.im, 0))))


@on_complex(P.expm1_p)
def expm1(z: Complex, **_: Any) -> Complex:
    half_sine = lax.sin(z.im * 0.5)
    cosine_less_1 = -2 * half_sine * half_sine
    re = lax.expm1(z.re) * (cosine_less_1 + 1) + cosine_less_1
    return Complex(re, where(z.im == 0, z.im, lax.exp(z.re) * lax.sin(z.im)))


@on_complex(P.log_p)
def log(z: Complex, **_: Any) -> Complex:
    x, y = lax.abs(z.re), lax.abs(z.im)
    large, small = lax.max(x, y), lax.min(x, y)
    ratio = where(small == large, 1, small / large)
    far = lax.log(large) + 0.5 * lax.log1p(ratio * ratio)
    near = 0.5 * lax.log1p((large - 1) * (large + 1) + small * small)
    return Complex(where((large > 0.5) & (large < 2), near, far), lax.atan2(z.im, z.re))


@on_complex(P.log1p_p)
def log1p(z: Complex, **_: Any) -> Complex:
    near = 0.5 * lax.log1p(z.re * (2 + z.re) + z.im * z.im)
    far = log(Complex(1 + z.re, z.im))
    small = lax.max(lax.abs(z.re), lax.abs(z.im)) < 0.5
    return Complex(where(small, near, far.re), far.im)


@on_complex(P.logistic_p)
def logistic(z: Complex, **_: Any) -> Complex:
    e = exp(Complex(-z.re, -z.im))
    return div(one_like(z), Complex(1 + e.re, e.im))


def _root(z: Complex) -> Complex:
    """The square root of `re + 1j * abs(im)`."""
    x, y = lax.abs(z.re), lax.abs(z.im)
    large, small = lax.max(x, y), lax.min(x, y)
    ratio = where(small == large, 1, small / large)
    share = where(x == large, 1, x / large)
    root = lax.sqrt(large) * lax.sqrt(0.5 * (share + lax.sqrt(1 + ratio * ratio)))
    other = where((root == 0) | (y == np.inf), root, y / (2 * root))
    return Complex(where(z.re < 0, other, root), where(z.re < 0, root, other))


@on_complex(P.sqrt_p)
def sqrt(z: Complex, **_: Any) -> Complex:
    root = _root(z)
    return Complex(root.re, where(z.im < 0, -root.im, root.im))


@on_complex(P.rsqrt_p)
def rsqrt(z: Complex, **_: Any) -> Complex:
    re, im = div(one_like(z), _root(z))
    infinite = (lax.abs(z.re) == np.inf) | (lax.abs(z.im) == np.inf)  # then it is 0, also if the other part is NaN
    return Complex(where(infinite, 0, re), where(infinite, 0, where(positive(z.im), im, -im)))


@on_complex(*primitives("log2"))
def log2(z: Complex, **_: Any) -> Complex:
    logarithm = log(z)
    return Complex(logarithm.re * (1 / math.log(2)), logarithm.im * (1 / math.log(2)))


AS_PRODUCTS = (-1, 1, 2, 3)
"""Exponents that XLA writes as products, if it knows them."""


@on_complex(P.pow_p)
def pow_(z: Complex, w: Any) -> Complex:
    known = w.re + 1j * w.im if isinstance(w, Complex) else w
    if isinstance(known, np.ndarray | np.generic) and np.ndim(known) == 0 and complex(known) in AS_PRODUCTS:
        return integer_pow(z, y=int(np.real(known)))
    w = w if isinstance(w, Complex) else as_complex(lax.convert_element_type(w, z.re.dtype))
    z_re, z_im, w_re, w_im = spread(z.re, z.im, w.re, w.im)
    size, angle = modulus(z_re, z_im), lax.atan2(z_im, z_re)
    scale = lax.pow(size, w_re) * lax.exp(-w_im * angle)
    turn = w_re * angle + w_im * lax.log(size)
    # What is raised to the power 0 becomes 1, and 0 raised to a positive power 0.
    to_zero, of_zero = (w_re == 0) & (w_im == 0), (size == 0) & (w_re > 0) & (w_im == 0)
    re = where(to_zero, 1, where(of_zero, 0, scale * lax.cos(turn)))
    return Complex(re, where(to_zero | of_zero, 0, scale * lax.sin(turn)))
