"""Several choices by one condition, in a loop, are one If."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from jax import lax

from tests.helpers import check, check_run

X = np.float32([0.5, -2, 3])


def operators(model: onnx.ModelProto) -> list[str]:
    """Those of the body of the only loop."""
    (loop,) = (n for n in model.graph.node if n.op_type in ("Loop", "Scan"))
    (body,) = (a.g for a in loop.attribute if a.name == "body")
    return [node.op_type for node in body.node]


def solve(x: Any, limit: Any) -> Any:
    """Steps that are taken or not, with a smaller one next."""

    def step(carry: Any) -> Any:
        t, h, y, _ = carry
        new = y - h * jnp.sin(y)
        error = jnp.abs(new - y).max() / h
        is_good = error < limit
        return jnp.where(is_good, t + h, t), jnp.where(is_good, h * 1.5, h / 2), jnp.where(is_good, new, y), error

    return lax.while_loop(lambda c: (c[0] < 2) & (c[1] > 1e-3), step, (0.0, 0.1, x, 0.0))


def test_a_step_that_is_taken_or_not() -> None:
    model = check(solve, X, np.float32(0.9), rtol=1e-5)
    assert operators(model).count("If") == 1 and "Where" not in operators(model)
    check_run(model, solve, X, np.float32(0.1), rtol=1e-5)
    check_run(model, solve, X, np.float32(np.nan), rtol=1e-5)
    check(solve, X, np.float32(0.9), dims=[("N",), ()], rtol=1e-5)


def over(step: Callable[..., Any], *start: Any) -> Callable[..., Any]:
    return lambda xs: lax.scan(lambda carry, x: step(x, *carry), start, xs)


XS = np.float32([1, -1, np.nan, 2, -0.0, -3, np.inf, 5])


@pytest.mark.parametrize(
    ("step", "start"),
    [
        # what is chosen is a result of the body, and stacked, too; numbers that are repeated; other dtypes
        (
            lambda x, a, b, c: ((jnp.where(x > 0, a + x, a), jnp.where(x > 0, b, x), jnp.where(x > 0, 1, c)), a),
            (0.0, 1.0, 2),
        ),
        (
            lambda x, a, b, c: (
                (jnp.where(x > 0, jnp.zeros(3), a + x), jnp.where(x > 0, b + 2, b), jnp.where(x > 0, c, ~c)),
                jnp.where(x > 0, a, 2 * a),
            ),
            (X, np.int32(3), np.bool_(True)),
        ),
        # one choice depends on another
        (
            lambda x, a, b, c, d: (
                (
                    jnp.where(x > 0, a + 1, a),
                    jnp.where(x > 0, b, jnp.where(x > 0, a + 1, a) * 2),
                    jnp.where(x > 0, c, a),
                    jnp.where(x > 0, d - a, x),
                ),
                jnp.where(x > 0, jnp.where(x > 0, c, a) + 1, x),
            ),
            (0.0, 1.0, 2.0, 3.0),
        ),
        # one value for all, a value from outside, what is computed for one branch only
        (
            lambda x, a, b, c: (
                (jnp.where(x > 0, jnp.exp(x), a), jnp.where(x > 0, jnp.exp(x), b), jnp.where(x > 0, jnp.exp(x), c)),
                jnp.where(x > 0, jnp.stack([a * 2, b - c])[::-1], jnp.stack([a, x])),
            ),
            (0.0, 1.0, 2.0),
        ),
        # two conditions, each of which the other's choices depend on
        (
            lambda x, a, b, c: (
                (
                    jnp.where(x > 0, a + 1, jnp.where(x < 3, b, c)),
                    jnp.where(x < 3, jnp.where(x > 0, b * 2, b), c),
                    jnp.where(x > 0, c + 1, b) + jnp.where(x < 3, a, b),
                ),
                (jnp.where(x > 0, a, x), jnp.where(x < 3, x, b)),
            ),
            (0.0, 1.0, 2.0),
        ),
    ],
)
def test_choices_in_a_scan(step: Callable[..., Any], start: Any) -> None:
    model = check(over(step, *start), XS)
    assert "If" in operators(model)


def test_few_choices_stay() -> None:
    def fn(xs: Any) -> Any:
        return lax.scan(lambda c, x: (jnp.where(x > c, x, c * 2), jnp.where(x > c, c, x)), 0.5, xs)

    assert "If" not in operators(check(fn, XS))


def test_choices_that_differ_from_element_to_element_stay() -> None:
    def fn(xs: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            a, b, d = c
            return (jnp.where(x > 0, a + x, a), jnp.where(x > 0, b, x), jnp.where(x > 0, d * x, d)), None

        return lax.scan(step, (X, X, X), xs)

    assert "If" not in operators(check(fn, XS.reshape(4, 2)[:, :1] * X))


@pytest.mark.parametrize("turned", [False, True])
def test_choices_of_two_conditions_that_wait_for_each_other(turned: bool) -> None:
    """Each group could be one If, but not both: each would need what the other returns."""

    def step(carry: Any, x: Any) -> Any:
        a, b, c = carry
        p, q = x > 0, x < 2
        first = jnp.where(p, a + x, a)
        late = jnp.where(q, first * 2, b)
        early = jnp.where(q, b * x, c)
        second = jnp.where(p, early + 1, b)
        third, fourth = jnp.where(p, c, x), jnp.where(q, a, x)
        result = (late + third, early - second, first * fourth)
        return (result[::-1] if turned else result), second

    check(lambda xs: lax.scan(step, (0.0, 1.0, 2.0), xs), XS, rtol=1e-6)
