"""Cumulative reductions: every direction and dtype, NaN, empty axes, unknown lengths."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from jax2onnx.decompose import cumulative
from tests.decompose.agreement import assert_agrees, assert_close, evaluate

pytestmark = pytest.mark.usefixtures("x64")

PRIMITIVES = {
    "cumprod": lax.cumprod_p,
    "cummax": lax.cummax_p,
    "cummin": lax.cummin_p,
    "cumlogsumexp": lax.cumlogsumexp_p,
}


@pytest.mark.parametrize("name", PRIMITIVES)
@pytest.mark.parametrize(
    ("shape", "axis", "reverse"),
    [((7,), 0, False), ((3, 1, 4), 1, True), ((2, 9), 1, True), ((2, 0), 1, False)],
)
def test_shapes_and_directions(name, shape, axis, reverse):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    assert_agrees(PRIMITIVES[name], x, axis=axis, reverse=reverse, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", PRIMITIVES)
def test_special_values(name):
    x = np.array([1.0, -0.0, 0.0, 2.0, -np.inf, -np.inf, np.inf, 3.0, np.nan, 5.0])
    for part in (x, x[:8], x[4:6]):
        assert_agrees(PRIMITIVES[name], part, axis=0, reverse=False, rtol=1e-15)


@pytest.mark.parametrize("dtype", [np.int8, np.uint32, np.int64, jnp.bfloat16])
@pytest.mark.parametrize("name", ["cumprod", "cummax", "cummin"])
def test_dtypes(name, dtype):
    x = jnp.asarray(np.random.default_rng(1).integers(-5, 6, 6)).astype(dtype)
    assert_agrees(PRIMITIVES[name], x, axis=0, reverse=True)


def test_complex_products():
    x = np.random.default_rng(2).normal(size=(5, 2)).view(np.complex128)[:, 0]
    assert_agrees(lax.cumprod_p, x, axis=0, reverse=False, rtol=1e-14)


@pytest.mark.parametrize("name", PRIMITIVES)
def test_unknown_length(name):
    reverse = name in ("cumprod", "cummin")
    fn = getattr(cumulative, name)
    exported = export.export(jax.jit(lambda x: fn(x, axis=1, reverse=reverse)))(
        jax.ShapeDtypeStruct(export.symbolic_shape("a, b"), np.float32)
    )
    for n in (1, 2, 5, 16):
        x = np.random.default_rng(n).normal(size=(2, n)).astype(np.float32)
        assert_close(exported.call(x), getattr(lax, name)(x, axis=1, reverse=reverse), rtol=1e-6, atol=1e-7)


def test_graph_grows_with_the_logarithm():
    jaxpr = jax.make_jaxpr(lambda x: cumulative.cumprod(x, axis=0, reverse=False))(np.zeros(1024))
    assert len(jaxpr.eqns) == 20


def test_small_terms_of_logsumexp_survive():
    x = np.array([0.0, -20.0, -30.0], np.float32)
    actual = evaluate(lambda x: cumulative.cumlogsumexp(x, axis=0, reverse=False), x)
    np.testing.assert_allclose(actual, np.logaddexp.accumulate(x.astype(np.float64)), rtol=1e-6)
