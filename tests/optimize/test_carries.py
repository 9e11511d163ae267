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


def test_carries_that_are_equal() -> None:
    """Libraries count steps that the program counts as well."""

    def step(c: Any) -> Any:
        x, i, n, total = c
        return jnp.sin(x) + i + n + 2, i + 1, n + 1, total + n

    model = check(lambda x: counted(step, x, 0, 0, 0)[::3], X)
    assert carries(model) == 3
    model = check(lambda x: counted(step, x, 0, 0, 0), X)  # the carry that is returned twice stays
    model = check(lambda x: counted(step, x, 0, 1, 0)[::3], X)
    assert carries(model) == 4
    check(lambda x: counted(step, x, 0, 0.0, 0), X)


def test_equal_arrays() -> None:
    def fn(x: Any, xs: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            a, b, d = c
            return (a * x + jnp.where(a > 0, d, a), b * x + jnp.where(b > 0, d, b), a - b), a + 2 * b

        return lax.scan(step, (x, x, x), xs)

    check(fn, np.float32([1, -2, np.nan]), np.float32([0.5, -0.0, np.inf]))
    model = check(lambda x, xs: fn(x, xs)[1], X, X)
    assert carries(model) == 3  # two carries, one of which is always 0 after a step but not before, and what is stacked
    check(lambda x, xs: fn(x, xs)[0], X, X)


def test_equal_carries_of_loops_in_loops() -> None:
    def fn(x: Any) -> Any:
        def inner(c: Any) -> Any:
            return lax.while_loop(lambda c: (c[0] < 9) & (c[2][0] < 9), lambda c: (c[0] + 1, c[1] + 1, c[2] + c[1]), c)

        def step(c: Any) -> Any:
            i, n, y = inner(c)
            return i, n, y / 2

        return lax.while_loop(lambda c: c[0] + c[1] < 12, step, (0, 0, x))

    model = check(lambda x: fn(x)[1:], X)
    assert carries(model) == 2
    check(fn, X)


def test_a_result_that_is_computed_twice() -> None:
    """The one that is returned comes second."""

    def step(c: Any) -> Any:
        x, y = c
        z = jnp.sin(x * y)
        return x + 1, jnp.cos(z) + jnp.sin(x * y)

    model = check(lambda x: counted(step, x, x), X)
    (loop,) = (n for n in model.graph.node if n.op_type == "Loop")
    assert sum(node.op_type == "Sin" for node in loop.attribute[0].g.node) == 1

    def fn(x: Any) -> Any:
        return jnp.exp(x) + 1, jnp.exp(x)

    assert len(check(fn, X).graph.node) == 2
    check(lambda x: (jnp.exp(x), jnp.exp(x), jnp.exp(x) + 1), X)
    check(lambda x: (jnp.exp(x) + 1, jnp.exp(x), jnp.exp(x)), X)
