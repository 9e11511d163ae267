"""Padding with what is there: an array with parts of itself before and behind it is one Pad.

`jnp.pad` with the modes edge, reflect and wrap, and whoever writes such boundaries by hand, cuts the parts off, turns
or repeats them, and joins all that, one axis after the other. ONNX has a mode for each of them, for all axes at once:
it takes half the time, or less.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
import onnx_ir as ir

from jax2onnx.dimensions import is_static
from jax2onnx.optimize.engine import Rewriter, RuleSet, first, some
from jax2onnx.optimize.queries import attribute, dims, integers, only_user, producer
from jax2onnx.optimize.simplify import RESHAPES
from jax2onnx.optimize.slices import MAX_PARTS
from jax2onnx.optimize.views import View, atoms, before, fresh

RULES = RuleSet()

MAX_SIZE = 1 << 18
MAX_DEPTH = 8
"""Up to which size of an axis, and through how many nodes, positions along it are followed."""

WRAP_OPSET = 19

FEW_COPIES = 256
FEW_OF_A_ROW = 8
LONG_RUN = 32
"""ONNX Runtime wraps around run by run, of the elements that follow each other: where there are more of them, in all
and for each row, and they are shorter than that, Slices and a Concat are faster."""

D = ir.DataType
HAS_KERNEL = {D.FLOAT, D.DOUBLE, D.INT8, D.INT32, D.INT64, D.UINT8, D.UINT32, D.UINT64, D.BOOL}
"""Others would be converted before and after, while Slice and Concat take them as they are."""

Mode = Literal["edge", "reflect", "wrap"]
MODES: dict[Mode, tuple[int, int]] = {"edge": (0, -1), "reflect": (1, -2), "wrap": (-1, 0)}
"""Each with the elements of what is padded that come right before and right behind it."""


class _Placed(NamedTuple):
    """The elements of `source` along an axis that a value consists of, in this order."""

    source: ir.Value
    positions: np.ndarray


@RULES.rewrites("Concat", given=some("Slice", "Expand", "Reshape", "Concat", "Pad"))
def recognise_padding(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Parts of an array before or behind it all, as one of the modes has them."""
    y, rank = node.outputs[0], len(dims(node.outputs[0]))
    axis = attribute(node, "axis") % rank
    parts = [_placed(part, axis) for part in node.inputs] if len(node.inputs) <= MAX_PARTS else [None]
    placed = [part for part in parts if part is not None]
    if len(placed) < len(parts) or any(part.source is not placed[0].source for part in placed):
        return None
    positions = np.concatenate([part.positions for part in placed])
    for x, start in _whole(node, placed, positions):
        size = int(dims(x)[axis])
        end = start + size
        base = positions[start:end]
        if size < 2 or all(np.array_equal(part.positions, base) for part in placed):
            continue  # repeated as a whole
        widths = start, len(positions) - end
        for mode, (before_it, behind_it) in MODES.items():
            if start and positions[start - 1] != base[before_it]:  # which mostly settles it
                continue
            if end < len(positions) and positions[end] != base[behind_it]:
                continue
            if _is_right(r, x, axis, widths, mode) and (positions == np.pad(base, widths, mode=mode)).all():
                pads = [0] * (2 * rank)
                pads[axis], pads[axis + rank] = widths
                return r.op("Pad", x, r.const(pads, np.int64), like=y, mode=mode)
    return None


def _whole(concat: ir.Node, placed: list[_Placed], positions: np.ndarray) -> Iterator[tuple[ir.Value, int]]:
    """The values that may be what is padded, and where they start."""
    source = placed[0].source
    size = dims(source)[attribute(concat, "axis")]
    for start in np.flatnonzero(positions == 0)[:MAX_PARTS]:
        if np.array_equal(positions[start : start + size], np.arange(size)):
            yield source, int(start)
    start = 0
    for x, part in zip(concat.inputs, placed, strict=True):
        if x is not None and x is not source:
            yield x, start
        start += len(part.positions)


def _is_right(r: Rewriter, x: ir.Value, axis: int, widths: tuple[int, int], mode: str) -> bool:
    """Does a Pad compute this, whatever the sizes turn out to be, and is it no slower?"""
    shape = dims(x)
    size = int(shape[axis])
    if mode == "edge":
        return True
    if mode == "reflect":
        return max(widths) < size and x.dtype in HAS_KERNEL
    # It is an error to wrap an array that has no elements, along any axis.
    if max(widths) > size or x.dtype not in HAS_KERNEL or r.opset < WRAP_OPSET or not is_static(shape) or 0 in shape:
        return False
    copies = sum(widths) * math.prod(map(int, shape[:axis]))
    is_short = math.prod(map(int, shape[axis + 1 :])) < LONG_RUN
    return not is_short or copies <= FEW_COPIES or sum(widths) <= FEW_OF_A_ROW


