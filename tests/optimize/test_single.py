"""Numbers of a vector that become a vector again."""

from __future__ import annotations

from collections import Counter

import jax.numpy as jnp
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from jax import lax

from jax2onnx.graphs import all_nodes
from tests.helpers import check

STATES = [np.float32(s) for s in ([1, 2, 3], [np.nan, -0.0, np.inf], [-np.inf, 1e-30, 0.0])]


def ops(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in all_nodes(ir.from_proto(model).graph))


def lorenz(state):
    x, y, z = state
    return jnp.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])


@pytest.mark.parametrize("state", STATES)
def test_numbers_stay_vectors(state):
    found = ops(check(lorenz, state))
    assert found["Gather"] == 3 and not found["Unsqueeze"] + found["Reshape"] + found["Squeeze"]
    found = ops(check(lambda s: lax.scan(lambda s, _: (s + 0.01 * lorenz(s), s), s, None, length=20), state))
    assert found["Gather"] == 3 and not found["Unsqueeze"] + found["Reshape"] + found["Squeeze"]


@pytest.mark.parametrize("state", STATES)
def test_numbers_that_are_needed_too(state):
    def f(s):
        x, y, z = s
        length = jnp.sqrt(x * x + y * y)
        moved = jnp.stack([x + z, y - z, z * length])
        inside = lax.cond(length > 2, lambda: length * jnp.arange(3.0), lambda: jnp.stack([y, z, x]))
        return moved, length, x > y, jnp.where(z < 0, moved, inside), x * moved, jnp.full((2, 2), y)

    found = ops(check(f, state))
    assert found["Unsqueeze"] + found["Squeeze"] + found["Reshape"] == 3  # for results, or for those that are stacked


def test_other_types():
    def f(s, b):
        i, j = s[-1], s[0]
        p, q = b
        return jnp.stack([i // 3, jnp.where(p, i, j), -j]), jnp.stack([p & q, ~p, i > j]), jnp.stack([i, j])[None]

    for s in ([3, -7], [-(2**31), 2**31 - 1]):
        for b in ([True, False], [False, False]):
            check(f, np.int32(s), np.bool_(b))


def test_of_any_size():
    check(lambda s: jnp.stack([s[0] * s[-1], s[1] + 1, s[-2]]), np.float32([1, 2, 3, 4]), dims=[("N",)])


def test_groups_that_would_not_gain():
    model = check(lambda s: (jnp.stack([s[0], s[0] * 2]).sum(), s[0] * 2, s[0] + 1, s[1] - s[0]), STATES[0])
    assert not ops(model)["Reshape"]
