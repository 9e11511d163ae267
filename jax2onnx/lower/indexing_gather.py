"""`gather`: windows read from an operand, as Slice, Gather, GatherElements or GatherND."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

from jax2onnx import compat
from jax2onnx.dimensions import is_static, likely_size
from jax2onnx.errors import UnsupportedError
from jax2onnx.lower.context import Builder, Val
from jax2onnx.lower.indexing import (
    MODES,
    Ints,
    Windows,
    add,
    along_counters,
    arrange,
    as_val,
    coordinates,
    counter,
    is_one,
    is_small_grid,
    locate,
    positions,
    product,
    strides,
    with_own_axis,
)
from jax2onnx.lower.progressions import Progression, ends, progression
from jax2onnx.lower.registry import lowers
from jax2onnx.lower.shape import TO_THE_END, TO_THE_FRONT
from jax2onnx.permutations import inverse, permuted

MANY = 256
"""Fewer elements are not worth another node."""

SHORT_ROW = 8
"""Longer rows are copied by Gather in no more time than element by element."""

MANY_ROWS, FEW_COLUMNS = 8192, 4
"""So many rows of so few elements are worth computing where each of their elements is."""

Labelled = tuple[Val, list[int]]
"""A value and what its axes are: `a` for an axis of the operand, `~i` for one of the batch."""


@lowers(lax.gather_p)
def gather(
    g: Builder,
    x: Val,
    indices: Val,
    *,
    dimension_numbers: Any,
    slice_sizes: Any,
    mode: Any,
    fill_value: Any,
    **_: Any,
) -> Val:
    """The windows at `indices`. Outside of the operand: its last window ("clip"), or `fill_value` ("fill")."""
    if mode not in MODES:
        raise UnsupportedError(f"gather with mode {mode}")
    shape = g.avals_out[0].shape
    if 0 in shape:
        return g.full(shape, 0, x.dtype)
    w = gather_windows(x.shape, indices.shape, dimension_numbers, slice_sizes)
    w, indices = along_counters(g, w, indices)
    fills = mode == lax.GatherScatterMode.FILL_OR_DROP
    if fills:
        indices = _narrow(g, indices, x)
    return read(g, w, x, indices, fill_value if fills else None)


def gather_windows(operand_shape: Any, indices_shape: Any, numbers: Any, slice_sizes: Any) -> Windows:
    """What the dimension numbers of a gather mean."""
    batching = dict(
        zip(map(int, numbers.operand_batching_dims), map(int, numbers.start_indices_batching_dims), strict=True)
    )
    dropped = {*numbers.collapsed_slice_dims, *batching}
    return Windows(
        shape=tuple(operand_shape),
        sizes=tuple(slice_sizes),
        batch=tuple(indices_shape[:-1]),
        starts=tuple(map(int, numbers.start_index_map)),
        batching=batching,
        kept=tuple(a for a in range(len(operand_shape)) if a not in dropped),
        layout=tuple(map(int, numbers.offset_dims)),
    )


def _narrow(g: Builder, indices: Val, x: Val) -> Val:
    """JAX converts the indices of a gather that fills, so that those beyond 32 bits wrap around."""
    dtype = compat.dims.index_dtype(x.shape)
    if indices.dtype.itemsize < dtype.itemsize or indices.dtype == dtype:
        return indices
    return g.const(indices.const.astype(dtype)) if indices.const is not None else g.cast(indices, dtype)


def read(g: Builder, w: Windows, x: Val, indices: Val, fill_value: Any = None) -> Val:
    """The array of windows `w` of `x`, with `fill_value` (if there is one) for those that are not inside."""
    if w.cut:
        ends = tuple(w.sizes[a] for a in w.cut)
        x = g.Slice(x, (0,) * len(w.cut), ends, w.cut)
        w = dataclasses.replace(w, shape=x.shape)
    if (own := with_own_axis(w)) is not None:
        wider, axis = own
        return g.squeeze(read(g, wider, x, g.unsqueeze(indices, [axis]), fill_value), [axis])
    w, x = _without_transpose(w, x)
    form = _form(w)
    if form in (_one_slice, _along_axis) and (part := _even_steps(g, w, x, indices)) is not None:
        return g.expand(arrange(g, *part, w.order), tuple(map(w.size, w.order)))
    along = form is _elements_along_axis or (form is _along_axis and not _has_windows(w))
    start, valid = locate(g, w, indices, check=fill_value is not None, along=along)
    found, labels = form(g, w, x, start)
    result = g.expand(arrange(g, found, labels, w.order), tuple(map(w.size, w.order)))
    if valid is None:
        return result
    # Leading axes that the mask does not have are broadcast anyway.
    first = min((i for i, label in enumerate(w.order) if label < 0), default=0)
    mask = arrange(g, as_val(g, valid), w.batch_axes, w.order[first:])
    return g.Where(mask, result, np.asarray(fill_value, x.dtype))


def _without_transpose(w: Windows, x: Val) -> tuple[Windows, Val]:
    """The same windows of what `x` is a transpose of, if those are rows there and single elements in `x`.

    So it is where a function of an image with one channel is mapped over channels that come last.
    """
    node = x.value.producer() if x.const is None and len(w.moving) > 0 and not w.batched else None
    if node is None or node.op_type != "Transpose" or _has_windows(w) or not is_static(x.shape):
        return w, x
    perm = node.attributes.get_ints("perm")
    shape = permuted(x.shape, inverse(perm))
    moving = [perm[a] for a in w.moving]
    if product(x.shape[max(w.moving) + 1 :]) > 1 or product(shape[max(moving) + 1 :]) <= SHORT_ROW:
        return w, x
    turned = Windows(
        shape=shape,
        sizes=permuted(w.sizes, inverse(perm)),
        batch=w.batch,
        starts=tuple(perm[a] for a in w.starts),
        batching={perm[a]: i for a, i in w.batching.items()},
        kept=tuple(perm[a] for a in w.kept),
        layout=w.layout,
    )
    return turned, Val(node.inputs[0], shape, x.dtype, x.home)


def _has_windows(w: Windows) -> bool:
    return any(not is_one(w.sizes[a]) for a in w.moving)


def _form(w: Windows) -> Any:
    """The cheapest of the forms below."""
    if not w.moving:
        return _nothing_moves
    if w.is_single and (len(w.moving) > 1 or _has_windows(w)):
        return _one_slice
    if not w.batched and len(w.moving) == 1:
        return _along_axis
    if w.is_along_axis:
        return _elements_along_axis
    if not w.batched and not _has_windows(w) and is_static(w.shape) and likely_size(w.batch) >= MANY:
        return _merged_axes
    leading = (*w.batched, *w.moving) == tuple(range(len(w.batched) + len(w.moving)))
    leading = leading and all(w.batching[a] == a for a in w.batched)
    row = w.shape[len(w.batched) + len(w.moving) :]
    if leading and not _has_windows(w) and is_static([w.shape[a] for a in w.moving[1:]]) and _by_elements(row, w.batch):
        return _short_rows
    if leading and is_small_grid(w, coordinates(w.moving)):
        return _leading_axes
    return _merged_axes


def _nothing_moves(g: Builder, w: Windows, x: Val, start: Ints) -> Labelled:
    """All windows are the same part of the operand, or the part for their place in the batch."""
    return x, [~w.batching[a] if a in w.batched else a for a in range(x.rank)]


def _one_slice(g: Builder, w: Windows, x: Val, start: Ints) -> Labelled:
    """One window: Slice, which takes its start at run time too."""
    sizes = tuple(w.sizes[a] for a in w.moving)
    if isinstance(start, np.ndarray):
        first = start.reshape(-1).tolist()
        return g.Slice(x, tuple(first), tuple(f + s for f, s in zip(first, sizes, strict=True)), w.moving), list(
            range(x.rank)
        )
    start = g.reshape(start, (len(w.moving),))
    end = g.Add(start, g.shape_of(sizes))
    return g.Slice(x, start, end, w.moving, out=(w.sizes, x.dtype)), list(range(x.rank))


def _even_steps(g: Builder, w: Windows, x: Val, indices: Val) -> Labelled | None:
    """A window where a dimension says, as in x[T // 2 :], or elements in even steps from there: Slice.

    None for others, and if they may be outside.
    """
    many = [i for i, size in enumerate(w.batch) if not is_one(size)]
    if len(w.starts) != 1 or len(w.moving) != 1 or len(many) > 1 or indices.const is not None:
        return None
    count = w.batch[many[0]] if many else 1
    found = progression(g, indices, count)
    if found is None or (many and (found.step == 0 or _has_windows(w))):
        return None
    (axis,), line = w.moving, Progression(found.start, found.step if many else 1)
    length = count if many else w.sizes[axis]
    (start, step), size, last = line, w.shape[axis], line.start + (length - 1) * line.step
    low, high = ends(line, length)
    # There may be none, and then the first is not in between: it must not be negative, which counts from the end.
    if not all(compat.dims.is_at_least(d, 0) for d in (low, start, size - 1 - high)):
        return None
    rest = size - 1 - last if step > 0 else last
    is_open = compat.dims.is_at_least(abs(step) - 1 - rest, 0)
    if is_open:
        end = TO_THE_END if step > 0 else TO_THE_FRONT
    else:  # also if there are none; from the end where it may be a place before the first
        end = start + length * step - (size if step < 0 else 0)
    from_end = compat.dims.simplest_dim(start - size)
    begin = from_end if isinstance(from_end, int) and from_end < 0 else start
    if is_one(length) and isinstance(begin, int) and axis not in w.order:
        return g.Gather(x, np.asarray(begin), axis=axis), [a for a in range(x.rank) if a != axis]
    shape = tuple(length if a == axis else d for a, d in enumerate(x.shape))
    part = g.Slice(x, (begin,), (end,), (axis,), *([(step,)] if step != 1 else []), out=(shape, x.dtype))
    return part, [~many[0] if a == axis and many else a for a in range(x.rank)]


def _along_axis(g: Builder, w: Windows, x: Val, start: Ints) -> Labelled:
    """Windows that move along one axis: Gather."""
    (axis,) = w.moving
    before, behind = range(axis), range(axis + 1, x.rank)
    if not _has_windows(w):
        return _pick(g, x, as_val(g, start), axis), [*before, *w.batch_axes, *behind]
    index = as_val(g, add(g, start, counter(g, w.sizes[axis])))  # the last axis of `start` has size 1
    return _pick(g, x, index, axis), [*before, *w.batch_axes, axis, *behind]


def _elements_along_axis(g: Builder, w: Windows, x: Val, start: Ints) -> Labelled:
    """An index for each element, that moves it along one axis: GatherElements."""
    return g.GatherElements(x, as_val(g, start), axis=w.moving[0]), w.batch_axes


def _short_rows(g: Builder, w: Windows, x: Val, start: Ints) -> Labelled:
    """An index for each of many short rows, in each of several tables: GatherElements."""
    depth, behind = len(w.batched), len(w.batched) + len(w.moving)
    tables, row = x.shape[:depth], x.shape[behind:]
    alone = dataclasses.replace(w, batching={})  # the operator itself goes along the tables
    index = as_val(g, positions(g, alone, start, strides(w.shape, w.moving)))
    index = g.reshape(index, w.batch)
    index = _elements_of_rows(g, index, product(row))
    index = g.reshape(index, (*tables, product(index.shape[depth:])))
    table = g.reshape(x, (*tables, product(x.shape[depth:])))
    found = g.reshape(g.GatherElements(table, index, axis=depth), (*w.batch, *row))
    return found, [*w.batch_axes, *range(behind, x.rank)]


def _leading_axes(g: Builder, w: Windows, x: Val, start: Ints) -> Labelled:
    """Windows that move along the first axes (after those of the batch): GatherND."""
    units = coordinates(w.moving)
    free = dataclasses.replace(w, batching={})  # the operator itself goes along the batch
    index = as_val(g, positions(g, free, start, units))
    labels = [*w.batch_axes, *(a for a in w.kept if a in units), *range(max(w.moving) + 1, x.rank)]
    return g.GatherND(x, index, batch_dims=len(w.batched)), labels


def _merged_axes(g: Builder, w: Windows, x: Val, start: Ints) -> Labelled:
    """Any windows: the axes from the first to the last one along which they move are merged, then Gather."""
    addressed = (*w.moving, *w.batched)
    first, last = min(addressed), max(addressed)
    units = strides(w.shape, range(first, last + 1))
    index = as_val(g, positions(g, w, start, units))
    merged = (*x.shape[:first], product(x.shape[first : last + 1]), *x.shape[last + 1 :])
    result = _pick(g, g.reshape(x, merged), g.squeeze(index, [index.rank - 1]), first)
    return result, [*range(first), *w.batch_axes, *(a for a in w.kept if a in units), *range(last + 1, x.rank)]


def _pick(g: Builder, x: Val, index: Val, axis: int) -> Val:
    """Gather along an axis: of single elements by GatherElements, ten times as fast in ONNX Runtime."""
    before, row = x.shape[:axis], x.shape[axis + 1 :]
    shape = (*before, *index.shape, *row)
    if x.rank == index.rank == 1:
        return g.GatherElements(x, index, axis=0)
    count, length = product(before), product(row)
    is_fast = is_static(before) and (count == 1 or length == 1) and _by_elements(row, (*before, *index.shape))
    if is_fast and index.const is not None:  # a known index is stored: it must not grow
        is_fast = count == length == 1
    if not is_fast:
        return g.Gather(x, index, axis=axis)
    index = _elements_of_rows(g, index, length)
    index = g.reshape(index, (product(index.shape),))
    if count > 1:
        table = g.reshape(x, (count, x.shape[axis]))
        index = g.expand(index, (count, index.shape[0]))
    else:
        table = g.reshape(x, (x.shape[axis] * length,))
    return g.reshape(g.GatherElements(table, index, axis=table.rank - 1), shape)


def _by_elements(row: Sequence[Any], rows: Sequence[Any]) -> bool:
    """Are so many rows read faster one element at a time?"""
    if not is_static(row) or product(row) > FEW_COLUMNS:
        return False
    return likely_size(rows) >= (MANY if product(row) == 1 else MANY_ROWS)


def _elements_of_rows(g: Builder, index: Val, length: int) -> Val:
    """Where the elements of rows are, in a further axis, if rows are `length` elements one after the other."""
    if length == 1:
        return index
    first = g.Mul(g.unsqueeze(index, [index.rank]), np.asarray(length, index.dtype))
    return g.Add(first, np.arange(length, dtype=index.dtype))
