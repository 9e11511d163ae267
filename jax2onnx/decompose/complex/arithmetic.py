"""Complex arithmetic, comparison, and what is built from them: products, powers, cumulative and windowed products."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax
from jax.extend.core import primitives as P

from jax2onnx.decompose.complex.pairs import RULES, Complex, on_complex, spread, where
from jax2onnx.decompose.complex.structural import mul
from jax2onnx.decompose.registry import decomposes
from jax2onnx.decompose.scatter import scatter_windows_in_order


def modulus(re: Any, im: Any) -> Any:
    """|z| without overflow or underflow on the way."""
    a, b = lax.abs(re), lax.abs(im)
    large, small = lax.max(a, b), lax.min(a, b)
    # The ratio is 1 where both are 0 or both are infinite.
    one = large.dtype.type(1)
    ratio = where(lax.eq(small, large), one, lax.div(small, large))
    return lax.mul(large, lax.sqrt(lax.add(one, lax.mul(ratio, ratio))))


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
    a_re, a_im, b_re, b_im = spread(a.re, a.im, b.re, b.im)
    a, b = Complex(a_re, a_im), Complex(b_re, b_im)
    x, y = lax.abs(b.re), lax.abs(b.im)
    # ONNX Runtime drops the sign of a zero that is the first choice: that of `large` is needed.
    large, zero, inf = where(lax.lt(x, y), b.im, b.re), x.dtype.type(0), x.dtype.type(np.inf)
    is_zero, is_infinite = lax.eq(lax.max(x, y), zero), lax.bitwise_or(lax.eq(x, inf), lax.eq(y, inf))
    re, im = where(is_infinite, 1, lax.div(b.re, large)), where(is_infinite, 0, lax.div(b.im, large))
    scale = where(is_infinite, inf, lax.add(lax.mul(b.re, re), lax.mul(b.im, im)))
    return Complex(
        where(is_zero, lax.div(a.re, large), lax.div(lax.add(lax.mul(a.re, re), lax.mul(a.im, im)), scale)),
        where(is_zero, lax.div(a.im, large), lax.div(lax.sub(lax.mul(a.im, re), lax.mul(a.re, im)), scale)),
    )


def positive(x: Any) -> Any:
    """Whether the sign bit is clear (not so for -0), and it is no NaN."""
    return where(x == 0, 1 / x, x) > 0


@on_complex(P.sign_p)
def sign(z: Complex) -> Complex:
    size = modulus(z.re, z.im)
    zero = size == 0
    return Complex(where(zero, z.re, z.re / size), where(zero, z.im, z.im / size))


@on_complex(P.square_p)
def square(z: Complex) -> Complex:
    return Complex((z.re - z.im) * (z.re + z.im), 2 * (z.re * z.im))


def one_like(z: Complex) -> Complex:
    return Complex(lax.full_like(z.re, 1), lax.full_like(z.im, 0))


@on_complex(P.integer_pow_p)
def integer_pow(z: Complex, *, y: int) -> Complex:
    """By repeated squaring."""
    result, power = None, abs(y)
    while power:
        if power % 2:
            result = z if result is None else mul(result, z)
        power //= 2
        if power:
            z = mul(z, z)
    if result is None:
        return one_like(z)
    return div(one_like(result), result) if y < 0 else result


@on_complex(P.max_p)
def max_(a: Complex, b: Complex) -> Complex:
    return _extremum(lax.gt, a, b)


@on_complex(P.min_p)
def min_(a: Complex, b: Complex) -> Complex:
    return _extremum(lax.lt, a, b)


def _extremum(better: Any, a: Complex, b: Complex) -> Complex:
    """Real parts are compared first, then imaginary parts."""
    a_re, a_im, b_re, b_im = spread(a.re, a.im, b.re, b.im)
    first = where(a_re == b_re, better(a_im, b_im), better(a_re, b_re))
    return where(first, Complex(a_re, a_im), Complex(b_re, b_im))


@on_complex(P.clamp_p)
def clamp(low: Complex, z: Complex, high: Complex) -> Complex:
    """Only the real parts are compared."""
    low_re, low_im, re, im, high_re, high_im = spread(*low, *z, *high)
    raised = where(low_re >= re, Complex(low_re, low_im), Complex(re, im))
    return where(raised.re <= high_re, raised, Complex(high_re, high_im))


def _reduction(combine: Any, start: float) -> Any:
    def rule(z: Complex, *, axes: tuple, **_: Any) -> Complex:
        init = Complex(lax.full_like(z.re, start, shape=()), lax.full_like(z.im, 0, shape=()))
        return Complex(*lax.reduce(tuple(z), tuple(init), lambda a, b: tuple(combine(Complex(*a), Complex(*b))), axes))

    return rule


RULES[P.reduce_prod_p] = _reduction(mul, 1)
RULES[P.reduce_max_p] = _reduction(max_, -np.inf)
RULES[P.reduce_min_p] = _reduction(min_, np.inf)


# Several updates may be for one element: they are taken one after the other.


def _is_complex(avals: Any, params: Any) -> bool:
    return np.issubdtype(avals[0].dtype, np.complexfloating)


def _scatter_in_order(combine: Any) -> Any:
    def scatter(operand: Any, indices: Any, updates: Any, *, dimension_numbers: Any, mode: Any, unique_indices: bool,
                **_: Any) -> Any:  # fmt: skip
        return scatter_windows_in_order(combine, operand, indices, updates, dimension_numbers=dimension_numbers,
                                        mode=mode, unique_indices=unique_indices)  # fmt: skip

    return scatter


decomposes(P.scatter_mul_p, when=_is_complex)(_scatter_in_order(lax.mul))
decomposes(P.scatter_max_p, when=_is_complex)(_scatter_in_order(lax.max))
decomposes(P.scatter_min_p, when=_is_complex)(_scatter_in_order(lax.min))
