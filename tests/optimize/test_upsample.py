"""Images that grow by repeating their pixels, between convolutions."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.helpers import check, check_run


def weights(*shape):
    return (np.random.default_rng(len(shape)).normal(size=shape) / 6).astype(np.float32)


K = weights(3, 3, 4, 4)


def conv(x, layout="NHWC"):
    return lax.conv_general_dilated(x, K, (1, 1), "SAME", dimension_numbers=(layout, "HWIO", layout))


def nearest(x, axes=(1, 2), factors=(2, 3)):
    shape = list(x.shape)
    for axis, factor in zip(axes, factors, strict=True):
        shape[axis] *= factor
    return jax.image.resize(x, tuple(shape), "nearest")


def repeats(x, axes=(1, 2), factors=(2, 3)):
    for axis, factor in zip(axes, factors, strict=True):
        x = jnp.repeat(x, factor, axis)
    return x


def broadcasts(x, axes=(1, 2), factors=(2, 3)):
    (a, b), (m, n), shape = axes, factors, list(x.shape)
    shape[a], shape[b] = shape[a] * m, shape[b] * n
    x = jnp.expand_dims(x, (a + 1, b + 2))
    return jnp.broadcast_to(x, (*x.shape[: a + 1], m, x.shape[a + 2], n, *x.shape[b + 3 :])).reshape(shape)


SPELLINGS = pytest.mark.parametrize("grow", [nearest, repeats, broadcasts])
X = np.random.default_rng(0).normal(size=(2, 3, 5, 4)).astype(np.float32)
SIZES = [(2, 3, 5, 4), ("B", 3, 5, 4), ("B", "H", "W", 4), ("B", "H", "2*W + 1", 4)]


def ops(model):
    return Counter(node.op_type for node in model.graph.node)


@SPELLINGS
@pytest.mark.parametrize("sizes", SIZES[:3])
def test_one_resize_between_convolutions(grow, sizes):
    model = check(lambda x: conv(grow(conv(x))), X, dims=[sizes], rtol=1e-4, atol=1e-5)
    assert ops(model) == {"Transpose": 2, "Conv": 2, "Resize": 1}


@SPELLINGS
def test_one_resize_with_the_channels_first(grow):
    def fn(x):
        return conv(grow(conv(x, "NCHW"), axes=(2, 3)), "NCHW")

    model = check(fn, X.transpose(0, 3, 1, 2), dims=[("B", 4, "H", "W")], rtol=1e-4, atol=1e-5)
    assert ops(model) == {"Conv": 2, "Resize": 1}


@SPELLINGS
def test_few_pixels_are_transposed_not_many(grow):
    model = check(lambda x: conv(grow(x)), X, dims=[SIZES[1]], rtol=1e-4, atol=1e-5)
    assert [node.op_type for node in model.graph.node] == ["Transpose", "Resize", "Conv", "Transpose"]


def test_twice():
    def fn(x):
        return conv(nearest(conv(nearest(conv(x), factors=(2, 2))), factors=(4, 4)))

    model = check(fn, X, dims=[("B", "2*H + 1", "W", 4)], rtol=1e-4, atol=1e-5)
    assert ops(check(fn, X, dims=[SIZES[2]], rtol=1e-4, atol=1e-5)) == {"Transpose": 2, "Conv": 3, "Resize": 2}
    check_run(model, fn, np.ones((1, 1, 1, 4), np.float32), rtol=1e-4, atol=1e-5)


def test_a_sequence():
    def fn(x):
        x = lax.conv_general_dilated(x, K[0], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
        x = jnp.repeat(x, 2, axis=1)
        return lax.conv_general_dilated(x, K[1], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))

    model = check(fn, X[0], dims=[("B", "T", 4)], rtol=1e-4, atol=1e-5)
    assert ops(model) == {"Transpose": 2, "Conv": 2, "Resize": 1}


def test_pixels_are_copied_as_they_are():
    x = X.copy()
    x[0, 0, 0], x[0, 1, 1, :2], x[1, 2, 2, 1] = np.nan, (np.inf, -np.inf), -0.0
    turned = x.transpose(0, 3, 1, 2)
    for grow in (nearest, repeats, broadcasts):
        model = check(lambda x, grow=grow: grow(x, axes=(2, 3)), turned, rtol=0, atol=0)
        assert ops(model) == {"Resize": 1}
        check(lambda x, grow=grow: grow(x, axes=(2, 3)), turned.astype(np.float16), rtol=0, atol=0)


@pytest.mark.parametrize(
    "grow",
    [
        lambda x: nearest(x, factors=(1, 1), axes=(1, 2))[:, ::-1],
        lambda x: jax.image.resize(x, (2, 7, 9, 4), "nearest"),
        lambda x: jnp.tile(x, (1, 2, 2, 1)),
        lambda x: jnp.repeat(x, 2, axis=3)[..., :4],
        lambda x: jnp.repeat(x, 2, axis=0),
        lambda x: x[:, jnp.array([0, 0, 1, 1, 2])],
        lambda x: x[:, jnp.array([0, 0, 1, 2, 2, 2])],
        lambda x: jnp.repeat(jnp.repeat(x[:, :1, :1], 3, 1), 2, 2),
    ],
    ids=["flipped", "uneven", "tiled", "channels", "batch", "too few", "unequal", "one pixel"],
)
def test_what_is_not_repeated_evenly_is_right(grow):
    check(lambda x: conv(grow(conv(x))), X, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (1, 100), (-1, 100), (None, None)])
def test_indices_that_are_bounded_otherwise(low, high):
    def fn(x):
        n = x.shape[1]
        index = jnp.floor((jnp.arange(2 * n, dtype=np.float32) + 0.5) * n / (2 * n)).astype(np.int32)
        return conv(conv(x)[:, index if low is None else jnp.clip(index, low, high)])

    model = check(fn, X, dims=[("B", "H", 5, 4)], rtol=1e-4, atol=1e-5)
    assert ops(model)["Resize"] <= (low is None or low < 0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "int32"])
def test_places_that_a_type_does_not_hold(dtype):
    def fn(x):
        height = x.shape[1]
        rows = (jnp.arange(2 * height).astype(np.float32) + 0.5).astype(dtype).astype(np.float32)
        return x[:, jnp.floor(rows * height / (2 * height)).astype(np.int32)]

    x = np.arange(3000, dtype=np.float32).reshape(1, 2, 750, 2)
    check(lambda x: fn(x.transpose(0, 2, 3, 1)), x, dims=[("B", 2, "H", "W")])
