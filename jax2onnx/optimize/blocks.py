"""Blocks that are written into an array, `u.at[1:-1, 1:-1].set(new)`: a large one is joined with what is around it.

ScatterND reads the place of each row that it writes. Slices and Concats copy whole rows, but are several nodes. They
come last: that a block is written shows more to those who follow single elements (`moves`).
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from jax2onnx.dimensions import is_static
from jax2onnx.optimize.engine import Rewriter, RuleSet
from jax2onnx.optimize.queries import attribute, constant, dims

LAST = RuleSet()

NODE = 540
WRITTEN = 6.2
COPIED = 0.35
"""Nanoseconds for a node, for a row that ScatterND writes, and for an element that is copied."""


@LAST.rewrites("ScatterND")
def join_with_what_is_around(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """What is before the block, the block, and what is behind it: axis by axis, the innermost first."""
    x, index, block = node.inputs
    if x is None or block is None or attribute(node, "reduction", "none") != "none" or not is_static(dims(x)):
        return None
    places = constant(index)
    box = _box(places) if places is not None and places.size else None
    if box is None or places is None:
        return None
    shape: list[int] = [*dims(x)]  # type: ignore[list-item]
    cut = [a for a, (begin, end) in enumerate(box) if (begin, end) != (0, shape[a])]
    size = [*(end - begin for begin, end in box), *shape[len(box) :]]
    sides = sum((box[a][0] > 0) + (box[a][1] < shape[a]) for a in cut)
    more = sides + len(cut) - 1 + (list(dims(block)) != size)
    if not cut or WRITTEN * places.size / len(box) <= NODE * more + COPIED * math.prod(shape):
        return None
    if list(dims(block)) != size:
        block = r.op("Reshape", block, r.const(size, np.int64), like=x, shape=size)
    for i, axis in reversed([*enumerate(cut)]):
        outer, (begin, end) = cut[:i], box[axis]
        around = [(0, begin), (end, shape[axis])]
        before, behind = (_part(r, x, {**{a: box[a] for a in outer}, axis: span}) for span in around)
        size[axis] = shape[axis]
        parts = [part for part in (before, block, behind) if part is not None]
        block = r.op("Concat", *parts, like=x, shape=size, axis=axis)
    return block


def _box(places: np.ndarray) -> list[tuple[int, int]] | None:
    """From where to where the places are along each axis, if they are all of these, in order."""
    rows = places.reshape(-1, places.shape[-1])
    low, high = rows.min(0), rows.max(0) + 1
    if (low < 0).any() or math.prod(map(int, high - low)) != len(rows):
        return None
    every = np.indices(tuple(high - low)).reshape(len(low), -1).T + low
    return [*zip(map(int, low), map(int, high), strict=True)] if np.array_equal(every, rows) else None


def _part(r: Rewriter, x: ir.Value, spans: dict[int, tuple[int, int]]) -> ir.Value | None:
    """What `x` has from there to there along these axes, unless that is nothing."""
    if any(begin == end for begin, end in spans.values()):
        return None
    shape = [spans[a][1] - spans[a][0] if a in spans else d for a, d in enumerate(dims(x))]
    begins, ends = zip(*spans.values(), strict=True)
    bounds = [r.const(numbers, np.int64) for numbers in (begins, ends, tuple(spans))]
    return r.op("Slice", x, *bounds, like=x, shape=shape)
