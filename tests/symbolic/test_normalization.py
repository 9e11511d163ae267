"""Means over symbolic axes: one node where nobody sees the mean of nothing, which is NaN in JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jax2onnx
from jax2onnx.optimize import emptiness
from tests.helpers import check
from tests.symbolic.sizes import check_at_sizes, count_nodes, floats

IMAGE = "f32[B,H,W,8]"
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def operators(model):
    return [node.op_type for node in model.graph.node]


def test_means_that_nobody_sees_if_there_is_nothing():
    def f(x):
        scale = jax.nn.sigmoid(x.mean((1, 2), keepdims=True) @ floats(16, 16))
        return x * scale, x - x.var(2, keepdims=True), x[:, :, 0] - x[:, :, 0].mean(1, keepdims=True)

    model = check_at_sizes(f, "f32[B,H,W,16]", empty="B H", **CLOSE)
    assert operators(model).count("ReduceMean") == 4
    assert not {"Shape", "ReduceSum", "Where"} & set(operators(model))


def test_the_mean_of_nothing_is_seen():
    def f(x):
        return x.mean((1, 2)), x.var(0)

    model = check_at_sizes(f, IMAGE, empty="B H W", **CLOSE)
    assert operators(model).count("ReduceMean") == 1  # in the variance, the mean is subtracted


def test_group_normalization_of_any_length():
    norm = nnx.GroupNorm(8, num_groups=4, rngs=nnx.Rngs(0))
    model = check_at_sizes(norm, "f32[B,T,8]", empty="B T", **CLOSE)
    assert "InstanceNormalization" in operators(model) and "ReduceMean" not in operators(model)


@pytest.mark.slow
def test_group_normalization_of_images_of_any_size():
    norm = nnx.GroupNorm(8, num_groups=4, rngs=nnx.Rngs(0))
    norm.scale[...] = jnp.arange(1.0, 9.0)
    norm.bias[...] = jnp.arange(8.0)
    model = check_at_sizes(norm, IMAGE, empty="B H W", **CLOSE)
    assert "InstanceNormalization" in operators(model) and "ReduceMean" not in operators(model)

    conv = nnx.Conv(8, 8, (3, 3), rngs=nnx.Rngs(1))
    model = check_at_sizes(lambda x: conv(nnx.silu(norm(conv(x)))), IMAGE, empty="B", **CLOSE)
    assert operators(model).count("Transpose") == 2
    # A Shape and an Unsqueeze more; and the function that looks whether there is something to normalize has 5 nodes.
    assert count_nodes(model) <= 7 + count_nodes(
        jax2onnx.to_onnx(lambda x: conv(nnx.silu(norm(conv(x)))), [(2, 6, 7, 8)])
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
def test_normalizations_in_other_precisions(dtype):
    def f(x):
        mean, variance = x.mean((1, 2), keepdims=True), x.var((1, 2), keepdims=True)
        return (x - mean) / jnp.sqrt(variance + x.dtype.type(0.1))

    wide = dtype == "f64"
    check_at_sizes(f, f"{dtype}[B,H,W,8]", empty="B H W", **({} if wide else {"rtol": 0.05, "atol": 0.05}))


def five_means(x):
    for _ in range(5):
        x = jnp.tanh(x) - x.mean((0, 1), keepdims=True)
    return x


def test_equal_numbers_of_terms_are_compared_once():
    """Each layer asks whether it divides by as many as it adds."""
    emptiness._are_equal.cache_clear()
    model = check_at_sizes(five_means, "f32[B,T,16]", empty="", **CLOSE)
    assert operators(model).count("ReduceMean") == 5
    assert emptiness._are_equal.cache_info().misses == 1


def test_means_over_sizes_with_names_that_python_has_for_itself():
    check_at_sizes(five_means, "f32[in,T,16]", empty="", **CLOSE)  # was an error: JAX calls their product T*in


def as_bool(x):
    return jnp.asarray(x.shape[0]).astype(bool)


@pytest.mark.parametrize(
    "divisor",
    [
        lambda x: x.shape[0] * 2.5,
        lambda x: np.float32(np.inf),
        lambda x: np.float32(np.nan),
        lambda x: as_bool(x).astype(np.float32) * 2,
        lambda x: jnp.asarray(x.shape[0]).astype(np.int8).astype(np.float32) * 2,
    ],
    ids=["more", "infinite", "nan", "bool", "int8"],
)
def test_sums_divided_by_other_numbers_are_no_means(divisor):
    x = (np.arange(600) % 7).reshape(300, 2).astype(np.float32)
    check(lambda x: x - x.sum((0, 1)) / divisor(x), x, dims=[("N", 2)])
