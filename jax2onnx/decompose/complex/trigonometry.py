"""Trigonometric and hyperbolic functions of complex numbers, and their inverses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jax import lax
from jax.extend.core import primitives as P

from jax2onnx.decompose.complex.arithmetic import div, modulus, positive
from jax2onnx.decompose.complex.elementary import log, sqrt
from jax2onnx.decompose.complex.pairs import Complex, on_complex, partwise, where
from jax2onnx.decompose.complex.structural import mul


def _times_i(z: Complex) -> Complex:
    return Complex(-z.im, z.re)


def _over_i(z: Complex) -> Complex:
    return Complex(z.im, -z.re)


def _sinh_cosh(x: Any) -> tuple[Any, Any]:
    """From expm1, which does not cancel near 0."""
    up, down = lax.expm1(x), lax.expm1(-x)
    return 0.5 * (up - down), 0.5 * (up + down + 2)


@on_complex(P.sin_p)
def sin(z: Complex, **_: Any) -> Complex:
    sinh, cosh = _sinh_cosh(z.im)
    return Complex(where(z.re == 0, 0, lax.sin(z.re) * cosh), lax.cos(z.re) * sinh)


@on_complex(P.cos_p)
def cos(z: Complex, **_: Any) -> Complex:
    sinh, cosh = _sinh_cosh(z.im)
    return Complex(lax.cos(z.re) * cosh, where(z.re == 0, 0, -lax.sin(z.re) * sinh))


def _scaled(x: Any, for_sinh: Any, for_cosh: Any) -> tuple[Any, Any]:
    """sinh(x) * for_sinh and cosh(x) * for_cosh, also where only the products are small enough."""
    sinh, cosh = _sinh_cosh(x)
    root = lax.exp(0.5 * lax.abs(x))
    far = lax.abs(x) > 20  # both are exp(|x|) / 2, up to their signs
    sinh_far, cosh_far = root * (root * (0.5 * for_sinh)), root * (root * (0.5 * for_cosh))
    return where(far, lax.sign(x) * sinh_far, sinh * for_sinh), where(far, cosh_far, cosh * for_cosh)


@on_complex(P.sinh_p)
def sinh(z: Complex, **_: Any) -> Complex:
    re, im = _scaled(z.re, lax.cos(z.im), lax.sin(z.im))
    return Complex(re, where(z.im == 0, z.im, im))


@on_complex(P.cosh_p)
def cosh(z: Complex, **_: Any) -> Complex:
    im, re = _scaled(z.re, lax.sin(z.im), lax.cos(z.im))
    return Complex(re, where(z.im == 0, 0, im))


@on_complex(P.tanh_p)
def tanh(z: Complex, **_: Any) -> Complex:
    # Far out it is 1 or -1, but the squares would overflow.
    limit = lax.full_like(z.re, 0.45 * math.log(np.finfo(z.re.dtype).max))
    sinh, cosh = _sinh_cosh(lax.clamp(-limit, z.re, limit))
    sine, cosine = lax.sin(z.im), lax.cos(z.im)
    scale = sinh * sinh + cosine * cosine
    infinite = lax.abs(z.re) == np.inf  # whatever the imaginary part
    re = where(infinite, lax.sign(z.re), sinh * cosh / scale)
    return Complex(re, where(infinite | (z.im == 0), 0, sine * cosine / scale))


@on_complex(P.tan_p)
def tan(z: Complex, **_: Any) -> Complex:
    return _over_i(tanh(_times_i(z)))


def _asin_acos(z: Complex) -> tuple[Any, Any]:
    """sqrt(1 - Re(asin(z))**2 ...): the parts that asin and acos share, for |Re(z)| and |Im(z)|.

    Hull, Fairgrieve, Tang: Implementing the complex arcsine and arccosine functions using exception handling (1997).
    """
    x, y = lax.abs(z.re), lax.abs(z.im)
    info = np.finfo(x.dtype)
    huge = math.sqrt(float(info.max)) / 8
    wide = x >= huge
    large = wide | (y >= huge)
    # Where they are large both are replaced: what is computed from them is not used there.
    x_, y_ = where(large, 1, x), where(large, 1, y)
    r, s = modulus(x_ + 1, y_), modulus(x_ - 1, y_)
    a = 0.5 * (r + s)
    right, left = r + (x_ + 1), s - (x_ - 1)
    beyond = s + (x_ - 1)
    yy = y_ * y_
    half_sum = 0.5 * (a + x_)
    inside = x_ <= 1
    adjacent = where(
        inside,
        lax.sqrt(half_sum * (yy / right + left)),
        y_ * lax.sqrt(half_sum / right + half_sum / where(inside, 1, beyond)),
    )
    excess = where(
        x_ < 1,
        0.5 * (yy / right + yy / where(x_ < 1, left, 1)),
        where(a < 1.5, 0.5 * (yy / right + beyond), a - 1),
    )
    root = lax.sqrt(excess * (a + 1))
    tiny = (y_ < float(info.eps)) & (x_ < 1)
    height = where(tiny, y_ / lax.sqrt(where(tiny, (1 - x_) * (1 + x_), 1)), lax.log1p(excess + root))
    # log(2 * |z|), also where one part is infinite and the other is NaN
    top = where(wide, where(y > x, y, x), y)
    ratio = where((top == np.inf) | (y != y), 0, lax.min(x, y) / top)
    far = math.log(2) + lax.log(top) + 0.5 * lax.log1p(ratio * ratio)
    return where(large, y, adjacent), where(large, far, height)


@on_complex(P.asin_p)
def asin(z: Complex, **_: Any) -> Complex:
    adjacent, height = _asin_acos(z)
    return Complex(lax.atan2(z.re, adjacent), where(z.im < 0, -height, height))


@on_complex(P.acos_p)
def acos(z: Complex, **_: Any) -> Complex:
    adjacent, height = _asin_acos(z)
    return Complex(lax.atan2(adjacent, z.re), where(z.im < 0, height, -height))


@on_complex(P.asinh_p)
def asinh(z: Complex, **_: Any) -> Complex:
    swapped = asin(Complex(z.im, z.re))
    return Complex(swapped.im, swapped.re)


@on_complex(P.acosh_p)
def acosh(z: Complex, **_: Any) -> Complex:
    w = acos(z)
    return Complex(lax.abs(w.im), where(z.im < 0, -w.re, w.re))


@on_complex(P.atanh_p)
def atanh(z: Complex, **_: Any) -> Complex:
    x, y = lax.abs(z.re), lax.abs(z.im)
    size = lax.max(x, y)
    most = 1 / float(np.finfo(x.dtype).eps)
    near = size <= most
    x_, y_ = where(near, x, 1), where(near, y, 1)
    re = 0.25 * lax.log1p(4 * x_ / ((1 - x_) * (1 - x_) + y_ * y_))
    im = 0.5 * lax.atan2(2 * y_, (1 - x_) * (1 + x_) - y_ * y_)
    # Far out it is 1 / z, and half a turn.
    ratio = lax.min(x, y) / size
    far = where((x == np.inf) | (y == np.inf), 0, x / size / (1 + ratio * ratio) / size)
    re, im = where(near, re, far), where(near, im, 0.5 * math.pi)
    upper = where(size < 4 * most * most, positive(z.im), z.im >= 0)  # XLA sees the sign of a zero up to there
    return Complex(where(z.re < 0, -re, re), where(upper, im, -im))


@on_complex(P.atan_p)
def atan(z: Complex, **_: Any) -> Complex:
    return _over_i(atanh(_times_i(z)))


@on_complex(P.atan2_p)
def atan2(y: Complex, x: Complex) -> Complex:
    """-1j * log((x + 1j * y) / sqrt(x**2 + y**2))."""
    length = sqrt(partwise(lax.add, mul(x, x), mul(y, y)))
    return _over_i(log(div(partwise(lax.add, x, _times_i(y)), length)))
