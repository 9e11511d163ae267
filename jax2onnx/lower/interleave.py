"""Arrays whose elements alternate: JAX pads both with zeros between their elements, and adds them.

So do `lax.associative_scan` and the gradients of `x[::2]` and `x[1::2]`. Written as that, it takes a dozen nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jax2onnx.dimensions import is_static
from jax2onnx.lower.context import Builder, Val
from jax2onnx.lower.dtypes import is_float


class Spread(NamedTuple):
    """What every other element along an axis of an array is, from the element `first` on. All others are 0."""

    source: Val
    axis: int
    first: int


def spread(x: Val, value: Val, padding_config: Sequence[tuple[Any, Any, int]]) -> Spread | None:
    """The description of a padded array, if there is one."""
    padded = [axis for axis, amounts in enumerate(padding_config) if amounts != (0, 0, 0)]
    if len(padded) != 1 or value.const is None or value.const != 0 or not is_static(x.shape):
        return None
    low, high, interior = padding_config[padded[0]]
    is_minus_zero = is_float(value.dtype) and np.signbit(value.const.astype(np.float32))
    return (
        Spread(x, padded[0], low) if interior == 1 and low in (0, 1) and high in (0, 1) and not is_minus_zero else None
    )


def interleaved(g: Builder, x: Val, y: Val) -> Val | None:
    """The sum of two arrays if they are spread, and each has its elements where the other has none."""
    if x.spread is None or y.spread is None or x.shape != y.shape or x.spread.axis != y.spread.axis:
        return None
    even, odd = sorted((x.spread, y.spread), key=lambda s: s.first)
    a, b, axis = even.source, odd.source, even.axis
    pairs, length = b.shape[axis], x.shape[axis]
    if (even.first, odd.first) != (0, 1) or a.shape[axis] - pairs not in (0, 1) or a.shape[axis] + pairs != length:
        return None
    result = _alternate(g, g.slice_axis(a, axis, 0, pairs), b, axis)
    if a.shape[axis] > pairs:
        result = g.Concat(result, g.slice_axis(a, axis, pairs, a.shape[axis]), axis=axis)
    return g.Add(result, np.zeros((), x.dtype)) if is_float(x.dtype) else result  # -0.0 + 0.0 is 0.0


def _alternate(g: Builder, a: Val, b: Val, axis: int) -> Val:
    """Elements of two arrays of the same shape in turn: side by side along the next axis, which is cut in two then."""
    shape = list(a.shape)
    shape[axis] *= 2
    if axis == a.rank - 1:
        a, b = g.unsqueeze(a, [a.rank]), g.unsqueeze(b, [b.rank])
    return g.reshape(g.Concat(a, b, axis=axis + 1), shape)
