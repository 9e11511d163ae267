"""Discrete Fourier transforms as matrix products.

A short transform is a product with the matrix of its roots of unity, in which only what is not known to be real, or the
conjugate of another number, has a row and a column of its own. A longer one of length n1 * n2 is n2 transforms of
length n1, a rotation of each element, and n1 transforms of length n2 (Cooley and Tukey). One of a long prime length is
a convolution, by transforms of a length that is a power of two (Bluestein). One whose length is only known when the
model runs is a product with a matrix that is made then: n * n cosines and sines.

In ONNX Runtime this is several times as fast as its DFT operator, and far more accurate for lengths that are no powers
of two: there the operator has errors of 1e-3 in float32.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import primitives as P
from jax.lax import FftType

from jax2onnx.decompose.complex.pairs import Complex, on_complex, partwise
from jax2onnx.decompose.complex.structural import mul

LARGEST_MATRIX = 260 * 260
"""Up to so many elements one product is fastest (and its matrix takes 256 kB in float32).

That is a length of 128 for complex numbers, of 256 if there are real numbers on one side.
"""


@on_complex(P.fft_p)
def fft(x: Any, *, fft_type: FftType, fft_lengths: tuple) -> Any:
    """The transform over the last axes. A real one is real on the last axis only."""
    part = x.re if isinstance(x, Complex) else x
    if 0 in fft_lengths:
        *outer, n = fft_lengths
        shape = (*part.shape[: -len(fft_lengths)], *outer, n // 2 + 1 if fft_type == FftType.RFFT else n)
        zeros = lax.full_like(part, 0, shape=shape)
        return zeros if fft_type == FftType.IRFFT else Complex(zeros, zeros)
    last = part.ndim - 1
    axes = {last - i: n for i, n in enumerate(reversed(fft_lengths))}
    others = {axis: n for axis, n in axes.items() if axis != last}
    forward = fft_type in (FftType.FFT, FftType.RFFT)
    if fft_type == FftType.RFFT:
        x = _dft(x, last, axes[last], forward, axes[last] // 2 + 1)
    for axis, n in (axes if fft_type in (FftType.FFT, FftType.IFFT) else others).items():
        x = _dft(x, axis, n, forward, n)
    return _real_signal(x, last, axes[last]) if fft_type == FftType.IRFFT else x


def _real_signal(z: Complex, axis: int, n: Any) -> Any:
    """The real signal of length `n` of which this is the first half of the spectrum.

    The other half are the conjugates of those in between the first and, if n is even, the last. These two are real:
    whatever their imaginary parts are is not looked at.
    """
    between = partwise(lambda x: lax.slice_in_dim(x, 1, n - n // 2, axis=axis), z)
    if isinstance(n, int) and n * n <= LARGEST_MATRIX:
        roots = _roots(1, np.arange(n // 2 + 1)[:, None] * np.arange(n), n) / n
        roots[1 : n - n // 2] *= 2
        return _times(lax.concatenate([z.re, between.im], axis), axis, [[roots.real], [-roots.imag[1 : n - n // 2]]])
    mirrored = partwise(lambda x: lax.rev(x, [axis]), between)
    at = lax.broadcasted_iota(np.int32, z.im.shape, axis)
    is_real = (at == 0) | (2 * at == (n if isinstance(n, int) else jnp.asarray(n, np.int32)))
    im = lax.concatenate([lax.select(is_real, jnp.zeros_like(z.im), z.im), -mirrored.im], axis)
    return _dft(Complex(lax.concatenate([z.re, mirrored.re], axis), im), axis, n, False, n).re


def _dft(x: Any, axis: int, n: Any, forward: bool, keep: Any) -> Complex:
    """The first `keep` coefficients along `axis`, which has `n` elements. The inverse transform is divided by n."""
    scale = 1.0 if forward else 1 / (n if isinstance(n, int) else jnp.asarray(n, _dtype(x)))
    return _sums(x, axis, n, -1 if forward else 1, scale, keep)


def _sums(x: Any, axis: int, n: Any, sign: int, scale: Any, keep: Any) -> Complex:
    """sum_j(x[j] * exp(sign * 2j * pi * j * k / n)) * scale for k < keep."""
    if not isinstance(n, int):
        return _product(x, axis, *_matrix(n, keep, sign, scale, _dtype(x)))
    parts = 2 if isinstance(x, Complex) else 1
    if n * parts * keep * 2 <= LARGEST_MATRIX:
        matrix = scale * _roots(sign, np.arange(n)[:, None] * np.arange(keep), n)
        return _product(x, axis, matrix.real, matrix.imag)
    n1 = max(d for d in range(1, math.isqrt(n) + 1) if n % d == 0)
    if n1 == 1:
        return _by_convolution(x, axis, n, sign, scale, keep)
    # j = n2 * j1 + j2 and k = n1 * k2 + k1.
    n2, rows = n // n1, -(-keep // n1)
    x = _each(lambda part: lax.reshape(part, (*part.shape[:axis], n1, n2, *part.shape[axis + 1 :])), x)
    x = _sums(x, axis, n1, sign, 1.0, n1)
    x = _rotate(x, axis, _roots(sign, np.arange(n1)[:, None] * np.arange(n2), n))
    x = _sums(x, axis + 1, n2, sign, scale, rows)

    def in_order(part: Any) -> Any:
        swapped = lax.transpose(part, [*range(axis), axis + 1, axis, *range(axis + 2, part.ndim)])
        flat = lax.reshape(swapped, (*part.shape[:axis], n1 * rows, *part.shape[axis + 2 :]))
        return lax.slice_in_dim(flat, 0, keep, axis=axis)

    return partwise(in_order, x)


def _by_convolution(x: Any, axis: int, n: int, sign: int, scale: float, keep: int) -> Complex:
    """From 2jk = j**2 + k**2 - (k - j)**2: a convolution with a chirp, between two rotations by it."""
    j = np.arange(n)
    chirp = _roots(sign, j * j, 2 * n)
    length = 1 << (2 * n - 2).bit_length()
    kernel = np.zeros(length, np.complex128)
    kernel[:n] = chirp.conj()
    kernel[length - n + 1 :] = chirp[:0:-1].conj()
    x = _rotate(x, axis, chirp)
    x = partwise(lambda part: _pad(part, axis, length - n), x)
    x = _rotate(_dft(x, axis, length, True, length), axis, np.fft.fft(kernel))
    return _rotate(_dft(x, axis, length, False, keep), axis, scale * chirp[:keep])


def _roots(sign: int, turns: np.ndarray, n: int) -> np.ndarray:
    """exp(sign * 2j * pi * turns / n), accurate for many turns."""
    return np.exp(sign * 2j * np.pi * (turns % n) / n)


def _matrix(n: Any, keep: Any, sign: int, scale: Any, dtype: Any) -> tuple[Any, Any]:
    """The real and imaginary parts of the matrix of a transform whose length is known when the model runs."""
    size = jnp.asarray(n, np.int32)
    rows, columns = (lax.broadcasted_iota(np.int32, (n, keep), axis) for axis in (0, 1))
    turns = lax.rem(rows * columns, lax.broadcast(size, (n, keep)))
    nearest = jnp.where(2 * turns > size, turns - size, turns)  # a small angle is an exact one
    angles = nearest.astype(dtype) / size.astype(dtype) * (2 * np.pi)
    return scale * jnp.cos(angles), sign * scale * jnp.sin(angles)


def _rotate(x: Any, axis: int, factors: np.ndarray) -> Complex:
    """Multiply by complex numbers along `axis` (and the next, if there is an array of them)."""
    like = x.re if isinstance(x, Complex) else x
    factors = factors.reshape(*factors.shape, *[1] * (like.ndim - axis - factors.ndim))
    factors = factors.reshape(*[1] * (like.ndim - factors.ndim), *factors.shape)
    return mul(x, Complex(factors.real.astype(like.dtype), factors.imag.astype(like.dtype)))


def _product(x: Any, axis: int, re: Any, im: Any) -> Complex:
    """Replace `axis` by its product with a complex matrix: one product of reals for both parts."""
    if isinstance(x, Complex):
        result = _times(lax.concatenate([x.re, x.im], axis), axis, [[re, im], [-im, re]])
    else:
        result = _times(x, axis, [[re, im]])
    n = re.shape[1]
    return Complex(lax.slice_in_dim(result, 0, n, axis=axis), lax.slice_in_dim(result, n, 2 * n, axis=axis))


def _times(x: Any, axis: int, blocks: list[list[Any]]) -> Any:
    """Replace `axis` by its product with a matrix of these blocks."""
    known = np if isinstance(blocks[0][0], np.ndarray) else jnp
    result = lax.dot_general(x, known.block(blocks).astype(x.dtype), (([axis], [0]), ([], [])))
    last = result.ndim - 1
    return lax.transpose(result, [*range(axis), last, *range(axis, last)])


def _dtype(x: Any) -> Any:
    return x.re.dtype if isinstance(x, Complex) else x.dtype


def _each(fn: Any, x: Any) -> Any:
    return partwise(fn, x) if isinstance(x, Complex) else fn(x)


def _pad(x: Any, axis: int, count: int) -> Any:
    return lax.pad(x, np.zeros((), x.dtype), [(0, count if i == axis else 0, 0) for i in range(x.ndim)])
