"""Convolution networks end with at most one Transpose at each image-shaped input or output."""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax2onnx import api, to_onnx
from jax2onnx.optimize import optimize
from tests.helpers import check, check_run

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


@pytest.mark.parametrize("pads", [((2, 0), (0, 0)), ((1, 1), (0, 4))])
def test_average_pool_of_what_is_padded_by_more_than_a_window(pads):
    def fn(x):
        return lax.reduce_window(jnp.pad(x, [(0, 0), (0, 0), *pads]), 0.0, lax.add, (1, 1, 2, 2), (1, 1, 1, 1), "VALID")

    for opset in (17, 23):
        check(fn, array(1, 2, 3, 3), opset=opset)


def average(x, kernel, strides, padding):
    """As libraries average over windows without counting the padding."""
    dims, steps = (1, *kernel, 1), (1, *strides, 1)
    total, count = (lax.reduce_window(v, 0.0, lax.add, dims, steps, padding) for v in (x, jnp.ones((1, *x.shape[1:]))))
    return total / count


@pytest.mark.parametrize(
    ("shape", "kernel", "strides", "padding"),
    [
        ((2, 6, 7, 3), (3, 3), (1, 1), "SAME"),
        ((2, 6, 7, 3), (2, 3), (2, 3), "SAME"),
        ((1, 5, 5, 2), (3, 2), (2, 1), [(0, 0), (2, 1), (0, 1), (0, 0)]),
        ((2, 9, 3), (4,), (2,), "SAME"),
        ((1, 4, 5, 3, 2), (2, 3, 2), (1, 2, 2), "SAME"),
    ],
)
def test_an_average_without_padding_is_a_pool(shape, kernel, strides, padding):
    x = array(*shape)
    dims = [("B", *shape[1:])]
    model = check(lambda x: average(x, kernel, strides, padding), x, dims=dims, rtol=1e-5, atol=1e-6)
    assert [n.op_type for n in model.graph.node] == ["Transpose", "AveragePool", "Transpose"]
    model = check(lambda x: average(x, kernel, strides, padding) * 2, x, rtol=1e-5, atol=1e-6)
    other = check(lambda x: average(x, kernel, strides, padding).at[0, 0].get() + 1, x, rtol=1e-5, atol=1e-6)
    assert all("Div" not in {n.op_type for n in m.graph.node} for m in (model, other))


def test_an_average_over_other_counts_is_divided_by_them():
    def fn(x):
        total = lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "SAME")
        return total / (jnp.arange(36.0).reshape(6, 6, 1) + 1)

    model = check(fn, array(2, 6, 6, 3), rtol=1e-5, atol=1e-6)
    assert [n.op_type for n in model.graph.node].count("Mul") == 2  # the sum of each window, and its quotient


