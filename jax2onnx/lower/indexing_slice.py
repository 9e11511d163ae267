"""`dynamic_slice` and `dynamic_update_slice`: one window whose start is known only when the model runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

from jax2onnx.lower.context import Builder, Val
from jax2onnx.lower.indexing import Dims, Windows
from jax2onnx.lower.indexing_gather import read
from jax2onnx.lower.indexing_scatter import SET, write
from jax2onnx.lower.registry import lowers


@lowers(lax.dynamic_slice_p)
def dynamic_slice(g: Builder, x: Val, *starts: Val, slice_sizes: Sequence[Any]) -> Val:
    """The window of these sizes at `starts`, moved so that it is inside."""
    w = _one_window(x.shape, slice_sizes)
    return read(g, w, x, _index_vector(g, w, starts))


@lowers(lax.dynamic_update_slice_p)
def dynamic_update_slice(g: Builder, x: Val, update: Val, *starts: Val) -> Val:
    """`x` with `update` written at `starts`, moved so that it is inside."""
    w = _one_window(x.shape, update.shape)
    return write(g, w, x, _index_vector(g, w, starts), update, SET, drops=False)


def _one_window(shape: Dims, sizes: Sequence[Any]) -> Windows:
    axes = tuple(range(len(shape)))
    moving = tuple(a for a in axes if shape[a] != sizes[a])
    return Windows(tuple(shape), tuple(sizes), batch=(), starts=moving, batching={}, kept=axes, layout=axes)


def _index_vector(g: Builder, w: Windows, starts: Sequence[Val]) -> Val:
    """The starts along the axes where the window can move, as an index vector."""
    moving = [starts[a] for a in w.starts]
    if all(s.const is not None for s in moving):
        return g.const(np.asarray([s.const for s in moving], moving[0].dtype if moving else np.int64))
    if len(moving) == 1:
        return g.unsqueeze(moving[0], [0])
    return g.Concat(*(g.unsqueeze(s, [0]) for s in moving), axis=0)
