"""Twelve layers of a transformer from each library, for any batch and length, with and without functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from flax import nnx

import jax2onnx
from jax2onnx import runtime
from tests.frameworks.layers import fill, integers
from tests.helpers import check_valid, quick

LAYERS, WIDTH, HEADS, VOCABULARY = 12, 16, 2, 30


def causal(length: Any) -> Any:
    """Which positions each position may look at."""
    return jnp.arange(length)[:, None] >= jnp.arange(length)[None, :]


# ------------------------------------------------------------------------------------------------ NNX


class NNXBlock(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first, self.second = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs), nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = x + self.attention(self.first(x), mask=causal(x.shape[1])[None, None])
        return x + self.down(nnx.gelu(self.up(self.second(x))))


class NNXTransformer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.blocks = nnx.List([NNXBlock(rngs) for _ in range(LAYERS)])
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.embed.attend(self.norm(x))


def nnx_model() -> Any:
    model = nnx.eval_shape(lambda: NNXTransformer(nnx.Rngs(0)))
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    return nnx.merge(graph, fill(params), fill(rest))


# ------------------------------------------------------------------------------------------------ Linen


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        mask = causal(x.shape[1])[None, None]
        x = x + nn.MultiHeadDotProductAttention(HEADS)(nn.LayerNorm()(x), mask=mask)
        return x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x))))


class LinenTransformer(nn.Module):
    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        embed = nn.Embed(VOCABULARY, WIDTH)
        x = embed(tokens)
        for i in range(LAYERS):
            x = LinenBlock(name=f"block_{i}")(x)
        return embed.attend(nn.LayerNorm()(x))


def linen_model() -> Any:
    model = LinenTransformer()
    return model, fill(jax.eval_shape(model.init, jax.random.key(0), integers(VOCABULARY, 1, 4)))


# ------------------------------------------------------------------------------------------------ Equinox


class EquinoxBlock(eqx.Module):
    first: eqx.nn.LayerNorm
    second: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP

    def __init__(self, key: Any) -> None:
        self.first, self.second = eqx.nn.LayerNorm(WIDTH), eqx.nn.LayerNorm(WIDTH)
        self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=key)
        self.mlp = eqx.nn.MLP(WIDTH, WIDTH, 4 * WIDTH, 1, jax.nn.gelu, key=key)

    def __call__(self, x: Any) -> Any:
        y = jax.vmap(self.first)(x)
        x = x + self.attention(y, y, y, causal(x.shape[0]))
        return x + jax.vmap(self.mlp)(jax.vmap(self.second)(x))


class EquinoxTransformer(eqx.Module):
    embed: eqx.nn.Embedding
    blocks: list[EquinoxBlock]
    norm: eqx.nn.LayerNorm

    def __init__(self, key: Any) -> None:
        self.embed = eqx.nn.Embedding(VOCABULARY, WIDTH, key=key)
        self.blocks = [EquinoxBlock(key) for _ in range(LAYERS)]
        self.norm = eqx.nn.LayerNorm(WIDTH)

    def __call__(self, tokens: Any) -> Any:
        x = jax.vmap(self.embed)(tokens)
        for block in self.blocks:
            x = block(x)
        return jax.vmap(self.norm)(x) @ self.embed.weight.T


def equinox_model() -> Any:
    return jax.vmap(fill(eqx.filter_eval_shape(EquinoxTransformer, jax.random.key(0))))


# ------------------------------------------------------------------------------------------------ Keras


def keras_model() -> Any:
    layers = keras.layers
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = layers.Embedding(VOCABULARY, WIDTH, "zeros")(tokens)
    for _ in range(LAYERS):
        y = layers.LayerNormalization(epsilon=1e-6)(x)
        attention = layers.MultiHeadAttention(HEADS, WIDTH // HEADS, kernel_initializer="zeros")
        x = layers.Add()([x, attention(y, y, use_causal_mask=True)])
        y = layers.LayerNormalization(epsilon=1e-6)(x)
        y = layers.Dense(4 * WIDTH, "gelu", kernel_initializer="zeros")(y)
        x = layers.Add()([x, layers.Dense(WIDTH, kernel_initializer="zeros")(y)])
    x = layers.LayerNormalization(epsilon=1e-6)(x)
    model = keras.Model(tokens, layers.Dense(VOCABULARY, kernel_initializer="zeros")(x))
    specs = [jax.ShapeDtypeStruct(tuple(v.shape), np.float32) for v in model.variables]
    for variable, value in zip(model.variables, fill(specs), strict=True):
        variable.assign(value)
    return model


MODELS: dict[str, Callable[[], Any]] = {
    "NNX": nnx_model,
    "Linen": linen_model,
    "Equinox": equinox_model,
    "Keras": keras_model,
}


@pytest.mark.parametrize("name", quick(["NNX"], MODELS))
def test_twelve_layers(name: str) -> None:
    model = MODELS[name]()
    call = (lambda x: model[0].apply(model[1], x)) if isinstance(model, tuple) else model
    tokens = integers(VOCABULARY, 3, 7)
    want = np.asarray(jax.jit(call)(tokens))
    products = []
    for functions in (None, "modules"):
        exported = jax2onnx.to_onnx(model, ["i32[B,T]"], functions=functions)
        check_valid(exported)
        (got,) = runtime.run(exported, [tokens])
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
        (empty,) = runtime.run(exported, [tokens[:0]])
        assert empty.shape == (0, 7, VOCABULARY)
        nodes = [node.op_type for body in (exported.graph, *exported.functions) for node in body.node]
        products.append(nodes.count("MatMul") + nodes.count("Gemm"))
    assert products[1] < products[0] / 6  # layers share their bodies