def test_padding_and_excitation_with_a_batch_of_any_size():
    kernel, squeeze, excite = array(3, 3, 4, 8), array(1, 1, 8, 2), array(1, 1, 2, 8)

    def fn(x):
        x = jnp.pad(x, ((0, 0), (0, 1), (0, 1), (0, 0)))
        x = jax.nn.relu(conv(x, kernel, (2, 2), "VALID"))
        s = jnp.reshape(jnp.mean(x, (1, 2)), (-1, 1, 1, 8))
        s = jax.nn.silu(conv(s, squeeze))
        return x * jax.nn.sigmoid(conv(s, excite))

    x = array(2, 8, 8, 4)
    model = check(fn, x, dims=[("B", 8, 8, 4)], rtol=1e-4, atol=1e-4)
    found = [n.op_type for n in model.graph.node]
    assert not {"Pad", "Slice", "Reshape", "Shape", "Concat"} & set(found)
    assert found.count("Transpose") == 2
    check_run(model, fn, x[:1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("window", "operator"), [((2, 1), "MaxPool"), ((1, 2), "AveragePool")])
def test_rows_or_columns_are_pooled_in_the_layout_of_convolutions(window, operator):
    def fn(x):
        dims = (1, *window, 1)
        y = conv(x, K1)
        if operator == "MaxPool":
            y = lax.reduce_window(y, -np.inf, lax.max, dims, dims, "SAME")
        else:
            y = lax.reduce_window(y, 0.0, lax.add, dims, dims, "VALID") / 2
        return conv(y, K2)

    model = check(fn, array(2, 6, 4, 4), rtol=1e-4, atol=1e-4, dims=[("B", "2*H", 4, 4)])
    assert [n.op_type for n in model.graph.node] == ["Transpose", "Conv", operator, "Conv", "Transpose"]


def test_each_frame_of_a_film_is_pooled():
    x = array(1, 3, 6, 6, 2)
    x[0, 1, 2, 3, 1], x[0, 2, 4, 4] = np.nan, -np.inf

    def pool(x, dims=(1, 1, 2, 2, 1), padding="VALID"):
        return lax.reduce_window(x, -np.inf, lax.max, dims, dims, padding)

    model = check(pool, x)
    assert [n.op_type for n in model.graph.node] == ["Transpose", "MaxPool", "Transpose"]
    model = check(lambda x: pool(x, (1, 1, 1, 2, 2)), x.transpose(0, 4, 1, 2, 3))
    assert [n.op_type for n in model.graph.node] == ["MaxPool"]
    check(lambda x: pool(x, padding=[(0, 0), (1, 0), (0, 1), (0, 0), (0, 0)]), x)
    check(lambda x: pool(x, (1, 2, 1, 1, 2)), x)
    check(lambda x: pool(x, (2, 1, 1, 2, 1)), x.repeat(2, 0))


@pytest.mark.parametrize("dilation", [1, 2])
def test_zeros_around_what_is_not_negative_are_padding_of_a_maximum(dilation):
    def fn(x, activation=jax.nn.relu):
        y = jnp.pad(activation(conv(x, K1)), ((0, 0), (1, 2), (2, 1), (0, 0)))
        dims, steps, dilations = (1, 3, 3, 1), (1, 2, 2, 1), (1, dilation, dilation, 1)
        return lax.reduce_window(y, -np.inf, lax.max, dims, steps, "VALID", window_dilation=dilations)

    x = array(2, 6, 6, 4)
    x[0, 2, 3, 1] = np.nan
    counts = Counter(n.op_type for n in check(fn, x, rtol=1e-4, atol=1e-4, dims=[("B", "H", 6, 4)]).graph.node)
    assert counts["Pad"] == (dilation != 1)
    other = check(lambda x: fn(x, jnp.tanh), x, rtol=1e-4, atol=1e-4)
    assert "Pad" in {n.op_type for n in other.graph.node}


@pytest.mark.parametrize("dims", [None, [("B", "H", "W", 4)]])
def test_batch_norm_that_no_convolution_can_take_in_is_one_node(dims):
    def fn(x):
        y = conv(x, K1)
        return conv(
            jax.nn.relu(batch_norm(jnp.concatenate([y, x, x], -1), *np.tile(STATS, 2))), np.tile(K2, (1, 1, 2, 1))
        )

    counts = Counter(n.op_type for n in check(fn, array(2, 5, 6, 4), rtol=1e-4, atol=1e-4, dims=dims).graph.node)
    assert counts["BatchNormalization"] == 1 and not counts["Mul"] and not counts["Add"]


def test_batch_norm_that_was_not_trained_is_one_node():
    """All channels have the same numbers then. What is no sum is scaled and shifted for other reasons."""
    start = np.repeat(np.float32([[0], [1], [1], [0]]), 8, 1)

    def fn(x):
        y = conv(x, K1)
        return conv(jax.nn.relu(batch_norm(y, *start)), K2) + y

    counts = Counter(n.op_type for n in check(fn, array(2, 5, 6, 4), rtol=1e-4, atol=1e-4).graph.node)
    assert counts["BatchNormalization"] == 1 and not counts["Mul"]
    pixels = lambda x: (x.transpose(0, 3, 1, 2) * np.float32(0.3) + np.float32(0.1), conv(x, K1))  # noqa: E731
    assert "BatchNormalization" not in {n.op_type for n in check(pixels, array(2, 5, 6, 4), rtol=1e-4).graph.node}


def test_a_factor_and_a_shift_for_each_channel_keep_signs_of_zeros():
    factor, shift = np.float32([2, -2, 0, -0.0]), np.float32([0.0, -0.0, -0.0, 0.0])

    def fn(x):
        y = jnp.maximum(x, -conv(x, K3).max()) * factor[:, None, None] + shift[:, None, None]
        return y, 1 / y

    x = array(2, 4, 3, 4)
    x[0, :, 0], x[0, :, 1], x[1, :, 1, 1:] = 0.0, -0.0, [np.nan, np.inf, -np.inf]
    check(lambda x: (x * factor[:, None, None] + shift[:, None, None], conv(x, K3)), x, rtol=1e-4, atol=1e-4)
    model = check(fn, abs(x[:1]), rtol=1e-4, atol=1e-4)
    assert "BatchNormalization" in [node.op_type for node in model.graph.node]


def test_transposes_that_meet_are_not_made_to_be_thrown_away(monkeypatch):
    """Between two convolutions, an activation takes one step: it moves before the Transpose, and both of them go."""
    counts = Counter()
    monkeypatch.setattr(api, "optimize", lambda *args: counts.update(optimize(*args)))

    def fn(x):
        x = conv(x, K1)
        for _ in range(10):
            x = conv(jax.nn.relu(x), K2 / 8)
        return x

    model = check(fn, array(2, 6, 6, 4), rtol=1e-4, atol=1e-3)
    assert [node.op_type for node in model.graph.node].count("Transpose") == 2
    assert counts["move_past_unary"] == 10 and not counts["merge_transposes"]


def test_transposes_that_meet_at_a_result():
    """Both of a relu's users are Transposes back, one of which is a result of the program, under its own name."""

    def fn(x):
        y = jax.nn.relu(conv(x, K1))
        return y.transpose(0, 3, 1, 2), conv(y, K2), y.transpose(0, 3, 1, 2)

    model = check(fn, array(2, 6, 6, 4), dims=[("B", 6, 6, 4)], rtol=1e-4, atol=1e-4)
    assert [node.op_type for node in model.graph.node].count("Transpose") == 2


def test_factors_that_kernels_of_half_precision_cannot_hold():
    kernel = (np.random.default_rng(0).normal(size=(3, 3, 3, 4)) * 60).astype(np.float16)
    x = (array(1, 5, 5, 3) * 1e-5).astype(np.float16)
    check(lambda x: conv(x, kernel) * np.float16([3000, 3001, 2999, 4000]), x)
    check(lambda x: conv(x, kernel) / np.float16([60000, 55555, 33333, 44444]), x * np.float16(1e4))
