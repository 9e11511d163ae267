"""What is around a product with a known matrix becomes a part of the matrix."""

import jax
import numpy as np
import onnx_ir as ir
import pytest
from jax import lax
from jax import numpy as jnp

from jax2onnx.optimize import fold
from tests.helpers import check

DRAWN = np.random.default_rng(0)


def drawn(*shape):
    return DRAWN.standard_normal(shape).astype(np.float32)


W, B, MEAN, SCALE, SHIFT = drawn(8, 32), *drawn(4, 32)
KERNEL, HALF = drawn(3, 3, 3, 5), drawn(16, 16)
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def operators(model):
    return [node.op_type for node in model.graph.node]


def conv(x, kernel=KERNEL, stride=1):
    return lax.conv_general_dilated(x, kernel, (stride,) * 2, "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def test_batch_normalization_behind_a_dense_layer_is_in_the_layer():
    def fn(x):
        return jax.nn.relu((x @ W + B - MEAN) * SCALE + SHIFT)

    assert operators(check(fn, drawn(5, 8), **CLOSE)) == ["Gemm", "Relu"]
    assert operators(check(fn, drawn(2, 5, 8), **CLOSE)) == ["MatMul", "Add", "Relu"]
    assert operators(check(fn, drawn(2, 5, 8), dims=[("B", "T", 8)], **CLOSE)) == ["MatMul", "Add", "Relu"]
    assert operators(check(lambda x: (x @ W - MEAN) / 4, drawn(4, 8), **CLOSE)) == ["Gemm"]
    hurt = drawn(5, 8)
    hurt[1, 2], hurt[2, 3] = np.nan, np.inf
    check(fn, hurt, **CLOSE)


@pytest.mark.parametrize("shift", [np.zeros(32, np.float32), SHIFT])
def test_batch_normalization_that_was_not_trained_is_in_the_layer(shift):
    """All columns are multiplied by one number, 1 / sqrt(1 + epsilon)."""
    factor = np.full(32, 1 / np.sqrt(1.001), np.float32)
    fn = lambda x: jax.nn.relu((x @ W + B - np.zeros(32, np.float32)) * factor + shift)  # noqa: E731
    assert operators(check(fn, drawn(5, 8), **CLOSE)) == ["Gemm", "Relu"]
    assert operators(check(fn, drawn(2, 5, 8), dims=[("B", "T", 8)], **CLOSE)) == ["MatMul", "Add", "Relu"]
    assert "Mul" in operators(check(lambda x: jnp.floor((x @ W) * factor[0]), drawn(5, 8)))


def test_what_a_program_counts_on_is_not_rounded():
    """Bits times powers of two, divided by a number that is none: a quotient that is whole is not just below that."""
    powers = (2.0 ** np.arange(8)).astype(np.float32)[:, None] * np.array([1, 3], np.float32)
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.float32)
    divisors = (3, 7, 2, np.float32(1e-36), np.float32([1e-35, 1e35]), np.float32([3, 49]))
    for divisor in divisors:
        check(lambda x, divisor=divisor: jnp.floor(x @ powers / divisor), bits, rtol=0, atol=0)
    for shift in np.float32([[0, 0], [2, -3]]):
        check(lambda x, shift=shift: jnp.floor(x @ powers * np.float32(1 / 3) + shift), bits, rtol=0, atol=0)


@pytest.mark.parametrize("first", [1, 3, 64, 10_000])
def test_whole_numbers_are_told_by_any_of_them(first, monkeypatch):
    """Most weights are told by a few numbers. It makes no difference how many these are."""
    monkeypatch.setattr(fold, "FIRST", first)
    whole = np.arange(-100, 100, dtype=np.float32)
    for numbers, expected in (
        (whole, False),
        (whole * np.float32(0.375), False),
        (np.where(whole < 90, 0, whole), False),
        (np.where(whole < 90, 0, np.sin(whole)), True),
        (np.where(whole < 90, whole, np.sin(whole)), True),
        (np.where(whole < 90, 1, 2.0**12), False),
        (np.where(whole < 90, 1, 2.0**20), True),
        (np.where(whole < 90, 2.0**-20, 1), True),
        (np.where(whole < 90, np.nan, 1), True),
        (np.zeros(200), True),
    ):
        weight = ir.Value(name="w", const_value=ir.Tensor(numbers.astype(np.float32)))
        assert fold.can_be_scaled(weight, np.float32(3)) == expected


