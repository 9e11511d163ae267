"""Activation functions as people write them by hand become operators; formulas that only look like them do not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.helpers import check, check_run

HARD = np.float32(
    [
        [-np.inf, -1e38, -200, -88, -17.5, -3, -1e-3, -1e-20, -0.0],
        [0, 1e-20, 1e-3, 0.5, 3, 6, 17, 90, 1e38],
        [np.inf, np.nan, 1, 2, -1, -2, 0.7, -0.7, 12],
    ]
)


def ops(model) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x: 1 / (1 + jnp.exp(-x)), ["Sigmoid"]),
        (lambda x: lax.reciprocal(jnp.exp(-x) + 1), ["Sigmoid"]),
        (lambda x: (1 + jnp.exp(-x)) ** -1, ["Sigmoid"]),
        (lambda x: x / (1 + jnp.exp(-x)), ["Sigmoid", "Mul"]),
        (lambda x: jnp.where(x >= 0, 1 / (1 + jnp.exp(-x)), jnp.exp(x) / (1 + jnp.exp(x))), ["Sigmoid"]),
        (lambda x: jnp.where(x < 0, jnp.exp(x) / (1 + jnp.exp(x)), 1 / (1 + jnp.exp(-x))), ["Sigmoid"]),
        (
            lambda x: jnp.where(x >= 0, 1 / (1 + (z := jnp.exp(-jnp.abs(x)))), z / (1 + z)),
            ["Sigmoid"],
        ),
        (lambda x: jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x))), ["Softplus"]),
        (lambda x: jnp.logaddexp(0.0, x), ["Softplus"]),
        (lambda x: -jax.nn.log_sigmoid(-x), ["Softplus"]),
        (lambda x: jnp.where(x < 0, 0, x), ["Relu"]),
        (lambda x: jnp.where(x <= 0, 0, x), ["Relu"]),
        (lambda x: jnp.where(x >= 0, x, jnp.expm1(x)), ["Elu"]),
        (lambda x: jnp.where(x <= 0, 1.5 * jnp.expm1(x), x), ["Elu"]),
        (lambda x: jnp.where(x > 0, x, 1.5 * jnp.expm1(jnp.minimum(x, 0))), ["Elu"]),
        (lambda x: jnp.where(x < 0, jnp.expm1(jnp.where(x < 0, x, 0)), x), ["Elu"]),
        (lambda x: jnp.where(x > 0, x, 1.5 * (jnp.exp(x) - 1)), ["Elu"]),
        (lambda x: 1.0507 * jnp.where(x > 0, x, 1.67326 * (jnp.exp(x) - 1)), ["Selu"]),
        (lambda x: jnp.where(x > 0, x, 2 * jnp.expm1(x / 2)), ["Celu"]),
        (lambda x: jnp.where(x < 0, 0.1 * x, x), ["LeakyRelu"]),
        (lambda x: jnp.maximum(x, 0.1 * x), ["LeakyRelu"]),
        (lambda x: jnp.maximum(0, jnp.minimum(1, 0.2 * x + 0.5)), ["HardSigmoid"]),
        (lambda x: jnp.clip((x + 1) / 2, 0, 1), ["HardSigmoid"]),
        (lambda x: jnp.maximum(jnp.minimum(x, 6), 0), ["Clip"]),
    ],
)
def test_activation_by_hand(fn, expected):
    assert ops(check(fn, HARD, rtol=2e-5, atol=2e-6, dims=[("R", 9)])) == expected


FINITE = np.where(np.isfinite(HARD) & (abs(HARD) < 1e18), HARD, 7).astype(np.float32)


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x: x * (1 + lax.erf(x / np.float32(2**0.5))) / 2, "Gelu"),
        (lambda x: x * (0.5 + 0.5 * lax.erf(x * 0.7071067811865476)), "Gelu"),
        (lambda x: x * jax.scipy.stats.norm.cdf(x), "Gelu"),
        (lambda x: 0.5 * x * (1 + jnp.tanh(0.7978845608028654 * x * (1 + 0.044715 * x * x))), "Gelu"),
        (lambda x: x * jnp.tanh(jnp.log1p(jnp.exp(x))), "Mish"),
    ],
)
def test_smooth_activation_by_hand(fn, expected):
    model = check(fn, FINITE, rtol=2e-5, atol=2e-6)
    assert ops(model) == [expected]
    check_run(model, fn, np.resize(np.float32([np.inf, np.nan, 80, 1e18, -1e18]), HARD.shape), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: 1 / (1.0001 + jnp.exp(-x)),
        lambda x: 2 / (1 + jnp.exp(-x)),
        lambda x: x[::-1] / (1 + jnp.exp(-x)),
        lambda x: jnp.exp(x) / (1 + jnp.exp(x)),  # NaN from 89 on
        lambda x: jnp.log1p(jnp.exp(x)),  # inf from 89 on
        lambda x: jnp.where(x > 0, x, 0),  # NaN becomes 0
        lambda x: jnp.where(x < 0, 0, x[::-1]),
        lambda x: jnp.where(x < 0, -0.0, x),
        lambda x: jnp.where(x < 1, 0, x),
        lambda x: jnp.where(x > 0, x, 2 * jnp.expm1(x / 3)),
        lambda x: jnp.where(x < 0, x, jnp.expm1(x)),
        lambda x: jnp.where(x > 0, x, jnp.exp(x) - 1.001),
        lambda x: jnp.where(x < 0, x, 0.1 * x),
        lambda x: jnp.maximum(x, 1.5 * x),
        lambda x: jnp.minimum(x, 0.1 * x),
        lambda x: x * (0.5 + 0.4 * lax.erf(x / np.float32(2**0.5))),
        lambda x: x * (1 + lax.erf(x / np.float32(2**0.5))) / 3,
        lambda x: x * (1 + lax.erf(x[::-1] / np.float32(2**0.5))) / 2,
        lambda x: x * (1 + lax.erf(x / np.float32(1.4142))) / 2,
    ],
)
def test_what_only_looks_like_it(fn):
    found = set(ops(check(fn, HARD, rtol=2e-5, atol=2e-6)))
    assert not found & {"Sigmoid", "Softplus", "Relu", "Elu", "Celu", "LeakyRelu", "HardSigmoid", "Gelu", "Clip"}


@pytest.mark.parametrize(
    ("fn", "kept"),
    [
        (lambda x: jnp.where(x > 1, 1 / (1 + jnp.exp(-x)), jnp.exp(x) / (1 + jnp.exp(x))), "Where"),
        (lambda x: jnp.where(x[::-1] > 0, 1 / (1 + jnp.exp(-x)), jnp.exp(x) / (1 + jnp.exp(x))), "Where"),
        (lambda x: jnp.where(x > 0, 1 / (1 + jnp.exp(-x)), jnp.exp(x[::-1]) / (1 + jnp.exp(x[::-1]))), "Where"),
        (lambda x: jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x[::-1]))), "Log"),
        (lambda x: jnp.where(jnp.isnan(x), 5, jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))), "Where"),
        (lambda x: jnp.where(jnp.isnan(x), x[::-1], jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))), "Where"),
        (lambda x: jnp.where(x > 0, x, jnp.inf * x), "Where"),  # NaN at 0
        (lambda x: jnp.maximum(jnp.minimum(x, -1), 0), "Min"),
        (lambda x: jnp.clip((x + 3) / 2, 0, 1), "Clip"),
        (lambda x: jnp.clip((x / 4 + 1) / 2, 0, 1), "Clip"),
    ],
)
def test_what_stays_around_a_part(fn, kept):
    assert kept in ops(check(fn, HARD, rtol=2e-5, atol=2e-6))


def test_sigmoid_by_hand_where_small_numbers_matter():
    x = np.float32([-80, -30, -18, -16, -8, 0, 8, np.nan, np.inf])
    assert "Sigmoid" not in ops(check(lambda x: jnp.log(1 / (1 + jnp.exp(-x))), x, rtol=1e-5))
    assert "Sigmoid" in ops(check(lambda x: jnp.tanh(1 / (1 + jnp.exp(-x))), x, rtol=1e-5))
    for sigmoid in (jax.nn.sigmoid, lambda x: 1 / (1 + jnp.exp(-x))):
        check(lambda x: (jnp.log(sigmoid(x)), sigmoid(x) ** 0.5), x.astype(np.float64) * 8, rtol=1e-12)  # noqa: B023
    half = x.astype(np.float16)
    assert "Sigmoid" not in ops(check(lambda x: 1 / (1 + jnp.exp(-x)), half, rtol=2e-3))


def test_normal_distribution_function():
    """Also of numbers so far out that only erfc tells them from 0."""
    x = np.concatenate([np.linspace(-12, 12, 400), [np.inf, -np.inf, np.nan, 0.0, -0.0]]).astype(np.float32)
    model = check(jax.scipy.stats.norm.cdf, x, rtol=2e-5, atol=0)
    assert len(ops(model)) <= 36 and "Erf" not in ops(model)
    check(jax.scipy.stats.norm.cdf, x.astype(np.float64), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x, m: (e := jnp.exp(x - m)) * (1 / e.sum(-1, keepdims=True)), ["Softmax"]),
        (lambda x, m: lax.reciprocal((e := jnp.exp(x - m)).sum(-1, keepdims=True)) * e, ["Softmax"]),
        (lambda x, m: x - (m + jnp.log(jnp.exp(x - m).sum(-1, keepdims=True))), ["LogSoftmax"]),
        (lambda x, m: x - (jnp.log(jnp.exp(x - m).sum(-1, keepdims=True)) + m), ["LogSoftmax"]),
    ],
)
def test_softmax_by_hand(fn, expected):
    x = np.float32([[1, 2, 3], [-np.inf, 0, 5], [np.inf, 0, 1], [np.nan, 1, 2], [-np.inf] * 3, [80, -80, 0]])
    assert ops(check(lambda x: fn(x, x.max(-1, keepdims=True)), x, dims=[("B", 3)], rtol=2e-5, atol=2e-6)) == expected
    other = ops(check(lambda x: fn(x, x.min(-1, keepdims=True)), x[[0, 5]] / 4, rtol=2e-5, atol=2e-6))
    assert expected[0] not in other


PRODUCTS = {
    "LeakyRelu": jax.nn.leaky_relu,
    "Gelu": jax.nn.gelu,
    "Gelu, exact": lambda x: jax.nn.gelu(x, approximate=False),
    "Elu": jax.nn.elu,
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("made", [lambda x, y: x * y, lambda x, y: (x + y) * 0.7, lambda x, y: (x * y).sum(0) * 2 / 3])
def test_what_an_activation_is_of_may_be_a_product(name, made):
    """Its factors are not those of the formula."""
    x, y = np.random.default_rng(0).standard_normal((2, 3, 50)).astype(np.float32)
    model = check(lambda x, y: PRODUCTS[name](made(x, y)), x, y, opset=23, rtol=1e-5, atol=1e-6)
    operators = [node.op_type for node in model.graph.node]
    assert operators[-1] == name.split(",")[0] and not {"Erf", "Tanh", "Exp", "Where"} & set(operators)


@pytest.mark.parametrize("exact", [True, False])
def test_a_gated_activation_is_a_factor_of_a_product(exact):
    """As in GEGLU, which is not a product of three factors."""

    def fn(x, y):
        return y * jax.nn.gelu(x, approximate=not exact) * (x + y)

    assert ops(check(fn, HARD[:, :8], HARD[:, 1:], opset=23)).count("Gelu") == 1


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, more: jnp.where(x >= 0, x, more(0.125) * x),
        lambda x, more: jnp.where(x > 0, x, more(0.5) * jnp.expm1(x)),
        lambda x, more: jnp.where(x > 0, x, more(0.5) * jnp.expm1(x / 0.5)),
        lambda x, more: jnp.maximum(x, 0) + more(0.5) * jnp.expm1(jnp.minimum(x, 0) / 0.5),
    ],
    ids=["leaky", "elu", "celu", "celu-parts"],
)
def test_a_number_may_be_repeated_along_axes_that_nothing_else_has(fn):
    def program(x):
        return fn(x, lambda number: jnp.full((3 * x.shape[1],), number, x.dtype).reshape(3, x.shape[1]))

    check(program, HARD[:1], dims=[(1, "N")], atol=3e-7)
