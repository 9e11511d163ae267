"""What is batched around convolutions: films, ensembles."""

from __future__ import annotations

from collections import Counter

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from tests.helpers import check

RNG = np.random.default_rng(0)


def array(*shape) -> np.ndarray:
    return (RNG.normal(size=shape) / 2).astype(np.float32)


def conv(x, kernel, layout="NHWC"):
    order = "HWIO" if layout == "NHWC" else "OIHW"
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=(layout, order, layout))


KERNEL, SCALE = array(3, 3, 4, 4), array(4)


def counts(fn, *args, **options) -> Counter[str]:
    model = check(fn, *args, rtol=1e-4, atol=1e-4, **options)
    return Counter(node.op_type for node in model.graph.node)


def network(x):
    """Of one batch of images."""
    y = jax.nn.relu(conv(x, KERNEL) * SCALE + 1)
    return jnp.clip(conv(y, KERNEL) - SCALE + x, -1, 2) * jax.nn.sigmoid(y)


@pytest.mark.parametrize("dims", [None, [("B", 3, 5, 6, 4)], [("B", "T", "H", "W", 4)]])
def test_images_of_films(dims):
    film = array(2, 3, 5, 6, 4)
    found = counts(lambda x: conv(network(x.reshape(-1, *x.shape[2:])), KERNEL).reshape(x.shape), film, dims=dims)
    assert found["Transpose"] == 2
    found = counts(lambda x: jax.vmap(lambda x: conv(x, KERNEL))(jax.vmap(network)(x)), film, dims=dims)
    assert found["Transpose"] == 2 and found["Reshape"] == 2
    found = counts(lambda x: jax.vmap(network)(x).mean((2, 3)), film, dims=dims)
    assert found["Transpose"] == (2 if dims and "T" in dims[0] else 1) and found["Reshape"] == 2


def test_films_with_the_channels_first():
    kernel = np.ascontiguousarray(KERNEL.transpose(3, 2, 0, 1))

    def fn(x):
        y = jax.nn.relu(conv(x, kernel, "NCHW") * SCALE[:, None, None])
        return jnp.where(y > 1, conv(y, kernel, "NCHW"), x).max((2, 3), keepdims=True)

    found = counts(jax.vmap(fn), array(2, 3, 4, 5, 6))
    assert found["Reshape"] == 2 and not found["Transpose"]


def test_ensembles():
    kernels, biases, x = array(3, 3, 3, 4, 8), array(3, 8), array(2, 5, 6, 4)
    more = array(3, 3, 3, 8, 8)

    def fn(x):
        def member(kernel, bias, another):
            return conv(jax.nn.relu(conv(x, kernel) + bias), another).mean((1, 2))

        return jax.vmap(member)(kernels, biases, more)

    found = counts(fn, x)
    assert found["Conv"] == 2 and found["Add"] <= 1
    assert counts(lambda x: fn(x).mean(0), x)["Transpose"] == 2


def test_what_differs_from_frame_to_frame():
    film, factors = array(2, 3, 5, 6, 4), array(3, 1, 1, 4)

    def fn(x):
        y = jax.vmap(lambda x: conv(x, KERNEL))(x)
        return jax.vmap(lambda x: conv(x, KERNEL))((y - y.mean(1, keepdims=True)) * factors)

    check(fn, film, rtol=1e-4, atol=1e-4)
    assert counts(lambda x: jax.vmap(network)(x) * factors, film)["Transpose"] == 2


def test_numbers_with_as_many_axes_as_films():
    film, number = array(2, 3, 5, 6, 4), np.full((1, 1, 1, 1, 1), 2, np.float32)
    found = counts(lambda x: jax.vmap(lambda x: conv(x, KERNEL))(jax.vmap(network)(x) * number + number), film)
    assert found["Transpose"] == 2


def test_frames_that_are_used_otherwise_stay():
    def fn(x):
        y = jax.vmap(lambda x: conv(x, KERNEL))(x)
        return jax.nn.relu(y), jnp.flip(y, 1), y.sum((0, 2))

    check(fn, array(2, 3, 5, 6, 4), rtol=1e-4, atol=1e-4)
    check(fn, array(0, 3, 5, 6, 4))
    check(fn, array(2, 1, 5, 6, 4), rtol=1e-4, atol=1e-4)