def _placed(value: ir.Value | None, axis: int, depth: int = MAX_DEPTH) -> _Placed | None:
    """Where the elements of a value come from, through nodes that cut, turn, repeat and join along this axis alone."""
    size = dims(value)[axis] if value is not None else None
    if value is None or not isinstance(size, int) or size > MAX_SIZE:
        return None
    found = _moved(value, axis, depth - 1) if depth else None
    return found or _Placed(value, np.arange(size))


def _moved(value: ir.Value, axis: int, depth: int) -> _Placed | None:
    node = producer(value, "Slice", "Concat", "Pad", "Expand", *RESHAPES)
    x = node.inputs[0] if node is not None else None
    if node is None or x is None:
        return None
    if node.op_type == "Concat":
        if attribute(node, "axis") % len(dims(value)) != axis or len(node.inputs) > MAX_PARTS:
            return None
        parts = [_placed(part, axis, depth) for part in node.inputs]
        source = parts[0].source if parts[0] is not None else None
        if any(part is None or part.source is not source for part in parts):
            return None
        return _Placed(source, np.concatenate([part.positions for part in parts]))  # type: ignore
    if node.op_type in ("Expand", *RESHAPES):
        one = _repeated(value, axis)
        inner = _placed(one, axis, depth)
        return inner and _Placed(inner.source, np.repeat(inner.positions, int(dims(value)[axis])))
    inner = _placed(x, axis, depth)
    if inner is None:
        return None
    if node.op_type == "Slice":
        cut = _cut_along(node, axis)
        return None if cut is None else _Placed(inner.source, inner.positions[cut])
    pads, mode, rank = integers(node.inputs[1]), attribute(node, "mode"), len(dims(value))
    if pads is None or mode not in MODES or len(node.inputs) > 2 or not len(inner.positions):
        return None
    if any(p and i % rank != axis for i, p in enumerate(pads)) or min(pads) < 0:
        return None
    widths = pads[axis], pads[axis + rank]
    return _Placed(inner.source, np.pad(inner.positions, widths, mode=mode))


def _cut_along(node: ir.Node, axis: int) -> slice | None:
    """What a Slice takes, if it is known, and of this axis alone."""
    bounds = [integers(v) for v in node.inputs[1:]]
    if len(bounds) < 3 or any(b is None or len(b) != 1 for b in bounds):
        return None
    (start,), (end,), (along,) = bounds[:3]  # type: ignore[misc]
    (step,) = bounds[3] if len(bounds) > 3 else (1,)  # type: ignore[misc]
    return slice(start, end, step) if along % len(dims(node.outputs[0])) == axis else None


def _repeated(value: ir.Value, axis: int) -> ir.Value | None:
    """What has one element along an axis where `value` has any number of the same, if axes are only repeated and joined
    in between."""
    view: View | None = View(value, fresh(dims(value)))
    assert view is not None
    wanted = [[] if i == axis else atoms(a) for i, a in enumerate(view.axes)]
    for _ in range(4):
        view = before(view, repeats=True)
        if view is None:
            return None
        if len(view.axes) == len(wanted) and dims(view.value)[axis] == 1:
            return view.value if [atoms(a) for a in view.axes] == wanted else None
    return None


@RULES.rewrites("Pad", given=first("Pad"))
def pad_several_axes_at_once(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Padding of one axis, then of another, in the same mode. (Along one axis, only edges add up.)"""
    inner, mode = producer(node.inputs[0], "Pad"), attribute(node, "mode")
    if inner is None or mode not in MODES or mode != attribute(inner, "mode"):
        return None
    widths = [integers(n.inputs[1]) for n in (inner, node) if len(n.inputs) == 2]
    if len(widths) < 2 or None in widths or only_user(inner.outputs[0]) is None:
        return None
    pads = np.array(widths)
    is_padded = pads.reshape(2, 2, -1).any(1)  # which axes each of them pads
    if pads.min() < 0 or (mode != "edge" and is_padded.all(0).any()):
        return None
    return r.op("Pad", inner.inputs[0], r.const(pads.sum(0), np.int64), like=node.outputs[0], mode=mode)
