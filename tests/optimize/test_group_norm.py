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


def other_statistics(x: Any) -> Any:
    centered = x - x.mean((1, 2), keepdims=True)
    return centered * lax.rsqrt((centered**2).mean((1, 3), keepdims=True) + 1e-3)


def other_axes(x: Any) -> Any:
    centered = x - x.mean((0, 1), keepdims=True)
    return centered * lax.rsqrt((centered**2).mean((0, 1), keepdims=True) + 1e-3)


def tiled_statistics(x: Any) -> Any:
    """Like a group normalization, but channel c gets the statistics of group c % 2."""
    parts = x.reshape(*x.shape[:-1], 2, 4)
    mean = jnp.tile(parts.mean((1, 2, 4)), (1, 4))[:, None, None]
    spread = jnp.tile(parts.var((1, 2, 4)), (1, 4))[:, None, None]
    return (x - mean) * lax.rsqrt(spread + 1e-3)


@pytest.mark.parametrize("fn", [other_statistics, other_axes, tiled_statistics])
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


def test_no_group_normalization_before_its_opset():
    model = check(of_linen(nn.GroupNorm(4)), X, normalization_mode="prefer_native", opset=20, rtol=1e-4, atol=1e-5)
    assert NATIVE & set(ops(model)) == {"InstanceNormalization"}
