"""Formulas become the operators that ONNX has for them, and compute what JAX computes, on values that hurt too."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.helpers import check, check_run

HARD = np.float32([[-np.inf, -200, -3.5, -1e-3, -0.0], [0.0, 1e-6, 0.5, 90, np.inf], [np.nan, 1, 2, 3, 4]])
X = np.random.default_rng(0).normal(size=(3, 4, 6)).astype(np.float32)
ROWS = X.copy()
ROWS[0, 1, 2], ROWS[0, 2, 3], ROWS[0, 3, :2], ROWS[1, 0], ROWS[1, 1] = np.nan, np.inf, [np.inf, -np.inf], 0, 3


def ops(model) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (jax.nn.relu, ["Relu"]),
        (jax.nn.gelu, ["Gelu"]),
        (lambda x: jax.nn.gelu(x, approximate=False), ["Gelu"]),
        (lambda x: 0.5 * x * (1 + lax.erf(x / np.sqrt(2).astype(np.float32))), ["Gelu"]),
        (jax.nn.softplus, ["Softplus"]),
        (jax.nn.elu, ["Elu"]),
        (lambda x: jax.nn.elu(x, 0.5), ["Elu"]),
        (jax.nn.leaky_relu, ["LeakyRelu"]),
        (jax.nn.sigmoid, ["Sigmoid"]),
        (jax.nn.silu, ["Sigmoid", "Mul"]),
        (jax.nn.mish, ["Mish"]),
        (lambda x: jax.nn.softmax(x, axis=0), ["Softmax"]),
        (jax.nn.softmax, ["Softmax"]),
        (jax.nn.log_softmax, ["LogSoftmax"]),
    ],
)
def test_activation(fn, expected):
    assert ops(check(fn, X)) == expected
    finite = np.where(np.isfinite(HARD), HARD, 7).astype(np.float32)
    check(fn, finite, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("mask", [None, np.tri(4, 6, dtype=bool), np.tri(4, 6, -1, dtype=bool)])
def test_softmax_that_leaves_some_out(mask):
    def fn(x, given):
        return jax.nn.softmax(x, where=given if mask is None else mask)

    given = np.random.default_rng(0).random((3, 1, 6)) > 0.5
    given[0], given[1] = False, True
    model = check(fn, X, given)
    assert "Softmax" in ops(model) and "Exp" not in ops(model)
    for x in (np.resize(HARD, X.shape), np.full_like(X, -np.inf)):
        check_run(model, fn, x, given)


def test_softmax_with_a_sum_of_others():
    """Some that are not masked, or that are masked by a number, are left out of the sum."""

    def share(z, where):
        e = jnp.exp(z - z.max(-1, keepdims=True))
        return e / jnp.where(where, e, 0).sum(-1, keepdims=True)

    def fn(x, mask, other):
        lower = np.tri(4, 6, dtype=bool)
        return (
            share(jnp.where(mask, x, -jnp.inf), other),
            share(jnp.where(mask, x, -1.0), mask),
            share(jnp.where(mask, -jnp.inf, x), mask),
            share(jnp.where(lower, x, -jnp.inf), np.tri(4, 6, 1, dtype=bool)),
        )

    rng = np.random.default_rng(0)
    check(fn, X, *(rng.random((3, 4, 6)) > 0.5 for _ in range(2)), rtol=1e-5)


@pytest.mark.parametrize("name", ["relu", "softplus", "elu", "sigmoid", "softmax", "log_softmax"])
def test_activation_of_infinities_and_nan(name):
    check(getattr(jax.nn, name), HARD, rtol=2e-5, atol=1e-6)


def test_softplus_of_many():
    """From some size on the operator is slower than its formula, which must be as exact."""
    x = np.resize(np.concatenate([np.linspace(-110, 110, 4001, dtype=np.float32), HARD.reshape(-1)]), (64, 64))
    assert "Softplus" not in ops(check(jax.nn.softplus, x, rtol=3e-7, atol=2e-38))
    assert "Mish" not in ops(
        check(jax.nn.mish, np.where(np.isfinite(x), x, 7), rtol=1e-6, atol=1e-35)
    )  # JAX makes 0 of denormals


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "bool", "uint8", "bfloat16"])
def test_triangles(dtype):
    x = (np.arange(48).reshape(2, 4, 6) % 5).astype(dtype)
    if np.dtype(dtype).kind == "f":
        x[0, 0], x[1, -1] = [-np.inf, np.inf, np.nan, -0.0, 1, 2], [np.nan, 1, -0.0, np.inf, -np.inf, 3]
    model = check(lambda x: (jnp.tril(x), jnp.triu(x, 1), jnp.tril(x, -2)), x, dims=[("B", "R", "C")])
    assert dtype not in ("float32", "float64", "int32") or ops(model) == ["Trilu"] * 3


def test_counters_that_wrap_make_no_triangle():
    x = np.ones((5, 4), np.float32)
    for start in (2**31 - 3, -(2**31)):
        check(
            lambda x: jnp.where((jnp.arange(x.shape[0]) + start)[:, None] - 1 >= jnp.arange(x.shape[1]), x, 7),  # noqa: B023
            x,
            dims=[("R", "C")],
        )


@pytest.mark.parametrize("dims", [None, [("R", "C")]])
def test_zeros_have_signs(dims):
    x = np.float32([[-3.0, -0.5, -0.0, 0.0, 0.5, 3.0], [7, -7, 1e-9, -1e-9, np.inf, -np.inf]])
    for zero in (0.0, -0.0):
        check(lambda x: jnp.signbit(jnp.where(x > 0.5, x, zero)), x, dims=dims)  # noqa: B023
        check(lambda x: jnp.signbit(jnp.maximum(jnp.where(x == 0, 1, x), zero)), x, dims=dims)  # noqa: B023
        check(lambda x: jnp.signbit(jnp.tril(x) + jnp.where(jnp.tri(*x.shape, dtype=bool), x, zero)), x, dims=dims)  # noqa: B023


@pytest.mark.parametrize("k", [0, -3, 2, -29, 18])
@pytest.mark.parametrize("size", [(30, 20), (8, 9), (4, 4)])
def test_known_masks(size, k):
    """A triangle is made, but a very small one is stored."""
    mask = np.tri(*size, k, bool)
    x = np.random.default_rng(0).normal(size=(3, 2, *size)).astype(np.float32)
    x[0, 0, :, 0] = np.nan

    def f(x):
        low = jnp.where(jnp.broadcast_to(mask, x.shape), x, -1e30)
        row = (x[:, :1, :1] > 0) & mask  # of which neither has the shape
        return low, jnp.where(~mask & (x > 0), x, 7), row, jnp.where(jnp.broadcast_to(mask, (2, *size)), x, 7)

    model = check(f, x)
    if size == (4, 4):
        assert "Trilu" not in ops(model)
    elif k in (0, -3, 2):
        assert ops(model).count("Trilu") == 2
        assert max(math.prod(tensor.dims) for tensor in model.graph.initializer) <= 2


@pytest.mark.parametrize("shape", [(300,), (1, 300), (300, 1), (2, 300), (3, 20, 30), (20, 30)])
def test_other_known_masks_are_stored(shape):
    masks = (
        np.random.default_rng(0).random(shape) < 0.5,
        np.ones(shape, bool),
        np.arange(shape[-1]) < np.ones(shape) * 7,
    )
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    for mask in masks:
        assert "Trilu" not in ops(check(lambda x: (jnp.where(mask, x, 7), mask & (x > 0)), x))  # noqa: B023


def test_what_a_constant_repeats_is_stored_once():
    row = np.float32([0.0, -0.0, np.nan, np.inf, *range(60)])
    table = np.tile(row, (3, 8, 1))
    x = np.ones((3, 8, 64), np.float32)
    model = check(lambda x: (x * jnp.tile(row, (3, 8, 1)), x + jnp.broadcast_to(row[:, None], (3, 64, 8)).mT), x)
    assert ops(model) == ["Mul", "Add"]
    assert {math.prod(tensor.dims) for tensor in model.graph.initializer} == {64}
    assert ops(check(lambda x: jnp.concatenate([x, jnp.asarray(row) * jnp.ones_like(table)]), x))[-1] == "Concat"


def two_pass(x, axis=-1):
    mean = x.mean(axis, keepdims=True)
    return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(axis, keepdims=True) + 1e-5)


def one_pass(x):
    mean = x.mean(-1)
    variance = jnp.maximum(0, (x * x).mean(-1) - mean * mean)
    return (x - mean[..., None]) / jnp.sqrt(variance[..., None] + 1e-6)


SCALE, BIAS = (np.random.default_rng(i).normal(size=6).astype(np.float32) for i in (1, 2))


@pytest.mark.parametrize(
    "fn",
    [
        two_pass,
        one_pass,
        lambda x: two_pass(x, (-2, -1)),
        lambda x: two_pass(x) * SCALE,
        lambda x: SCALE * two_pass(x) + BIAS,
        lambda x: one_pass(x) * SCALE + BIAS,
    ],
    ids=["two passes", "one pass", "two axes", "scale", "scale and bias", "one pass, scale and bias"],
)
def test_layer_normalization(fn):
    model = check(fn, X, rtol=1e-4, atol=1e-5)
    assert ops(model) == ["LayerNormalization"]
    check(fn, X, dims=[("B", 4, 6)], rtol=1e-4, atol=1e-5)


def test_normalization_over_other_axes_stays_plain():
    assert "LayerNormalization" not in ops(check(lambda x: two_pass(x, 0), X, rtol=1e-4, atol=1e-5))


def test_rms_normalization():
    def rms(x):
        return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * SCALE

    assert ops(check(rms, X)) == ["RMSNormalization"]
    assert "RMSNormalization" not in ops(check(rms, X, opset=22))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, mean, k: x * k + (-mean * k),
        lambda x, mean, k: -mean * (k * SCALE) + x * (k * SCALE),
        lambda x, mean, k: x * (k * SCALE) - mean * (k * SCALE),
        lambda x, mean, k: x * (k * SCALE) + (BIAS - mean * (k * SCALE)),
        lambda x, mean, k: x * k + (-(mean * k) + BIAS),
    ],
)
@pytest.mark.parametrize("variance", [jnp.var, lambda x, *a, **k: (x * x).mean(*a, **k) - x.mean(*a, **k) ** 2])
def test_mean_subtracted_last(fn, variance):
    def norm(x):
        k = lax.rsqrt(variance(x, -1, keepdims=True) + 1e-3)
        return fn(x, x.mean(-1, keepdims=True), k)

    model = check(norm, X, dims=[("B", "T", 6)], rtol=1e-4, atol=1e-5)
    assert ops(model) == ["LayerNormalization"]
    check_run(model, norm, ROWS, rtol=1e-4, atol=1e-5)


def test_mean_of_others_subtracted_last():
    def norm(x):
        k = lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-3)
        return x * k - x.mean(-2, keepdims=True) * k

    assert "LayerNormalization" not in ops(check(norm, X, rtol=1e-4, atol=1e-5))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, root: (SCALE * x) / root,
        lambda x, root: x * SCALE * lax.reciprocal(root),
        lambda x, root: (SCALE * (x - x.mean(-1, keepdims=True))) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6),
    ],
)
def test_scale_before_normalization(fn):
    def norm(x):
        return fn(x, jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6))

    model = check(norm, X, dims=[("B", "T", 6)], rtol=1e-4, atol=1e-5)
    assert ops(model) in (["RMSNormalization"], ["LayerNormalization"])
    check_run(model, norm, ROWS, rtol=1e-4, atol=1e-5)
    check_run(model, norm, X[:0])


def rms_norm(x):
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x, g: rms_norm(x) * 0.125, ["RMSNormalization"]),
        (lambda x, g: rms_norm(x) * SCALE * 0.125, ["RMSNormalization"]),
        (lambda x, g: 0.3 * (two_pass(x) * SCALE) + BIAS, ["LayerNormalization"]),
        (lambda x, g: rms_norm(x) * BIAS * (1 / SCALE) * 0, ["RMSNormalization"]),
        (lambda x, g: rms_norm(x) * g, ["RMSNormalization"]),
        (lambda x, g: rms_norm(x) * g * 0.125, ["RMSNormalization", "Mul"]),
        (lambda x, g: rms_norm(x) * SCALE * jnp.sin(x), ["RMSNormalization", "Sin", "Mul"]),
        (lambda x, g: rms_norm(x) * two_pass(x) * SCALE, ["LayerNormalization", "RMSNormalization", "Mul", "Mul"]),
        (lambda x, g: rms_norm(x) * np.float32(1e-30) * SCALE * np.float32(1e-30), ["RMSNormalization", "Mul"]),
        (lambda x, g: (two_pass(x) * SCALE + BIAS) * 0.3, ["LayerNormalization", "Mul"]),
        (lambda x, g: rms_norm(x) * SCALE + BIAS, ["RMSNormalization", "Add"]),
    ],
)
def test_factors_of_normalization(fn, expected):
    model = check(fn, X, SCALE, rtol=1e-4, atol=1e-5)
    assert sorted(ops(model)) == sorted(expected)
    check_run(model, fn, ROWS, SCALE, rtol=1e-4, atol=1e-5)


def repeated(norm: Callable[..., Any]) -> Callable[..., Any]:
    return lambda p, x: norm(jnp.broadcast_to(p, (x.shape[0], *p.shape)))


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x: one_pass(x) * SCALE + BIAS, ["LayerNormalization"]),
        (jax.nn.softmax, ["Softmax"]),
        (lambda x: x.max((-1, -2)), ["ReduceMax"]),
        (lambda x: (x > 0).any(1), ["Greater", "ReduceMax"]),
    ],
)
def test_what_is_repeated_is_computed_once(fn, expected):
    for p in X[0], ROWS[0]:
        model = check(repeated(fn), p, X, dims=[None, ("B", 4, 6)], rtol=1e-4, atol=1e-5)
        assert [op for op in ops(model) if op not in ("Shape", "Concat")] == [*expected, "Expand"]
    check_run(model, repeated(fn), ROWS[0], X[:0])


def test_what_is_known_and_repeated_is_stored():
    model = check(
        lambda x: repeated(lambda x: one_pass(x) * SCALE + BIAS)(ROWS[0], x), X, dims=[("B", 4, 6)], rtol=1e-5
    )
    assert ops(model) == ["Shape", "Concat", "Expand"]


def test_reductions_along_what_is_repeated():
    def fn(p, x):
        rows = jnp.broadcast_to(p[:, None], (x.shape[0], 4, 5, 6))
        return rows.sum(0), rows.sum(2), rows.sum((1, 3)), rows.prod((0, 3)), rows.max(1), rows.min((2, 3))

    check(fn, X[0], X, dims=[None, ("B", 4, 6)], rtol=1e-5)


def test_epsilon_that_is_no_float32_keeps_double_exact():
    model = check(lambda x: two_pass(x.astype(jnp.float64)), X.astype(np.float64))
    assert "LayerNormalization" not in ops(model)


def test_attention_has_no_surplus_nodes():
    q = np.random.default_rng(0).normal(size=(2, 5, 2, 4)).astype(np.float32)
    model = check(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True), q, q + 1, q * 2, opset=22)
    scores = ["Transpose", "Transpose", "MatMul", "Mul", "Expand", "Trilu", "Where", "Softmax"]
    assert ops(model) == [*scores, "Transpose", "MatMul", "Transpose"]


def test_sigmoid_where_small_numbers_matter() -> None:
    x = np.float32([-100, -80, -30, -18, -16, -8, 0, 8, 30, np.nan, np.inf, -np.inf])
    check(lambda x: (jnp.log(jax.nn.sigmoid(x)), 1 / jax.nn.sigmoid(x), jnp.sqrt(jax.nn.sigmoid(x))), x, rtol=1e-5)


@pytest.mark.parametrize(
    "fn",
    [
        lambda p, x: jnp.log(p + 1e-12),
        lambda p, x: jnp.log(p * 2),
        lambda p, x: jnp.sqrt((1 - p) * p),
        lambda p, x: jnp.log(jnp.clip(p[:, None], 1e-9, 1)),
        lambda p, x: p / jnp.exp(x),
        lambda p, x: jnp.log(p) - jnp.log(1 - p),
        lambda p, x: 1e6 * p,
        lambda p, x: -p / 1e-5,
        lambda p, x: p > 1e-13,
        lambda p, x: jnp.where(p == 0, 1, x),
    ],
)
def test_sigmoid_where_small_numbers_matter_further_on(fn: Callable[..., Any]) -> None:
    x = np.float32([-80, -30, -18, -16, -8, 0, 8, np.nan, np.inf])
    model = check(lambda x: fn(jax.nn.sigmoid(x), x), x, rtol=2e-5)
    assert "Sigmoid" not in ops(model)


def test_sigmoid_where_small_numbers_do_not_matter() -> None:
    x = np.float32([-80, -30, -18, -16, -8, 0, 8, np.nan, np.inf])
    assert "Sigmoid" in ops(check(lambda x: jnp.tanh(jax.nn.sigmoid(x) * 2 + 1) / 3, x, rtol=1e-5))
