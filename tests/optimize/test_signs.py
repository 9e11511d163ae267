"""Signs that cancel or mean nothing are gone, and everything is computed as before, to the bit."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.helpers import check

X = np.float32([[-0.0, 0.0, -np.inf, np.inf], [np.nan, 1e-9, -2.5, 3e15]])
WHOLE = np.int32([[-(2**31), 2**31 - 1, 0, -7]])


def ops(model) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x: jnp.sin(lax.neg(-x)), ["Sin"]),
        (lambda x: x + (-x[::-1]), ["Slice", "Sub"]),
        (lambda x: -x + x[::-1], ["Slice", "Sub"]),
        (lambda x: x - (-x[::-1]), ["Slice", "Add"]),
        (lambda x: jnp.abs(-x), ["Abs"]),
        (lambda x: jnp.abs(0 - x), ["Abs"]),
        (lambda x: jnp.abs(jnp.abs(x)), ["Abs"]),
        (lambda x: jnp.abs(jnp.exp(x)), ["Exp"]),
        (lambda x: jnp.abs((x * x).sum(-1)), ["Mul", "ReduceSum"]),
        (lambda x: jnp.abs(x) ** 2, ["Mul"]),
        (lambda x: jnp.maximum(x, -x), ["Abs"]),
        (lambda x: jnp.isnan(1 - x), ["IsNaN"]),
        (lambda x: jnp.isnan(-jnp.abs(x)), ["IsNaN"]),
        (lambda x: (x * x).sum(-1) ** 0.5, ["Mul", "ReduceSum", "Sqrt"]),
        (lambda x: ((x * x).mean(-1) + 1e-6) ** -0.5, ["Mul", "ReduceMean", "Add", "Sqrt", "Reciprocal"]),
        (lambda x: (jnp.maximum(x, 0) + 1e-6) ** -0.5, ["Relu", "Add", "Sqrt", "Reciprocal"]),
    ],
)
def test_signs(fn, expected):
    model = check(fn, X, rtol=1e-6)
    assert sorted(ops(model)) == sorted(expected)


@pytest.mark.parametrize(
    ("fn", "kept"),
    [
        (lambda x: x**0.5, "Pow"),  # 0.0 of -0.0, inf of -inf
        (lambda x: jnp.maximum(x, 0) ** 0.5, "Pow"),
        (lambda x: (x * x - 1) ** 0.5, "Pow"),
        (lambda x: (x * x - 1) ** -0.5, "Pow"),
        (lambda x: jnp.abs(x - 1), "Abs"),
        (lambda x: jnp.abs(x * x[::-1]), "Abs"),
        (lambda x: jnp.abs(jnp.max(x * x, 0, initial=-1.0)), "Abs"),
        (lambda x: jnp.abs(x) * jnp.abs(x[::-1]), "Abs"),
        (lambda x: jnp.maximum(x, -x[::-1]), "Max"),
        (lambda x: jnp.isnan(np.float32(np.inf) - x), "Sub"),
        (lambda x: jnp.signbit(0 - x), "Sub"),
    ],
)
def test_signs_that_matter(fn, kept):
    assert kept in ops(check(fn, X, rtol=1e-6))


def test_signs_of_integers():
    check(lambda x: (lax.neg(-x), x + (-x[:, ::-1]), x - (-x[:, ::-1]), jnp.maximum(x, -x), jnp.abs(-x)), WHOLE)


def test_zeros_have_signs():
    check(lambda x: (jnp.signbit(x + (-x)), jnp.signbit(-x + 0), jnp.signbit(lax.neg(-x) * 2)), X[:1, :2])
    check(lambda x: 1 / jnp.abs(0 - x), X[:1, :2])


@pytest.mark.parametrize("power", [lambda v: v**-0.5, lambda v: jnp.power(v, -0.5), lambda v: 1 / v**0.5])
def test_normalization_by_powers(power):
    x = np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32)

    def norm(x):
        return (x - x.mean(-1, keepdims=True)) * power(x.var(-1, keepdims=True) + 1e-5)

    assert ops(check(norm, x, dims=[("B", 6)], rtol=1e-4, atol=1e-5)) == ["LayerNormalization"]
    rms = check(lambda x: x * power(jnp.mean(jnp.abs(x) ** 2, -1, keepdims=True) + 1e-6), x, rtol=1e-5)
    assert ops(rms) == ["RMSNormalization"]
    check(lambda x: lax.square(x) ** 0.5, x.astype(np.float16), rtol=2e-3)
