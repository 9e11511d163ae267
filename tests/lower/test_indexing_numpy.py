"""Indexing as users write it, each also under vmap: in range, negative, out of range, repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from tests.helpers import check, check_run, quick

rng = np.random.default_rng(0)
x = rng.normal(size=(8, 5, 3)).astype(np.float32)
row = rng.normal(size=12).astype(np.float32)
i = np.int32(-2)
far = np.int32(99)
some = np.int32([3, 0, -1, 3, 7, 3])
wild = np.int32([3, -8, -9, 3, 8, 100])
small = np.int32([0, -3, 2, 1, 2, 2])
pairs = rng.integers(-6, 6, (8, 2, 3)).astype(np.int32)
updates = rng.normal(size=(6, 5, 3)).astype(np.float32)
rows = rng.normal(size=(6, 5)).astype(np.float32)
ids = np.int32([0, 2, 2, -1, 1, 7, 0, 0])
mask = rng.random(8) < 0.5

READS: dict[str, tuple[Callable, tuple]] = {
    "x[i]": (lambda x, i: x[i], (x, i)),
    "x[i] out of range": (lambda x, i: x[i], (x, far)),
    "x[:, i]": (lambda x, i: x[:, i], (x, i)),
    "x[..., i]": (lambda x, i: x[..., i], (x, i)),
    "x[i, 1:3]": (lambda x, i: x[i, 1:3], (x, i)),
    "x[some]": (lambda x, i: x[i], (x, some)),
    "x[wild]": (lambda x, i: x[i], (x, wild)),
    "x[:, small]": (lambda x, i: x[:, i], (x, small)),
    "x[some, small]": (lambda x, i, j: x[i, j], (x, some, small)),
    "x[some, :, small]": (lambda x, i, j: x[i, :, j], (x, some, small)),
    "x[:, small, small]": (lambda x, i, j: x[:, i, j], (x, small, small)),
    "x[some, small, small]": (lambda x, i, j: x[i, j, j], (x, some, small)),
    "x[some[:, None], small]": (lambda x, i, j: x[i[:, None], j], (x, some, small)),
    "x[2, small]": (lambda x, j: x[2, j], (x, small)),
    "x[::2, i, None]": (lambda x, i: x[::2, i, None], (x, i)),
    "x[..., None, ::2]": (lambda x: x[..., None, ::2], (x,)),
    "x[::-1, -2]": (lambda x: x[::-1, -2], (x,)),
    "x[[0, 2]]": (lambda x: x[jnp.array([0, -2])], (x,)),
    "x[i] with i unsigned": (lambda x, i: x[i.astype(jnp.uint8)], (x, some)),
    "nonzero(size)": (lambda x, m: x[jnp.nonzero(m, size=5, fill_value=-1)], (x, mask)),
    "take": (lambda x, i: jnp.take(x, i, axis=0), (x, wild)),
    "take flat": (lambda x, i: jnp.take(x, i), (x, wild)),
    "take clip": (lambda x, i: jnp.take(x, i, axis=0, mode="clip"), (x, wild)),
    "take wrap": (lambda x, i: jnp.take(x, i, axis=0, mode="wrap"), (x, wild)),
    "take fill": (lambda x, i: jnp.take(x, i, axis=0, mode="fill", fill_value=7), (x, wild)),
    "take integers": (lambda x, i: jnp.take((x * 9).astype(jnp.int16), i, axis=0), (x, wild)),
    "take unsigned": (lambda x, i: jnp.take((x * 9).astype(jnp.uint32), i, axis=0), (x, wild)),
    "take bool": (lambda x, i: jnp.take(x > 0, i, axis=0), (x, wild)),
    "take bfloat16": (lambda x, i: jnp.take(x.astype(jnp.bfloat16), i, axis=0), (x, wild)),
    "take_along_axis 0": (lambda x, i: jnp.take_along_axis(x[:, :2], i, axis=0), (x, pairs)),
    "take_along_axis 1": (lambda x, i: jnp.take_along_axis(x, i, axis=1), (x, pairs)),
    "take_along_axis clip": (lambda x, i: jnp.take_along_axis(x, i, axis=1, mode="clip"), (x, pairs)),
    "take_along_axis broadcast": (lambda x, i: jnp.take_along_axis(x, i[:, :, :1], axis=1), (x, pairs)),
    "at.get": (lambda x, i: x.at[i].get(), (x, wild)),
    "at.get fill": (lambda x, i: x.at[i].get(mode="fill", fill_value=-1), (x, wild)),
    "at.get drop": (lambda x, i: x.at[:, i].get(mode="drop"), (x, small)),
    "at.get clip": (lambda x, i: x.at[i].get(mode="clip"), (x, wild)),
    "dynamic_slice": (lambda x, i: lax.dynamic_slice(x, (i, i, 0), (3, 2, 3)), (x, i)),
    "dynamic_slice far": (lambda x, i: lax.dynamic_slice(x, (i, -i, i), (3, 2, 1)), (x, far)),
    "dynamic_slice_in_dim": (lambda x, i: lax.dynamic_slice_in_dim(x, i, 4, axis=0), (x, far)),
    "dynamic_index_in_dim": (lambda x, i: lax.dynamic_index_in_dim(x, i, axis=1), (x, far)),
    "dynamic_index_in_dim flat": (lambda x, i: lax.dynamic_index_in_dim(x, i, 1, keepdims=False), (x, i)),
    "roll": (lambda x, i: jnp.roll(x, i, axis=1), (x, i)),
    "roll flat": (lambda x, i: jnp.roll(x, i), (x, far)),
    "roll two axes": (lambda x, i: jnp.roll(x, (i, -i), axis=(0, 2)), (x, i)),
    "choose": (lambda x, i: jnp.choose(i, [x[0, 0], x[1, 1]], mode="clip"), (x, np.int32([0, 1, 5]))),
    "index_take": (lambda x, i: lax.index_take(x, (i, i), (0, 1)), (x, small)),
    "diagonal": (lambda x: jnp.diagonal(x, 1), (x,)),
    "gather gradient": (jax.grad(lambda x, i: (x[i] ** 2).sum()), (x, some)),
    "take gradient": (jax.grad(lambda x, i: (jnp.take(x, i, axis=1) ** 2).sum()), (x, np.int32([1, 1, -1]))),
}

WRITES: dict[str, tuple[Callable, tuple]] = {
    "set scalar": (lambda x, i: x.at[i].set(1.0), (x, i)),
    "set out of range": (lambda x, i: x.at[i].set(1.0), (x, far)),
    "set row": (lambda x, i, u: x.at[i].set(u), (x, i, updates[0])),
    "set column": (lambda x, i, u: x.at[:, i].set(u), (x, i, updates[0, 0])),
    "set slice": (lambda x: x.at[:, 1:3].set(0), (x,)),
    "set last": (lambda x, u: x.at[..., -1].set(u), (x, updates[0, :, 0])),
    "set strided": (lambda x: x.at[::2, 1].add(2.0), (x,)),
    "set mask": (lambda x, m: x.at[jnp.nonzero(m, size=8, fill_value=99)].set(0), (x, mask)),
    "set many": (lambda x, i, u: x.at[i].set(u), (x, some, updates)),
    "set wild": (lambda x, i, u: x.at[i].set(u), (x, wild, updates)),
    "set clip": (lambda x, i, u: x.at[i].set(u, mode="clip"), (x, wild, updates)),
    "set promise": (lambda x, i, u: x.at[i].set(u, mode="promise_in_bounds"), (x, some, updates)),
    "set unique": (lambda x, i, u: x.at[i].set(u, unique_indices=True), (x, np.int32([7, 1, 0, 2, 99, 5]), updates)),
    "set two": (lambda x, i, j, u: x.at[i, j].set(u), (x, some, small, updates[:, 0])),
    "set outer and inner": (lambda x, i, j, u: x.at[i, :, j].set(u), (x, some, small, rows)),
    "set inner": (lambda x, i, u: x.at[:, :, i].set(u), (x, small, rows.T)),
    "add": (lambda x, i, u: x.at[i].add(u), (x, wild, updates)),
    "add scalar": (lambda x, i: x.at[i, 0, 0].add(5), (x, wild)),
    "subtract": (lambda x, i, u: x.at[i].subtract(u), (x, wild, updates)),
    "multiply": (lambda x, i, u: x.at[i].multiply(u), (x, wild, updates)),
    "divide": (lambda x, i, u: x.at[i].divide(u), (x, np.int32([1, 3, -1, 99, 0, 5]), updates)),
    "power": (lambda x, i: x.at[i].power(2), (x, np.int32([1, 3]))),
    "min": (lambda x, i, u: x.at[i].min(u), (x, wild, updates)),
    "max": (lambda x, i, u: x.at[i].max(u), (x, wild, updates)),
    "apply": (lambda x, i: x.at[i].apply(jnp.sin), (x, wild)),
    "apply once": (lambda x, i: x.at[i].apply(jnp.sin), (x, i)),
    "add to integers": (lambda x, i: (x * 99).astype(jnp.int8).at[i].add(100), (x, some)),
    "subtract from unsigned": (lambda x, i: (x * 99).astype(jnp.uint16).at[i].subtract(7), (x, some)),
    "max of booleans": (lambda x, i, u: (x > 0).at[i].max(u > 0), (x, wild, updates)),
    "add bfloat16": (lambda x, i: jnp.zeros((8, 2), jnp.bfloat16).at[i].add(1), (x, some)),
    "put_along_axis": (lambda x, i: jnp.put_along_axis(x, i, 5.0, axis=1, inplace=False), (x, pairs)),
    "put": (lambda x, i: jnp.put(x, i, jnp.arange(6.0), inplace=False), (x, wild)),
    "dynamic_update_slice": (
        lambda x, u, i: lax.dynamic_update_slice(x, u, (i, i, 0)),
        (x, updates[:3, :2], i),
    ),
    "dynamic_update_slice far": (
        lambda x, u, i: lax.dynamic_update_slice(x, u, (i, -i, i)),
        (x, updates[:3, :2, :1], far),
    ),
    "dynamic_update_index": (
        lambda x, u, i: lax.dynamic_update_index_in_dim(x, u, i, 1),
        (x, np.ones((8, 3), np.float32), far),
    ),
    "segment_sum": (lambda x, s: jax.ops.segment_sum(x, s, 4), (x, ids)),
    "segment_prod": (lambda x, s: jax.ops.segment_prod(x, s, 4), (x, ids)),
    "segment_max": (lambda x, s: jax.ops.segment_max(x, s, 4), (x, ids)),
    "segment_min": (lambda x, s: jax.ops.segment_min(x, s, 4, mode="clip"), (x, ids)),
    "segment_sum sorted": (
        lambda x, s: jax.ops.segment_sum(x, s, 4, indices_are_sorted=True),
        (x, np.sort(ids)),
    ),
    "bincount": (lambda i: jnp.bincount(i, length=5), (np.abs(ids),)),
    "bincount weights": (lambda i, w: jnp.bincount(i, w, length=5), (np.abs(ids), row[:8])),
    "insert": (lambda x, i: jnp.insert(x, i, 9.0, axis=1), (x, np.int32([1, 3]))),
    "insert constant": (lambda x: jnp.insert(x, 2, 9.0, axis=0), (x,)),
    "delete": (lambda x, i: jnp.delete(x, i, axis=1, assume_unique_indices=True), (x, np.int32([1, 3]))),
    "delete constant": (lambda x: jnp.delete(x, 2, axis=0), (x,)),
    "searchsorted": (lambda x, v: jnp.searchsorted(jnp.sort(x), v), (row, updates[0, 0])),
    "searchsorted right": (lambda x, v: jnp.searchsorted(jnp.sort(x), v, side="right", method="sort"), (row, row)),
    "histogram": (lambda x: jnp.histogram(x, bins=4)[0], (row,)),
    "digitize": (lambda x, v: jnp.digitize(v, jnp.sort(x)), (row, updates[0, 0])),
    "interp": (lambda x, v: jnp.interp(v, jnp.sort(x), x), (row, updates[0, 0])),
    "fill_diagonal": (lambda x: jnp.fill_diagonal(x[0, :3], 5, inplace=False), (x,)),
    "unique": (lambda i: jnp.unique(i, size=4, fill_value=-1), (some,)),
    "scatter gradient": (jax.grad(lambda u, x, i: (x.at[i].set(u) ** 2).sum()), (updates, x, wild)),
}

ALL = READS | WRITES


@pytest.mark.parametrize("name", quick(list(ALL)[1::4], ALL))
def test_alone(name: str) -> None:
    """In float32, at the default opset."""
    fn, args = ALL[name]
    check(fn, *args)


@pytest.mark.parametrize("name", quick(list(ALL)[::3], ALL))
def test_under_vmap(name: str) -> None:
    """Two at once, the second with everything in reverse order."""
    fn, args = ALL[name]
    check(jax.vmap(fn), *(np.stack([a, np.flip(a)]) for a in args))


@pytest.mark.parametrize("name", quick([*READS, *WRITES][::3], [*READS, *WRITES]))
def test_in_float64(name: str) -> None:
    """With 64-bit numbers and indices, at an older opset."""
    fn, args = ALL[name]
    wide = {np.dtype(np.float32): np.float64, np.dtype(np.int32): np.int64}
    check(fn, *(a.astype(wide.get(a.dtype, a.dtype)) for a in args), opset=21)


@pytest.mark.parametrize(
    ("fn", "dims", "args", "more"),
    [
        (lambda x, i: x[i], [("N", "C"), ("M",)], (x[:, 0], wild), (x[:1, 0], wild[:0])),
        (lambda x, i: x[:, i], [("N", "C"), ("M",)], (x[0], small), (x[1, :0], small[:2])),
        (lambda x, i: jnp.take(x, i, axis=0), [("N", "C"), ("M",)], (x[:, 0], wild), (x[:2, 1], wild[:3])),
        (lambda x, i: x[i, i], [("N", "M"), ("K",)], (x[0], small), (x[:, 0], small[:0])),
        (lambda x, i: x[:, i, i], [("B", "N", "M"), ("K",)], (x, small), (x[:2, :1], small[:0])),
        (lambda x, i: lax.dynamic_slice_in_dim(x, i, 1), [("N", "C"), ()], (x[0], i), (x[:, 1], far)),
        (lambda x, i: lax.dynamic_slice_in_dim(x, i, 2, 1), [("N", 5), ()], (x[..., 0], i), (x[:0, :, 1], far)),
        (lambda x, i: jnp.roll(x, i, axis=0), [("N", "C"), ()], (x[0], i), (x[:, 1], far)),
        (
            lambda x, i, u: x.at[i].set(u),
            [("N", "C"), ("M",), ("M", "C")],
            (rows, some, rows),
            (x[0], some[:1], x[0, :1]),
        ),
        (
            lambda x, i, u: x.at[i].add(u),
            [("N", "C"), ("M",), ("M", "C")],
            (rows, some, rows),
            (x[0], some[:0], x[0, :0]),
        ),
        (
            lambda x, i, u: x.at[i].max(u),
            [("N", "C"), ("M",), ("M", "C")],
            (rows, wild, rows),
            (x[0], some[:1], x[0, :1]),
        ),
        (lambda x, i: x.at[:, i].set(0), [("N", "C"), ()], (rows, i), (x[0], far)),
        (lambda x, s: jax.ops.segment_sum(x, s, 4), [("N", "C"), ("N",)], (x[:, 0], ids), (x[:0, 0], ids[:0])),
        (
            lambda x, i: jnp.take_along_axis(x, i, axis=1),
            [("B", "N", "C"), ("B", "M", "C")],
            (x, pairs),
            (x[:2, :, :2], pairs[:2, :1, :2]),
        ),
        (
            jax.vmap(lambda x, i, u: x.at[i].add(u)),
            [("B", "N"), ("B", "M"), ("B", "M")],
            (rows, some.reshape(6, 1), rows[:, :1]),
            (x[0, :2], small.reshape(2, 3), rows[:2, :3]),
        ),
        (
            jax.vmap(lambda x, i: lax.dynamic_slice_in_dim(x, i, 2)),
            [("B", 5), ("B",)],
            (rows, wild),
            (rows[:1], small[:1]),
        ),
        (
            lambda x, u, i: lax.dynamic_update_slice_in_dim(x, u, i, 1),
            [("B", 5), ("B", 2), ()],
            (rows, rows[:, :2], i),
            (rows[:1], rows[:1, :2], far),
        ),
    ],
)
def test_with_symbolic_dimensions(fn: Callable, dims: Any, args: tuple, more: tuple) -> None:
    """One model for all sizes, also for none at all."""
    model = check(fn, *args, dims=dims)
    check_run(model, fn, *more)
