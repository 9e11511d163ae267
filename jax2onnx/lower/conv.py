"""Convolution: `conv_general_dilated` in every layout becomes Conv or ConvTranspose between transposes.

Convolutions of integers and in a symbolic number of groups, which ONNX's Conv does not have, are rewritten in
`decompose/conv.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

from jax2onnx import compat
from jax2onnx.dimensions import is_static
from jax2onnx.lower.context import Builder, Val
from jax2onnx.lower.registry import lowers
from jax2onnx.lower.shape import pad
from jax2onnx.padding import auto_pad, is_known, without_needless
from jax2onnx.permutations import inverse, permuted


@lowers(lax.conv_general_dilated_p)
def conv_general_dilated(
    g: Builder,
    lhs: Val,
    rhs: Val,
    *,
    window_strides: Sequence[int],
    padding: Sequence[tuple[Any, Any]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    dimension_numbers: Any,
    feature_group_count: int,
    batch_group_count: int,
    **_: Any,
) -> Val:
    """Bring both operands into ONNX's layout (batch, features, space), convolve, and put the axes back."""
    aval = g.avals_out[0]
    lhs_spec, rhs_spec, out_spec = dimension_numbers
    shape = permuted(aval.shape, out_spec)
    compute = np.promote_types(np.promote_types(lhs.dtype, rhs.dtype), aval.dtype)
    x = g.transpose(g.cast(lhs, compute), lhs_spec)
    kernel = g.transpose(g.cast(rhs, compute), rhs_spec)
    if _is_empty(shape) or _is_empty(kernel.shape[1:]) or _is_empty(x.shape):
        return g.full(aval.shape, 0, aval.dtype)
    groups = feature_group_count
    if batch_group_count > 1:
        x, groups = _groups_of_batch_as_features(g, x, batch_group_count), batch_group_count
    spatial = len(window_strides)
    if spatial == 0:  # ONNX wants at least one spatial axis
        x, kernel = g.unsqueeze(x, [2]), g.unsqueeze(kernel, [2])
        window_strides, padding, lhs_dilation, rhs_dilation = (1,), ((0, 0),), (1,), (1,)
    y = _conv_transpose(g, x, kernel, window_strides, padding, lhs_dilation, rhs_dilation, groups, shape)
    if y is None:
        y = _conv(g, x, kernel, window_strides, padding, lhs_dilation, rhs_dilation, groups, shape)
    if spatial == 0:
        y = g.squeeze(y, [2])
    return g.cast(g.transpose(y, inverse(out_spec)), aval.dtype)


def _is_empty(shape: Sequence[Any]) -> bool:
    return any(isinstance(d, int) and d == 0 for d in shape)


def _groups_of_batch_as_features(g: Builder, x: Val, groups: int) -> Val:
    """(groups * n, features, ...) as (n, groups * features, ...): each group meets its own kernels."""
    n, features, space = x.shape[0] // groups, x.shape[1], x.shape[2:]
    split = g.reshape(x, (groups, n, features, *space))
    swapped = g.transpose(split, [1, 0, *range(2, len(space) + 3)])
    return g.reshape(swapped, (n, groups * features, *space))


def _conv(
    g: Builder,
    x: Val,
    kernel: Val,
    strides: Sequence[int],
    padding: Sequence[tuple[Any, Any]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    groups: int,
    shape: tuple[Any, ...],
) -> Val:
    same = None
    if not is_known(padding) and set(lhs_dilation) == {1}:
        space, window = x.shape[2:], kernel.shape[2:]
        padding = without_needless(space, window, strides, padding)
        if not is_known(padding) and x.dtype != np.float64:  # which runtimes write out, with padding that is known
            same = auto_pad(space, window, strides, rhs_dilation, padding)
    if same is not None:
        padding = [(0, 0)] * len(padding)
    elif not is_known(padding) or any(d != 1 for d in lhs_dilation):
        # Padding that is negative, computed, or between elements is a step of its own.
        config = [(0, 0, 0), (0, 0, 0), *((lo, hi, d - 1) for (lo, hi), d in zip(padding, lhs_dilation, strict=True))]
        x = pad(g, x, g.const(np.zeros((), x.dtype)), padding_config=config)
        padding = [(0, 0)] * len(padding)
    pads = [lo for lo, _ in padding] + [hi for _, hi in padding]
    return g.op(
        "Conv",
        x,
        kernel,
        kernel_shape=kernel.shape[2:] if is_static(kernel.shape[2:]) else None,
        strides=tuple(strides) if set(strides) != {1} else None,
        auto_pad=same,
        pads=tuple(pads) if any(pads) else None,
        dilations=tuple(rhs_dilation) if set(rhs_dilation) != {1} else None,
        group=groups if groups != 1 else None,
        out=((x.shape[0], kernel.shape[0], *shape[2:]) if len(shape) > 2 else (*shape, 1), x.dtype),
    )


def _conv_transpose(
    g: Builder,
    x: Val,
    kernel: Val,
    strides: Sequence[int],
    padding: Sequence[tuple[Any, Any]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    groups: int,
    shape: tuple[Any, ...],
) -> Val | None:
    """A convolution over spread-out elements is what ONNX calls ConvTranspose, with the kernel flipped and its input
    and output features swapped. None where the padding does not fit."""
    if set(strides) != {1} or set(lhs_dilation) == {1}:
        return None
    reach = [(k - 1) * d for k, d in zip(kernel.shape[2:], rhs_dilation, strict=True)]
    cut = [r - lo for r, (lo, _) in zip(reach, padding, strict=True)]
    cut += [r - hi for r, (_, hi) in zip(reach, padding, strict=True)]
    if not is_static(cut):
        return None
    # Windows beyond the reach of any element hold nothing but zeros.
    before, behind = [max(-c, 0) for c in cut[: len(reach)]], [max(-c, 0) for c in cut[len(reach) :]]
    is_short = not any(before) and all(b < stride for b, stride in zip(behind, lhs_dilation, strict=True))
    cut = [max(c, 0) for c in cut]
    reached = [d - lo - hi for d, lo, hi in zip(shape[2:], before, behind, strict=True)]
    if not is_short and not all(map(compat.dims.is_positive, reached)):  # some elements are cut off, others added
        return None
    out_features, in_features = kernel.shape[0] // groups, kernel.shape[1]
    space = kernel.shape[2:]
    axes = tuple(range(2, kernel.rank))
    n = len(axes)
    flipped = kernel
    if math.prod(space) > 1:
        flipped = g.Slice(kernel, (-1,) * n, (-(2**63),) * n, axes, (-1,) * n, out=(kernel.shape, kernel.dtype))
    weights = g.reshape(flipped, (groups, out_features, in_features, *space))
    weights = g.transpose(weights, [0, 2, 1, *range(3, n + 3)])
    weights = g.reshape(weights, (groups * in_features, out_features, *space))
    result = (x.shape[0], groups * out_features, *shape[2:])
    y = g.op(
        "ConvTranspose",
        x,
        weights,
        kernel_shape=space,
        strides=tuple(lhs_dilation),
        pads=tuple(cut) if any(cut) else None,
        output_padding=tuple(behind) if is_short and any(behind) else None,
        dilations=tuple(rhs_dilation) if set(rhs_dilation) != {1} else None,
        group=groups if groups != 1 else None,
        out=(result if is_short else (*result[:2], *reached), x.dtype),
    )
    return y if is_short else g.Pad(y, np.asarray([0, 0, *before, 0, 0, *behind]), out=(result, x.dtype))