def test_batch_normalization_before_a_dense_layer_is_in_the_layer():
    """If it is of a sum, which is not exact: of an input, all that matters may be how it differs from a large mean."""
    w, b = drawn(32, 5), drawn(5)

    def normalized(y):
        return (y - MEAN) * SCALE + SHIFT

    model = check(lambda x: normalized(jax.nn.relu(x @ W + B)) @ w + b, drawn(4, 8), **CLOSE)
    assert operators(model) == ["Gemm", "Relu", "Gemm"]
    model = check(lambda x: normalized(jax.nn.relu(x @ W)) @ w, drawn(4, 2, 8), **CLOSE)
    assert operators(model) == ["MatMul", "Relu", "MatMul", "Add"]
    model = check(lambda x: normalized(jax.nn.relu(x)) @ w, drawn(4, 32), **CLOSE)
    assert operators(model) == ["Relu", "Sub", "Mul", "Add", "MatMul"]
    check(lambda x: ((x @ W + 1000) - (MEAN + 1000)) * SCALE @ w, drawn(4, 8), rtol=1e-3, atol=1e-3)
    infinite = np.where(w > 1, np.float32(np.inf), w)
    check(lambda x: normalized(jax.nn.relu(x @ W + B)) @ infinite, drawn(4, 8), **CLOSE)
    model = check(lambda x: normalized(jax.nn.relu(x @ W + 1000) - 1000) @ w, drawn(4, 8), rtol=1e-3, atol=1e-3)
    assert "Sub" in operators(model)  # of so large a mean digits would get lost


def test_the_mean_of_a_sum_is_subtracted_with_the_shift():
    """But not that of an input."""

    def normalized(y):
        return (y - MEAN) * SCALE + SHIFT

    model = check(lambda x: normalized(jax.nn.relu(x @ W) + x[:, :1]), drawn(4, 8), **CLOSE)
    assert operators(model)[-2:] == ["Mul", "Add"] and "Sub" not in operators(model)
    for fn in (jnp.abs, lambda x: x, lambda x: jnp.concatenate([x[:, :16], x[:, 16:] @ HALF], 1)):
        assert "Sub" in operators(check(lambda x, fn=fn: normalized(fn(x)), drawn(4, 32), **CLOSE))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x @ W) * SCALE[:5, None],  # a factor for each row
        lambda x: [(y := x @ W + B), y * SCALE],
        lambda x: [(x @ W) * 2, W],  # the matrix is a result as well
        lambda x: (x @ W) * np.where(B > 2, np.float32(np.inf), B),
        lambda x: (x @ W) / np.where(B > 1, np.float32(0), B),
        lambda x: 2 / (x @ W),
        lambda x: 3 - (x @ W + 1),
        lambda x: (x @ W + B) * np.ones((3, 1, 1), np.float32),
    ],
)
def test_what_is_not_done_to_columns_only_stays(fn):
    check(fn, drawn(5, 8), **CLOSE)


def test_the_matrix_of_two_products_stays():
    model = check(lambda x: [(x @ W) * 2, x[1:] @ W], drawn(5, 8), **CLOSE)
    assert sum(len(i.raw_data) == W.nbytes for i in model.graph.initializer) == 1


@pytest.mark.parametrize("batch", [2, "B"])
def test_images_are_flattened_as_convolutions_have_them(batch):
    heads = drawn(80, 7), drawn(80, 3)

    def fn(x):
        y = jax.nn.relu(conv(x, stride=2)).reshape(x.shape[0], -1)
        return [y @ w for w in heads]

    model = check(fn, drawn(2, 8, 8, 3), dims=[(batch, 8, 8, 3)], **CLOSE)
    assert operators(model) == ["Transpose", "Conv", "Relu", "Reshape", "MatMul", "MatMul"]


def test_flattened_images_that_are_a_result_are_as_they_were():
    def fn(x):
        y = conv(x).reshape(x.shape[0], -1)
        return y, y @ w

    w = drawn(320, 3)
    assert operators(check(fn, drawn(1, 8, 8, 3), **CLOSE)).count("Transpose") == 2


@pytest.mark.parametrize("batch", [2, "B"])
def test_images_are_made_as_convolutions_want_them(batch):
    w, b, mean, scale = drawn(6, 48), drawn(48), drawn(3), drawn(3)

    def fn(z):
        y = jax.nn.relu(z @ w + b).reshape(-1, 4, 4, 3)
        return conv(jnp.tanh((y - mean) * scale))

    model = check(fn, drawn(2, 6), dims=[(batch, 6)], **CLOSE)
    assert operators(model) == ["Gemm", "Relu", "Reshape", "Sub", "Mul", "Tanh", "Conv", "Transpose"]


def test_images_may_be_of_another_type_than_the_product():
    w, x = drawn(6, 48), drawn(2, 6)
    halves = check(lambda z: (z @ w).astype(np.float16).reshape(-1, 4, 4, 3).transpose(0, 3, 1, 2), x)
    assert operators(halves) == ["MatMul", "Cast", "Reshape"]
    questions = check(lambda z: jnp.isnan(z @ w).reshape(-1, 4, 4, 3).transpose(0, 3, 1, 2), x)
    assert operators(questions) == ["MatMul", "IsNaN", "Reshape"]
