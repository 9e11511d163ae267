"""Indices that a loop counts, and that are therefore in range, are not checked; others are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.helpers import check, check_run
from tests.lower.bodies import body_counts

X = np.float32([3, -1, 4, -1, 5, -9, 2, 6])
CHECKS = {"Clip", "Equal", "Where"}


def checks(model: Any, kind: str) -> set[str]:
    """What the bodies of some loops do so that no index is out of range."""
    return {name for counts in body_counts(model, kind) for name in counts} & CHECKS


def ring(xs: Any) -> Any:
    def step(carry: Any, x: Any) -> Any:
        buffer, i = carry
        return (buffer.at[i].set(x), (i + 1) % 3), buffer[i]

    return lax.scan(step, (jnp.zeros(3), 0), xs)


def search(x: Any, limit: Any) -> Any:
    """Copies numbers up to a limit."""

    def step(c: Any) -> Any:
        i, found = c
        return i + 1, found.at[i].set(x[i] * 2)

    return lax.while_loop(lambda c: (x[c[0]] < limit) & (c[0] < 8), step, (0, jnp.zeros(8)))


def backwards(x: Any) -> Any:
    def step(c: Any) -> Any:
        i, y = c
        return i - 1, y.at[i].add(x[i])

    return lax.while_loop(lambda c: (c[0] >= 0) & (c[1].sum() < 15), step, (7, x))


def compact(xs: Any) -> Any:
    """Positive numbers come first."""

    def step(carry: Any, x: Any) -> Any:
        n, buffer = carry
        return (n + jnp.where(x > 0, 1, 0), buffer.at[n].set(x)), n

    return lax.scan(step, (0, jnp.zeros(8)), xs)


def nested(x: Any) -> Any:
    """The index goes on where the loop inside has stopped."""

    def inner(limit: Any, i: Any, y: Any) -> Any:
        return lax.while_loop(
            lambda c: (c[0] < 8) & (c[1][-1] < limit), lambda c: (c[0] + 1, c[1].at[c[0]].add(c[1][-1] + 1)), (i, y)
        )

    def step(c: Any) -> Any:
        limit, i, y = c
        i, y = inner(limit, i, y)
        return limit + 1, i, y + 0.5

    return lax.while_loop(lambda c: c[0] < 12, step, (0, 0, x))


@pytest.mark.parametrize(
    ("fn", "kind"), [(ring, "Scan"), (search, "Loop"), (backwards, "Loop"), (compact, "Scan"), (nested, "Loop")]
)
def test_indices_that_are_counted(fn: Callable[..., Any], kind: str) -> None:
    arguments = [X] + ([np.float32(4.5)] if fn is search else [])
    model = check(fn, *arguments)
    left = checks(model, kind)
    assert left <= ({"Clip"} if fn is search else {"Where"} if fn is compact else set())  # x[i] of the condition
    check_run(model, fn, *[-a[::-1] if a.shape else -a for a in arguments])


def test_ends_are_found_where_they_are() -> None:
    """One step further, and indices are out of range."""

    def further(x: Any, start: Any) -> Any:
        step = lambda c: (c[0] + 1, c[1].at[c[0]].set(c[1].sum()))  # noqa: E731
        return lax.while_loop(lambda c: (c[0] <= 8) & (c[1].sum() < 1e6), step, (start, x))

    model = check(further, X, np.int32(0))
    for start in (-9, -8, -1, 7, 8, 9):
        check_run(model, further, X, np.int32(start))
    check(lambda x: further(x, 0), X)
    check(lambda x: further(x, -3), X)
    check(lambda x: further(x, 20), X)


def test_a_counter_that_wraps_around() -> None:
    def fn(x: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            i, y = c
            return (i + jnp.int8(1), y.at[i].add(1.0)), i

        return lax.scan(step, (jnp.int8(0), x), None, length=300)

    check(fn, np.zeros(40, np.float32))

    def turning(x: Any) -> Any:
        return lax.while_loop(
            lambda c: (c[0] < 2147483647) & (c[1].sum() < 40),
            lambda c: (c[0] + 5, c[1].at[c[0] % 8].add(1.0)),
            (2147483600, x),
        )

    check(turning, X)


def test_two_limits_on_the_same_steps() -> None:
    """Libraries bound the number of steps, and programs count them as well."""

    def fn(x: Any, first: Any) -> Any:
        def step(c: Any) -> Any:
            i, n, y = c
            return i + 1, n + 1, jnp.sin(y) + y[i]

        start = jnp.where(first > 0, 0, 1)
        return lax.while_loop(lambda c: (c[0] < 7) & (c[1] < 7), step, (start, 0, x))[::2]

    model = check(fn, X, np.float32(1))
    check_run(model, fn, X, np.float32(-1))
    assert body_counts(model, "Loop")[0]["Less"] == 1

    def other(x: Any, first: Any, limit: int) -> Any:
        """The limit is reached first, or both are needed."""
        start = jnp.where(first > 0, 0, 3)
        step = lambda c: (c[0] + 1, c[1] + 1, jnp.sin(c[2]) + c[2][c[0]])  # noqa: E731
        return lax.while_loop(lambda c: (c[0] < 7) & (c[1] < limit), step, (start, 0, x))

    for limit in range(3, 9):
        model = check(lambda x, first: other(x, first, limit), X, np.float32(1))  # noqa: B023
        check_run(model, lambda x, first: other(x, first, limit), X, np.float32(-1))  # noqa: B023


@pytest.mark.parametrize("start", [0, 1, 2, 4])
@pytest.mark.parametrize("first_is_known", [True, False])
def test_limits_that_are_not_known_stay(start: int, first_is_known: bool) -> None:
    """That one of them is at most so large does not say that it is not reached first."""

    def fn(x: Any, n: Any) -> Any:
        n = jnp.clip(n, 5, 10)
        limits = (10, n) if first_is_known else (n, 10)
        step = lambda c: (c[0] + 1, c[1] + 1, c[2] * x + 1)  # noqa: E731
        return lax.while_loop(lambda c: (c[0] < limits[0]) & (c[1] < limits[1]), step, (0, start, x))

    model = check(fn, np.float32(1.5), np.int32(6))
    for n in (3, 7, 12):
        check_run(model, fn, np.float32(1.5), np.int32(n))


def test_counters_of_a_batch() -> None:
    def one(x: Any) -> Any:
        return lax.while_loop(
            lambda c: (c[0] < 8) & (c[1] < 20), lambda c: (c[0] + 1, c[1] * 1.5 + jnp.asarray(X)[c[0]]), (0, x)
        )

    check(jax.vmap(one), X)
