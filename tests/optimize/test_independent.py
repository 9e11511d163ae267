"""States that depend on no other get a loop of their own, if what is made of them can then be computed at once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.helpers import check, check_run
from tests.lower.bodies import body_counts, count

X = np.random.default_rng(1).standard_normal((40, 3)).astype(np.float32)
KEY = jax.random.PRNGKey(3)


def many(a: jax.Array) -> jax.Array:
    """Some dozen operators."""
    for i in range(6):
        a = jnp.sin(a) * 0.5 + jnp.cos(a * 0.1 * i)
    return a


@pytest.mark.parametrize("reverse", [False, True])
def test_a_key_that_is_split_at_each_step(reverse: bool) -> None:
    def fn(xs: jax.Array, key: jax.Array) -> Any:
        def step(c: Any, x: jax.Array) -> Any:
            h, n, key = c
            key, a, b = jax.random.split(key, 3)
            h = jnp.tanh(h + jax.random.uniform(a, (3,)) * x + jax.random.uniform(b)) + n
            return (h, n + 1, key), h[0]

        return lax.scan(step, (jnp.zeros(3), 0, key), xs, reverse=reverse)

    model = check(fn, X, KEY, dims=[("T", 3), None])
    keys, states = body_counts(model, "Scan")
    assert keys["BitShift"] and not states["BitShift"] and states.total() <= 5
    check_run(model, fn, X[:1], KEY)


def test_a_state_that_depends_on_inputs_only() -> None:
    def fn(xs: jax.Array) -> Any:
        def step(c: Any, x: jax.Array) -> Any:
            a, b, d = c
            a = a * 0.9 + x
            return (a, jnp.sin(b) + many(a) + d, d + b.sum()), (b, a)

        return lax.scan(step, (jnp.ones(3), jnp.zeros(3), 0.0), xs)

    states = body_counts(check(fn, X), "Scan")
    assert len(states) == 2 and states[0].total() <= 4 and states[1].total() <= 8


def test_few_nodes_do_not_pay_for_another_loop() -> None:
    def fn(xs: jax.Array) -> Any:
        return lax.scan(lambda c, x: ((c[0] * 0.9 + x, jnp.sin(c[1]) + c[0] * 2), None), (jnp.ones(3), jnp.ones(3)), xs)

    assert len(body_counts(check(fn, X), "Scan")) == 1


def test_states_that_only_look_independent() -> None:
    def fn(xs: jax.Array) -> Any:
        def step(c: Any, x: jax.Array) -> Any:
            a, b, d = c
            a = lax.cond(b[0] > 0, lambda: a * 0.5, lambda: a + x)  # depends on b within a branch
            return (a, jnp.sin(b) + many(a) + many(d), lax.fori_loop(0, 40, lambda i, d: d * 0.9 + i * 0.01, d)), None

        return lax.scan(step, (jnp.ones(3), jnp.zeros(3), jnp.ones(3)), xs)

    check(fn, X)


def test_a_loop_in_a_loop() -> None:
    def fn(xs: jax.Array, key: jax.Array) -> Any:
        def inner(c: Any, x: jax.Array) -> Any:
            h, key = c
            key, a = jax.random.split(key)
            return (jnp.sin(h) + jax.random.uniform(a, (3,)), key), h

        def outer(c: Any, x: jax.Array) -> Any:
            (h, key), ys = lax.scan(inner, c, xs[:12] + x)
            return (h * 2, key), ys.sum(0)

        return lax.scan(outer, (jnp.zeros(3), key), xs[:9])

    check(fn, X, KEY)


def only_operators(fn: Any, *args: Any, **options: Any) -> set[str]:
    (found,) = body_counts(check(fn, *args, **options), "Scan")
    return set(found)


def test_an_array_that_is_filled_row_by_row() -> None:
    def fn(x: jax.Array) -> Any:
        def step(i: Any, c: Any) -> Any:
            h, out = c
            h = jnp.sin(h) + x[i]
            return h, out.at[i].set(h)

        return lax.fori_loop(0, 40, step, (jnp.zeros(3), jnp.zeros((40, 3))))

    assert only_operators(fn, X) == {"Sin", "Add", "Identity"}


def test_arrays_that_are_written_here_and_there() -> None:
    def fn(x: jax.Array) -> Any:
        def step(i: Any, c: Any) -> Any:
            h, a, b, m = c
            h = jnp.sin(h) + x[i]
            a = a.at[(i * 7) % 11].set(h.sum())  # the last one counts
            b = b.at[i % 5].add(h)
            return h, a, b, m.at[i + 2, 1].set(h[0])

        return lax.fori_loop(0, 40, step, (jnp.zeros(3), x[:11, 0], x[:5], jnp.ones((42, 3))))

    assert "ScatterND" not in only_operators(fn, X)


def test_arrays_that_are_read_or_depend_on_others_stay() -> None:
    def fn(x: jax.Array, at: jax.Array) -> Any:
        def step(c: Any, t: Any) -> Any:
            h, a, b = c
            i, row = t
            h = jnp.sin(h) + row
            return (h, a.at[i].set(h.sum() + a[0]), b.at[jnp.argmax(h)].set(i)), None

        return lax.scan(step, (jnp.zeros(3), x[:, 0], jnp.zeros(3, int)), (at, x), reverse=True)[0]

    at = np.arange(40, dtype=np.int32) % 9
    assert sum(body["ScatterND"] for body in body_counts(check(fn, X, at), "Scan")) == 2


def test_positions_that_are_taken_from_the_end_or_out_of_range() -> None:
    def fn(x: jax.Array, at: jax.Array) -> Any:
        def step(c: Any, t: Any) -> Any:
            h, a = c
            i, row = t
            h = jnp.sin(h) + row
            return (h, a.at[i].set(h[0])), h

        forwards = lax.scan(step, (jnp.zeros(3), x[:9, 0]), (at, x))
        known = lax.scan(step, (jnp.zeros(3), x[:9, 0]), (jnp.arange(40) - 20, x))
        return forwards, known, lax.scan(step, (jnp.zeros(3), x[:9, 0]), (at, x), reverse=True)

    check(fn, X, np.arange(40, dtype=np.int32) * 3 % 14 - 3)


def test_consecutive_positions() -> None:
    def fn(x: jax.Array) -> Any:
        return (
            x[np.arange(40)] + 1,
            x[np.arange(3, 9)],
            x[:, np.array([1, 2])],
            x[np.array([-2, -1])],
            x[np.array([39, 0])],
        )

    assert count(check(fn, X)) == {"Add": 1, "Slice": 3, "Gather": 1}


@pytest.mark.parametrize("reverse", [False, True])
def test_what_was_scanned_in_the_steps_before(reverse: bool) -> None:
    def fn(xs: jax.Array, start: jax.Array) -> Any:
        def step(c: Any, x: jax.Array) -> Any:
            last, before, y = c
            y = jnp.sin(y) + (x * 2 + last * 3 + before * 4)
            return (x, last, y), y

        return lax.scan(step, (start, start + 1, start * 0), xs, reverse=reverse)

    model = check(fn, X, X[0], dims=[("T", 3), None])
    assert body_counts(model, "Scan") == [{"Sin": 1, "Add": 1, "Identity": 1}]
    check_run(model, fn, X[:1], X[0])
    check_run(model, fn, X[:2], X[0])


def test_states_that_change_places() -> None:
    def fn(xs: jax.Array) -> Any:
        def step(c: Any, x: jax.Array) -> Any:
            a, b, d = c
            return (b, a, x), jnp.sin(a) * d + b

        return lax.scan(step, (X[0], X[1], X[2]), xs)

    check(fn, X)


def test_a_loop_of_which_nothing_is_left() -> None:
    """The last step is all that counts, and it is known without a loop."""
    x = np.ones((4, 3), np.float32)
    model = check(lambda x, n: (lax.fori_loop(0, n, lambda i, _: i, -n), x.reshape(2, 6)), x, np.int32(3))
    assert not count(model)["Scan"]
    for n in (-1, 0, 1):
        check_run(model, lambda x, n: (lax.fori_loop(0, n, lambda i, _: i, -n), x.reshape(2, 6)), x, np.int32(n))
