"""Loops carry only what changes and is needed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from jax import lax

from tests.helpers import check

X = np.float32([1, -2, 3])


def carries(model: onnx.ModelProto) -> int:
    """How many values the only loop of a model carries."""
    (loop,) = (n for n in model.graph.node if n.op_type in ("Loop", "Scan"))
    return len(loop.output)


def counted(step: Any, *start: Any) -> Any:
    """A loop that ends when its first carry says so."""
    return lax.while_loop(lambda c: c[0].sum() < 50, step, start)


def test_a_choice_between_equal_values() -> None:
    def fn(x: jax.Array, y: jax.Array) -> Any:
        step = lambda c: (c[0] + 2, jnp.where(c[0][0] > 3, c[1], c[1]), c[2] * c[1][0] + c[0])  # noqa: E731
        return counted(step, x, y, y)[::2]

    assert carries(check(fn, X, X + 1)) == 2


def test_what_nobody_asks_for() -> None:
    def fn(x: jax.Array) -> Any:
        step = lambda c: (c[0] + 2, c[1] + 1, jnp.where(c[0] > 3, c[2] + c[1], c[2]), c[3] * 2)  # noqa: E731
        return counted(step, x, 0, jnp.zeros(3), x)[3]

    assert carries(check(fn, X)) == 2


def test_what_only_the_condition_needs() -> None:
    def fn(x: jax.Array) -> Any:
        def step(c: Any) -> Any:
            i, j, y, z = c
            return i + j, j, y * 2, z + i

        return lax.while_loop(lambda c: c[0] < 20, step, (jnp.int32(1), jnp.int32(3), x, jnp.int32(0)))[2]

    check(fn, X)


@pytest.mark.parametrize("results", [(0,), (1,), (2,), (0, 2), (2, 0), (1, 2), (0, 1, 2), (1, 1), ()])
def test_some_of_the_results(results: tuple[int, ...]) -> None:
    def fn(x: jax.Array) -> Any:
        def step(c: Any, y: jax.Array) -> Any:
            a, b, d = c
            fixed = lax.select(y > 0, b, b)
            return (a + fixed * y, fixed, d * 2 + a), a.sum()

        carry, ys = lax.scan(step, (x, x + 1, x * 3), jnp.arange(40.0))
        return tuple(carry[i] for i in results), ys

    check(fn, X, rtol=1e-5)


def test_carries_that_change_places() -> None:
    def fn(x: jax.Array) -> Any:
        return counted(lambda c: (c[0] + 3, c[2], c[1], lax.select(c[0] > 0, c[3], c[3])), x, x, x * 2, x * 3)

    check(fn, X)


def test_one_inside_another() -> None:
    def fn(x: jax.Array) -> Any:
        def outer(c: Any) -> Any:
            a, b, n = c
            inner = lax.while_loop(
                lambda d: d[0].max() < 10, lambda d: (d[0] + d[1], jnp.where(d[2] > 0, d[1], d[1]), d[2] + 1), (a, b, 0)
            )
            return inner[0] - 5, jnp.where(n > 100, b, b), n + 1

        return lax.while_loop(lambda c: c[2] < 4, outer, (x, jnp.abs(x) + 1, 0))[:2]

    check(fn, X)


def test_the_vmap_of_a_loop() -> None:
    def fn(x: jax.Array) -> Any:
        step = lambda c: (c[0] + c[1], lax.select(c[0] > 3, c[1], c[1]), c[2] + 1)  # noqa: E731
        return lax.while_loop(lambda c: c[0] < 9, step, (x, jnp.abs(x) + 1, 0))[:2]

    check(jax.vmap(fn), X)


def test_a_loop_that_does_not_run() -> None:
    def fn(x: jax.Array) -> Any:
        return counted(lambda c: (c[0] + 2, jnp.where(c[0] > 0, c[1], c[1]), c[2] * 2), x + 100, x, x)

    check(fn, X)
