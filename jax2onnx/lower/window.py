"""Pooling: sliding maxima, minima and sums of floats. Other windows are decomposed in `decompose/window.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jax import lax

from jax2onnx.lower.context import Builder, Val
from jax2onnx.lower.registry import lowers
from jax2onnx.padding import auto_pad, is_known
from jax2onnx.permutations import inverse

MOST_AXES = 5
"""ONNX Runtime pools three axes at most, beside the batch and the channels."""


@lowers(lax.reduce_window_max_p)
def reduce_window_max(g: Builder, x: Val, **params: Any) -> Val:
    """The largest element of each window."""
    return _pool(g, "MaxPool", x, **params)


@lowers(lax.reduce_window_min_p)
def reduce_window_min(g: Builder, x: Val, **params: Any) -> Val:
    """The smallest element of each window: the negative of the largest negative."""
    return g.Neg(_pool(g, "MaxPool", g.Neg(x), **params))


@lowers(lax.reduce_window_sum_p)
def reduce_window_sum(g: Builder, x: Val, *, window_dimensions: Sequence[int], **params: Any) -> Val:
    """The sum of each window: its average, padding counted as zeros, times its size."""
    average = _pool(g, "AveragePool", x, window_dimensions=window_dimensions, **params)
    return g.Mul(average, float(math.prod(window_dimensions)))


def _pool(
    g: Builder,
    op_type: str,
    x: Val,
    *,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[tuple[Any, Any]],
    window_dilation: Sequence[int],
    **_: Any,
) -> Val:
    """ONNX pools (batch, channels, space...): the pooled axes go last, the others become batch and channels."""
    shape = g.avals_out[0].shape
    pooled_axes = [i for i in range(x.rank) if (window_dimensions[i], window_strides[i]) != (1, 1)]
    space = _axes_of_space(pooled_axes, padding)
    others = [i for i in range(x.rank) if i not in space]
    perm = others + space
    moved = g.transpose(x, perm)
    kept = moved.shape[: len(others)]
    # Two axes are batch and channels; more are merged, missing ones have size 1.
    front = (1, 1, *kept)[-2:] if len(kept) <= 2 else (kept[0], math.prod(kept[1:]))
    operand = g.reshape(moved, (*front, *(x.shape[i] for i in space)))
    size, strides, dilations = (
        [along[i] for i in space] for along in (window_dimensions, window_strides, window_dilation)
    )
    around = [padding[i] for i in space]
    same = None if is_known(around) else auto_pad([x.shape[i] for i in space], size, strides, dilations, around)
    pads = [0] if same else [lo for lo, _ in around] + [hi for _, hi in around]
    pooled = g.op(
        op_type,
        operand,
        kernel_shape=size,
        strides=strides,
        auto_pad=same,
        pads=pads if any(pads) else None,
        dilations=dilations if set(dilations) != {1} else None,
        count_include_pad=1 if op_type == "AveragePool" and (same or any(pads)) else None,
        out=((*front, *(shape[i] for i in space)), x.dtype),
    )
    moved_back = g.reshape(pooled, tuple(shape[i] for i in perm))
    return g.transpose(moved_back, inverse(perm))


def _axes_of_space(pooled: list[int], padding: Sequence[tuple[Any, Any]]) -> list[int]:
    """The pooled axes, and with them those between the batch and the channels that stay as they are: an image whose
    rows are pooled, or each frame of a film, keeps the layout that the convolutions around it have."""
    rank = len(padding)
    if pooled and rank - len(pooled) > 2 and rank <= MOST_AXES:
        for space in (range(1, rank - 1), range(2, rank)):  # the channels are the last axis, or the second
            if all(i in space for i in pooled) and all(i in pooled or tuple(padding[i]) == (0, 0) for i in space):
                return list(space)
    return pooled
