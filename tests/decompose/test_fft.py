"""Fourier transforms of all kinds and lengths."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2onnx.decompose.complex import eliminate_complex
from tests.decompose.rewriting import assert_same, evaluate, packed
from tests.helpers import quick

RNG = np.random.default_rng(0)


def numbers(*shape):
    return (RNG.normal(size=shape) + 1j * RNG.normal(size=shape)).astype(np.complex64)


def error(fn, x):
    """The largest error, relative to the largest value of the result."""
    closed = eliminate_complex(jax.make_jaxpr(fn)(x))
    (actual,), expected = evaluate(closed, x), packed(jax.jit(fn)(x))
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    return np.abs(actual - expected).max() / np.abs(expected).max()


# Products; two factors, with factors of their own; primes, which take a convolution; and both.
LENGTHS = [1, 2, 3, 7, 8, 16, 100, 127, 128, 129, 256, 257, 258, 254, 131, 262, 1000, 1009, 20000]


@pytest.mark.parametrize("n", quick([1, 2, 7, 128, 129, 256, 258, 20000], LENGTHS))
def test_one_axis(n):
    z = numbers(2, n)
    assert error(jnp.fft.fft, z) < 2e-6
    assert error(jnp.fft.ifft, z) < 2e-6
    assert error(jnp.fft.rfft, z.real) < 2e-6
    assert error(lambda z: jnp.fft.irfft(z, n), z[:, : n // 2 + 1]) < 2e-6


@pytest.mark.parametrize("n", [12, 200, 257])
def test_double_precision(n):
    with jax.enable_x64(True):
        z = numbers(2, n).astype(np.complex128)
        assert error(jnp.fft.fft, z) < 1e-14
        assert error(lambda z: jnp.fft.irfft(z, n), z[:, : n // 2 + 1]) < 1e-14


@pytest.mark.parametrize(
    "fn",
    [
        jnp.fft.fft2,
        jnp.fft.ifft2,
        lambda z: jnp.fft.fftn(z, axes=(1, 2, 3)),
        lambda z: jnp.fft.ifftn(z, axes=(1, 2, 3)),
        lambda z: jnp.fft.rfft2(z.real),
        lambda z: jnp.fft.rfftn(z.real, axes=(1, 2, 3)),
        lambda z: jnp.fft.irfft2(z),
        lambda z: jnp.fft.irfftn(z, axes=(1, 2, 3)),
        lambda z: jnp.fft.fft(z, axis=1),
        lambda z: jnp.fft.fft(z, 9, axis=2),
        lambda z: jnp.fft.hfft(z),
        lambda z: jnp.fft.fftshift(jnp.fft.fft(z)),
    ],
)
def test_several_axes(fn):
    assert error(fn, numbers(2, 4, 5, 6)) < 2e-6


def test_long_axes_that_are_not_the_last():
    z = numbers(130, 3, 150)
    assert error(lambda z: jnp.fft.fftn(z), z) < 2e-6
    assert error(lambda z: jnp.fft.ifft(z, axis=0), z) < 2e-6


def test_the_imaginary_parts_of_real_coefficients_do_not_count():
    """The first coefficient of a real signal is real, and for an even length the last."""
    for n in (1, 2, 8, 9, 400, 401):
        z = numbers(n // 2 + 1)
        z.imag[0] = np.nan
        if n % 2 == 0:
            z.imag[-1] = np.inf
        assert error(lambda z, n=n: jnp.fft.irfft(z, n), z) < 2e-6


def test_empty_batch():
    assert_same(eliminate_complex, jnp.fft.fft, numbers(0, 5))
    assert_same(eliminate_complex, lambda z: jnp.fft.rfftn(z.real), numbers(2, 0, 3))
    assert_same(eliminate_complex, jnp.fft.rfft, numbers(3, 0, 5).real)
    assert_same(eliminate_complex, jnp.fft.irfft, numbers(2, 1))  # of length 2 * (1 - 1)


def test_derivative():
    x = numbers(3, 6).real
    assert_same(eliminate_complex, jax.grad(lambda x: jnp.abs(jnp.fft.rfft(x)).sum()), x, rtol=1e-4, atol=1e-4)
    assert_same(eliminate_complex, jax.vmap(jnp.fft.fft), numbers(3, 4), rtol=1e-4, atol=1e-4)


def test_symbolic_batch():
    (b,) = jax.export.symbolic_shape("b")
    closed = eliminate_complex(jax.make_jaxpr(jnp.fft.rfft)(jax.ShapeDtypeStruct((b, 200), np.float32)))
    assert [v.aval.shape for v in closed.jaxpr.outvars] == [(b, 101, 2)]


def test_constants_are_small():
    """The matrices of a long transform are those of its factors."""
    closed = eliminate_complex(jax.make_jaxpr(jnp.fft.fft)(numbers(4096)))

    def sizes(jaxpr):
        literals = [v for eqn in jaxpr.eqns for v in eqn.invars if isinstance(v, jax.extend.core.Literal)]
        return sum(np.size(v.val) for v in literals) + sum(sizes(j) for j in jax.extend.core.subjaxprs(jaxpr))

    assert sizes(closed.jaxpr) < 15 * 4096
