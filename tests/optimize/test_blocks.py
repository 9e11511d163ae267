"""Large blocks are joined with what is around them, and small ones are written as they are."""

from __future__ import annotations

import jax
import numpy as np
import onnx
from jax import lax

from tests.helpers import check

rng = np.random.default_rng(0)


def operators(model: onnx.ModelProto) -> list[str]:
    return sorted({node.op_type for node in model.graph.node})


def array(*shape: int) -> np.ndarray:
    x = rng.normal(size=shape).astype(np.float32)
    x.reshape(-1)[::3] = np.resize(np.float32([np.nan, -0.0, np.inf]), x.reshape(-1)[::3].shape)
    return x


def test_large_blocks_are_joined_with_what_is_around_them() -> None:
    for where in (np.s_[1:-1, 1:-1], np.s_[:-1, 2:], np.s_[3:, 1:-1]):
        x = array(40, 40)
        model = check(lambda x, u: x.at[where].set(u), x, array(*x[where].shape), rtol=0, atol=0)  # noqa: B023
        assert operators(model) == ["Concat", "Slice"]
    deep = array(12, 11, 13, 2)
    model = check(lambda x, u: x.at[1:-1, 2:, 1:-1].set(u), deep, array(10, 9, 11, 2), rtol=0, atol=0)
    assert operators(model) == ["Concat", "Slice"]
    model = check(lambda x, u: x.at[1:-1, 3, 1:-1].set(u), array(40, 5, 40), array(38, 38), rtol=0, atol=0)
    assert operators(model) == ["Concat", "Reshape", "Slice"]


def test_what_is_not_large_or_no_block_is_written() -> None:
    x = array(40, 40)
    every = np.arange(1, 39)
    turned = np.stack(np.meshgrid(every[::-1], every, indexing="ij"))
    assert operators(check(lambda x, u: x.at[1:9, 1:9].set(u), x, array(8, 8))) == ["ScatterND"]
    model = check(lambda x, u: x.at[turned[0], turned[1]].set(u), x, array(38, 38), rtol=0, atol=0)
    assert not {"ScatterND", "ScatterElements"}.isdisjoint(operators(model))


def test_blocks_in_loops() -> None:
    def relax(u: jax.Array) -> jax.Array:
        inside = lambda u: u.at[1:-1, 1:-1].set((u[:-2, 1:-1] + u[2:, 1:-1]) / 2)  # noqa: E731
        return lax.fori_loop(0, 5, lambda _, u: inside(u), u)

    (body,) = [n.attribute for n in check(relax, rng.normal(size=(33, 33)).astype(np.float32)).graph.node]
    (graph,) = [a.g for a in body if a.type == onnx.AttributeProto.GRAPH]
    assert "ScatterND" not in {n.op_type for n in graph.node}
