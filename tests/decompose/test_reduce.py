"""reduce with any computation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from jax2onnx.decompose import reduce as definitions
from tests.decompose.agreement import assert_agrees, assert_close

pytestmark = pytest.mark.usefixtures("x64")


def reduce_params(computation, operands, inits, dimensions) -> dict:
    if len(operands) == 1:
        [operands], [inits] = operands, inits
    jaxpr = jax.make_jaxpr(lambda xs, ys: lax.reduce(xs, ys, computation, dimensions))(operands, inits)
    [eqn] = [eqn for eqn in jaxpr.eqns if eqn.primitive is lax.reduce_p]
    return eqn.params


def check(computation, operands, inits, dimensions, **tolerance):
    assert_agrees(
        lax.reduce_p, *operands, *inits, **reduce_params(computation, operands, inits, dimensions), **tolerance
    )


def composition(f, g):
    """Of affine maps (factor, offset): associative, not commutative."""
    return [g[0] * f[0], g[0] * f[1] + g[1]]


def first_maximum(a, b):
    """Of (value, index) pairs: the left one wins a tie."""
    left = a[0] >= b[0]
    return [jnp.where(left, a[0], b[0]), jnp.where(left, a[1], b[1])]


@pytest.mark.parametrize(("shape", "dimensions"), [((5,), (0,)), ((3, 4), (0, 1)), ((3, 4), (1,)), ((2, 3, 4), (0, 2))])
def test_order_is_kept(shape, dimensions):
    rng = np.random.default_rng(0)
    operands = [rng.integers(-3, 4, shape), rng.integers(-3, 4, shape)]
    check(composition, operands, [np.int64(1), np.int64(0)], dimensions)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8])
def test_first_of_ties(n):
    values = np.random.default_rng(n).integers(0, 3, n).astype(np.float32)
    check(first_maximum, [values, np.arange(n, dtype=np.int32)], [np.float32(-np.inf), np.int32(-1)], (0,))


def test_nothing_to_reduce():
    check(composition, [np.zeros((0, 2)), np.zeros((0, 2))], [np.float64(1), np.float64(3)], (0,))
    check(composition, [np.ones((0, 2)), np.ones((0, 2))], [np.float64(1), np.float64(3)], (1,))
    check(composition, [np.full((2, 3), 2.0), np.ones((2, 3))], [np.float64(1), np.float64(0)], ())


@pytest.mark.parametrize("computation", [lax.add, lax.mul, lax.max, lax.min, lambda a, b: b + a])
def test_standard_computations_with_any_init(computation):
    dtype = np.int8
    x = np.random.default_rng(3).integers(0, 5, (4, 3)).astype(dtype)
    params = reduce_params(computation, [x], [dtype(7)], (0,))
    assert_agrees(lax.reduce_p, x, dtype(7), **params, rtol=1e-6)
    jaxpr = jax.make_jaxpr(lambda x, y: definitions.reduce(x, y, **params))(x, dtype(7))
    assert len(jaxpr.eqns) == 3  # reduce, broadcast the initial value, combine


@pytest.mark.parametrize("computation", [lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor])
def test_bitwise_computations(computation):
    check(computation, [np.array([[True, False], [True, True]])], [np.bool_(True)], (0,))
    check(computation, [np.array([12, 10, -7], np.int32)], [np.int32(5)], (0,))


def test_unknown_length():
    params = reduce_params(composition, [np.zeros((2, 3))] * 2, [np.float64(1), np.float64(0)], (1,))
    exported = export.export(jax.jit(lambda a, b: definitions.reduce(a, b, jnp.float64(1), jnp.float64(0), **params)))(
        *[jax.ShapeDtypeStruct(export.symbolic_shape("a, b"), np.float64)] * 2
    )
    for n in (1, 2, 3, 8, 11):
        a, b = np.random.default_rng(n).normal(size=(2, 3, n))
        expected = lax.reduce([a, b], [np.float64(1), np.float64(0)], composition, (1,))
        for x, y in zip(exported.call(a, b), expected, strict=True):
            assert_close(x, y, rtol=1e-13)
