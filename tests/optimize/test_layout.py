"""Convolution networks end with at most one Transpose at each image-shaped input or output."""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax2onnx import to_onnx
from tests.helpers import check

RNG = np.random.default_rng(0)


def array(*shape) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def conv(x, kernel, strides=(1, 1), padding="SAME"):
    return lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def max_pool(x):
    return lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def batch_norm(x, mean, var, scale, bias):
    return (x - mean) * (lax.rsqrt(var + 1e-5) * scale) + bias


K1, K2, K3 = array(3, 3, 4, 8), array(3, 3, 8, 8), array(1, 1, 4, 8)
STATS = [array(8), abs(array(8)), array(8), array(8)]
DENSE = array(8, 5)


def residual_network(x):
    y = jax.nn.relu(batch_norm(conv(x, K1), *STATS))
    y = batch_norm(conv(y, K2), *STATS) + conv(x, K3)
    y = max_pool(jax.nn.relu(y))
    y = jnp.concatenate([y, jnp.pad(y, ((0, 0), (0, 0), (0, 0), (0, 0)))], axis=-1)[..., :8]
    return y.mean((1, 2)) @ DENSE


def test_residual_network():
    model = check(residual_network, array(2, 8, 8, 4), rtol=1e-4, atol=1e-4, dims=[("B", 8, 8, 4)])
    counts = Counter(node.op_type for node in model.graph.node)
    assert counts["Transpose"] == 1
    assert counts["Conv"] == 3
    # Batch norms and biases are inside the convolutions. (The one Mul checks the operand of the pool for NaN.)
    assert counts["Mul"] <= 1 and not counts["Sub"] and counts["Add"] == 1


def test_image_to_image_has_a_transpose_at_each_end():
    model = check(lambda x: jnp.tanh(conv(jax.nn.relu(conv(x, K1)), K2)) * 2, array(1, 6, 6, 4), rtol=1e-4, atol=1e-4)
    assert Counter(n.op_type for n in model.graph.node)["Transpose"] == 2


def test_channels_first_outside():
    def fn(x):
        return jax.nn.relu(conv(x, K1)) + 1

    model = check(fn, array(1, 6, 6, 4), rtol=1e-4, atol=1e-4)

    outside = to_onnx(fn, [(1, 6, 6, 4)], inputs_as_nchw=[0], outputs_as_nchw=[0])
    assert "Transpose" not in [n.op_type for n in outside.graph.node]
    assert [d.dim_value for d in outside.graph.input[0].type.tensor_type.shape.dim] == [1, 4, 6, 6]
    assert all(any(a.name == "kernel_shape" for a in n.attribute) for n in model.graph.node if n.op_type == "Conv")


def test_squeeze_and_excite():
    w1, w2 = array(8, 2), array(2, 8)

    def fn(x):
        y = conv(x, K1)
        gate = jax.nn.sigmoid(jax.nn.relu(y.mean((1, 2), keepdims=True) @ w1) @ w2)
        return conv(y * gate, K2).mean((1, 2))

    model = check(fn, array(2, 6, 6, 4), rtol=1e-4, atol=1e-4)
    assert Counter(n.op_type for n in model.graph.node)["Transpose"] <= 1


def test_average_pool():
    def fn(x):
        return lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4

    model = check(fn, array(1, 6, 6, 4))
    assert [n.op_type for n in model.graph.node] == ["Transpose", "AveragePool", "Transpose"]
