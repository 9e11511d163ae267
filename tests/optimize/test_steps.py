"""Arithmetic on the number of a step is done before the loop; indices that are known to be in range are not checked."""

from __future__ import annotations

import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from tests.helpers import check, check_run
from tests.lower.bodies import bodies, body_counts

X = np.arange(50, dtype=np.float32) / 50


@pytest.mark.parametrize("size", [50, 5000])
def test_stencil(size):
    def fn(x):
        return lax.fori_loop(1, size - 1, lambda i, x: x.at[i].set((x[i - 1] + x[i + 1]) / 2), x)

    model = check(fn, np.arange(size, dtype=np.float32) % 7)
    assert set(body_counts(model, "Scan")[0]) <= {"Gather", "Add", "Mul", "Div", "ScatterND", "Reshape"}


def test_windows():
    def fn(x):
        return lax.fori_loop(0, 12, lambda i, c: c + lax.dynamic_slice_in_dim(x, i * 4 + 1, 5), jnp.zeros(5))

    assert body_counts(check(fn, X), "Scan") == [{"Slice": 1, "Add": 1}]


def test_indices_out_of_range_are_checked():
    def fn(x):
        def step(i, x):
            outside = x[i * 3 - 20]
            return x.at[i * 2].add(outside)

        return lax.fori_loop(0, 40, step, x)

    check(fn, X)


@pytest.mark.parametrize("reverse", [False, True])
def test_scanned_and_captured_numbers(reverse):
    def fn(x, scale, times):
        def step(c, t):
            return c * jnp.cos(t * scale) + jnp.where(t > scale, t, 1 - t), jnp.exp(-t)

        return lax.scan(step, x, times, reverse=reverse)

    model = check(fn, X, np.float32(0.3), np.linspace(0, 1, 40).astype(np.float32))
    assert body_counts(model, "Scan")[0]["Cos"] == 0


def test_slices_from_both_ends_are_not_mixed():
    def fn(xs):
        def step(carry, x):
            i, c = carry
            return (i + 1, c + x * i), c * x + i

        return lax.scan(step, (0.5, 0.0), xs, reverse=True), lax.scan(
            lambda c, x: ((c[0] + 1, c[1] + (x + c[0])), None), (3, 0), jnp.arange(40) * 2, reverse=True
        )

    check(fn, X)


def test_a_scanned_number_that_is_always_the_same():
    model = check(lambda x: lax.scan(lambda c, dt: (c + jnp.sin(c) * dt, None), x, jnp.full(40, 0.1))[0], X)
    ((_, body),) = bodies(model.graph)
    assert body.input[1].name not in {name for node in body.node for name in node.input}


def test_numbers_that_go_to_inner_bodies():
    def fn(x, n):
        def outer(i, c):
            j = i * 2 + 1

            def inner(k, d):
                return d + x[(j + k) % 50] * lax.cond(d > 3, lambda: j * 1.0, lambda: -1.0)

            return lax.fori_loop(0, 30, inner, c) + x[j - 1]

        return lax.fori_loop(0, 20, outer, 0.0), lax.fori_loop(0, n, outer, 0.0)

    model = check(fn, X, np.int32(5))
    check_run(model, fn, X, np.int32(0))


def test_two_dimensional_steps():
    def fn(m):
        def step(i, m):
            return lax.dynamic_update_slice(m, lax.dynamic_slice(m, (i, i + 1), (2, 2)) * 2, (i + 2, i))

        return lax.fori_loop(0, 40, step, m)

    check(fn, np.ones((44, 43), np.float32))


def test_a_state_that_becomes_a_scanned_number():
    check(lambda x: lax.scan(lambda c, i: (i * 2, c + i), 0, jnp.arange(40)), X)


def test_numbers_at_the_limits_of_their_type():
    def fn(x):
        return lax.fori_loop(2**31 - 45, 2**31 - 5, lambda i, c: c + x[i + 10], 0.0)  # i + 10 wraps around

    check(fn, X)
    check(
        lambda x: lax.scan(lambda c, i: (c + x[i + jnp.uint8(250)], None), 0.0, jnp.arange(40, dtype=jnp.uint8))[0], X
    )
