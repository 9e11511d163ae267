"""Many elements or short rows at once, where indices of two numbers, or a Gather of single elements, are slow."""

from __future__ import annotations

from typing import Any

import jax
import ml_dtypes
import numpy as np
import onnx
import pytest
from jax import lax
from jax import numpy as jnp
from jax.scipy import ndimage

from tests.helpers import check, quick

rng = np.random.default_rng(0)
IMAGE = rng.normal(size=(9, 12, 10)).astype(np.float32)
ROWS, COLUMNS = (rng.integers(-30, 30, (17, 16)).astype(np.int32) for _ in range(2))
ROWS[0, :4], COLUMNS[0, :4] = [2**31 - 1, -(2**31), 9, -9], [0, 12, -12, -13]
MODES = ["clip", "fill", "promise_in_bounds"]


def operators(model: onnx.ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", quick(["float32", "bool", "bfloat16"], ["float64", "int8", "uint16", "complex64"]))
def test_elements(mode: str, dtype: str) -> None:
    array = (IMAGE * 3).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    rows, columns = (ROWS % 9, COLUMNS % 12) if mode == "promise_in_bounds" else (ROWS, COLUMNS)

    def fn(x: jax.Array, i: jax.Array, j: jax.Array) -> list[jax.Array]:
        return [
            x[:, 0, 0].at[i].get(mode=mode),
            x[:, :, 0].at[i, j].get(mode=mode),
            x.at[i, j, 3].get(mode=mode),
            x.at[1, i, j].get(mode=mode),
            x[:, :, :3].at[i, j].get(mode=mode),
            x.at[:, j].get(mode=mode),
            x.at[..., i].get(mode=mode),
            x.at[:, :, i[0], None].get(mode=mode),
        ]

    model = check(fn, array, rows, columns, rtol=0, atol=0)
    assert "GatherND" not in operators(model)


@pytest.mark.parametrize("width", [0, 1, 2, 4, 5])
@pytest.mark.parametrize("count", [300, 9000])
def test_short_rows(width: int, count: int) -> None:
    """The features of a hash table; the colours of a palette. Only single elements, or very many rows, pay for more."""
    table = rng.normal(size=(50, width)).astype(np.float32)
    index = np.resize(ROWS, (count // 10, 10))
    model = check(lambda x, i: x[i], table, index, rtol=0, atol=0)
    by_elements = {300: [1], 9000: [1, 2, 4]}
    assert ("GatherElements" in operators(model)) == (width in by_elements[count])
    check(lambda x, i: x[i], table, index, dims=[("N", width), ("A", "B")], rtol=0, atol=0)


@pytest.mark.parametrize("width", [1, 2, 8])
@pytest.mark.parametrize("count", [40, 250])
def test_short_rows_of_several_tables(width: int, count: int) -> None:
    tables = rng.normal(size=(3, 2, 50, width)).astype(np.float32)
    index = rng.integers(-60, 60, (3, 2, 7, count)).astype(np.int32)
    look_up = jax.vmap(jax.vmap(lambda x, i: x[i]))
    model = check(look_up, tables, index, rtol=0, atol=0)
    assert ("GatherElements" in operators(model)) == (width == 1 or (width == 2 and count == 250))
    check(look_up, tables, index, dims=[("B", 2, "N", width), ("B", 2, 7, "M")], rtol=0, atol=0)
    check(jax.vmap(lambda x, i: x.at[i].get(mode="fill")), tables[0], index[0], rtol=0, atol=0)
    check(jax.vmap(lambda x, i: x[i], (1, 0)), tables[0].swapaxes(0, 1), index[0], rtol=0, atol=0)
    check(jax.vmap(lambda x, i: x[i], (0, 1)), tables[0], index[0].swapaxes(0, 1), rtol=0, atol=0)


@pytest.mark.parametrize("channels", [(), (1,), (8,)])
@pytest.mark.parametrize("mode", ["clip", "fill"])
def test_pixels_of_several_images(channels: tuple[int, ...], mode: str) -> None:
    """Each image at places of its own, as where images are warped: pixels of one number are elements."""
    images = rng.normal(size=(3, 9, 11, *channels)).astype(np.float32)
    places = rng.integers(-12, 13, (2, 3, 15, 20)).astype(np.int32)
    warp = jax.vmap(lambda x, i, j: x.at[i, j].get(mode=mode))
    model = check(warp, images, *places, rtol=0, atol=0)
    assert ("GatherND" in operators(model)) == (channels == (8,))
    check(warp, images, *places, dims=[("B", "H", 11, *channels), ("B", "M", 20), ("B", "M", 20)], rtol=0, atol=0)


def test_few_elements_take_few_nodes() -> None:
    model = check(lambda x, i, j: x[i, j], IMAGE[:, :, 0], ROWS[:2, 0], COLUMNS[:2, 0], rtol=0, atol=0)
    assert "GatherND" in operators(model)


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("mode", ["constant", "nearest", "mirror"])
def test_sampled_images(order: int, mode: str) -> None:
    at = rng.uniform(-3, 14, (2, 20, 16)).astype(np.float32)

    def one(channel: jax.Array, at: jax.Array) -> jax.Array:
        return ndimage.map_coordinates(channel, [at[0], at[1]], order, mode=mode, cval=0.5)

    check(one, IMAGE[:, :, 0], at, rtol=1e-6, atol=1e-6)
    model = check(jax.vmap(one, (2, None), 2), IMAGE, at, rtol=1e-6, atol=1e-6)
    assert "Gather" in operators(model)  # whole rows, not one channel after the other


def test_transposed_arrays() -> None:
    """Rows of what is transposed; however its axes were moved, and with windows and fixed indices."""
    for perm in [(2, 0, 1), (2, 1, 0), (0, 2, 1), (1, 0, 2)]:
        for index in [
            np.s_[:, ROWS % 5],
            np.s_[..., ROWS],
            np.s_[ROWS, COLUMNS],
            np.s_[:, ROWS, COLUMNS],
            np.s_[ROWS, :, 1],
        ]:
            known = index
            check(lambda x: x.transpose(perm)[known], IMAGE, rtol=0, atol=0)  # noqa: B023

    def fn(x: jax.Array, i: jax.Array, j: jax.Array) -> list[jax.Array]:
        turned = [x.transpose(perm) for perm in [(2, 0, 1), (2, 1, 0), (0, 2, 1), (1, 0, 2)]]
        return [y for x in turned for y in (x[:, i], x[..., i], x[i, j], x[:, i, j], x[i, :, j], x[i], x[2:4, i, 1:2])]

    check(fn, IMAGE, ROWS, COLUMNS, rtol=0, atol=0)
    check(jax.vmap(lambda x, i, j: x[i, j], (2, None, None)), IMAGE, ROWS, COLUMNS, rtol=0, atol=0)
    check(jax.vmap(lambda x, i, j: x[i, j], (2, 0, 1)), IMAGE, ROWS[:10], COLUMNS[:16, :10], rtol=0, atol=0)
    check(jax.grad(lambda x, i, j: jnp.sum(x.transpose(2, 0, 1)[:, i, j] ** 2)), IMAGE, ROWS, COLUMNS, rtol=1e-5)


def test_indices_along_axes_of_size_1() -> None:
    """Nothing can move there, but what is not inside is left out."""
    i, j = np.int32([0, 1, -1, 0]), np.int32([0, 0, 0, -2])
    check(lambda x, i, j: [x[i, j], x.at[i, j].get(mode="fill")], IMAGE[:1, :1], i, j, rtol=0, atol=0)
    check(lambda x, i, j: x.at[i, j].add(1.0), IMAGE[:1, :1], i, j, rtol=0, atol=0)
    check(lambda x, i, j: x.at[i, j].add(1.0, mode="drop"), IMAGE[:1], i, j, rtol=0, atol=0)


@pytest.mark.parametrize("dims", [None, [("B", 4, 1)] * 3], ids=["static", "symbolic"])
@pytest.mark.parametrize("mode", ["clip", "drop"])
def test_elements_are_written_along_an_axis_before_others_of_size_1(mode: str, dims: Any) -> None:
    numbers = lax.ScatterDimensionNumbers((), (1,), (1,), (0, 2), (0, 2))

    def fn(x: jax.Array, i: jax.Array, u: jax.Array) -> list[jax.Array]:
        return [write(x * 0, i[..., None], u, numbers, mode=mode) for write in (lax.scatter, lax.scatter_add)] + [
            lax.scatter_add(jnp.zeros_like(x), i[..., None], u, numbers, mode=mode)
        ]

    x, u = IMAGE[:3, :4, :1], IMAGE[3:6, :4, :1]
    check(fn, x, np.int32([[1, 0, 3, 2], [2, 3, 1, -1], [9, 0, 1, 3]])[..., None], u, dims=dims)
