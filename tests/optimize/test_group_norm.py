"""Group, instance and batch normalization as each library writes them, and what `normalization_mode` makes of them."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from flax import nnx
from jax import lax

from jax2onnx import InputError, load, to_onnx
from tests.helpers import check, check_run

X = np.random.default_rng(0).normal(size=(3, 6, 5, 8)).astype(np.float32)
HARD = X.copy()
HARD[0, 2, 3, 1], HARD[0, 1, 1, 6], HARD[1, :, :, :2] = np.nan, np.inf, 0
SCALE, BIAS = (np.random.default_rng(i).normal(size=8).astype(np.float32) for i in (1, 2))
NATIVE = {"InstanceNormalization", "GroupNormalization", "BatchNormalization", "LayerNormalization", "RMSNormalization"}


def ops(model) -> list[str]:
    return [node.op_type for node in model.graph.node]


def of_linen(module: Any) -> Any:
    return lambda x: module.apply({"params": {"scale": SCALE, "bias": BIAS}}, x)


def haiku_group(x: Any) -> Any:
    transformed = hk.without_apply_rng(hk.transform(lambda x: hk.GroupNorm(4)(x)))
    return transformed.apply({"group_norm": {"scale": SCALE, "offset": BIAS}}, x)


def haiku_instance(x: Any) -> Any:
    transformed = hk.without_apply_rng(hk.transform(lambda x: hk.InstanceNorm(True, True)(x)))
    return transformed.apply({"instance_norm": {"scale": SCALE, "offset": BIAS}}, x)


def of_nnx(module: Any) -> Any:
    graph, state = nnx.split(module)
    return lambda x: nnx.merge(graph, state)(x)


def keras_group(groups: int) -> Any:
    layer = keras.layers.GroupNormalization(groups)
    layer.build(X.shape)
    layer.set_weights([SCALE, BIAS])
    return layer


def by_hand(x: Any) -> Any:
    parts = x.reshape(*x.shape[:-1], 2, 4)
    centered = parts - parts.mean((1, 2, 4), keepdims=True)
    normal = centered / jnp.sqrt((centered**2).mean((1, 2, 4), keepdims=True) + 1e-3)
    return normal.reshape(x.shape) * SCALE + BIAS


GROUP = ["Transpose", "Reshape", "InstanceNormalization", "Reshape", "Mul", "Add", "Transpose"]
INSTANCE = ["Transpose", "InstanceNormalization", "Transpose"]
LAYERS = {
    "linen": (lambda: of_linen(nn.GroupNorm(4)), GROUP),
    "linen, two passes": (lambda: of_linen(nn.GroupNorm(4, use_fast_variance=False)), GROUP),
    "nnx": (lambda: of_nnx(nnx.GroupNorm(8, 2, use_scale=False, use_bias=False, rngs=nnx.Rngs(0))), None),
    "haiku": (lambda: haiku_group, GROUP),
    "keras": (lambda: keras_group(4), None),
    "by hand": (lambda: by_hand, GROUP),
    "linen, many groups": (lambda: of_linen(nn.GroupNorm(8)), INSTANCE),
    "linen, many groups, two passes": (lambda: of_linen(nn.GroupNorm(8, use_fast_variance=False)), INSTANCE),
    "linen instance": (lambda: of_linen(nn.InstanceNorm()), INSTANCE),
    "haiku instance": (lambda: haiku_instance, INSTANCE),
    "keras instance": (lambda: keras_group(-1), None),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name):
    make, expected = LAYERS[name]
    layer = make()
    model = check(layer, X, rtol=1e-4, atol=1e-5)
    assert ops(model).count("InstanceNormalization") == 1
    assert len(ops(model)) <= 7
    assert expected is None or ops(model) == expected
    check_run(model, layer, HARD, rtol=1e-4, atol=1e-5)


def test_batch_that_varies():
    layer = of_linen(nn.GroupNorm(4))
    model = check(layer, X, dims=[("B", 6, 5, 8)], rtol=1e-4, atol=1e-5)
    assert ops(model) == GROUP
    check_run(model, layer, X[:0])
    check_run(model, layer, X[:1], rtol=1e-4, atol=1e-5)


def test_positions_that_vary():
    layer = of_linen(nn.GroupNorm(8))
    model = check(layer, X, dims=[("B", "H", "W", 8)], rtol=1e-4, atol=1e-5)
    assert ops(model) == INSTANCE
    check_run(model, layer, HARD, rtol=1e-4, atol=1e-5)
    check_run(model, layer, X[:, :0])


def test_channels_first():
    layer = jax.vmap(eqx.nn.GroupNorm(4, channelwise_affine=False))
    model = check(layer, np.moveaxis(X, -1, 1), rtol=1e-4, atol=1e-5)
    assert ops(model) == ["Reshape", "LayerNormalization", "Reshape"]


def channels_first(layer: Any) -> Any:
    affine = (SCALE[:, None, None], BIAS[:, None, None])
    return lambda x: layer(x) * affine[0] + affine[1]


def over(*axes: int) -> Any:
    return lambda x: (x - x.mean(axes, keepdims=True)) * lax.rsqrt(x.var(axes, keepdims=True) + 1e-3)


def equinox_group(groups: int) -> Any:
    return channels_first(jax.vmap(eqx.nn.GroupNorm(groups, channelwise_affine=False)))


SPLIT = ["Shape", "Unsqueeze", "Reshape", "InstanceNormalization", "Reshape", "Mul", "Add"]
WHOLE = ["Unsqueeze", "InstanceNormalization", "Mul", "Add", "Squeeze"]
SIZES_VARY = {
    "groups": (equinox_group(4), ("B", 8, "H", "W"), SPLIT),
    "groups of known height": (equinox_group(4), ("B", 8, 6, "W"), SPLIT),
    "one group": (equinox_group(1), ("B", 8, "H", "W"), WHOLE),
    "many groups": (equinox_group(8), ("B", 8, "H", "W"), ["InstanceNormalization"]),
    "instance": (channels_first(over(2, 3)), ("B", 8, "H", "W"), ["InstanceNormalization"]),
    "everything": (over(1, 2, 3), ("B", "C", "H", "W"), ["Unsqueeze", "InstanceNormalization", "Squeeze"]),
    "vectors": (lambda x: over(2)(x[:, :, 0]), ("B", 8, 6, "W"), ["Gather", "InstanceNormalization"]),
    "more axes": (over(3), ("B", 8, 6, "W"), None),
    "any number of channels": (over(2, 3), ("B", "C", "H", "W"), None),
    "also over the batch": (over(0, 2, 3), ("B", 8, "H", "W"), None),
}


@pytest.mark.parametrize("name", SIZES_VARY)
def test_channels_first_and_positions_that_vary(name):
    layer, dims, expected = SIZES_VARY[name]
    x, hard = np.moveaxis(X, -1, 1), np.moveaxis(HARD, -1, 1)
    model = check(layer, x, dims=[dims], rtol=1e-4, atol=1e-5)
    if expected is None:
        assert not NATIVE & set(ops(model))
        return
    assert ops(model) == expected
    check_run(model, layer, hard, rtol=1e-4, atol=1e-5)
    check_run(model, layer, x[..., :1], rtol=1e-4, atol=1e-5)
    check_run(model, layer, x[:0])
    check_run(model, layer, x[..., :0])


def test_one_group_channels_last():
    layer = of_linen(nn.GroupNorm(1))
    model = check(layer, X, dims=[("B", "H", "W", 8)], rtol=1e-4, atol=1e-5)
    assert "InstanceNormalization" in ops(model) and "Transpose" not in ops(model)
    check_run(model, layer, HARD, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("opset", [17, 20, 21])
def test_channels_first_natively(opset):
    x = np.moveaxis(X, -1, 1)
    for groups in (1, 4):
        layer, dims = equinox_group(groups), ("B", 8, "H", "W")
        model = check(layer, x, dims=[dims], normalization_mode="prefer_native", opset=opset, rtol=1e-4, atol=1e-5)
        assert NATIVE & set(ops(model)) == {"GroupNormalization" if opset >= 21 else "InstanceNormalization"}


def other_statistics(x: Any) -> Any:
    centered = x - x.mean((1, 2), keepdims=True)
    return centered * lax.rsqrt((centered**2).mean((1, 3), keepdims=True) + 1e-3)


def other_axes(x: Any) -> Any:
    centered = x - x.mean((0, 1), keepdims=True)
    return centered * lax.rsqrt((centered**2).mean((0, 1), keepdims=True) + 1e-3)


def statistics_of_another_axis(x: Any) -> Any:
    """There are as many rows as channels, and each channel gets the statistics of a row."""
    x = x[:, :, :, :6]
    mean, spread = (s[:, None, None] for s in (x.mean((2, 3)), x.var((2, 3))))
    return (x - mean) * lax.rsqrt(spread + 1e-3)


def tiled_statistics(x: Any) -> Any:
    """Like a group normalization, but channel c gets the statistics of group c % 2."""
    parts = x.reshape(*x.shape[:-1], 2, 4)
    mean = jnp.tile(parts.mean((1, 2, 4)), (1, 4))[:, None, None]
    spread = jnp.tile(parts.var((1, 2, 4)), (1, 4))[:, None, None]
    return (x - mean) * lax.rsqrt(spread + 1e-3)


@pytest.mark.parametrize("fn", [other_statistics, other_axes, tiled_statistics, statistics_of_another_axis])
def test_other_formulas_stay_plain(fn):
    assert not NATIVE & set(ops(check(fn, X, rtol=1e-4, atol=1e-5)))


def two_norms(x: Any) -> Any:
    """A group, a layer and a batch normalization."""
    x = of_linen(nn.GroupNorm(4))(x)
    x = of_linen(nn.LayerNorm())(jnp.sin(x))
    return (jnp.sin(x) - SCALE) * (BIAS / 3) + SCALE


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("auto", {"InstanceNormalization", "LayerNormalization"}),
        ("prefer_native", {"GroupNormalization", "LayerNormalization", "BatchNormalization"}),
        ("force_decomposed", set()),
    ],
)
def test_normalization_mode(mode, expected):
    model = check(two_norms, X, normalization_mode=mode, rtol=1e-4, atol=1e-5)
    assert NATIVE & set(ops(model)) == expected
    check_run(model, two_norms, HARD, rtol=1e-4, atol=1e-5)


def test_native_group_normalization_is_not_of_an_empty_batch():
    model = to_onnx(of_linen(nn.GroupNorm(4)), [("B", *X.shape[1:])], normalization_mode="prefer_native")
    assert NATIVE & set(ops(model)) == {"GroupNormalization"}
    with pytest.raises(InputError, match="B >= 1"):
        load(model)(X[:0])


def test_no_group_normalization_before_its_opset():
    model = check(of_linen(nn.GroupNorm(4)), X, normalization_mode="prefer_native", opset=20, rtol=1e-4, atol=1e-5)
    assert NATIVE & set(ops(model)) == {"InstanceNormalization"}


def test_a_number_normalized_by_the_statistics_of_others():
    def fn(x: Any, y: Any) -> Any:
        return (x - y.mean()) * lax.rsqrt(y.var() + 1e-3)

    check(fn, np.float32(3), X, rtol=1e-4, atol=1e-5)
