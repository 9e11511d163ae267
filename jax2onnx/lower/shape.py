"""Primitives that rearrange elements without computing with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

from jax2onnx import compat
from jax2onnx.lower.context import Builder, Val
from jax2onnx.lower.interleave import spread
from jax2onnx.lower.registry import lowers

TO_THE_FRONT, TO_THE_END = -(2**63), 2**63 - 1
"""The end of a Slice with a negative step that includes element 0."""


@lowers(lax.reshape_p)
def reshape(g: Builder, x: Val, *, new_sizes: Sequence[Any], dimensions: Sequence[int] | None, **_: Any) -> Val:
    """Another shape, after an optional permutation of the axes."""
    return g.reshape(x if dimensions is None else g.transpose(x, dimensions), new_sizes)


@lowers(lax.broadcast_in_dim_p)
def broadcast_in_dim(
    g: Builder, x: Val, *_: Val, shape: Sequence[Any], broadcast_dimensions: Sequence[int], **__: Any
) -> Val:
    """Axis i of the operand is axis broadcast_dimensions[i] of the result; the rest is repeated."""
    shape = tuple(shape)
    x = g.transpose(x, sorted(range(x.rank), key=broadcast_dimensions.__getitem__))
    broadcast_dimensions = sorted(broadcast_dimensions)
    added = [i for i in range(len(shape)) if i not in broadcast_dimensions]
    if x.shape == tuple(shape[i] for i in broadcast_dimensions) and all(
        isinstance(shape[i], int) and shape[i] == 1 for i in added
    ):
        return g.unsqueeze(x, added)  # nothing is repeated
    if broadcast_dimensions:
        # Axes before the first one need no Unsqueeze: ONNX aligns shapes at their ends.
        first = broadcast_dimensions[0]
        x = g.unsqueeze(x, [i - first for i in added if i > first])
    return g.expand(x, shape)


@lowers(lax.transpose_p)
def transpose(g: Builder, x: Val, *, permutation: Sequence[int]) -> Val:
    """Permute the axes."""
    return g.transpose(x, permutation)


@lowers(lax.squeeze_p)
def squeeze(g: Builder, x: Val, *, dimensions: Sequence[int]) -> Val:
    """Remove axes of size 1."""
    return g.squeeze(x, dimensions)


@lowers(*compat.kinds.primitives("expand_dims"))
def expand_dims(g: Builder, x: Val, *, dimensions: Sequence[int]) -> Val:
    """Insert axes of size 1."""
    return g.unsqueeze(x, dimensions)


@lowers(lax.concatenate_p)
def concatenate(g: Builder, *xs: Val, dimension: int) -> Val:
    """Join along an axis, leaving out what is empty."""
    full = [x for x in xs if not (isinstance(x.shape[dimension], int) and x.shape[dimension] == 0)] or xs[:1]
    if len(full) == 1:
        return full[0]
    result = g.Concat(*full, axis=dimension)
    if dimension == result.rank - 1 and result.shape[-1] == len(full):
        result.columns = full
    return result


@lowers(lax.split_p)
def split(g: Builder, x: Val, *, sizes: Sequence[Any], axis: int) -> list[Val]:
    """Cut an axis into pieces."""
    return [x] if len(sizes) == 1 else g.Split(x, tuple(sizes), axis=axis)


@lowers(lax.tile_p)
def tile(g: Builder, x: Val, *, reps: Sequence[Any]) -> Val:
    """Repeat along each axis."""
    return g.Tile(x, tuple(reps))


@lowers(lax.slice_p)
def slice_(
    g: Builder, x: Val, *, start_indices: Sequence[Any], limit_indices: Sequence[Any], strides: Sequence[int] | None
) -> Val:
    """x[start:limit:stride] along each axis."""
    steps = strides or [1] * x.rank
    cut = [
        i
        for i in range(x.rank)
        if not (_is_zero(start_indices[i]) and limit_indices[i] == x.shape[i] and steps[i] == 1)
    ]
    shape = g.avals_out[0].shape
    if x.small:  # expanded: only what it is expanded from is cut, and that may have nothing to cut
        x = g.expanded_from(x)
        cut = [i for i in cut if not (isinstance(x.shape[i], int) and x.shape[i] == 1)]
    if cut:
        x = g.Slice(
            x,
            tuple(start_indices[i] for i in cut),
            tuple(limit_indices[i] for i in cut),
            tuple(cut),
            *([tuple(steps[i] for i in cut)] if any(steps[i] != 1 for i in cut) else []),
            out=(tuple(shape[i] if i in cut else d for i, d in enumerate(x.shape)), x.dtype),
        )
    return g.expand(x, shape)


@lowers(lax.rev_p)
def rev(g: Builder, x: Val, *, dimensions: Sequence[int]) -> Val:
    """Reverse axes: a Slice from the last element to the front."""
    axes = [d for d in dimensions if not (isinstance(x.shape[d], int) and x.shape[d] <= 1)]
    if not axes:
        return x
    n = len(axes)
    return g.Slice(x, (-1,) * n, (TO_THE_FRONT,) * n, tuple(axes), (-1,) * n, out=(x.shape, x.dtype))


@lowers(lax.pad_p)
def pad(g: Builder, x: Val, value: Val, *, padding_config: Sequence[tuple[Any, Any, int]]) -> Val:
    """Elements between the elements, then at the ends, where a negative amount cuts off."""
    result = _pad(g, x, value, padding_config)
    if result is not x:
        result.spread = spread(x, value, padding_config)
    return result


def _pad(g: Builder, x: Val, value: Val, padding_config: Sequence[tuple[Any, Any, int]]) -> Val:
    for axis, (_, _, interior) in enumerate(padding_config):
        if interior:
            x = _pad_interior(g, x, value, axis, interior)
    cut_low = [compat.dims.non_negative(-low) for low, _, _ in padding_config]
    cut_high = [compat.dims.non_negative(-high) for _, high, _ in padding_config]
    axes = [i for i in range(x.rank) if not (_is_zero(cut_low[i]) and _is_zero(cut_high[i]))]
    add_low = [compat.dims.non_negative(low) for low, _, _ in padding_config]
    add_high = [compat.dims.non_negative(high) for _, high, _ in padding_config]
    pads_first = [low + d for low, d in zip(add_low, x.shape, strict=True)]
    # Padding first and cutting afterwards is right also where the cut reaches into the padding on the other side.
    padded = tuple(p + high for p, high in zip(pads_first, add_high, strict=True))
    # As JAX writes it: symbolic amounts may cancel out in the sum, which they do not when they are clipped first.
    final = tuple(low + high + size for (low, high, _), size in zip(padding_config, x.shape, strict=True))
    if not all(map(_is_zero, (*add_low, *add_high))):
        x = g.Pad(x, (*add_low, *add_high), value, out=(padded if axes else final, x.dtype))
    if axes:
        starts = tuple(cut_low[i] for i in axes)
        ends = tuple(padded[i] - cut_high[i] for i in axes)
        x = g.Slice(x, starts, ends, tuple(axes), out=(final, x.dtype))
    return x


def _pad_interior(g: Builder, x: Val, value: Val, axis: int, interior: int) -> Val:
    """Put `interior` copies of `value` after each element but the last: a new axis is padded and merged."""
    size = x.shape[axis]
    if isinstance(size, int) and size <= 1:
        return x
    split_shape = (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :])
    wide = g.reshape(x, split_shape)
    rank = len(split_shape)
    pads = (0,) * (rank + axis + 1) + (interior,) + (0,) * (rank - axis - 2)
    wide = g.Pad(wide, pads, value)
    merged = g.reshape(wide, (*x.shape[:axis], size * (interior + 1), *x.shape[axis + 1 :]))
    # An axis that turns out empty stays empty.
    length = compat.dims.non_negative(size * (interior + 1) - interior)
    return g.slice_axis(merged, axis, 0, length)


@lowers(lax.iota_p)
def iota(g: Builder, *_: Val, dtype: Any, shape: Sequence[Any], dimension: int, **__: Any) -> Val:
    """The index along one axis."""
    index = g.iota(shape[dimension], np.dtype(dtype))
    return g.expand(g.unsqueeze(index, range(1, len(shape) - dimension)), shape)


def _is_zero(dim: Any) -> bool:
    return isinstance(dim, int) and dim == 0


@lowers(*compat.kinds.primitives("stack"))
def stack(g: Builder, *xs: Val, axis: int) -> Val:
    """Join along a new axis."""
    return g.Concat(*(g.unsqueeze(x, [axis]) for x in xs), axis=axis)


@lowers(*compat.kinds.primitives("unstack"))
def unstack(g: Builder, x: Val, *, axis: int, **_: Any) -> list[Val]:
    """The pieces along an axis, without it."""
    size = x.shape[axis]
    pieces = [x] if size == 1 else g.Split(x, (1,) * size, axis=axis)
    return [g.squeeze(piece, [axis]) for piece in pieces]


@lowers(*compat.kinds.primitives("broadcast_to"))
def broadcast_to(g: Builder, x: Val, **_: Any) -> Val:
    """Repeat along axes of size 1 and new leading axes."""
    return g.expand(x, g.avals_out[0].shape)
