"""Windows that are axes of their own are pooled."""

from __future__ import annotations

from collections import Counter

import equinox as eqx
import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from tests.helpers import check

RNG = np.random.default_rng(0)


def array(*shape) -> np.ndarray:
    return (RNG.normal(size=shape) / 2).astype(np.float32)


def conv(x, kernel):
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


KERNEL = array(3, 3, 6, 6)


def counts(fn, *args, **options) -> Counter[str]:
    model = check(fn, *args, rtol=1e-4, atol=1e-4, **options)
    return Counter(node.op_type for node in model.graph.node)


@pytest.mark.parametrize("dims", [None, [("B", "2*H", "4*W", 6)]])
@pytest.mark.parametrize("reduce", [jnp.mean, jnp.max])
def test_windows_between_convolutions(reduce, dims):
    def fn(x):
        n, h, w, c = x.shape
        y = reduce(conv(x, KERNEL).reshape(n, h // 2, 2, w // 4, 4, c), (2, 4))
        return conv(y, KERNEL)

    found = counts(fn, array(2, 6, 8, 6), dims=dims)
    assert found["Transpose"] == 2 and not found["Reshape"]
    x = array(2, 6, 8, 6)
    x[0, 0, 0, 0], x[0, 2, 1, 1], x[1, 3:, 5:, 2] = np.nan, np.inf, -np.inf
    check(fn, x)


@pytest.mark.parametrize("axes", [(2,), (4,), (2, 4, 5), (0, 2), (1, 3), (2, 3)])
def test_some_of_the_axes(axes):
    """Of which not all are windows."""
    check(lambda x: conv(x, KERNEL).reshape(2, 3, 2, 2, 4, 6).max(axes), array(2, 6, 8, 6), rtol=1e-4, atol=1e-4)
    check(lambda x: conv(x, KERNEL).reshape(2, 3, 2, 2, 4, 2, 3).mean(axes), array(2, 6, 8, 6), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("axis", [-1, -2])
def test_groups_of_channels(axis):
    """Maxout: no Transpose is left if the channels of a group are side by side."""
    shape = (2, 3) if axis == -2 else (3, 2)
    found = counts(
        lambda x: conv(conv(x, KERNEL).reshape(*x.shape[:3], *shape).max(axis), KERNEL[:, :, :3]), array(2, 5, 4, 6)
    )
    assert found["Transpose"] == (2 if axis == -1 else 4)


@pytest.mark.parametrize("pool", [eqx.nn.AdaptiveAvgPool2d, eqx.nn.AdaptiveMaxPool2d])
def test_adaptive_pools_of_equinox(pool):
    convolutions = [eqx.nn.Conv2d(3, 3, 3, key=jax.random.key(i)) for i in (0, 1)]
    network = eqx.nn.Sequential([convolutions[0], pool(4), convolutions[1]])
    found = counts(jax.vmap(network), array(2, 3, 18, 14))
    assert found["Conv"] == 2 and found.total() == 3


@pytest.mark.parametrize("window", [(7, 7), (1, 49), (3, 7), (5, 5), (1, 9)])
@pytest.mark.parametrize("dims", [None, [("H", "W")]])
def test_what_is_counted_in_windows_is_whole(window, dims):
    def count(x):
        return lax.reduce_window(x, np.float32(0), lax.add, window, (1, 1), "SAME")

    mask = (RNG.random((60, 70)) < 0.5).astype(np.float32)
    check(lambda x: (jnp.floor(count(x)), count(x) == 12), mask, dims=dims)
    large = np.full((60, 70), 3e38 / np.prod(window), np.float32)
    check(count, large, dims=dims)
    check(count, -large, dims=dims)
    images = array(2, 60, 70, 3)
    images[0, 3, 5], images[1, 40, 2] = np.nan, -np.inf
    check(jax.vmap(jax.vmap(count, -1, -1)), images, atol=1e-4)
