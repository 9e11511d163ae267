"""log1p, expm1, exp2, log2, cbrt, atan2."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax2onnx import compat
from jax2onnx.decompose import special_elementary
from tests.decompose.agreement import SPECIAL, assert_agrees, assert_close, evaluate

pytestmark = pytest.mark.usefixtures("x64")

DTYPES = [(np.float32, 1e-6), (np.float64, 2e-14), (jnp.bfloat16, 8e-3)]
UNARY = {"log1p": lax.log1p_p, "expm1": lax.expm1_p, "exp2": lax.exp2_p, "cbrt": lax.cbrt_p}


def spread(rng: np.random.Generator, n: int = 500) -> np.ndarray:
    """Values of all magnitudes and both signs, denser around 1."""
    wide = rng.normal(size=n) * 10.0 ** rng.uniform(-30, 30, n)
    return np.concatenate([wide, rng.uniform(-3, 3, n), rng.uniform(-90, 90, n)])


def params_of(fn, *args) -> dict:
    return jax.make_jaxpr(fn)(*args).eqns[0].params


@pytest.mark.parametrize(("dtype", "rtol"), DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_unary_is_accurate_everywhere(name, dtype, rtol):
    with np.errstate(over="ignore"):
        x = spread(np.random.default_rng(0)).astype(dtype)
    if name == "exp2":
        rtol *= 10  # the exponential multiplies the rounding error of its argument by |x|
    assert_agrees(UNARY[name], x, rtol=rtol, atol=1e-38, **params_of(getattr(lax, name), x))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", UNARY)
def test_unary_special_values(name, dtype):
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1e-30, 1e-30, 27.0, -8.0, 1000.0], dtype)
    if name != "cbrt":
        x = np.concatenate([x[:7], np.array([-1.0, 1.0, -200.0], dtype)])
    expected = jax.jit(getattr(lax, name))(x)
    actual = evaluate(getattr(special_elementary, name), jnp.asarray(x))
    assert_close(actual, expected, rtol=5e-7 if dtype == np.float32 else 1e-15)
    exact = np.isin(x, [0.0, np.inf, -np.inf]) | np.isnan(x)
    assert_close(actual[exact], expected[exact])


def test_cubes_have_exact_roots():
    roots = np.arange(-100.0, 101)
    np.testing.assert_array_equal(evaluate(special_elementary.cbrt, jnp.asarray(roots**3)), roots)
    np.testing.assert_array_equal(evaluate(special_elementary.cbrt, jnp.asarray(roots**3, np.float32)), roots)


def test_expm1_overflows_where_exp_does():
    x = np.array([88.7, 88.72, 88.73, 89.0, 1e30], np.float32)
    np.testing.assert_array_equal(np.isinf(evaluate(special_elementary.expm1, x)), np.isinf(jnp.exp(x)))


@pytest.mark.parametrize(("dtype", "rtol"), DTYPES)
def test_log2(dtype, rtol):
    x = np.array([0.0, -0.0, np.inf, np.nan, -1.0, 0.125, 1.0, 8.0, 1024.0, 3.0, 1e-5], dtype)
    assert_close(evaluate(special_elementary.log2, jnp.asarray(x)), jax.jit(jnp.log2)(x), rtol=rtol)
    for primitive in compat.kinds.primitives("log2"):
        assert_agrees(primitive, x, rtol=rtol, **params_of(lax.log2, x))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_atan2_special_values(dtype):
    y, x = np.array(list(itertools.product(SPECIAL, SPECIAL)), dtype).T
    assert_agrees(lax.atan2_p, y, x, rtol=4 * np.finfo(dtype).eps)
    actual = evaluate(special_elementary.atan2, y, x)
    zero = np.asarray(actual) == 0
    np.testing.assert_array_equal(np.signbit(actual)[zero], np.signbit(np.arctan2(y, x))[zero])


@pytest.mark.parametrize(("dtype", "rtol"), DTYPES)
def test_atan2_is_accurate_everywhere(dtype, rtol):
    rng = np.random.default_rng(1)
    with np.errstate(over="ignore"):
        y, x = spread(rng).astype(dtype), spread(rng).astype(dtype)
    assert_agrees(lax.atan2_p, y, x, rtol=rtol, atol=np.finfo(np.float32).tiny)


def test_operands_of_size_1_are_broadcast():
    x, y = np.ones((1, 3), np.float32), np.arange(6, dtype=np.float32).reshape(2, 3)
    for primitive in (lax.atan2_p, lax.nextafter_p, lax.zeta_p):
        assert_agrees(primitive, x, y, rtol=1e-6)
        assert_agrees(primitive, y, x, rtol=1e-6)


@pytest.mark.parametrize("shape", [(), (2, 0, 3)])
def test_shapes(shape):
    for name, primitive in UNARY.items():
        x = np.full(shape, 0.3, np.float32)
        assert_agrees(primitive, x, rtol=1e-6, **params_of(getattr(lax, name), x))


def test_polynomial_and_one_minus_square():
    x = jnp.linspace(-1, 1, 7)
    for primitive in compat.kinds.primitives("polynomial"):
        assert_agrees(primitive, x, *(jnp.full((), c, x.dtype) for c in (1, 2, 3)), rtol=1e-15)
    for primitive in compat.kinds.primitives("one_minus_square"):
        assert_agrees(primitive, x)
    np.testing.assert_array_equal(special_elementary.polynomial(x, 1.0, 2.0, 3.0), 1 + x * (2 + x * 3))
    np.testing.assert_array_equal(special_elementary.one_minus_square(x), (1 - x) * (1 + x))
