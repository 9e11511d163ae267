"""Matrix products of groups of rows and of scaled blocks, of nothing, and with a result of another kind."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.helpers import check

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("operands", "result"),
    [("float32", "int32"), ("float16", "uint8"), ("float32", "complex64"), ("int8", "complex128"), ("int8", "float32")],
)
def test_the_sum_is_converted_not_its_terms(operands, result):
    a, b = RNG.uniform(-6, 6, (2, 2, 5, 5)).astype(operands)
    dims = (((2,), (1,)), ((0,), (0,)))
    check(lambda a, b: lax.dot_general(a, b, dims, preferred_element_type=result), a, b, x64=True, atol=1e-5)


def test_products_of_nothing():
    x = np.ones((5, 6), np.float32)
    check(lambda x: [x[:0] @ x.T, x @ x.T[:, :0], x[:0] @ x[0], x[:, :0] @ x.T[:0], (x[:0] @ x.T).T], x)
    check(lambda x: jax.image.resize(x, (0, 3), "linear"), x)


def test_groups_of_rows():
    """Rows beyond the last group are zeros; groups may be empty; with gradients, which are ragged in other axes."""
    x, w = RNG.normal(size=(6, 4)).astype(np.float32), RNG.normal(size=(3, 4, 5)).astype(np.float32)

    def fn(x, w, sizes):
        def loss(x, w):
            return jnp.sum(lax.ragged_dot(x, w, sizes) ** 2)

        return lax.ragged_dot(x, w, sizes), jax.grad(loss, (0, 1))(x, w)

    for sizes in ([2, 0, 4], [1, 2, 1]):
        check(fn, x, w, np.int32(sizes))


def test_scaled_blocks():
    x, y = (RNG.normal(size=s).astype(np.float32) for s in ((4, 64), (64, 3)))
    scales = [jnp.asarray(s, jnp.float8_e8m0fnu) for s in (np.full((4, 2), 2.0), np.full((2, 3), 0.5))]

    def fn(x, y):
        x, y = x.astype(jnp.float8_e4m3fn), y.astype(jnp.float8_e4m3fn)
        return lax.scaled_dot(x, y, lhs_scale=scales[0], rhs_scale=scales[1], preferred_element_type=np.float32)

    check(fn, x, y)
