"""One window that is written into an operand at a time: what is around it is joined with it, or nothing is added there.

A ScatterND reads the place of every row that it writes. A window is cut from its operand along few axes, often one, so
that a few nodes that copy whole rows do the same.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from jax2onnx.dimensions import is_static, likely_size
from jax2onnx.lower.context import Builder, Val
from jax2onnx.lower.dtypes import BOOL, INT64, highest, is_float, lowest
from jax2onnx.lower.indexing import Ints, Windows, product

SET, ADD, MUL, MIN, MAX = "none", "add", "mul", "min", "max"
"""What happens to the old value, as ONNX calls it."""

FEW_ROWS = 64
"""So many rows ScatterND writes in the time that two more nodes take."""

FEW_PLACES = 256
"""Of so many rows, `ScatterND` is as good as anything."""

LONG = 2048
"""Of more rows than this, copying what is around them is cheaper than writing each."""

PADDED = 13
MORE_NODES = 2300
"""In the time in which ScatterND adds to one row, so many elements are padded and added, and a further node takes as
long as so many elements (`targets/FACTS.md`)."""


def write_block(g: Builder, w: Windows, x: Val, start: Ints, update: Val, last: int, combine: str) -> Val | None:
    """`x` with `update` combined into its only window, if that is better not done by ScatterND. The axes behind `last`
    are written as a whole."""
    if not w.moving and not w.cut:
        return combined(g, x, update, combine)
    if isinstance(start, np.ndarray) and is_static((*x.shape, *w.sizes)):
        at = dict(zip(w.moving, start.reshape(-1), strict=True))
        before = [int(at.get(a, 0)) for a in range(x.rank)]
        behind = [d - s - b for d, s, b in zip(x.shape, w.sizes, before, strict=True)]
        pads = np.asarray([*before, *behind], np.int64)
        if (filling := _filling(w, x)) is not None:
            return g.Pad(combined(g, g.const(filling), update, combine), pads, filling, out=(x.shape, x.dtype))
        if not _is_free(x) and (nothing := _neutral(x.dtype, combine)) is not None:
            if not _is_large(w, last):
                return None
            return combined(g, x, g.Pad(update, pads, nothing, out=(x.shape, x.dtype)), combine)
    if _is_long(w, last) or _joins(w, x, start, last):
        return _replace(g, w, x, start, update, combine)
    if combine == SET and isinstance(start, np.ndarray) and FEW_PLACES < product(w.sizes[: last + 1]) <= LONG:
        at = dict(zip(w.moving, start.reshape(-1), strict=True))
        grid = np.moveaxis(np.indices(w.sizes[: last + 1]), 0, -1) + [int(at.get(a, 0)) for a in range(last + 1)]
        return g.ScatterND(x, grid, update)  # the optimizer may find better ways to write a block
    return None


def _neutral(dtype: np.dtype, combine: str) -> np.ndarray | None:
    """What leaves every number as it is, -0.0 and NaN as well, if there is such a number, and combining is one node:
    for the larger ones of int64 it is not."""
    if combine in (ADD, MUL):
        return np.asarray({ADD: -0.0 if is_float(dtype) else 0, MUL: 1}[combine], dtype)
    if combine == SET or dtype == INT64:
        return None
    found = {MIN: highest, MAX: lowest}[combine](dtype)
    return None if np.isnan(found) else found  # some floats have no infinity


def _is_large(w: Windows, last: int) -> bool:
    """Does a window have so many rows that it is faster to pad it, and to combine it with all of the operand?"""
    return PADDED * product(w.sizes[: last + 1]) > product(w.shape) + MORE_NODES


def _is_long(w: Windows, last: int) -> bool:
    """Does one window have so many rows that copying the operand around it is cheaper than writing each row?"""
    rows = product(w.sizes[: last + 1])
    return not is_static(w.sizes[: last + 1]) or (rows > LONG and 32 * rows > likely_size(w.shape))


def _joins(w: Windows, x: Val, start: Ints, last: int) -> bool:
    """Is one window at a known place better joined with what is around it? That takes a Slice for each side. Nothing is
    to be cut from a known array, and a Concat is just made of other parts."""
    if not isinstance(start, np.ndarray) or len({*w.moving, *w.cut}) != 1 or not is_static(x.shape):
        return False
    return _is_free(x) or product(w.sizes[: last + 1]) > FEW_ROWS


def _is_free(x: Val) -> bool:
    """Can `x` be cut at no cost?"""
    source = x.value.producer()
    return x.value.const_value is not None or (source is not None and source.op_type in ("Concat", "Expand"))


def _filling(w: Windows, x: Val) -> np.ndarray | None:
    """The number that all of `x` is, if the window is cut along several axes. (Along one, a Concat shows more.)"""
    if len({*w.moving, *w.cut}) < 2 or not is_static((*x.shape, *w.sizes)):
        return None
    source = x.value.producer()
    number = source.inputs[0] if source is not None and source.op_type == "Expand" else None
    if number is None or number.const_value is None or number.const_value.size != 1:
        return None
    return number.const_value.numpy().reshape(())


def _replace(g: Builder, w: Windows, x: Val, start: Ints, update: Val, combine: str) -> Val:
    """What is before the window, the window, what is behind it: axis by axis, the outermost first."""
    axes = [a for a in range(x.rank) if a in w.moving or a in w.cut]
    starts: list[Any] = [0] * x.rank
    for i, axis in enumerate(w.moving):
        starts[axis] = int(start.reshape(-1)[i]) if isinstance(start, np.ndarray) else _component(g, start, i)

    def inside(x: Val, axes: list[int]) -> Val:
        if not axes:
            return combined(g, x, update, combine)
        axis, begin = axes[0], starts[axes[0]]
        size, total = w.sizes[axis], x.shape[axis]
        if isinstance(begin, Val):
            end = g.Add(begin, g.shape_of((size,)))
            before = g.Slice(x, (0,), begin, (axis,), out=(_resized(x, axis, None), x.dtype))
            middle = functools.partial(g.Slice, x, begin, end, (axis,), out=(_resized(x, axis, size), x.dtype))
            behind = g.Slice(x, end, (total,), (axis,), out=(_resized(x, axis, None), x.dtype))
        else:
            before = g.slice_axis(x, axis, 0, begin)
            middle = functools.partial(g.slice_axis, x, axis, begin, begin + size)
            behind = g.slice_axis(x, axis, begin + size, total)
        needs_old = axes[1:] or combine != SET
        parts = [before, inside(middle(), axes[1:]) if needs_old else update, behind]
        parts = [p for p in parts if not (isinstance(p.shape[axis], int) and p.shape[axis] == 0)]
        return parts[0] if len(parts) == 1 else g.Concat(*parts, axis=axis, out=(x.shape, x.dtype))

    return inside(x, axes)


def _component(g: Builder, start: Val, i: int) -> Val:
    vector = g.reshape(start, (start.shape[-1],))
    return vector if vector.shape[0] == 1 else g.slice_axis(vector, 0, i, i + 1)


def _resized(x: Val, axis: int, size: Any) -> tuple[Any, ...]:
    return (*x.shape[:axis], size, *x.shape[axis + 1 :])


def combined(g: Builder, old: Val, new: Val, combine: str) -> Val:
    """The new value of each element."""
    if combine == SET:
        return new
    if old.dtype == BOOL:
        return {MIN: g.And, MAX: g.Or}[combine](old, new)
    return {ADD: g.Add, MUL: g.Mul, MIN: g.Min, MAX: g.Max}[combine](old, new)
