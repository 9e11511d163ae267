"""Hard activations, clips and relatives become operators that compute the same, on values that hurt too."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax import lax

from tests.helpers import check

HARD = np.float32(
    [
        [-np.inf, -1e38, -200, -3.5, -3, -1e-3, -1e-20, -0.0],
        [0, 1e-20, 1e-3, 0.5, 3, 6, 90, 1e38],
        [np.inf, np.nan, 1, 2, -1, -2, 0.7, -0.7],
    ]
)
PLAIN = {"Add", "Mul", "Div", "Min", "Max", "Relu", "Where", "Greater", "Less", "Abs", "Exp", "Tanh", "Cast", "Sub"}


def ops(model) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (jax.nn.relu6, "Clip"),
        (keras.ops.relu6, "Clip"),
        (lambda x: jnp.clip(x, -1, 2), "Clip"),
        (lambda x: lax.clamp(np.float32(-1), x, np.float32(2)), "Clip"),
        (jax.nn.hard_tanh, "Clip"),
        (jax.nn.hard_sigmoid, "HardSigmoid"),
        (lambda x: jax.nn.relu6(x + 3) * (1 / 6), "HardSigmoid"),
        (keras.ops.hard_sigmoid, "HardSigmoid"),
        (lambda x: jnp.clip(0.2 * x + 0.5, 0, 1), "HardSigmoid"),
        (jax.nn.hard_swish, "HardSwish"),
        (keras.activations.hard_silu, "HardSwish"),
        (lambda x: jnp.where(x > 0.5, x, 0), "ThresholdedRelu"),
        (jax.nn.selu, "Selu"),
        (keras.activations.selu, "Selu"),
        (jax.nn.celu, "Celu"),
        (lambda x: jax.nn.celu(x, 0.7), "Celu"),
        (jax.nn.soft_sign, "Softsign"),
        (keras.activations.softsign, "Softsign"),
    ],
)
def test_activation(fn, expected):
    assert ops(check(fn, HARD, rtol=2e-6, atol=2e-7)) == [expected]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: jnp.minimum(jnp.maximum(x, 2), 1),  # the bounds are the wrong way round
        lambda x: jnp.minimum(jnp.maximum(x, np.nan), 1),
        lambda x: jnp.where(x > 1, 2, jnp.where(x < -1, -1, x)),  # a step
        lambda x: jnp.where(x > 1, 1, jnp.where(-x < -1, -1, x)),
        lambda x: jax.nn.relu6(x + 3) / 5,
        lambda x: jax.nn.relu6(x + 7) / 6,
        lambda x: x * jax.nn.relu6(x + 3) / 6,  # overflows earlier
        lambda x: x * jax.nn.relu6(x[::-1] + 3) / 6,
        lambda x: jnp.where(x > 0.5, x, 1),
        lambda x: jnp.where(x >= 0.5, x, 0),
        lambda x: x / (jnp.abs(x) + 2),
        lambda x: x[::-1] / (jnp.abs(x) + 1),
        lambda x: jnp.maximum(x, 0) + 0.7 * jnp.expm1(jnp.minimum(x, 0) / 0.6),
    ],
)
def test_other_formulas_are_what_they_are(fn):
    found = set(ops(check(fn, HARD, rtol=2e-6, atol=2e-7)))
    assert not found & {"HardSwish", "HardSigmoid", "ThresholdedRelu", "Softsign", "Celu", "Selu"}
    assert found & PLAIN


def test_other_dtypes():
    for dtype in (np.float16, np.float64, np.int32):
        x = np.arange(-8, 8, dtype=dtype)
        check(jax.nn.relu6, x)
        if dtype != np.int32:
            check(jax.nn.hard_swish, x)


def test_infinities_become_finite() -> None:
    largest = np.finfo(np.float32).max
    x = np.append(HARD, np.float32([largest, -largest, np.nextafter(largest, 0), 1e-45]))
    assert ops(check(jnp.nan_to_num, x)) == ["IsNaN", "Where", "Clip"]
    assert ops(check(lambda x: jnp.where(x == jnp.inf, largest, x), x)) == ["Min"]
    assert ops(check(lambda x: jnp.where(-jnp.inf == x, -largest, x), x)) == ["Max"]
    check(jnp.nan_to_num, x, dims=[("B",)])
    check(jnp.nan_to_num, x.astype(np.float64), x64=True)
    for other in (lambda x: jnp.nan_to_num(x, posinf=7.0), lambda x: jnp.where(x == jnp.inf, -largest, x)):
        assert "Equal" in ops(check(other, x))  # finite numbers above are as they are
    check(jnp.nan_to_num, np.float16([np.inf, -np.inf, np.nan, 65504, -65504, -0.0]))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, more: jnp.clip(x + 3, 0, 6) / more(6),
        lambda x, more: jnp.clip(more(0.2) * x + 0.5, 0, 1),
        lambda x, more: jnp.clip((x + 0.5) * more(0.2), 0, 1),
    ],
    ids=["divided", "line", "shifted"],
)
def test_a_number_may_be_repeated_along_axes_that_nothing_else_has(fn):
    def program(x):
        return fn(x, lambda number: jnp.full((3 * x.shape[1],), number, x.dtype).reshape(3, x.shape[1]))

    check(program, HARD[:1], dims=[(1, "N")], atol=2e-7)
