"""`scatter` and its relatives: windows written into an operand, as ScatterND, ScatterElements or Concat.

JAX applies the updates in the order of their indices. ONNX leaves the order open, and what ONNX Runtime does matters
where windows overlap: its ScatterElements goes in order, but takes ten times as long for rows as its ScatterND. That
goes in order up to a number of elements, and above it shares the work between threads that do not wait for each other.
So ScatterND is used where windows cannot overlap, and otherwise for so few elements at a time; for many single elements
ScatterElements is the faster one.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from jax import lax

from jax2onnx.decompose.scatter import scatter_windows_in_order
from jax2onnx.dimensions import is_static, likely_size
from jax2onnx.errors import UnsupportedError
from jax2onnx.lower.context import Builder, Val
from jax2onnx.lower.dtypes import BOOL, INT64, is_float, is_unsigned
from jax2onnx.lower.indexing import (
    MODES,
    Ints,
    Windows,
    along_counters,
    are_some_inside,
    arrange,
    as_val,
    coordinates,
    is_one,
    is_small_grid,
    locate,
    moved_inside,
    positions,
    product,
    strides,
    with_own_axis,
)
from jax2onnx.lower.indexing_block import ADD, MAX, MIN, MUL, SET, combined, write_block
from jax2onnx.lower.indexing_gather import SHORT_ROW
from jax2onnx.lower.registry import lowers

IN_ORDER_UP_TO = 100_000
"""Up to half as many elements as ONNX Runtime's ScatterND shares between threads."""

FEW_TURNS = 8
"""So many ScatterNDs are written one after the other: each in place of the one before. A loop copies each result."""

LARGE_OPERAND = 16 * 1024 * 1024
"""Above this many elements, what ScatterND copies each time takes longer than what ScatterElements does."""

MANY = 256
"""Above this many, ScatterElements writes single elements in two thirds of the time."""

SPARE_ROWS_UP_TO = 2
"""Copying so many times as many elements as there are updates takes no longer than picking the updates to be seen."""

SMALL_OPERAND = 16 * 1024
"""Up to this many elements, selecting between the old and the new operand is cheaper than anything cleverer."""


def _rule(combine: str, prepare: Callable[[Builder, Val], Val] | None = None) -> Callable[..., Val]:
    def scatter(
        g: Builder,
        x: Val,
        indices: Val,
        updates: Val,
        *,
        dimension_numbers: Any,
        mode: Any,
        unique_indices: bool,
        **_: Any,
    ) -> Val:
        if mode not in MODES:
            raise UnsupportedError(f"scatter with mode {mode}")
        if prepare is not None:
            updates = prepare(g, updates)
        w = scatter_windows(x.shape, indices.shape, updates.shape, dimension_numbers)
        given = indices
        w, indices = along_counters(g, w, given)
        drops = mode != lax.GatherScatterMode.CLIP
        if combine in (MIN, MAX) and g.opset < 18 and not (unique_indices or w.never_overlap):
            step = functools.partial(
                scatter_windows_in_order,
                {MIN: lax.min, MAX: lax.max}[combine],
                dimension_numbers=dimension_numbers,
                mode=mode,
                unique_indices=False,
            )
            return g.call_jax(step, x, given, updates)
        if not drops and not are_some_inside(w):
            indices, drops = moved_inside(g, w, indices), True
        return write(g, w, x, indices, updates, combine, drops=drops, unique=unique_indices)

    return scatter


def _negative(g: Builder, x: Val) -> Val:
    return g.Sub(np.zeros((), x.dtype), x) if is_unsigned(x.dtype) else g.Neg(x)


lowers(lax.scatter_p)(_rule(SET))  # with another computation than "the update", it is decomposed
lowers(lax.scatter_add_p)(_rule(ADD))
lowers(lax.scatter_sub_p)(_rule(ADD, _negative))
lowers(lax.scatter_mul_p)(_rule(MUL))
lowers(lax.scatter_min_p)(_rule(MIN))
lowers(lax.scatter_max_p)(_rule(MAX))


