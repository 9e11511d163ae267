"""The operators that indexing becomes, and the cases in which simple lowerings go wrong."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import onnx
import pytest
from jax import lax
from jax import numpy as jnp

from tests.helpers import check, check_run, quick

rng = np.random.default_rng(0)
x = rng.normal(size=(8, 5, 3)).astype(np.float32)
i = np.int32(6)
some = np.int32([3, 0, 9, 3])
starts = rng.integers(-1, 6, 8).astype(np.int32)


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def gather(x: jax.Array, indices: jax.Array, sizes: tuple[int, ...], mode: str = "clip", **numbers: tuple) -> jax.Array:
    return lax.gather(x, indices, lax.GatherDimensionNumbers(**numbers), sizes, mode=mode)


FORMS: dict[str, tuple[Callable, tuple, list[str]]] = {
    "index": (lambda x, i: x[i], (x, i), ["Clip", "Gather"]),
    "indices": (lambda x, i: x[:, i], (x, some), ["Clip", "Gather"]),
    "take with fill": (lambda x, i: jnp.take(x, i, axis=2), (x, some), ["Clip", "Equal", "Gather", "Where"]),
    "take": (lambda x, i: jnp.take(x, i, axis=1, mode="clip"), (x, some), ["Clip", "Gather"]),
    "one element of a vector": (lambda x, i: jnp.take(x, i, mode="clip"), (x[:, 0, 0], i), ["Clip", "Gather"]),
    "take known": (lambda x: jnp.take(x, np.int32([2, 0]), axis=1), (x,), ["Gather"]),
    "take_along_axis": (
        lambda x, i: jnp.take_along_axis(x, i, axis=1, mode="clip"),
        (x, rng.integers(0, 9, (8, 2, 3)).astype(np.int32)),
        ["Clip", "GatherElements"],
    ),
    "dynamic_index": (
        lambda x, i: lax.dynamic_index_in_dim(x, i, 1, keepdims=False, allow_negative_indices=False),
        (x, i),
        ["Clip", "Gather"],
    ),
    "dynamic_slice": (
        lambda x, i: lax.dynamic_slice_in_dim(x, i, 2, 1, allow_negative_indices=False),
        (x, np.int32(4)),
        ["Cast", "Reshape", "Clip", "Add", "Slice"],
    ),
    "dynamic_slice at a known place": (lambda x: lax.dynamic_slice(x, (1, 7, 0), (2, 2, 3)), (x,), ["Slice"]),
    "dynamic_slice of everything": (lambda x, i: lax.dynamic_slice(x, (i, i, i), x.shape), (x, i), []),
    "windows along an axis": (
        lambda x, i: gather(x, i, (8, 2, 3), offset_dims=(0, 2, 3), collapsed_slice_dims=(), start_index_map=(1,)),
        (x, np.int32([[0], [3], [7]])),
        ["Cast", "Clip", "Add", "Gather"],
    ),
    "points in several axes": (
        lambda x, i: gather(x, i, (1, 1, 3), offset_dims=(1,), collapsed_slice_dims=(0, 1), start_index_map=(0, 1)),
        (x, np.int32([[0, 9], [-3, 2]])),
        ["Cast", "Max", "Min", "GatherND"],
    ),
    "one window in several axes": (
        lambda x, i: gather(x, i, (2, 2, 3), offset_dims=(0, 1, 2), collapsed_slice_dims=(), start_index_map=(0, 1)),
        (x, np.int32([9, 2])),
        ["Cast", "Max", "Min", "Add", "Slice"],
    ),
    "a window for each row": (
        jax.vmap(lambda x, i: lax.dynamic_slice_in_dim(x, i, 2, allow_negative_indices=False)),
        (x[:, :, 0], starts),
        ["Cast", "Clip", "Reshape", "Add", "GatherND"],
    ),
    "set a known slice": (lambda x, u: x.at[:, 1:3].set(u), (x, x[:, :2] + 1), ["ScatterND"]),
    "add to a known slice": (lambda x, u: x.at[2:4].add(u), (x, x[:2]), ["ScatterND"]),
    "set all": (lambda x, u: x.at[:].set(u), (x, x + 1), []),
    "add to all": (lambda x, u: x.at[:].add(u), (x, x + 1), ["Add"]),
    "set known rows": (lambda x, u: x.at[jnp.array([5, 2])].set(u), (x, x[:2]), ["ScatterND"]),
    "dynamic_update_slice": (
        lambda x, u, i: lax.dynamic_update_slice_in_dim(x, u, i, 0, allow_negative_indices=False),
        (x, x[:2], np.int32(9)),
        ["Cast", "Clip", "Add", "ScatterND"],
    ),
    "add rows": (
        lambda x, i, u: x.at[i].add(u, mode="clip", wrap_negative_indices=False),
        (x, some, x[:4]),
        ["Cast", "Clip", "Reshape", "ScatterND"],
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_form(name: str) -> None:
    """Few operators, and the right numbers."""
    fn, args, expected = FORMS[name]
    assert [o for o in operators(check(fn, *args)) if o != "Identity"] == expected


def test_large_updates_of_a_long_vector_copy_around_the_window() -> None:
    """Not one index for each of many elements."""
    x, u = np.arange(100_000, dtype=np.float32), np.ones(50_000, np.float32)
    for start in (0, 777, 99_999):
        model = check(lambda x, u, i: lax.dynamic_update_slice(x, u, (i,)), x, u, np.int32(start))
        assert "ScatterND" not in operators(model)
        assert sum(t.dims[0] if t.dims else 1 for t in model.graph.initializer) < 100
    assert operators(check(lambda x, u: x.at[40_000:90_000].add(u), x, u)) == ["Pad", "Add"]


@pytest.mark.parametrize("name", ["set", "add", "multiply", "max", "min"])
def test_many_repeated_indices(name: str) -> None:
    """So many that ONNX Runtime shares the work between threads. The last one wins, none is lost."""
    count = 400_000
    index = rng.integers(0, 3, count).astype(np.int32)
    updates = np.where(rng.random(count) < 1e-4, 2, 1).astype(np.float32)
    fn = lambda x, i, u: getattr(x.at[i], name)(u)  # noqa: E731
    check(fn, np.ones(4, np.float32), index, updates, rtol=0, atol=0)
    wide = np.broadcast_to(updates[: count // 64, None], (count // 64, 64))
    check(fn, np.ones((4, 64), np.float32), index[: count // 64], wide, rtol=0, atol=0)
    rows, columns = wide.copy(), np.asarray(index[: count // 64])
    rows[5, 7], columns[6:9] = np.nan, [-1, -9, 4]  # written, the last row, and two that are dropped
    model = check(fn, np.ones((4, 64), np.float32), columns, rows, dims=[("n", 64), ("m",), ("m", 64)], rtol=0, atol=0)
    assert "Loop" in operators(model) and "ScatterElements" not in operators(model)
    for few in (0, 1, 1562, 1563):
        check_run(model, fn, np.ones((9, 64), np.float32), columns[:few], rows[:few], rtol=0, atol=0)


def test_messages_along_many_edges_in_a_loop() -> None:
    """As in graph networks: the same with weights that are shared by several steps."""
    nodes = rng.normal(size=(200, 64)).astype(np.float32)
    senders, receivers = rng.integers(0, 200, (2, 3000)).astype(np.int32)

    def fn(x: jax.Array, senders: jax.Array, receivers: jax.Array) -> tuple:
        step = lambda x, _: (jnp.tanh(jax.ops.segment_sum(x[senders], receivers, 200) / 9), x[0])  # noqa: E731
        return lax.scan(step, x, None, length=20)

    check(fn, nodes, senders, receivers, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["set", "add", "multiply", "max", "min"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_rows_left_out_have_rows_of_their_own(name: str, dtype: str) -> None:
    limits = np.iinfo(dtype)
    places = [
        2,
        0,
        3,
        4,
        5,
        limits.max,
        limits.max - 1,
        limits.min,
        limits.min + 1,
        *([] if limits.min == 0 else [-1, -4]),
    ]
    places = np.array(places, dtype)
    rows = rng.normal(size=(places.size, 3)).astype(np.float32)
    rows[3:] = np.nan

    def fn(rows: jax.Array, places: jax.Array, start: jax.Array) -> list[jax.Array]:
        write = lambda x: getattr(x.at[places], name)(rows, wrap_negative_indices=False)  # noqa: E731
        return [write(jnp.zeros((4, 3))), write(jnp.full((2, 3), 7.0)), write(jnp.broadcast_to(start, (4, 3)))]

    model = check(fn, rows, places, rng.normal(size=3).astype(np.float32))
    assert "Compress" not in operators(model)


def test_few_rows_of_a_long_array_are_picked() -> None:
    model = check(lambda u, i: jnp.zeros((5000, 2)).at[i].set(u), x[:4, 0, :2], np.int32([3, 4999, 5000, -5001]))
    assert "Compress" in operators(model)


def test_elements_left_out_are_zeros_that_are_added() -> None:
    """Where that is the same: not added to what may be -0.0."""
    places = np.int32([[0, 2, 3, -1], [9, 1, 1, -4], [2, 2, -9, 0]])
    terms = np.float32([[1, np.nan, 3, np.inf], [np.nan, 6, -0.0, 8], [np.inf, -np.inf, 5, -0.0]])
    rows = jnp.arange(3)[:, None]

    def add(start: jax.Array) -> Callable[..., jax.Array]:
        return lambda u, i: start.at[rows, i].add(u.astype(start.dtype))

    for start in (jnp.zeros((3, 3)), jnp.full((3, 3), 2.5), jnp.zeros((3, 3), np.int32)):
        assert "Compress" not in operators(check(add(start), terms if start.dtype == np.float32 else places, places))
    assert "Compress" in operators(check(add(jnp.full((3, 3), -0.0)), terms, places))
    check(lambda x, u, i: x.at[rows, i].add(u), -np.zeros((3, 3), np.float32), -np.zeros((3, 4), np.float32), places)
    two = lambda u, i, j: jnp.zeros((3, 3)).at[rows, i].add(u).at[rows, jnp.clip(j, 0, 2)].add(u)  # noqa: E731
    assert "Compress" not in operators(check(two, terms, places, places))


@pytest.mark.parametrize("name", ["set", "add", "multiply", "max", "min"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("opset", [17, 23])
def test_nan_and_zeros(name: str, dtype: type, opset: int) -> None:
    """A NaN is not lost, whether it comes first, last or in between; a dropped update leaves -0.0 as it is."""
    values = np.asarray([np.nan, 1, -0.0, np.inf, -np.inf, 5, 5, 5], dtype)
    index = np.int32([0, 1, 1, 3, 4, 5, 5, 5, 6, 99])
    updates = np.asarray([1, np.nan, 2, np.nan, 3, 1, np.nan, 2, 7, 9], dtype)
    check(lambda x, i, u: getattr(x.at[i], name)(u), values, index, updates, opset=opset, rtol=0, atol=0)
    check(lambda x, u: getattr(x.at[2:5], name)(u), values, updates[1:4], opset=opset, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_largest_of_segments(dtype: str) -> None:
    """NaN gets lost on the way to a maximum, but not on the way to a sum of zeros."""
    x = np.random.default_rng(0).normal(size=(64, 5)).astype(dtype)
    places = np.arange(64).astype(np.int32) % 9 - 1  # one segment is to be left out
    for k, value in enumerate((np.nan, np.inf, -np.inf, -0.0)):
        x[k * 7 :: 23 + k, k] = value
    x[places == 3], x[places == 4] = -np.inf, -0.0
    for fn in (jax.ops.segment_max, jax.ops.segment_min):
        model = check(lambda x, s: fn(x, s, 10), x, places, x64=True)  # noqa: B023
        assert [n.op_type for n in model.graph.node].count("IsNaN") == 1  # of the sums, not of the terms
        check(lambda x, s: fn(x, s, 10), x, places, dims=[("N", 5), ("N",)], x64=True)  # noqa: B023


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("mode", quick(["fill"], ["clip", "fill", "promise_in_bounds"]))
def test_index_dtypes(dtype: str, mode: str) -> None:
    """An operand that is longer than a small index type can say, and indices that are longer than any operand."""
    limits = np.iinfo(dtype)
    x = np.arange(200, dtype=np.float32)
    far = [limits.min, limits.max, limits.max // 2 + 1, -1, 0, 127, 197, 198, 199, 200, 2**32 + 3]
    index = np.asarray([[v] for v in far if limits.min <= v <= limits.max], dtype)
    for size in (1, 3):

        def read(x: jax.Array, i: jax.Array, size: int = size) -> jax.Array:
            numbers = {"offset_dims": (1,), "collapsed_slice_dims": (), "start_index_map": (0,)}
            return gather(x, i, (size,), mode, **numbers)

        def write(x: jax.Array, i: jax.Array, u: jax.Array) -> jax.Array:
            return lax.scatter(x, i, u, lax.ScatterDimensionNumbers((1,), (), (0,)), mode=mode)

        check(read, x, index, x64=True)
        check(write, x, index, -np.arange(1.0, len(index) * size + 1, dtype=np.float32).reshape(-1, size), x64=True)
    for value in index[:, 0]:
        check(lambda x, i: lax.dynamic_slice(x, (i,), (3,), allow_negative_indices=False), x, value, x64=True)


@pytest.mark.parametrize("name", ["set", "add", "multiply", "max", "apply"])
def test_nothing_to_do(name: str) -> None:
    """Empty operands, indices and updates."""
    argument = jnp.sin if name == "apply" else 1
    check(lambda x, i: getattr(x.at[i], name)(argument), x, np.zeros(0, np.int32))
    check(lambda x, i: getattr(x.at[i], name)(argument), x[:, :0], some)
    check(lambda x, i: getattr(x.at[i], name)(argument), x[:0], some)
    check(lambda x, i: x.at[i].get(mode="fill"), x[:, :0], some)
    check(lambda x, i: x.at[:0, i].get(mode="fill"), x, some)


def test_functions_that_are_applied_repeatedly() -> None:
    """In order, once for each time that the index occurs."""
    index = np.int32([[0, 1, 1], [1, -1, 99]])
    check(lambda x, i: x.at[i].apply(lambda v: 2 * v + 1), np.float32([1, 2, 3]), index)
    check(lambda x, i: x.at[:, i].apply(lambda v: 2 * v + 1), x, index)
    check(jax.vmap(lambda x, i: x.at[i].apply(jnp.cos)), x, rng.integers(0, 4, (8, 6)).astype(np.int32))
