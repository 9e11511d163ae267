"""Squares of absolute values of complex numbers."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.helpers import check

NUMBERS = [0.0, -0.0, 1.5, -2.25, 1e-30, 1e-45, 1e19, -1.3e19, 3e38, np.inf, -np.inf, np.nan]
PAIRS = [p for p in itertools.product(NUMBERS, NUMBERS) if not (np.isnan(p).any() and np.isinf(p).any())]
"""Of an infinity and NaN, the absolute value is NaN in JAX 0.10, and an infinity in JAX 0.12."""
RE, IM = np.float32(PAIRS).T


def ops(model) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("square", [jnp.square, lambda x: x**2, lambda x: x * x, lambda x: jnp.power(x, 2.0)])
def test_no_root_is_taken(square):
    model = check(lambda x, y: square(jnp.abs(lax.complex(x, y))), RE, IM, rtol=1e-6, atol=2e-45)
    assert sorted(ops(model)) == ["Add", "Mul", "Mul"]


def test_roots_that_are_wanted_stay():
    """Also if something else is squared, or another power is taken."""

    def fn(x, y):
        size = jnp.abs(lax.complex(x, y))
        return size, size * size, jnp.abs(lax.complex(y, -x)) ** 3, jnp.hypot(x, y) ** 2

    assert ops(check(fn, RE, IM, rtol=1e-6, atol=2e-45)).count("Sqrt") >= 2