def scatter_windows(operand_shape: Any, indices_shape: Any, updates_shape: Any, numbers: Any) -> Windows:
    """What the dimension numbers of a scatter mean."""
    batching = dict(
        zip(map(int, numbers.operand_batching_dims), map(int, numbers.scatter_indices_batching_dims), strict=True)
    )
    dropped = {*numbers.inserted_window_dims, *batching}
    kept = tuple(a for a in range(len(operand_shape)) if a not in dropped)
    layout = tuple(map(int, numbers.update_window_dims))
    sizes = [1] * len(operand_shape)
    for axis, place in zip(kept, layout, strict=True):
        sizes[axis] = updates_shape[place]
    return Windows(
        shape=tuple(operand_shape),
        sizes=tuple(sizes),
        batch=tuple(indices_shape[:-1]),
        starts=tuple(map(int, numbers.scatter_dims_to_operand_dims)),
        batching=batching,
        kept=kept,
        layout=layout,
    )


def write(
    g: Builder, w: Windows, x: Val, indices: Val, updates: Val, combine: str, *, drops: bool, unique: bool = False
) -> Val:
    """`x` with `updates` combined into its windows `w`. Windows that are not inside are left out if it `drops`, else
    moved inside. With `unique`, somebody promises that windows do not overlap."""
    if 0 in x.shape or 0 in updates.shape:
        return x
    if not w.shape:
        row = dataclasses.replace(w, shape=(1,), sizes=(1,))
        return g.reshape(write(g, row, g.reshape(x, (1,)), indices, updates, combine, drops=drops), ())
    if (own := with_own_axis(w)) is not None:
        wider, axis = own
        index, updates = g.unsqueeze(indices, [axis]), g.unsqueeze(updates, [axis])
        return write(g, wider, x, index, updates, combine, drops=drops, unique=unique)
    if drops and indices.const is None and (longer := _with_spare_rows(g, w, x, updates)) is not None:
        start, _ = locate(g, w, indices, check=False, margin=1)
        u = arrange(g, updates, w.order, [*w.batch_axes, *range(1, x.rank)])
        wider = dataclasses.replace(w, shape=longer.shape)
        return g.slice_axis(_scatter(g, wider, longer, start, None, u, 0, combine, unique=unique), 0, 0, x.shape[0])
    start, valid = locate(g, w, indices, check=drops)
    last = max((*w.moving, *w.batched, *w.cut), default=0)  # the axes behind it are written as a whole
    rest = range(last + 1, x.rank)
    u = arrange(g, updates, w.order, [*w.batch_axes, *(a for a in w.kept if a <= last), *rest])
    if w.is_single:
        if isinstance(valid, np.ndarray):
            return x
        whole = g.reshape(u, w.sizes) if u.rank != x.rank or u.shape != w.sizes else u
        replaced = write_block(g, w, x, start, whole, last, combine)
        if replaced is not None or (valid is not None and is_static(x.shape) and product(x.shape) <= SMALL_OPERAND):
            if replaced is None:
                replaced = _scatter(g, w, x, start, None, u, last, combine, unique=True)
            return replaced if valid is None else g.Where(g.reshape(valid, ()), replaced, x)
    elif isinstance(valid, Val) and combine == ADD and are_some_inside(w) and _adds_zeros(x, u.shape[len(w.batch) :]):
        mask = g.unsqueeze(valid, range(len(w.batch), u.rank))
        u, valid = g.Where(mask, u, np.zeros((), u.dtype)), None
    return _scatter(g, w, x, start, valid, u, last, combine, unique=unique or w.never_overlap)


def _adds_zeros(x: Val, row: tuple[Any, ...]) -> bool:
    """Can updates to be left out, of this shape, be zeros that are added instead? (That would change -0.0.)"""
    known = (x.small or x).const
    is_kept = known is not None and known.size <= SMALL_OPERAND and not np.any((known == 0) & np.signbit(known))
    is_exact = is_kept if is_float(x.dtype) else x.dtype != BOOL
    return is_static(row) and product(row) <= SHORT_ROW and bool(is_exact)


