"""Arithmetic on the number of a step is done before the loop; indices that are known to be in range are not checked."""

from __future__ import annotations

import jax
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


# ------------------------------------------------------------------------------------------------ arrays

XS = np.random.default_rng(1).standard_normal((40, 3, 4)).astype(np.float32)
W = np.random.default_rng(2).standard_normal((4, 5)).astype(np.float32)
B = np.random.default_rng(3).standard_normal((3, 4, 2)).astype(np.float32)

FROM_INPUTS = {
    "arithmetic": lambda x: jnp.where(x > 0, x * W[:, 0], jnp.exp(x[0]) + 1),
    "fewer_axes": lambda x: x[0] * B.transpose(2, 0, 1) - x[1, 2],
    "matrix": lambda x: x @ W,
    "vector_matrix": lambda x: x[0] @ W,
    "matrix_vector": lambda x: W.T @ x[1],
    "matrix_matrix": lambda x: W[:3].T @ x,
    "matrices": lambda x: x @ x.T,
    "batches": lambda x: x[:, None] @ B,
    "bias": lambda x: x @ W + W[0],
    "sums": lambda x: x.sum(0) + x.max(1).sum() + x.mean(),
    "parts": lambda x: jnp.concatenate([x[1:, ::2], x[:2, 1:3] * 2], 1),
    "rows": lambda x: x[jnp.array([2, 0])] + x[:, 1].sum(),
    "table": lambda x: jnp.asarray(W)[jnp.argmax(x, -1)],
    "softmax": lambda x: jnp.log(jax.nn.softmax(x, 0)) + jax.nn.softmax(x),
    "largest": lambda x: lax.top_k((x * 9).astype(jnp.int32), 2)[0],
    "pad": lambda x: jnp.pad(x, ((1, 0), (0, 2))).reshape(6, 4).T,
    "running": lambda x: jnp.cumsum(x, 1),
    "expanded": lambda x: jnp.broadcast_to(x[:, None, :1], (3, 2, 4)).sum(1),
    "bits": lambda x: (x.astype(jnp.int32).astype(jnp.uint32) << 3) ^ jnp.uint32(77),
}


@pytest.mark.parametrize("name", FROM_INPUTS)
def test_what_depends_on_the_inputs_only_is_computed_before_the_loop(name):
    def fn(xs):
        def step(c, x):
            return jnp.sin(c + FROM_INPUTS[name](x).astype(jnp.float32)), None

        start = jax.eval_shape(FROM_INPUTS[name], xs[0])
        return lax.scan(step, jnp.zeros(start.shape), xs)[0]

    assert set(body_counts(check(fn, XS), "Scan")[0]) == {"Add", "Sin"}


@pytest.mark.parametrize("name", FROM_INPUTS)
def test_what_only_goes_into_stacked_results_is_computed_behind_the_loop(name):
    def fn(xs):
        def step(c, x):
            c = jnp.cos(c) + x
            return c, (FROM_INPUTS[name](c * 2), x + 1)

        return lax.scan(step, jnp.zeros((3, 4)), xs, reverse=True)

    assert set(body_counts(check(fn, XS), "Scan")[0]) == {"Cos", "Add", "Identity"}


@pytest.mark.parametrize("reverse", [False, True])
def test_what_a_step_stacks_up_and_uses_is_computed_before_the_loop(reverse):
    """As in gradients of loops, whose first half stacks up what the second half needs."""

    def fn(xs):
        def step(c, x):
            a, b = jnp.exp(x), x.sum()
            return c * 0.5 + a * b, (a, c, b, jnp.sqrt(a), a[0])

        return lax.scan(step, jnp.zeros((3, 4)), xs, reverse=reverse)

    model = check(fn, XS)
    assert set(body_counts(model, "Scan")[0]) == {"Mul", "Add", "Identity"}
    check_run(check(fn, XS, dims=[("T", 3, 4)]), fn, XS[:1])
    loop = check(lambda xs: jax.grad(lambda x: lax.scan(lambda c, x: (c + jnp.sin(x * x), None), 0.0, x)[0])(xs), X)
    assert not body_counts(loop, "Scan")


