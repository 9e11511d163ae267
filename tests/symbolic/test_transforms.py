"""vmap, grad and random numbers with symbolic dimensions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.symbolic.sizes import check_at_sizes, floats

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
W = floats(4, 3)


def test_forces_of_an_energy():
    def energy(positions):
        difference = positions[:, None] - positions[None]
        distance = jnp.sqrt((difference**2).sum(-1) + jnp.eye(positions.shape[0]))
        return (1 / distance**6 - 1 / distance**3).sum()

    check_at_sizes(lambda x: -jax.vmap(jax.grad(energy))(x), "f64[B,12,3]", rtol=1e-9)
    check_at_sizes(jax.vmap(jax.value_and_grad(energy)), "f32[B,N,3]", empty="B", **CLOSE)


def test_gradients_of_shapes_and_indices():
    def loss(x, i):
        b, t, _ = x.shape
        y = jnp.concatenate([x, x[:, :1] * 2], axis=1)
        y = jnp.pad(y, ((0, 0), (1, 0), (0, 0))).reshape(b * (t + 2), 4)
        return (
            jnp.sin(y).sum()
            + (x[:, i] ** 2).sum()
            + jnp.cumsum(x, 1)[:, -1].sum()
            + (jnp.flip(x, 1) * x).sum()
            + jnp.sort(x, 1)[:, -1].sum()
            + x.max((0, 1)).sum()
            + lax.dynamic_slice(x, (0, i, 0), (b, 1, 4)).sum()
            + x.at[:, i].set(0.5).sum()
            + (x[:, ::2] ** 3).sum()
        )

    # Outside of the array, JAX's gradient is one thing where the size is symbolic and another where it is known.
    inside = {"args": lambda args: [args[0], np.int32(args[0].shape[1] // 2)]}
    check_at_sizes(lambda x, i: jax.value_and_grad(loss)(x, i), "f32[B,T,4]", "i32[]", empty="", **inside, **CLOSE)


def test_gradients_of_reductions_and_products():
    def loss(w, x):
        h = jax.nn.gelu(x @ w)
        h = (h - h.mean(1, keepdims=True)) / jnp.sqrt(h.var(1, keepdims=True) + 1e-3)
        return jax.nn.logsumexp(h, axis=1).mean() + jax.nn.softmax(h, axis=0)[0].sum()

    check_at_sizes(lambda w, x: jax.grad(loss, (0, 1))(w, x), "f32[4,3]", "f32[B,T,4]", empty="", **CLOSE)


def test_a_training_step():
    def f(w, x, labels):
        def loss(w):
            logits = x @ w
            return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1).mean()

        value, gradient = jax.value_and_grad(loss)(w)
        return value, w - 0.1 * gradient

    def small_labels(args):
        return [*args[:2], (args[2] % 3).astype(np.int32)]

    check_at_sizes(f, "f32[4,3]", "f32[B,4]", "i32[B]", empty="", args=small_labels, **CLOSE)


def test_vmap_over_a_symbolic_axis():
    def f(x, i):
        pick = jax.vmap(lambda row, j: lax.dynamic_slice(row, (j,), (2,)))(x, i)
        rows = jax.vmap(lambda row, j: row.at[j].add(1.0))(x, i)
        return pick, rows, jax.vmap(jnp.dot, (0, None))(x, x[0]), jax.vmap(jax.vmap(jnp.sin, 1, 1))(x[..., None])

    check_at_sizes(
        f, "f32[B,N]", "i32[B]", constraints=["N >= 2"], sizes=[{"B": 1, "N": 3}, {"B": 2, "N": 2}, {"B": 4, "N": 7}]
    )


def test_second_derivatives():
    def f(x):
        hvp = jax.jvp(jax.grad(lambda x: jnp.tanh(x @ W).sum()), (x,), (jnp.ones_like(x),))[1]
        jacobian = jax.vmap(jax.jacrev(lambda row: jnp.sin(row @ W)))(x)
        return hvp, jacobian, jax.vmap(jax.hessian(lambda row: (row**3).sum()))(x), jax.vmap(jax.jacfwd(jnp.sin))(x)

    check_at_sizes(f, "f32[B,4]", **CLOSE)


@pytest.mark.slow
def test_random_numbers():
    def f(key, x):
        b, t = x.shape
        k1, k2, k3 = jax.random.split(key, 3)
        return (
            jax.random.uniform(k1, (b, t + 1)),
            jax.random.normal(k2, x.shape),
            jax.random.bernoulli(k3, 0.5, (t, b)),
            jax.random.bits(k3, (b, t - 1, 3)),
            jnp.where(jax.random.bernoulli(k1, 0.9, x.shape), x / 0.9, 0),
        )

    partitionable = jax.config.jax_threefry_partitionable
    assert partitionable, "JAX draws symbolic shapes only so"
    check_at_sizes(f, "key<fry>[]", "f32[B,T]", empty="", rtol=1e-5, atol=1e-5)
