"""Slices that are all parts of an array become one Split."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from jax import lax

from tests.helpers import check

X = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
X[0, 1], X[1, 2], X[2, 3] = np.nan, -np.inf, -0.0


def ops(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.int8, np.bool_])
def test_parts_of_an_array(dtype) -> None:
    x = np.nan_to_num(X * 10, neginf=-7).astype(dtype)
    found = ops(check(lambda x: (x[:, :2], x[:, 4:], x[:, 2:4]), x, dims=[("B", 6)], rtol=0, atol=0))
    assert found["Split"] == 1 and not found["Slice"]


def test_order_and_sizes_are_those_of_the_program() -> None:
    model = check(lambda x: jnp.exp(x[4:]) + x[:1] * x[1:4].sum(0), X[:, ::-1].T.copy())
    assert ops(model)["Split"] == 1 and not ops(model)["Slice"]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x[:, :3], x[:, 2:]),
        lambda x: (x[:, :3], x[:, 4:]),
        lambda x: (x[:, 1:3], x[:, 3:]),
        lambda x: (x[:, :3], x[2:]),
        lambda x: (x[:, :3], x[:, 3:], x[:, 2:4]),
        lambda x: (x[:, ::2], x[:, 1::2]),
    ],
    ids=["overlap", "gap", "not-first", "other-axis", "one-more", "steps"],
)
def test_other_slices_stay(fn) -> None:
    found = ops(check(fn, X, rtol=0, atol=0))
    assert found["Slice"] >= 2 and not found["Split"]


def test_parts_in_a_loop() -> None:
    def step(state: Any, x: Any) -> Any:
        z = state + x
        return jnp.sin(jnp.concatenate([z[2:4], z[4:] * z[:2], z[:2]])), z.sum()

    model = check(lambda x: lax.scan(step, jnp.ones(6), x), np.tile(np.nan_to_num(X, neginf=0.5), (20, 1)))
    operators = [n.op_type for node in model.graph.node for n in [node, *(b for a in node.attribute for b in a.g.node)]]
    assert operators.count("Split") == 1 and "Slice" not in operators
