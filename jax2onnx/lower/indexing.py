"""Which elements of an array an index stands for: the description that gather, scatter and slices share.

A `Windows` says where the elements are: for each index vector of an array of them, one window of the operand. `locate`
turns the indices into starts that are surely inside the operand, and says which windows were outside; `grid` gives the
position of every element of every window. The rules in `indexing_gather`, `indexing_scatter` and `indexing_slice` pick
from these the cheapest ONNX operator that is exactly the same.

Integers that are known while exporting stay NumPy arrays as long as they are only computed with, so `Ints` is either.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax import lax

from jax2onnx import compat
from jax2onnx.dimensions import is_static
from jax2onnx.lower.context import Builder, Val
from jax2onnx.lower.dtypes import BOOL, INT32, INT64
from jax2onnx.lower.fold import MAX_BYTES
from jax2onnx.lower.progressions import counted_axis, ends, progression

Ints = Val | np.ndarray
Dims = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Windows:
    """For each index vector, a window of an operand; and how the array of all windows is laid out."""

    shape: Dims
    """The shape of the operand."""
    sizes: Dims
    """The size of a window along each axis of the operand."""
    batch: Dims
    """The shape of the array of index vectors."""
    starts: tuple[int, ...]
    """The operand axis that each component of an index vector is the start of the window along; 0 along the others."""
    batching: Mapping[int, int]
    """Operand axes along which a window is at the position of its own index vector along this axis of the batch."""
    kept: tuple[int, ...]
    """The operand axes that the array of windows has. Along the others, windows have size 1."""
    layout: tuple[int, ...]
    """Where these axes are in the array of windows; the axes of the batch are in the places between, in order."""

    @functools.cached_property
    def moving(self) -> tuple[int, ...]:
        """The axes along which windows can start anywhere but at 0 because of their index vector."""
        return tuple(sorted(a for a in self.starts if self.shape[a] != self.sizes[a]))

    @functools.cached_property
    def batched(self) -> tuple[int, ...]:
        """The axes along which windows can start anywhere but at 0 because of their place in the batch."""
        return tuple(sorted(a for a in self.batching if self.shape[a] != 1))

    @functools.cached_property
    def cut(self) -> tuple[int, ...]:
        """The axes along which all windows are the same part of the operand: the front."""
        fixed = (a for a in range(len(self.shape)) if a not in self.starts and a not in self.batching)
        return tuple(a for a in fixed if self.shape[a] != self.sizes[a])

    @property
    def is_single(self) -> bool:
        """Is there exactly one window?"""
        return all(is_one(d) for d in self.batch)

    @property
    def never_overlap(self) -> bool:
        """Is there only one window for each position along the batching axes?"""
        shared = set(range(len(self.batch))) - set(self.batching.values())
        return all(is_one(self.batch[i]) for i in shared)

    @property
    def is_along_axis(self) -> bool:
        """Is there an index for each element, which moves it along one axis?"""
        rank = len(self.shape)
        aligned = all(self.batching.get(a) == a for a in range(rank) if a not in self.moving)
        return aligned and len(self.moving) == 1 and not self.kept and len(self.batch) == rank

    @property
    def order(self) -> list[int]:
        """The axes of the array of windows: `a` for an axis of the operand, `~i` for one of the batch."""
        kept, batch = iter(self.kept), iter(range(len(self.batch)))
        rank = len(self.kept) + len(self.batch)
        return [next(kept) if i in self.layout else ~next(batch) for i in range(rank)]

    def size(self, label: int) -> Any:
        """The size of an axis of the array of windows."""
        return self.sizes[label] if label >= 0 else self.batch[~label]

    @property
    def batch_axes(self) -> list[int]:
        """The labels of the axes of the batch."""
        return [~i for i in range(len(self.batch))]


def is_one(dim: Any) -> bool:
    """Is the dimension surely 1?"""
    return isinstance(dim, int) and dim == 1


def product(dims: Sequence[Any]) -> Any:
    """The product of dimensions, which may be symbolic."""
    return math.prod(dims)


def arrange(g: Builder, x: Val, labels: Sequence[int], order: Sequence[int]) -> Val:
    """`x`, whose axes are called `labels`, with its axes in `order`. Axes that only one of both has are of size 1."""
    x = g.squeeze(x, [i for i, label in enumerate(labels) if label not in order])
    left = [label for label in labels if label in order]
    x = g.transpose(x, [left.index(label) for label in order if label in left])
    return g.unsqueeze(x, [i for i, label in enumerate(order) if label not in left])


# -------------------------------------------------------------------------------------------------- where windows start


def along_counters(g: Builder, w: Windows, indices: Val) -> tuple[Windows, Val]:
    """The same windows, which are at the position of their index vector where a component of it counts these, as in
    x[arange(B), i]. Counters are inside the operand, and need no check."""
    columns = indices.columns
    if columns is None or indices.const is not None:
        return w, indices
    batching, rest = dict(w.batching), []
    for axis, column in zip(w.starts, columns, strict=True):
        at = counted_axis(g, column) if axis not in w.kept and is_one(w.sizes[axis]) else None
        if at is None or at in batching.values() or w.shape[axis] != w.batch[at]:
            rest.append((axis, column))
        else:
            batching[axis] = at
    if len(rest) in (0, len(columns)):
        return w, indices
    starts, left = zip(*rest, strict=True)
    moved = dataclasses.replace(w, starts=starts, batching=batching)
    if len(left) == 1:
        return moved, left[0]
    index = g.Concat(*left, axis=left[0].rank - 1)
    index.columns = left
    return moved, index


def with_own_axis(w: Windows) -> tuple[Windows, int] | None:
    """Single elements that move along the one axis that their array does not have, as in x[arange(B), i] of two axes:
    the same in an array that has it, with size 1, and where that is."""
    if len(w.moving) != 1 or w.kept or not w.batched or len(w.batch) != len(w.shape) - 1:
        return None
    (axis,) = w.moving
    batching = {a: i + (i >= axis) for a, i in w.batching.items()}
    wider = dataclasses.replace(w, batch=(*w.batch[:axis], 1, *w.batch[axis:]), batching=batching)
    return (wider, axis) if wider.is_along_axis else None


MODES = (
    lax.GatherScatterMode.CLIP,
    lax.GatherScatterMode.FILL_OR_DROP,
    lax.GatherScatterMode.PROMISE_IN_BOUNDS,
)
"""What can happen to a window that is not inside the operand. (JAX has one more, which never reaches a primitive.)"""


def locate(
    g: Builder, w: Windows, indices: Val, *, check: bool, along: bool = False, margin: int = 0
) -> tuple[Ints, Ints | None]:
    """The start of each window along the moving axes, shape (*batch, moving axes), moved into the operand; and, with
    `check`, which of the windows were inside it, shape (*batch), or None if all were. Starts are int64.

    `along` is for windows with one moving axis, where the starts are wanted with the shape (*batch); they can
    be int32 then. With a `margin`, unknown starts may be so far outside of the operand.
    """
    bounds = [w.shape[a] - w.sizes[a] for a in w.starts]
    components = [w.starts.index(a) for a in w.moving]
    if indices.const is not None and (known := _locate_known(indices.const, bounds)) is not None:
        clamped, inside = known
        valid = np.asarray(inside.all(-1))
        starts = np.array(clamped[..., components[0] if along else components])
        return starts, None if valid.all() or not check else valid
    if w.moving == w.starts and _are_seen_inside(g, indices, w.batch, bounds):
        index = _as_int64(g, indices)
        return g.squeeze(index, [index.rank - 1]) if along else index, None
    if indices.columns is not None and w.moving and not along and not margin:
        return _locate_columns(g, w, indices.columns, check)
    index = indices
    if not check:
        index, bounds = _select(g, index, components), [bounds[c] for c in components]
    if not (along and index.dtype == INT32 and is_static(bounds)):
        index = _as_int64(g, index)
    if along and len(bounds) == 1:
        index = g.squeeze(index, [index.rank - 1])
        start = _clamp(g, index, bounds)
        return start, _is_inside(g, start, index, bounds) if check else None
    if check and bounds:
        moved = _clamp(g, index, bounds)
        start, is_inside = _select(g, moved, components), _all(g, _is_inside(g, moved, index, bounds))
    else:
        start, is_inside = _clamp(g, index, bounds, margin), None
    return g.squeeze(start, [start.rank - 1]) if along else start, is_inside


def _locate_columns(g: Builder, w: Windows, columns: Sequence[Val], check: bool) -> tuple[Val, Val | None]:
    """The same of index vectors whose components are known one by one. They are kept apart."""
    starts, is_inside = {}, None
    for axis, column in zip(w.starts, columns, strict=True):
        if not check and axis not in w.moving:
            continue
        index = _as_int64(g, column)
        bounds = [w.shape[axis] - w.sizes[axis]]
        starts[axis] = _clamp(g, index, bounds)
        if check:
            flag = _is_inside(g, starts[axis], index, bounds)
            is_inside = flag if is_inside is None else g.And(is_inside, flag)
    moving = [starts[axis] for axis in w.moving]
    start = moving[0] if len(moving) == 1 else g.Concat(*moving, axis=moving[0].rank - 1)
    start.columns = moving
    return start, None if is_inside is None else g.squeeze(is_inside, [is_inside.rank - 1])


def _as_int64(g: Builder, index: Val) -> Val:
    if index.dtype == np.uint64:
        index = g.Min(index, np.asarray(2**63 - 1, np.uint64))
    return g.cast(index, INT64)


def _locate_known(indices: np.ndarray, bounds: Sequence[Any]) -> tuple[np.ndarray, np.ndarray] | None:
    """Known starts moved into the operand, and which were inside; None if symbolic bounds leave that open."""
    index = np.minimum(indices, 2**63 - 1).astype(np.int64) if indices.dtype == np.uint64 else indices.astype(np.int64)
    if is_static(bounds):
        clamped = np.clip(index, 0, np.asarray(bounds, np.int64))
        return clamped, clamped == index
    flat = index.reshape(-1, len(bounds))
    for values, bound in zip(flat.T, bounds, strict=True):
        if values.size and not (values.min() >= 0 and compat.dims.is_at_least(bound, int(values.max()))):
            return None
    return index, np.ones(index.shape, bool)


def _are_seen_inside(g: Builder, indices: Val, batch: Sequence[Any], bounds: Sequence[Any]) -> bool:
    """Can it be seen that unknown starts along one axis, such as T - 1, are all inside?"""
    if len(bounds) != 1:
        return False
    count = product(batch)
    found = progression(g, indices, count)
    if found is None:
        return False
    low, high = ends(found, count)
    return compat.dims.is_at_least(low, 0) and compat.dims.is_at_least(bounds[0] - high, 0)


def _select(g: Builder, index: Val, components: Sequence[int]) -> Val:
    if list(components) == list(range(index.shape[-1])):
        return index
    return g.Gather(index, np.asarray(components, np.int64), axis=index.rank - 1)


def _clamp(g: Builder, index: Val, bounds: Sequence[Any], margin: int = 0) -> Val:
    """`index` between 0 and `bounds`, component by component, or so far outside."""
    if not bounds:
        return index
    low, bounds = np.asarray(-margin, index.dtype), [bound + margin for bound in bounds]
    if len(set(bounds)) == 1:
        high = np.asarray(bounds[0], index.dtype) if is_static(bounds) else g.dim(bounds[0])
        return g.Clip(index, low, high)
    highs = np.asarray(bounds, index.dtype) if is_static(bounds) else g.shape_of(bounds)
    return g.Min(g.Max(index, low), highs)


def are_some_inside(w: Windows) -> bool:
    """Is there a place for each window, whatever the sizes are? In an axis that may be empty there is not."""
    return all(compat.dims.is_at_least(w.shape[a] - w.sizes[a], 0) for a in w.starts)


def moved_inside(g: Builder, w: Windows, indices: Val) -> Val:
    """Indices of windows inside of the operand, as near to these as can be; -1 if there are none."""
    return _clamp(g, _as_int64(g, indices), [w.shape[a] - w.sizes[a] for a in w.starts])


def _is_inside(g: Builder, clamped: Val, index: Val, bounds: Sequence[Any]) -> Val:
    """Which components were between 0 and `bounds`. Where an axis may be empty, -1 is clamped to -1 and is not."""
    is_same = g.Equal(clamped, index)
    if all(compat.dims.is_at_least(bound, 0) for bound in bounds):
        return is_same
    return g.And(is_same, g.GreaterOrEqual(index, np.zeros((), index.dtype)))


def _all(g: Builder, flags: Val) -> Val:
    """Whether all flags along the last axis are set."""
    if flags.shape[-1] == 1:
        return g.squeeze(flags, [flags.rank - 1])
    return g.cast(g.ReduceMin(g.cast(flags, INT32), axes=(flags.rank - 1,), keepdims=0), BOOL)


# --------------------------------------------------------------------------------------------- where their elements are

Units = Mapping[int, Dims]
"""By how much the position of an element grows with each step along an axis of the operand: a vector."""


def coordinates(axes: Sequence[int]) -> Units:
    """Positions as coordinates along `axes`."""
    return {a: tuple(int(a == other) for other in axes) for a in axes}


def strides(shape: Dims, axes: Sequence[int]) -> Units:
    """Positions as single numbers, as if the adjacent `axes` were merged into one."""
    return {a: (product(shape[a + 1 : axes[-1] + 1]),) for a in axes}


def is_small_grid(w: Windows, units: Units) -> bool:
    """Is the part of the positions that does not depend on the indices known, and small enough for a constant?"""
    depth = len(next(iter(units.values())))
    dims = [w.shape[a] for a in w.batched if a in units] + [w.sizes[a] for a in w.kept if a in units]
    return is_static(dims) and product(dims) * depth * 8 <= MAX_BYTES


def positions(g: Builder, w: Windows, start: Ints, units: Units, keep: Callable[[Ints], Ints] | None = None) -> Ints:
    """Where each element of each window is: shape (*batch, *sizes of kept axes that have a unit, size of a unit).

    `keep` picks some windows: it is applied to the positions of their first elements.
    """
    axes = [a for a in w.kept if a in units]
    at_windows = range(len(w.batch), len(w.batch) + len(axes))

    def shift(x: Ints) -> Ints:
        return unsqueeze(g, x, at_windows) if axes and len(x.shape) > 1 else x

    moved = _linear(g, start, [units[a] for a in w.moving])
    batched = [(w.shape[a], w.batching[a], units[a]) for a in w.batched if a in units]
    table = _table(g, len(w.batch), batched, units)
    window = _table(g, len(axes), [(w.sizes[a], i, units[a]) for i, a in enumerate(axes)], units)
    sizes = tuple(w.sizes[a] for a in axes)
    depth = window.shape[-1]
    columns = _columns(g, w, start, units) if keep is not None or not axes else None
    if columns is not None:
        first: Ints = g.Concat(*(as_val(g, c) for c in columns), axis=len(w.batch))
    elif keep is None and isinstance(window, np.ndarray) and isinstance(table, np.ndarray) and is_small_grid(w, units):
        fixed = shift(table) + window
        total = fixed if moved is None else add(g, shift(moved), fixed)
        return _expand(g, total, (*w.batch, *sizes, depth))
    else:
        first = _expand(g, table if moved is None else add(g, moved, table), (*w.batch, depth))
    if keep is None:
        return _expand(g, add(g, shift(first), window), (*w.batch, *sizes, depth))
    first = keep(first)
    return add(g, unsqueeze(g, first, range(1, 1 + len(axes))), window)


def _columns(g: Builder, w: Windows, start: Ints, units: Units) -> list[Ints] | None:
    """The coordinates of single elements one by one, if some are computed and the others known."""
    if isinstance(start, np.ndarray) or not w.batched or not is_static(w.batch) or not is_small_grid(w, units):
        return None
    moving = [start] if len(w.moving) == 1 else start.columns
    if moving is None or sorted((*w.moving, *w.batched)) != list(units) or units != coordinates(list(units)):
        return None
    found: dict[int, Ints] = dict(zip(w.moving, moving, strict=True))
    for a in w.batched:
        line = _table(g, len(w.batch), [(w.shape[a], w.batching[a], (1,))], {a: (1,)})
        found[a] = _expand(g, line, (*w.batch, 1))
    return [found[a] for a in units]


def _linear(g: Builder, start: Ints, units: Sequence[Dims]) -> Ints | None:
    """The product of index vectors with a matrix of units, which moves a component or multiplies it by a stride."""
    if not units:
        return None
    is_known = all(is_static(u) for u in units)
    matrix = np.asarray(units, np.int64) if is_known else None
    if matrix is not None and np.array_equal(matrix, np.eye(len(units))):
        return start
    if matrix is not None and isinstance(start, np.ndarray):
        return start @ matrix
    start = as_val(g, start)
    if start.columns is not None:
        parts = [
            c if all(map(is_one, u)) else g.Mul(c, g.shape_of(u)) for c, u in zip(start.columns, units, strict=True)
        ]
        return functools.reduce(g.Add, parts)
    if len(units) == 1:
        return g.Mul(start, g.shape_of(units[0]))
    if matrix is not None:
        return g.MatMul(start, matrix)
    return g.MatMul(start, g.reshape(g.shape_of([u[0] for u in units]), (len(units), 1)))  # strides: single numbers


def _table(g: Builder, rank: int, parts: Sequence[tuple[Any, int, Dims]], units: Units) -> Ints:
    """The sum over `parts` (size, axis, unit) of a counter along this axis, in these units, with a last axis for the
    unit. What is small is a constant; counters along long or symbolic axes are computed by the model."""
    depth = len(next(iter(units.values())))
    known = np.zeros((1,) * rank + (depth,), np.int64)
    computed: list[Val] = []
    for size, axis, unit in sorted(parts, key=lambda p: p[0] if isinstance(p[0], int) else 2**62):
        if is_static((size, *unit)) and known.size * size * 8 <= MAX_BYTES:
            line = np.arange(size).reshape([-1 if i == axis else 1 for i in range(rank)] + [1])
            known = known + line * np.asarray(unit, np.int64)
        else:
            (stride,) = unit  # coordinates are only used where all is small
            steps = g.iota(size) if is_one(stride) else g.Mul(g.iota(size), g.dim(stride))
            computed.append(g.unsqueeze(steps, range(1, rank - axis + 1)))
    total: Ints = known
    for count in computed:
        total = add(g, total, count)
    return total


# ------------------------------------------------------------------------------------------- arithmetic on known or not


def as_val(g: Builder, x: Ints) -> Val:
    """An operand for a node."""
    return g.const(x) if isinstance(x, np.ndarray) else x


def add(g: Builder, a: Ints, b: Ints) -> Ints:
    """The sum, with broadcasting."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a + b
    for x, y in ((a, b), (b, a)):
        if (
            isinstance(y, np.ndarray)
            and not y.any()
            and all(is_one(d) for d in y.shape[:-1])
            and y.ndim <= len(x.shape)
        ):
            return x
    return g.Add(a, b)


def counter(g: Builder, size: Any) -> Ints:
    """0, 1, ..., size - 1."""
    value = g.iota(size)
    return value if value.const is None else value.const


def unsqueeze(g: Builder, x: Ints, axes: Sequence[int]) -> Ints:
    """`x` with axes of size 1 inserted."""
    return np.expand_dims(x, tuple(axes)) if isinstance(x, np.ndarray) else g.unsqueeze(x, axes)


def _expand(g: Builder, x: Ints, shape: Dims) -> Ints:
    if tuple(x.shape) == shape:
        return x
    if isinstance(x, np.ndarray) and is_static(shape) and math.prod(shape) * 8 <= MAX_BYTES:
        return np.broadcast_to(x, shape)
    return g.expand(as_val(g, x), shape)