def _with_spare_rows(g: Builder, w: Windows, x: Val, updates: Val) -> Val | None:
    """An operand with two more rows, for updates that are to be left out: one behind the end, and one for the index -1.

    Only where windows are rows, where there are enough of them to pay for cutting the two off again, and where the
    operand is the same in all rows, so that a longer one is as cheap.
    """
    rows, *row = x.shape
    along_first = w.starts == w.moving == (0,) and not w.batched and not w.cut
    if not along_first or not is_one(w.sizes[0]) or w.is_single:
        return None
    if x.small is None or (x.small.rank == x.rank and not is_one(x.small.shape[0])):
        return None
    are_many = likely_size(x.shape) <= SPARE_ROWS_UP_TO * likely_size(updates.shape)
    return g.expand(x.small, (rows + 2, *row)) if are_many else None


# ------------------------------------------------------------------------------------------------------- any windows


def _scatter(
    g: Builder, w: Windows, x: Val, start: Ints, valid: Ints | None, u: Val, last: int, combine: str, *, unique: bool
) -> Val:
    """The axes up to `last` are addressed by position, the rest of a position is written as a whole."""
    unique = unique or _are_distinct(g, w, start, valid)
    if w.is_along_axis and valid is None:
        index = g.squeeze(as_val(g, start), [len(w.batch)])
        u = g.squeeze(u, range(index.rank, u.rank))  # axes of size 1, which the batch has, too
        return _emit(g, "Elements", x, index, u, combine, unique=unique, axis=w.moving[0])
    in_order = unique or (is_static(u.shape) and product(u.shape) <= IN_ORDER_UP_TO)
    addressed = range(last + 1)
    units = coordinates(addressed)
    if not in_order or not is_small_grid(w, units):
        units = strides(w.shape, addressed)
    inner = x.shape[last + 1 :]
    rows_of_updates = product(u.shape[: u.rank - len(inner)])
    keep = None
    if valid is not None:
        keep = functools.partial(_keep, g, valid, len(w.batch))
        u = keep(u)
    index = as_val(g, positions(g, w, start, units, keep))
    rows = x if index.shape[-1] == last + 1 else g.reshape(x, (product(x.shape[: last + 1]), *x.shape[last + 1 :]))
    are_elements = rows.rank == 1 and likely_size(u.shape) >= MANY
    if in_order and not are_elements:
        result = _emit(g, "ND", rows, index, u, combine, unique=unique)
    else:
        u = _flatten(g, u, u.rank - len(inner))
        index = _flatten(g, index, index.rank - 1)
        is_large = is_static(rows.shape) and product(rows.shape) > LARGE_OPERAND
        if is_static(inner) and product(inner) > 1 and not is_large:
            result = _in_turns(g, rows, index, u, rows_of_updates, combine)
        else:
            index = g.squeeze(index, [1])
            if inner:
                index = g.unsqueeze(index, range(1, 1 + len(inner)))
                index = g.op("Expand", index, g.op("Shape", u), out=(u.shape, INT64))
            result = _emit(g, "Elements", rows, index, u, combine, unique=unique, axis=0)
    return g.reshape(result, x.shape)


