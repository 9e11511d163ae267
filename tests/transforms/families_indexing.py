"""Gathers, scatters, slices, and what NumPy calls them; shapes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.transforms.values import BF16, Family, bools, complexes, floats, hurting, index, positive, ties, whole

GATHER, SCATTER = lax.GatherDimensionNumbers, lax.ScatterDimensionNumbers
ROWS = index(4, -1, 0, 7)


def updates(*names: str, **options: Any) -> Any:
    return lambda x, i, v: [getattr(x.at[i], name)(v, **options) for name in names]


def scatters(dims: Any, **options: Any) -> Any:
    kinds = lax.scatter_add, lax.scatter_sub, lax.scatter, lax.scatter_min, lax.scatter_max, lax.scatter_mul
    return lambda x, i, v: [f(x, i, v, dims, **options) for f in kinds]


READS = {
    "x[i]": Family(lambda x, i: x[i], [floats(5, 3), ROWS], [0]),
    "x[:, i]": Family(lambda x, i: x[:, i], [floats(3, 5, dtype=np.float64), index([4, -9], [0, 2])], [0]),
    "x[i, j]": Family(lambda x, i, j: x[i, j], [floats(4, 5), index(0, 3, -1), index([2], [9])], [0]),
    "x[i, :, j]": Family(lambda x, i, j: x[i, :, j], [floats(3, 2, 4), index(0, 2), index(3, 1)], [0]),
    "x[number]": Family(lambda x, i: x[i], [floats(5, 3), index(2)], [0]),
    "x[i] of bfloat16 by int8": Family(lambda x, i: x[i], [floats(5, 3, dtype=BF16), np.int8([1, -2, 100])], [0]),
    "x[i] of uint64 by int64": Family(lambda x, i: x[i], [whole(5, dtype=np.uint64), np.int64([1, -2, 2**40])]),
    "x[i] of bool and complex": Family(lambda x, y, i: (x[i], y[i]), [bools(5, 2), complexes(5, 2), ROWS]),
    "x[nothing]": Family(lambda x, i: x[i], [floats(5, 3), np.zeros(0, np.int32)], [0]),
    "nothing[i]": Family(lambda x, i: x[i], [floats(5, 0), ROWS], [0]),
    "take": Family(
        lambda x, i: [jnp.take(x, i, 1, mode=m) for m in ("fill", "clip", "wrap")],
        [floats(3, 5), index(4, -9, 0, 7)],
        [0],
    ),
    "take_along_axis": Family(
        lambda x, i: jnp.take_along_axis(x, i, 1), [floats(3, 5), index([0, 4], [-1, 9], [2, 2])], [0]
    ),
    "windows, clipped": Family(
        lambda x, i: lax.gather(x, i, GATHER((1, 2), (), (0, 1)), (2, 3), mode="clip"),
        [floats(5, 6), index([0, 0], [4, 2], [-1, 9])],
        [0],
    ),
    "windows, filled": Family(
        lambda x, i: lax.gather(x, i, GATHER((1,), (0,), (0, 1)), (1, 3), mode="fill"),
        [floats(5, 6), index([0, 0], [4, 2], [-1, 9])],
        [0],
    ),
    "gather in a batch": Family(
        lambda x, i: lax.gather(x, i, GATHER((1,), (1,), (1,), (0,), (0,)), (1, 1, 2), mode="fill"),
        [floats(3, 4, 2), index([1], [9], [0])],
        [0],
    ),
    "dynamic_slice": Family(
        lambda x, i, j: lax.dynamic_slice(x, (i, j), (2, 3)), [floats(5, 4), index(1), index(9)], [0]
    ),
    "dynamic_slice of nothing, and all": Family(
        lambda x, i: (lax.dynamic_slice(x, (i, i), (0, 4)), lax.dynamic_slice(x, (i, i), (5, 4))),
        [floats(5, 4, dtype=BF16), np.int8(-1)],
        [0],
    ),
    "dynamic_index_in_dim": Family(
        lambda x, i: lax.dynamic_index_in_dim(x, i, 1, keepdims=False), [floats(5, 4), index(-1)], [0]
    ),
    "roll": Family(lambda x, i: (jnp.roll(x, i[0], 0), jnp.roll(x, i, (0, 1))), [floats(5, 2), index(-7, 1)], [0]),
    "nonzero": Family(
        lambda x, m: (x[jnp.nonzero(m, size=3, fill_value=9)], jnp.argwhere(m, size=4)), [floats(5), bools(5)], [0]
    ),
    "unique": Family(
        lambda x, i: (
            jnp.unique(x, size=5),
            jnp.unique(i, size=5, fill_value=-1, return_inverse=True, return_counts=True, return_index=True),
        ),
        [ties(8), whole(8, low=0, high=3)],
        [0],
    ),
    "sets": Family(
        lambda x, y: (
            jnp.isin(x, y),
            jnp.intersect1d(x, y, size=4, fill_value=0),
            jnp.union1d(x, y, size=6, fill_value=0),
            jnp.unique(x.reshape(3, 2), size=3, axis=0),
        ),
        [whole(6, low=0, high=4), whole(5, low=0, high=4)],
    ),
    "searchsorted": Family(
        lambda a, v: [jnp.searchsorted(a, v, method=m) for m in ("scan", "scan_unrolled", "sort", "compare_all")],
        [np.float32([-1, 0, 0, 2, np.inf]), np.float32([[0, -2], [np.nan, 5]])],
    ),
    "histograms": Family(
        lambda x, w, i: (
            jnp.histogram(x, bins=4, range=(-1, 2))[0],
            jnp.histogram(x, np.float32([-1, 0, 0.5, 2]), weights=w, density=True)[0],
            jnp.bincount(i, w, length=5),
            jnp.digitize(x, np.float32([-1, 0, 1])),
        ),
        [floats(9), floats(9), whole(9, low=-1, high=7)],
        [1],
    ),
    "interp": Family(
        lambda x, y: (
            jnp.interp(x, np.float32([-1, 0, 1, 2]), y),
            jnp.interp(x, np.float32([0, 1, 2, 3]), y, period=4),
            jnp.interp(x, np.float32([0, 1, 2, 3]), y, left=0.0, right="extrapolate"),
        ),
        [np.float32([-2.1, 0.3, 0.7, 5]), floats(4)],
        [0, 1],
    ),
    "map_coordinates": Family(
        lambda x, c: jax.scipy.ndimage.map_coordinates(x, [c, c + 1], 1, mode="mirror"),
        [floats(5, 6), np.float32([0.3, 2.7, 7.1])],
        [0, 1],
    ),
}

WRITES = {
    "x.at[i]": Family(updates("set", "add", "min", "max"), [floats(5, 3), index(4, -3, 0), floats(3, 3)], [0, 2]),
    "x.at[i], what JAX does not differentiate": Family(
        updates("multiply", "divide", "power"), [positive(5, 3), index(4, -3, 0), floats(3, 3)]
    ),
    "x.at[i] with doubles": Family(
        updates("add", "subtract", "max"),
        [floats(5, 3, dtype=np.float64), index(4, 4, -9, 1), floats(4, 3, dtype=np.float64)],
        [0, 2],
    ),
    "x.at[i] of int16": Family(
        updates("add", "multiply", "min", "max"),
        [whole(5, 3, dtype=np.int16), index(4, 4, 9), whole(3, 3, dtype=np.int16)],
    ),
    "x.at[i] of uint64": Family(
        updates("add", "multiply", "min", "max", mode="clip"),
        [whole(5, dtype=np.uint64), index(1, -99, 9), whole(3, dtype=np.uint64)],
    ),
    "x.at[i] of bfloat16": Family(
        updates("set", "add", "max"), [floats(5, 2, dtype=BF16), index(4, 0, 1), floats(3, 2, dtype=BF16)], [0, 2]
    ),
    "x.at[i] of NaN": Family(updates("set", "min", "max", "multiply"), [hurting(5, 2), index(4, 0, 1), hurting(3, 2)]),
    "x.at[i] of complex numbers": Family(
        updates("set", "add"), [complexes(5, 2), index(4, 0, 9), complexes(3, 2)], [0, 2]
    ),
    "x.at[nothing]": Family(updates("set", "add", "max"), [floats(5, 2), np.zeros(0, np.int32), floats(0, 2)], [0, 2]),
    "x.at[i].apply": Family(lambda x, i: x.at[i].apply(jnp.sin), [floats(5, 3), index(4, 0)]),
    "x.at[slices]": Family(
        lambda x, v: (x.at[1:4, ::2].set(v), x.at[1:4, ::2].add(v), x.at[::-2, 1:3].max(v)),
        [floats(5, 4), floats(3, 2)],
        [0, 1],
    ),
    "x.at[:, i]": Family(lambda x, i, v: x.at[:, i].add(v), [floats(3, 5), index(0, 4, 4), floats(3, 3)], [0, 2]),
    "put_along_axis": Family(
        lambda x, i, v: jnp.put_along_axis(x, i, v, 1, inplace=False),
        [floats(3, 5), index([0, 4], [1, 3], [2, 1]), floats(3, 2)],
        [0, 2],
    ),
    "scatter windows": Family(
        scatters(SCATTER((1, 2), (), (0, 1)), mode="clip"), [floats(5, 6), index([0, 0], [4, 2]), floats(2, 2, 3)]
    ),
    "scatter in a batch": Family(
        scatters(SCATTER((1,), (1,), (1,), (0,), (0,)), mode="drop", unique_indices=True),
        [floats(3, 4, 2, dtype=np.float64), index([1], [9], [0]), floats(3, 2, dtype=np.float64)],
        [0, 2],
    ),
    "dynamic_update_slice": Family(
        lambda x, u, i, j: lax.dynamic_update_slice(x, u, (i, j)),
        [floats(5, 4), floats(2, 3), index(1), index(9)],
        [0, 1],
    ),
    "dynamic_update_slice of nothing": Family(
        lambda x, u, i: lax.dynamic_update_slice(x, u, (i, i)), [floats(5, 4), floats(0, 4), index(2)], [0, 1]
    ),
    "dynamic_update_slice of bool": Family(
        lambda x, u, i: lax.dynamic_update_slice(x, u, (i, 0)), [bools(5, 4), bools(2, 4), index(2)]
    ),
    "segments": Family(
        lambda x, i: [f(x, i, 3) for f in (jax.ops.segment_sum, jax.ops.segment_min, jax.ops.segment_max)],
        [floats(5, 2), index(0, 2, 2, 0, 5)],
        [0],
    ),
    "segments of integers": Family(
        lambda x, i: [f(x, i, 3) for f in (jax.ops.segment_sum, jax.ops.segment_prod, jax.ops.segment_max)],
        [whole(5, 2, dtype=np.uint8), index(0, 2, 2, 0, -1)],
    ),
    "one_hot": Family(
        lambda i: (jax.nn.one_hot(i, 4), jax.nn.one_hot(i, 3, dtype=BF16, axis=0)), [index([0, 3], [4, -1])]
    ),
    "insert and delete": Family(
        lambda x, v, i: (jnp.insert(x, 2, v, axis=0), jnp.delete(x, i, axis=0, assume_unique_indices=True)),
        [floats(4, 2), floats(2), index(1, 3)],
        [0, 1],
    ),
    "repeat": Family(lambda x, r: jnp.repeat(x, r, axis=0, total_repeat_length=6), [floats(3, 2), index(1, 3, 2)], [0]),
}

SHAPES = {
    "pad": Family(lambda x, v: lax.pad(x, v, ((-1, 2, 1), (1, -1, 0))), [floats(3, 4), np.float32(2)], [0, 1]),
    "pad nothing": Family(lambda x, v: lax.pad(x, v, ((1, 2, 1), (0, 0, 0))), [floats(0, 4), np.float32(2)], [0, 1]),
    "pad int8": Family(lambda x, v: lax.pad(x, v, ((1, 2, 2), (0, 0, 0))), [whole(3, 4, dtype=np.int8), np.int8(2)]),
    "pad in other ways": Family(
        lambda x: [
            jnp.pad(x, ((1, 2), (2, 1)), mode=m)
            for m in ("reflect", "edge", "wrap", "symmetric", "linear_ramp", "mean", "maximum")
        ],
        [floats(3, 4)],
        [0],
    ),
    "concatenate": Family(
        lambda x, y, z: lax.concatenate([x, y, z, x], 1), [floats(3, 2), floats(3, 0), floats(3, 3)], [0, 1, 2]
    ),
    "rev": Family(lambda x: (lax.rev(x, (0, 2)), x[:, ::-2]), [floats(2, 3, 2)], [0]),
    "reshape": Family(
        lambda x: (lax.reshape(x, (4, 3)), lax.reshape(x, (3, 4), (1, 0)), x.reshape((4, 3), order="F")),
        [floats(2, 6)],
        [0],
    ),
    "reshape nothing": Family(
        lambda x: (x.reshape(3, 0), lax.reshape(x, (1, 0, 2), (1, 0)), jnp.stack([x, x, x], 1)), [floats(0, 2)], [0]
    ),
    "broadcast_in_dim": Family(
        lambda x: (lax.broadcast_in_dim(x, (2, 3, 4, 2), (1, 3)), lax.broadcast_in_dim(x, (0, 3, 1), (1, 2))),
        [floats(3, 1)],
        [0],
    ),
    "tile, split and slice": Family(
        lambda x: (jnp.tile(x, (2, 1, 3)), lax.split(x, (1, 0, 3), 1), lax.slice(x, (1, 0), (5, 4), (2, 3))),
        [floats(5, 4)],
        [0],
    ),
    "diagonals": Family(
        lambda x, v: (jnp.diag(x), jnp.trace(x), x[jnp.triu_indices(3)], jnp.fill_diagonal(x, v, inplace=False)),
        [floats(4, 3), floats(3)],
        [0, 1],
    ),
    "select_n": Family(
        lambda p, i, x, y: (lax.select_n(p, x, y), lax.select_n(i, x, y, x * y), lax.select_n(p[0, 0], x, y)),
        [bools(3, 2), whole(3, 2, low=0, high=2), floats(3, 2), floats(3, 2)],
        [2, 3],
    ),
    "bitcast": Family(
        lambda x, y: (
            lax.bitcast_convert_type(x, np.int32),
            lax.bitcast_convert_type(x, np.uint8),
            lax.bitcast_convert_type(y, BF16),
        ),
        [floats(3), whole(3, dtype=np.int16, low=0, high=30000)],
    ),
    "bitcast to a wider type": Family(
        lambda x: lax.bitcast_convert_type(x, np.float32),
        [whole(3, 4, dtype=np.uint8, low=0, high=120)],
        beyond_jax=["vmap", "nested_vmap"],  # with the batch in the axis that goes
    ),
    "resize": Family(
        lambda x: [jax.image.resize(x, (2, 7, 3), m) for m in ("nearest", "linear", "cubic", "lanczos3")],
        [floats(2, 4, 5)],
        [0],
        2e-5,
    ),
    "scale_and_translate": Family(
        lambda x, s, t: jax.image.scale_and_translate(x, (4, 4), (0, 1), s, t, "linear"),
        [floats(5, 6), np.float32([0.8, 0.7]), np.float32([0.1, 0.2])],
        [0, 1, 2],
        2e-5,
    ),
}

FAMILIES = READS | WRITES | SHAPES
