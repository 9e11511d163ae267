"""States that depend on no other get a loop of their own, if what is made of them can then be computed at once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.helpers import check, check_run
from tests.lower.bodies import body_counts

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

    model = check(fn, X, KEY)
    keys, states = body_counts(model, "Scan")
    assert keys["BitShift"] and not states["BitShift"] and states.total() <= 5
    symbolic = check(fn, X, KEY, dims=[("T", 3), None])
    check_run(symbolic, fn, X[:1], KEY)


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
