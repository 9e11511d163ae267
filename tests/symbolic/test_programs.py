"""Whole programs with symbolic dimensions, and what the shape arithmetic in them costs."""

import jax
import jax.numpy as jnp
import pytest
from flax import linen, nnx
from jax import lax

import jax2onnx
from tests.symbolic.sizes import check_at_sizes, count_nodes, floats, output_shapes

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def causal(x):
    return nnx.make_causal_mask(jnp.ones(x.shape[:2]))


class Block(nnx.Module):
    """A block of a transformer decoder."""

    def __init__(self, rngs):
        self.norms = nnx.List([nnx.LayerNorm(64, rngs=rngs), nnx.LayerNorm(64, rngs=rngs)])
        self.attention = nnx.MultiHeadAttention(num_heads=4, in_features=64, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(64, 128, rngs=rngs), nnx.Linear(128, 64, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norms[0](x), mask=causal(x))
        return x + self.down(nnx.gelu(self.up(self.norms[1](x))))


class Decoder(nnx.Module):
    """Tokens to logits, with learned positions sliced to the length and tied embeddings."""

    def __init__(self, rngs):
        self.embedding = nnx.Embed(11, 64, rngs=rngs)
        self.positions = nnx.Param(jnp.asarray(floats(16, 64)))
        self.blocks = nnx.List([Block(rngs), Block(rngs)])
        self.norm = nnx.LayerNorm(64, rngs=rngs)

    def __call__(self, tokens):
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.embedding.attend(self.norm(x))


def attention_layer():
    layer = nnx.MultiHeadAttention(num_heads=4, in_features=64, decode=False, rngs=nnx.Rngs(0))
    return lambda x: layer(x, mask=causal(x))


def causal_attention(q, k, v):
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


TRANSFORMERS = {
    "attention layer": (attention_layer, [("B", "T", 64)], [(2, 5, 64)]),
    "attention": (lambda: causal_attention, [("B", "T", 2, 4)] * 3, [(2, 5, 2, 4)] * 3),
    "block": (lambda: Block(nnx.Rngs(0)), [("B", "T", 64)], [(2, 5, 64)]),
    "decoder": (lambda: Decoder(nnx.Rngs(0)), ["i32[B,T]"], ["i32[2,5]"]),
}
MASK_NODES = ("Expand", "Trilu")


@pytest.mark.parametrize("opset", [22, 23])
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers(name, opset):
    make, symbolic, static = TRANSFORMERS[name]
    fn = make()
    model = check_at_sizes(fn, *symbolic, empty="B", constraints=["T <= 16"], opset=opset, **CLOSE)
    mask = [node.op_type for node in model.graph.node if node.op_type in MASK_NODES]
    assert mask == (list(MASK_NODES) if opset == 22 else [])  # made once, where there is no operator for it
    assert count_nodes(model) <= 1.15 * count_nodes(jax2onnx.to_onnx(fn, static, opset=opset))


def test_encoders():
    """Without a mask, attention is one node, which is asked for only if there is anything to attend to."""
    norms = [nnx.LayerNorm(64, rngs=nnx.Rngs(i)) for i in range(3)]
    layers = [
        nnx.MultiHeadAttention(num_heads=4, in_features=64, decode=False, rngs=nnx.Rngs(i)) for i in range(len(norms))
    ]

    def f(x):
        for norm, layer in zip(norms, layers, strict=True):
            x = x + layer(norm(x))
            x = x + nnx.gelu(x)
        return x

    model = check_at_sizes(f, ("B", "T", 64), empty="B T", **CLOSE)
    found = [node.op_type for node in model.graph.node]
    assert found.count("If") == 3 and found.count("Size") == found.count("Greater") == 1
    check_at_sizes(lambda x, y: f(x) + f(y).sum((0, 1)), ("B", "T", 64), ("C", "T", 64), empty="B", **CLOSE)


def test_squeeze_and_excite():
    down, up = floats(8, 2), floats(2, 8)

    def f(x):
        scale = jnp.mean(x, (1, 2), keepdims=True)
        return x * jax.nn.sigmoid(jax.nn.relu(scale @ down) @ up)

    check_at_sizes(f, (1, "H", "W", 8), empty="", **CLOSE)


def test_u_net():
    class UNet(nnx.Module):
        def __init__(self, rngs):
            self.inner = nnx.Conv(3, 4, (3, 3), rngs=rngs)
            self.deep = nnx.Conv(4, 6, (3, 3), rngs=rngs)
            self.up = nnx.ConvTranspose(6, 4, (2, 2), strides=(2, 2), rngs=rngs)
            self.out = nnx.Conv(8, 1, (1, 1), rngs=rngs)

        def __call__(self, x):
            skip = nnx.relu(self.inner(x))
            low = nnx.relu(self.deep(nnx.max_pool(skip, (2, 2), (2, 2), "SAME")))
            high = self.up(low)[:, : x.shape[1], : x.shape[2]]
            return self.out(jnp.concatenate([skip, high], axis=-1))

    model = check_at_sizes(UNet(nnx.Rngs(0)), (1, "H", "W", 3), empty="", **CLOSE)
    assert output_shapes(model) == [[1, "H", "W", 1]]


def test_convolution_with_reflection():
    layer = nnx.Conv(3, 4, (3,), padding="REFLECT", rngs=nnx.Rngs(0))
    sizes = [{"B": 1, "N": 2}, {"B": 2, "N": 3}, {"B": 3, "N": 8}]
    check_at_sizes(layer, ("B", "N", 3), constraints=["N >= 2"], sizes=sizes, **CLOSE)


def test_gru_over_time():
    layer = linen.RNN(linen.GRUCell(6))
    weights = layer.init(jax.random.key(0), jnp.ones((1, 1, 4)))
    check_at_sizes(lambda x: layer.apply(weights, x), ("B", "T", 4), empty="B", **CLOSE)


def test_vision_transformer_with_a_class_token():
    kernel, token, weight = floats(4, 4, 3, 8), floats(1, 1, 8), floats(8, 5)

    def f(x):
        patches = lax.conv_general_dilated(x, kernel, (4, 4), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        b, h, w, c = patches.shape
        tokens = patches.reshape(b, h * w, c)
        tokens = jnp.concatenate([jnp.broadcast_to(token, (b, 1, c)), tokens], axis=1)
        tokens = tokens + jax.nn.softmax(tokens @ tokens.mT / c) @ tokens
        return tokens[:, 0] @ weight, tokens

    model = check_at_sizes(f, "f32[B,4*H,4*W,3]", empty="B", **CLOSE)
    assert output_shapes(model) == [["B", 5], ["B", "H*W + 1", 8]]


def test_batch_norm_in_training():
    def f(x):
        mean, variance = x.mean((0, 1)), x.var((0, 1))
        return (x - mean) * lax.rsqrt(variance + 1e-5), 0.9 * mean

    check_at_sizes(f, ("B", "T", 8), empty="", rtol=1e-3, atol=1e-4)


def test_models_of_functions_take_the_dimensions_they_need():
    check_at_sizes(Block(nnx.Rngs(0)), ("B", "T", 64), functions="modules", **CLOSE)
