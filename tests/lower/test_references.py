"""Mutable arrays (jax.new_ref) inside a program: the model computes what they hold in the end."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.helpers import check


def test_references_are_read_and_written():
    """Also in bodies, in calls, by index and by slice, and next to a derivative."""

    def fn(x, i):
        total, rows = jax.new_ref(jnp.zeros(())), jax.new_ref(x)

        def body(k, carry):
            total[...] += rows[k, i]
            rows[k, 1:] = rows[k, 1:] * 2
            return carry + k

        count = lax.fori_loop(0, 3, body, 0)
        lax.cond(x[0, 0] > 0, lambda: rows.__setitem__(0, x[1]), lambda: None)
        jax.jit(lambda ref: ref.__setitem__((2, 0), 7.0))(rows)

        def loss(v):
            ref = jax.new_ref(v)
            ref[0] = ref[1] * ref[2]
            return jnp.sum(ref[...] ** 2)

        return total[...], rows[...], count, jax.grad(loss)(x[0])

    x = np.arange(12, dtype=np.float32).reshape(3, 4) - 3
    check(fn, x, np.int32(2))
    check(fn, -x, np.int32(-1))
