"""Loops and branches with symbolic carries, and scans over a symbolic axis."""

import jax
import jax.numpy as jnp
from jax import lax

from tests.symbolic.sizes import check_at_sizes, floats

W = floats(4, 4)


def test_scan_over_a_symbolic_axis():
    def f(x, start):
        def step(h, row):
            h = jnp.tanh(h @ W + row)
            return h, (h.sum(-1), row * 2)

        forward = lax.scan(step, start, x)
        backward = lax.scan(step, start, x, reverse=True)
        return forward, backward, lax.scan(lambda c, i: (c + i, c), 0, jnp.arange(x.shape[0]))

    check_at_sizes(f, "f32[T,B,4]", "f32[B,4]", empty="B", rtol=1e-5, atol=1e-5)


def test_scan_over_the_batch_of_a_transposed_input():
    def f(x):
        first = jnp.zeros((x.shape[0], 4))
        _, ys = lax.scan(lambda h, row: (h + row, h * row), first, x.swapaxes(0, 1))
        return ys.swapaxes(0, 1), jax.lax.map(lambda row: row @ W, x)

    check_at_sizes(f, "f32[B,T,4]", empty="", rtol=1e-5, atol=1e-5)


def test_nested_scans():
    def f(x):
        def row(c, xs):
            c, ys = lax.scan(lambda d, v: (d + v, d * v), c, xs)
            return c, ys

        return lax.scan(row, jnp.zeros(4), x)

    check_at_sizes(f, "f32[B,T,4]", empty="", rtol=1e-5, atol=1e-5)


def test_loops_whose_number_of_steps_is_a_dimension():
    def f(x):
        b, t = x.shape
        return (
            lax.fori_loop(0, t, lambda i, c: c + x[:, i] * i, jnp.zeros(b)),
            lax.fori_loop(0, t // 2, lambda i, c: c.at[:, i].set(-1.0), x),
            lax.while_loop(lambda c: c[0] < t, lambda c: (c[0] + 1, c[1] * 1.5), (0, x)),
        )

    check_at_sizes(f, "f32[B,T]", empty="B", rtol=1e-5, atol=1e-6)


def test_while_with_symbolic_carries():
    def f(x):
        def more(c):
            return (jnp.abs(c[0]).max() > 1e-1) & (c[1] < 20)

        halved, steps = lax.while_loop(more, lambda c: (c[0] * 0.5, c[1] + 1), (x, 0))
        each = jax.vmap(lambda row: lax.while_loop(lambda r: r.sum() > 0.5, lambda r: r * 0.7, jnp.abs(row)))(x)
        return halved, steps, each

    check_at_sizes(f, "f32[B,T]", empty="", rtol=1e-5)


def test_branches():
    def f(x, i):
        t = x.shape[1]
        return (
            lax.cond(x.sum() > 0, lambda v: v[:, ::-1], lambda v: v * t, x),
            lax.switch(i, [lambda v: v + 1, lambda v: jnp.flip(v), lambda v: jnp.zeros_like(v)], x),
            lax.cond(i > 1, lambda: jnp.arange(t), lambda: jnp.ones(t, jnp.int32)),
            jax.vmap(lambda row: lax.cond(row[0] > 0, jnp.sin, jnp.cos, row))(x),
        )

    check_at_sizes(f, "f32[B,T]", "i32[]", empty="B", atol=1e-6)


def test_gradients_through_loops():
    def f(x):
        def loss(x):
            final, ys = lax.scan(lambda c, row: (jnp.tanh(c + row), jnp.sin(c)), jnp.zeros(x.shape[1]), x)
            return final.sum() + (ys**2).sum()

        return jax.value_and_grad(loss)(x), jax.grad(lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x).sum())(x)

    check_at_sizes(f, "f32[T,B]", empty="B", rtol=1e-5, atol=1e-5)


def test_recurrence_by_associative_scan_over_a_static_axis():
    def f(x):
        return lax.associative_scan(lambda a, b: a * b + b, x, axis=1), jnp.vectorize(jnp.dot, signature="(n),(n)->()")(
            x, x
        )

    check_at_sizes(f, "f32[B,7]", rtol=1e-5, atol=1e-5)


def test_checkpointed_and_custom_functions():
    @jax.custom_vjp
    def clip(x):
        return jnp.clip(x, -1, 1)

    clip.defvjp(lambda x: (clip(x), x), lambda x, g: (jnp.where(jnp.abs(x) < 1, g, 0.1 * g),))

    def f(x):
        block = jax.checkpoint(lambda x: jnp.sin(x @ x.T).sum(1))
        return jax.grad(lambda x: (block(x) * 2).sum())(x), jax.grad(lambda x: clip(x).sum())(x), jax.jit(block)(x)

    check_at_sizes(f, "f32[B,T]", empty="", rtol=1e-4, atol=1e-4)
