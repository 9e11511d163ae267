"""Indices of which one counts the others, as in x[arange(B), i]: a place of its own in each row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import onnx
import pytest
from jax import numpy as jnp

from tests.helpers import check

rng = np.random.default_rng(0)
X = rng.normal(size=(4, 5, 3)).astype(np.float32)
X[0, 0], X[1, 2], X[3, 4] = np.nan, -0.0, np.inf
PLACES = np.int32([4, -5, -6, 5])
GRID = np.int32([[0, 0, 7], [-1, 4, 4], [-9, 2, 2], [3, -2, 3]])
DIMS = [("B", 5, 3), ("B",)]
METHODS = ["set", "add", "multiply", "max", "min"]


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def counters(x: Any) -> jax.Array:
    return jnp.arange(x.shape[0])


@pytest.mark.parametrize("dims", [None, DIMS], ids=["static", "symbolic"])
@pytest.mark.parametrize("mode", ["clip", "fill"])
def test_one_of_each_row(dims: Any, mode: str) -> None:
    def fn(x: jax.Array, i: jax.Array) -> list[jax.Array]:
        at = counters(x)
        return [x.at[at, i].get(mode=mode), x[..., 0].at[at, i].get(mode=mode), x.at[at, i, 2].get(mode=mode)]

    check(fn, X, PLACES, dims=dims, rtol=0, atol=0)


def test_where_counters_are() -> None:
    def fn(x: jax.Array, i: jax.Array, grid: jax.Array) -> list[jax.Array]:
        rows, columns = jnp.arange(4)[:, None], jnp.arange(3)
        return [
            x[rows, grid],
            x[rows, grid, columns],
            x[rows, 2, columns],
            x[rows, rows + 1, columns],
            x[rows, rows],
            x[:, jnp.arange(4), i],
            x[i[:3], :, columns],
            x[jnp.arange(3), i[:3]],  # not of all rows
            x[jnp.arange(4)[::-1], i],
            x[jnp.zeros(4, int), i],
            x[jnp.arange(4) + i[0], i],
            x[:1][jnp.arange(1), i[:1]],
            x[jnp.arange(4, dtype=jnp.uint8), i.astype(jnp.int8)],
        ]

    check(fn, X, PLACES, GRID, rtol=0, atol=0)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dims", [None, [*DIMS, ("B", 3)]], ids=["static", "symbolic"])
def test_writing_one_of_each_row(name: str, dims: Any) -> None:
    def fn(x: jax.Array, i: jax.Array, u: jax.Array) -> list[jax.Array]:
        write: Callable[..., jax.Array] = lambda a, v: getattr(a.at[counters(x), i], name)(v)  # noqa: E731
        flags = write(x > 0, u[:, :1] > 0) if name in ("set", "max", "min") else x > 0
        return [write(x, u), write(x[..., 0], u[:, 0]), write((x > 0).astype(int), 3), flags]

    updates = np.float32([[1, np.nan, -0.0], [np.inf, 2, 3], [5, 5, 5], [7, 7, np.nan]])
    check(fn, X, PLACES, updates, dims=dims, rtol=0, atol=0)


@pytest.mark.parametrize("name", METHODS)
def test_writing_some_of_each_row(name: str) -> None:
    """Some of them twice: the last one stays, or all are added up in order."""

    def fn(x: jax.Array, grid: jax.Array, u: jax.Array) -> list[jax.Array]:
        rows = counters(x)[:, None]
        write = lambda mode: getattr(x[..., 0].at[rows, grid], name)(u, mode=mode)  # noqa: E731
        return [write("clip"), write("drop")]

    updates = rng.normal(size=(4, 3)).astype(np.float32)
    for dims in (None, [("B", 5, 3), ("B", 3), ("B", 3)]):
        check(fn, X, GRID, updates, dims=dims, rtol=1e-6)


def test_what_it_takes() -> None:
    pick = lambda x, i: x[counters(x), i]  # noqa: E731
    add = lambda x, i: x.at[counters(x), i].add(1)  # noqa: E731
    for dims in (None, [("B", 5), ("B",)]):
        assert operators(check(pick, X[..., 0], PLACES, dims=dims)) == "Clip Reshape GatherElements Squeeze".split()
    assert operators(check(pick, X, PLACES)) == "Cast Clip Reshape GatherND".split()
    assert operators(check(add, GRID, PLACES))[-1] == "ScatterElements"
    grid = lambda x, i: x[counters(x)[:, None], i]  # noqa: E731
    assert operators(check(grid, X[..., 0], GRID)) == ["Clip", "GatherElements"]


def test_wrapping_is_left_to_the_operator_in_each_component() -> None:
    read = lambda x, i, j: [x[i, j], x.at[i, j].get(mode="clip")]  # noqa: E731
    assert "Less" not in operators(check(read, X, PLACES, PLACES[::-1].copy(), rtol=0, atol=0))
    check(lambda x, i, j: x[i, :, j], X, PLACES, PLACES[::-1].copy(), rtol=0, atol=0)


def test_which_row_each_of_many_is_in_is_not_stored() -> None:
    """It is one number for each row."""
    write = jax.vmap(lambda row, i: row.at[i].set(1.0))
    places = rng.integers(-60, 60, (4, 8000)).astype(np.int32)
    model = check(write, np.zeros((4, 50, 3), np.float32), places)
    assert model.ByteSize() < 10_000
