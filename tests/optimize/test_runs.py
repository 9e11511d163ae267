"""Windows of signals that are read by index."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.helpers import check

X = np.random.default_rng(0).normal(size=(3, 4100)).astype(np.float32)
X[0, ::7], X[1, ::5] = np.nan, -np.inf


def ops(model) -> list[str]:
    return [node.op_type for node in model.graph.node]


def by_index(starts, length):
    return lambda x: x[..., jnp.asarray(starts)[:, None] + jnp.arange(length)]


def by_slices(starts, length):
    return lambda x: jax.vmap(lambda s: lax.dynamic_slice_in_dim(x, s, length, -1), 0, -2)(jnp.asarray(starts))


@pytest.mark.parametrize("form", [by_index, by_slices])
@pytest.mark.parametrize("x", [X[0], X, X[:, None, :4096], X[:0]])
def test_windows_are_blocks(form, x):
    """The last samples belong to no window."""
    model = check(form(np.arange(40) * 96, 160), x, rtol=0, atol=0)
    if x.size:
        gather = next(node for node in model.graph.node if node.op_type == "Gather")
        assert next(len(i.dims) for i in model.graph.initializer if i.name == gather.input[1]) == 1
        assert set(ops(model)) <= {"Slice", "Reshape", "Gather"}
        assert max(np.prod(i.dims) for i in model.graph.initializer) == 200  # blocks of 32


@pytest.mark.parametrize(
    ("places", "blocks"),
    [
        (np.r_[32:64, 0:32, 4064:4096], True),
        (np.r_[32:64, 1:33, 4064:4096], False),
        (np.r_[4068:4100, 0:32], False),
        (np.r_[32:96], False),
        (np.r_[-32:0, 32:64], False),
        (np.r_[0:32, 4080:4112], False),
        (np.r_[31:-1:-1, 0:32], False),
    ],
)
@pytest.mark.parametrize("x", [X[0], X])
def test_other_places(places, blocks, x):
    model = check(lambda x: jnp.take(x, np.tile(places, 8) if blocks else places, -1, mode="clip"), x, rtol=0, atol=0)
    assert ("Reshape" in ops(model)) == blocks


def test_sizes_that_vary():
    check(by_index(np.arange(40) * 96, 160), X, dims=[("B", 4100)], rtol=0, atol=0)
    check(by_index(np.arange(40) * 96, 160), X, dims=[("B", "T")], rtol=0, atol=0)