def _in_turns(g: Builder, x: Val, index: Val, u: Val, count: Any, combine: str) -> Val:
    """As many of the (at most `count`) updates at a time as ScatterND writes in order: in a loop, if they are many."""
    at_a_time = max(1, IN_ORDER_UP_TO // product(u.shape[1:]))
    if is_static(u.shape) and count <= FEW_TURNS * at_a_time:
        for begin in range(0, count, at_a_time):
            some_index, some = (g.slice_axis(a, 0, begin, min(begin + at_a_time, count)) for a in (index, u))
            x = _emit(g, "ND", x, some_index, some, combine, unique=False)
        return x
    body = g.child()
    turn = body.input((), INT64)
    goes_on = body.input((), BOOL)
    old = body.input(x.shape, x.dtype)
    begin = body.Mul(turn, np.asarray([at_a_time], np.int64))
    end = body.Add(begin, np.asarray([at_a_time], np.int64))
    some_index, some = (
        body.Slice(array, begin, end, (0,), out=((None, *array.shape[1:]), array.dtype)) for array in (index, u)
    )
    new = _emit(body, "ND", old, some_index, some, combine, unique=False)
    turns = g.dim((count + at_a_time - 1) // at_a_time)
    graph = body.graph([goes_on, new], "body", forwards=True)
    return g.Loop(turns, None, x, body=graph, out=[(x.shape, x.dtype)])[0]


def _are_distinct(g: Builder, w: Windows, start: Ints, valid: Ints | None) -> bool:
    """Are all positions known, and is none written twice?"""
    units = strides(w.shape, range(len(w.shape)))
    if not isinstance(start, np.ndarray) or isinstance(valid, Val) or not is_static(w.shape):
        return False
    if not is_static(w.batch) or not is_small_grid(w, units):
        return False
    written = positions(g, w, start, units, None if valid is None else functools.partial(_keep, g, valid, len(w.batch)))
    return isinstance(written, np.ndarray) and np.unique(written).size == written.size


def _keep(g: Builder, valid: Ints, rank: int, x: Ints) -> Any:
    """The part of `x` that is valid. The first `rank` axes become one."""
    if isinstance(valid, np.ndarray):
        if isinstance(x, np.ndarray):
            return x[valid]
        return g.Gather(_flatten(g, x, rank), np.flatnonzero(valid), axis=0)
    x = as_val(g, x)
    flat = _flatten(g, x, rank)
    condition = _flatten(g, valid, rank)
    return g.Compress(flat, condition, axis=0, out=((None, *flat.shape[1:]), x.dtype))


def _flatten(g: Builder, x: Val, rank: int) -> Val:
    """The first `rank` axes as one."""
    front = x.shape[:rank]
    if rank == 1:
        return x
    if None not in front:
        return g.reshape(x, (product(front), *x.shape[rank:]))
    inner = x.shape[rank:]
    out = ((None, *inner), x.dtype)
    if is_static(inner):  # else it may be 0, beside which "the rest" is not defined
        return g.op("Reshape", x, g.shape_of((-1, *inner)), out=out)
    kept = g.op("Shape", x, start=0, end=1, out=((1,), INT64))  # the size that is not known is the first
    count = g.Mul(kept, g.shape_of((product(front[1:]),)))
    return g.op("Reshape", x, g.Concat(count, g.shape_of(inner), axis=0), allowzero=1, out=out)


# ------------------------------------------------------------------------------------------- combining old and new


def _emit(g: Builder, kind: str, x: Val, index: Val, u: Val, combine: str, *, unique: bool, **attributes: Any) -> Val:
    """ScatterND or ScatterElements, in the form in which ONNX Runtime agrees with JAX for this dtype."""

    def scatter(x: Val, u: Val, reduction: str) -> Val:
        chosen = None if reduction == SET else reduction
        return g.op("Scatter" + kind, x, index, u, reduction=chosen, **attributes)

    is_extremum = combine in (MIN, MAX)
    if unique and is_extremum and (is_float(x.dtype) or x.dtype == BOOL or g.opset < 18):
        old = g.op("Gather" + kind, x, index, **attributes)
        return scatter(x, combined(g, old, u, combine), SET)
    if is_extremum and x.dtype == BOOL:
        byte = np.dtype(np.uint8)
        return g.cast(scatter(g.cast(x, byte), g.cast(u, byte), combine), BOOL)
    if is_extremum and is_float(x.dtype):
        # A NaN may get lost on the way. It does not when numbers are added: here zeros, which are NaN where u is.
        nan, zero = np.asarray(np.nan, x.dtype), np.zeros((), x.dtype)
        poisoned = scatter(x, g.Clip(u, zero, zero), ADD)
        return g.Where(g.IsNaN(poisoned), nan, scatter(x, u, combine))
    return scatter(x, u, combine)
