"""Operands that are repeated along a short axis, or just outside one, are repeated before anything is computed.

ONNX Runtime computes with operands of different shapes span by span: as many elements at a time as lie side by side in
both, or in one while the other has only one for all of them. Each span takes about ten nanoseconds more than its
elements do. So points[:, None] - points, with three coordinates each, takes ten to thirty times as long as the same of
arrays that have been expanded, and expanding them takes next to nothing. But an Expand along the last axis copies
element by element. There a Concat of the array with itself is the fastest, by far. And sums along an axis with only a
few elements behind it are taken one by one, where the sum of slices is many at once.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from jax2onnx.attributes import attributes_of
from jax2onnx.dimensions import is_static, likely_size
from jax2onnx.optimize.engine import Rewriter, RuleSet
from jax2onnx.optimize.fold import SMALL
from jax2onnx.optimize.queries import Dims, aligned_dims, attribute, axes_of, constant, dims, has_many
from jax2onnx.optimize.signs import has_no_sign
from jax2onnx.optimize.units import BINARY

LAST = RuleSet()
"""Elsewhere, what is only repeated to be computed with is not repeated at all."""

BROADCASTING = (*BINARY, "Mod", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor")

SHORT = 12
"""Spans of up to so many elements are worth a node that makes them longer."""

MANY_SPANS = 400
"""So many take a few microseconds more, or ten where one of three operands is chosen."""

LONG = 16
"""What they have to become."""

MOST_COPIES = 8
"""Of more of them a Concat takes as long as what it saves."""

MANY_SUMS = 1024
"""For so many sums, two or three nodes more pay off."""

SUMMED = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""The types in which this is tested."""


class _Axes(NamedTuple):
    """Neighbouring axes, and which of the operands vary along them. The others are repeated."""

    axes: list[int]
    varies: list[bool]


def _spans(shape: Dims, operands: list[Dims]) -> tuple[_Axes, _Axes] | None:
    """The axes of the innermost spans, and those just outside, if the operands have different shapes."""
    used = [axis for axis in reversed(range(len(shape))) if shape[axis] != 1]
    groups = itertools.groupby(used, key=lambda axis: [operand[axis] != 1 for operand in operands])
    found = [_Axes(list(axes), varies) for varies, axes in itertools.islice(groups, 2)]
    return (found[0], found[1]) if len(found) == 2 else None


@LAST.rewrites(*BROADCASTING)
def repeat_around_short_spans(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """What is repeated along the innermost axes, or else just outside."""
    y = node.outputs[0]
    shape = dims(y)
    if all(x is None or dims(x) in (shape, ()) for x in node.inputs):
        return None
    varying = list(dict.fromkeys(x for x in node.inputs if x is not None and any(d != 1 for d in dims(x))))
    if len(varying) < 2:
        return None
    aligned = {x: aligned_dims(x, len(shape)) for x in varying}
    spans = _spans(shape, list(aligned.values()))
    if spans is None:
        return None
    inner, outer = spans
    length = likely_size(shape[axis] for axis in inner.axes)
    if length > SHORT or likely_size(shape) < MANY_SPANS * length:
        return None
    repeated: dict[ir.Value, ir.Value] = {}
    if not all(inner.varies):
        if len(inner.axes) > 1 or not isinstance(shape[inner.axes[0]], int) or length > MOST_COPIES:
            return None
        for x, varies in zip(varying, inner.varies, strict=True):
            if not varies:
                repeated[x] = _side_by_side(r, x, inner.axes[0] - len(shape), length)
    elif length * likely_size(shape[axis] for axis in outer.axes) >= LONG:
        whole = varying[outer.varies.index(True)]
        for x, varies in zip(varying, outer.varies, strict=True):
            if not varies:
                repeated[x] = _expanded(r, x, aligned[x], whole, aligned[whole], outer.axes)
    else:
        return None
    operands = [x if x is None else repeated.get(x, x) for x in node.inputs]
    return r.op(node.op_type, *operands, like=y, **attributes_of(node))


def _side_by_side(r: Rewriter, x: ir.Value, axis: int, count: int) -> ir.Value:
    """`x`, whose size along `axis` (counted from the end) is 1, so often along it."""
    shape = list(dims(x))
    shape[axis] = count
    known = constant(x)
    if known is not None and known.nbytes * count <= SMALL:
        return r.moved(np.repeat(known, count, axis), x)
    return r.op("Concat", *[x] * count, like=x, shape=shape, axis=axis)


def _expanded(r: Rewriter, x: ir.Value, own: Dims, whole: ir.Value, full: Dims, axes: list[int]) -> ir.Value:
    """`x`, of the shape `own`, as often as it is used along `axes` with `whole`, of the shape `full`."""
    wanted = [d if axis in axes else 1 for axis, d in enumerate(full)]
    if is_static(wanted):
        target = r.const(wanted, np.int64)
    else:
        wanted = list(full)
        target = r.op("Shape", whole, shape=[len(dims(whole))], dtype=ir.DataType.INT64)
    return r.op("Expand", x, target, like=x, shape=[a if a != 1 else b for a, b in zip(own, wanted, strict=True)])


@LAST.rewrites("Expand")
def expand_by_joining(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A repetition along one short axis, with nothing behind it."""
    x, y = node.inputs[0], node.outputs[0]
    if x is None or not has_many(y) or not dims(x):
        return None
    shape = dims(y)
    own = aligned_dims(x, len(shape))
    spans = _spans(shape, [own])
    if spans is None:
        return None
    (axis, *others), (varies,) = spans[0]
    count = shape[axis]
    if varies or others or not isinstance(count, int) or count > MOST_COPIES:
        return None
    joined = _side_by_side(r, x, axis - len(shape), count)
    return joined if dims(joined) == shape else r.op("Expand", joined, node.inputs[1], like=y)


@LAST.rewrites("ReduceSum")
def add_up_slices(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A sum of few, along an axis before a short one, for many."""
    x, y, axes = node.inputs[0], node.outputs[0], axes_of(node)
    if x is None or x.dtype not in SUMMED or axes is None or len(axes) != 1:
        return None
    shape, axis = dims(x), axes[0] % len(dims(x))
    count, behind = shape[axis], likely_size(shape[axis + 1 :])
    if not isinstance(count, int) or not 1 < count <= MOST_COPIES or not 1 < behind <= SHORT:
        return None
    if likely_size(shape[:axis]) < MANY_SUMS:
        return None
    slices = r.split(x, [1] * count, axis)
    start = [] if has_no_sign(x) else [r.const(np.zeros((), x.dtype.numpy()))]  # the sum of any number of -0.0 is 0.0
    total = r.op("Sum", *slices, *start, like=y, shape=[1 if i == axis else d for i, d in enumerate(shape)])
    return total if attribute(node, "keepdims", 1) else r.op("Squeeze", total, r.const([axis], np.int64), like=y)