def test_what_is_stacked_up_from_the_other_end_stays():
    def fn(xs):
        first = lax.scan(lambda c, x: (jnp.cos(c) + x, c), jnp.zeros((3, 4)), xs, reverse=True)[1]
        both = lax.scan(lambda c, x: (jnp.sin(c) + x, (jnp.exp(x[0]), x[1] * 2)), jnp.ones((3, 4)), first)
        return both, lax.scan(lambda c, x: (x.sum(), (c, x[1] * 2)), 0.0, first, reverse=True)

    check(fn, XS)


def test_a_loop_that_carries_nothing_is_none():
    model = check(lambda xs: lax.map(lambda x: (jnp.tanh(x) @ W, x.sum(0)), xs), XS)
    assert not body_counts(model, "Scan")


def test_a_recurrent_network_of_any_kind():
    def fn(xs):
        def step(h, x):
            h = jnp.tanh(x @ W + jnp.sin(h))
            return h, h @ W.T

        return lax.scan(step, jnp.zeros((3, 5)), xs)

    model = check(fn, XS, dims=[("T", 3, 4)])
    assert body_counts(model, "Scan") == [{"Sin": 1, "Add": 1, "Tanh": 1, "Identity": 1}]
    check_run(model, fn, XS[:1])


def test_draws_from_scanned_keys():
    def fn(x, key):
        return lax.scan(lambda c, k: (c * 0.9 + jax.random.normal(k, (3,)), None), x, jax.random.split(key, 40))[0]

    assert body_counts(check(fn, X[:3], jax.random.key(1)), "Scan") == [{"Mul": 1, "Add": 1}]


def test_inputs_from_both_ends_are_not_mixed_behind_the_loop():
    def fn(xs):
        def step(carry, x):
            i, c = carry
            c = jnp.sin(c) + x
            return (i + 1, c), (c * i + 1, x * i + c)

        return lax.scan(step, (0, jnp.zeros((3, 4))), xs, reverse=True)

    check(fn, XS)


def test_large_arrays_stay_in_the_loop():
    def fn(xs):
        return lax.scan(lambda c, x: (c * 0.5 + jnp.sin(x) * x, None), jnp.zeros(7000), xs)[0]

    assert body_counts(check(fn, np.ones((12, 7000), np.float32)), "Scan")[0]["Sin"] == 1


def test_results_that_are_states_too():
    def fn(xs):
        def step(c, x):
            a, b = c
            a = jnp.sin(a) + x
            return (a, b * a), (a, a + b, (a * b) @ W)

        return lax.scan(step, (jnp.zeros((3, 4)), jnp.ones((3, 4))), xs)

    check(fn, XS)


def test_bodies_in_bodies():
    def fn(xs):
        def outer(c, x):
            d, ys = lax.scan(lambda d, r: (jnp.sin(d) + r * 2 + x[0], jnp.exp(d)), c, jnp.cos(jnp.tile(x, (15, 1))))
            return lax.cond(x.sum() > 0, lambda: d, lambda: d * x.max()), ys.sum(0) + 1

        return lax.scan(outer, jnp.zeros(4), xs)

    check(fn, XS)


@pytest.mark.parametrize("reverse", [False, True])
def test_an_array_is_scanned_once(reverse):
    """What is computed at each step in several places is computed before the loop, once, and scanned once."""

    def fn(x, times):
        def f(t, y):
            return (jnp.cos(t) - y) / 4

        def step(y, t):
            k = f(t + 0.25, y + f(t, y) / 2)
            y = y + f(t + 0.25, y + k / 2) / 3 + f(t + 0.25, k)
            return y, (y, t)

        return lax.scan(step, x, times, reverse=reverse)

    model = check(fn, np.float32(0.3), X, rtol=1e-5)
    (scan,) = (node for node in model.graph.node if node.op_type == "Scan")
    assert len(scan.input) == len(set(scan.input))
