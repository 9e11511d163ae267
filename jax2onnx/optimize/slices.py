"""Slices: taken from the part they are of, and after arithmetic rather than before it where that does it only once.

Simulations compute the same of neighbouring cells: `flux(u[:-1])` and `flux(u[1:])`. Element by element these are the
same numbers, so `flux(u)` is computed once and cut twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from jax2onnx.dimensions import is_static
from jax2onnx.graphs import all_nodes, bodies, use_instead
from jax2onnx.optimize.engine import Rewriter, RuleSet, constants_for, first, rename_operator
from jax2onnx.optimize.queries import attribute, axes_of, dims, integers, only_user, producer, splat
from jax2onnx.optimize.shared import frozen_attributes
from jax2onnx.optimize.units import BINARY, UNARY

RULES = RuleSet()
rewrites = RULES.rewrites

MAX_PARTS = 8
"""A program that shifts an array by one again and again must not become a Concat of all its elements."""

Ranges = dict[int, tuple[int, int]]
"""Where a slice starts and ends along each axis that it cuts."""


class Cut(NamedTuple):
    """x[..., start:end, ...]."""

    x: ir.Value
    ranges: Ranges


def cut_of(value: ir.Value | None) -> Cut | None:
    """What `value` is cut from, if it is a Slice with known bounds that leaves out nothing in between."""
    node = producer(value, "Slice")
    if node is None or node.inputs[0] is None:
        return None
    bounds = [integers(v) for v in node.inputs[1:]]
    if len(bounds) < 3 or any(b is None for b in bounds) or any(s != 1 for s in (bounds[3] if len(bounds) > 3 else ())):  # type: ignore[union-attr]
        return None
    x = node.inputs[0]
    shape = dims(x)
    ranges: Ranges = {}
    for start, end, axis in zip(*bounds[:3], strict=True):  # type: ignore[arg-type]
        axis %= len(shape)
        size = shape[axis]
        if not isinstance(size, int):
            return None
        low, high, _ = slice(start, end).indices(size)
        ranges[axis] = (low, max(low, high))
    return Cut(x, dict(sorted(ranges.items())))


class Columns(NamedTuple):
    """x[..., start:end]."""

    x: ir.Value
    start: int
    end: int


def columns_of(value: ir.Value | None) -> Columns | None:
    """What `value` is columns of, if it is a Slice or a part of a Split along the last axis only."""
    node = producer(value, "Slice", "Split")
    if node is None or value is None or node.inputs[0] is None:
        return None
    last = len(dims(value)) - 1
    if node.op_type == "Slice":
        cut = cut_of(value)
        return Columns(cut.x, *cut.ranges[last]) if cut is not None and list(cut.ranges) == [last] else None
    sizes = [dims(part)[last] for part in node.outputs]
    if attribute(node, "axis", 0) % (last + 1) != last or not is_static(sizes):
        return None
    place = list(node.outputs).index(value)
    start = sum(int(d) for d in sizes[:place])
    return Columns(node.inputs[0], start, start + int(sizes[place]))


def _bounds(ranges: Ranges, constant: Callable[[Sequence[int]], ir.Value]) -> list[ir.Value]:
    """The operands of a Slice behind the first."""
    starts, ends = zip(*ranges.values(), strict=True)
    return [constant(starts), constant(ends), constant(list(ranges))]


def _sliced(r: Rewriter, x: ir.Value, ranges: Ranges, like: ir.Value) -> ir.Value:
    shape = [ranges[a][1] - ranges[a][0] if a in ranges else d for a, d in enumerate(dims(x))]
    return r.op("Slice", x, *_bounds(ranges, lambda v: r.const(v, np.int64)), like=like, shape=shape)


@rewrites("Slice", given=first("Slice"))
def slice_of_slice(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Two cuts along the same axes are one."""
    outer = cut_of(node.outputs[0])
    inner = cut_of(outer.x) if outer is not None else None
    if outer is None or inner is None or list(outer.ranges) != list(inner.ranges):
        return None
    ranges = {a: (inner.ranges[a][0] + s, inner.ranges[a][0] + e) for a, (s, e) in outer.ranges.items()}
    return _sliced(r, inner.x, ranges, node.outputs[0])


LAST = RuleSet()
"""For when no slice moves any more."""


@LAST.rewrites("Slice", given=first("Slice"))
def cut_along_several_axes(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Two cuts that only follow each other are one."""
    outer = cut_of(node.outputs[0])
    inner = cut_of(outer.x) if outer is not None else None
    if outer is None or inner is None or only_user(outer.x) != node:
        return None
    ranges = dict(inner.ranges)
    for axis, (start, end) in outer.ranges.items():
        first = inner.ranges[axis][0] if axis in inner.ranges else 0
        ranges[axis] = (first + start, first + end)
    return _sliced(r, inner.x, dict(sorted(ranges.items())), node.outputs[0])


@rewrites("Slice", given=first("Concat"))
def slice_of_concat(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Cut from the one part that it is of, or take whole parts (and what is known of others)."""
    cut = cut_of(node.outputs[0])
    concat = producer(cut.x, "Concat") if cut is not None else None
    if cut is None or concat is None:
        return None
    axis = attribute(concat, "axis") % len(dims(cut.x))
    if axis not in cut.ranges:
        return None
    others = {a: span for a, span in cut.ranges.items() if a != axis}
    start, end = cut.ranges[axis]
    first = 0
    parts: list[tuple[ir.Value, Ranges]] = []
    for part in concat.inputs:
        size = dims(part)[axis] if part is not None else None
        if part is None or not isinstance(size, int):
            return None
        low, high = max(start - first, 0), min(end - first, size)
        if low < high:
            ranges = others | ({axis: (low, high)} if (low, high) != (0, size) else {})
            parts.append((part, dict(sorted(ranges.items()))))
        first += size
    if not parts or len(parts) > (1 if others else MAX_PARTS):
        return None
    cut_through = [part for part, ranges in parts if ranges and part.const_value is None and splat(part) is None]
    if len(parts) > 1 and cut_through and (len(cut_through) > 1 or only_user(cut.x) != node):
        return None
    pieces = [_sliced(r, part, ranges, part) if ranges else part for part, ranges in parts]
    return pieces[0] if len(pieces) == 1 else r.op("Concat", *pieces, like=node.outputs[0], axis=axis)


@rewrites("Slice", given=first("Pad"))
def slice_of_pad(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Pad less, and cut less, or nothing, of what is inside."""
    cut = cut_of(node.outputs[0])
    pad = producer(cut.x, "Pad") if cut is not None else None
    pads = integers(pad.inputs[1]) if pad is not None else None
    if cut is None or pad is None or pads is None or len(pad.inputs) > 3 or min(pads) < 0 or only_user(cut.x) != node:
        return None
    x, rank = pad.inputs[0], len(dims(cut.x))
    ranges: Ranges = {}
    fewer = list(pads)
    for axis, (start, end) in cut.ranges.items():
        size, before = dims(x)[axis] if x is not None else None, pads[axis]
        if not isinstance(size, int):
            return None
        low, high = max(start - before, 0), min(end - before, size)
        if low >= high:
            return None
        if (low, high) != (0, size):
            ranges[axis] = low, high
        fewer[axis], fewer[axis + rank] = max(before - start, 0), max(end - before - size, 0)
    mode = attribute(pad, "mode", "constant")
    if x is None or (mode != "constant" and any(fewer[a] or fewer[a + rank] for a in ranges)):
        return None  # what is added would be taken from what is cut off
    kept = _sliced(r, x, ranges, x) if ranges else x
    if not any(fewer):
        return kept
    return r.op(
        "Pad", kept, r.const(fewer, np.int64), *pad.inputs[2:], like=node.outputs[0], mode=attribute(pad, "mode")
    )


@rewrites("Slice", given=first("Expand"))
def slice_of_expand(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Expand to the smaller shape."""
    cut, y = cut_of(node.outputs[0]), node.outputs[0]
    expand = producer(cut.x, "Expand") if cut is not None else None
    x = expand.inputs[0] if expand is not None else None
    if cut is None or x is None or not is_static(dims(y)):
        return None
    missing = len(dims(y)) - len(dims(x))
    if any(axis >= missing and dims(x)[axis - missing] != 1 for axis in cut.ranges):
        return None
    return x if dims(x) == dims(y) else r.op("Expand", x, r.const(dims(y), np.int64), like=y)


# ------------------------------------------------------------------------------------- arithmetic on several slices


ONE_TENSOR = ("Gather", "Slice", "Squeeze", "Unsqueeze")
PASSES = {*UNARY, *BINARY, *ONE_TENSOR, "Concat"}
"""Operators that a slice (along an axis that they do not touch) can move past."""


class _Work(NamedTuple):
    """What a node computes if slices of its operands are taken from its result instead."""

    sources: list[ir.Value | None]
    axis: int
    """The axis of the operands that is cut; `size` is how long it is before."""
    size: int
    span: tuple[int, int]


def share_sliced_arithmetic(model: ir.Model) -> int:
    """f(x[:-1]) and f(x[1:]) become slices of f(x), wherever f works on each element alone; how many were replaced.

    Not in functions, which cannot use the constants of the main graph.
    """
    if not any(node.op_type == "Slice" for node in all_nodes(model.graph)):
        return 0

    constant_of = constants_for(model.graph, "bounds")
    return _share(model.graph, lambda numbers: constant_of(np.asarray(numbers, np.int64)))


def _share(graph: ir.Graph, constant: Callable[[Sequence[int]], ir.Value]) -> int:
    count = 0
    seen: dict[Any, ir.Node] = {}

    def replace(node: ir.Node, work: _Work, whole: ir.Value) -> None:
        """Let the result of `node` be a slice of `whole`."""
        nonlocal count
        old = node.outputs[0]
        new = ir.Value(shape=old.shape, type=old.type)
        bounds = _bounds({_axis_after(node, work.axis): work.span}, constant)
        name = rename_operator(node.name, node.op_type, "Slice")
        notes = dict(node.metadata_props)
        cut = ir.Node("", "Slice", [whole, *bounds], outputs=[new], name=name, metadata_props=notes)
        graph.insert_before(node, cut)
        use_instead(old.uses(), new)
        for user in new.consumers():  # it has an operand now that is a slice
            if user.graph is graph and (later := _before_slices(user)) is not None:
                seen.setdefault(_key(user, later), user)
        graph.remove(node, safe=True)
        count += 1

    for node in list(graph):
        for body in bodies(node):
            count += _share(body, constant)
        if node.graph is None or node.op_type not in PASSES:
            continue
        work = _before_slices(node)
        key = _key(node, work)
        twin = seen.setdefault(key, node)
        if twin is node:
            continue
        other = _before_slices(twin) if twin.graph is not None else None
        if twin.graph is None or _key(twin, other) != key:
            seen[key] = node
        elif node.outputs[0].is_graph_output() or (other is not None and twin.outputs[0].is_graph_output()):
            continue
        elif work is None and other is not None:  # the whole comes after a part of it
            whole = _whole(twin, other)
            replace(twin, other, whole.outputs[0])
            use_instead(node.outputs[0].uses(), whole.outputs[0])
            graph.remove(node, safe=True)
            seen[key] = whole
        elif work is not None and other is None:
            replace(node, work, twin.outputs[0])
        elif work is not None and other is not None and work.span != other.span and _pays(work, other):
            whole = _whole(twin, other)
            replace(twin, other, whole.outputs[0])
            replace(node, work, whole.outputs[0])
            seen[key] = whole
    return count


def _key(node: ir.Node, work: _Work | None) -> Any:
    """What a node computes: the same for all slices of one thing, and for the whole."""
    operands = node.inputs if work is None else work.sources
    return node.domain, node.op_type, tuple(map(id, operands)), frozen_attributes(node)


def _pays(a: _Work, b: _Work) -> bool:
    """Are the two parts together at least as large as the whole?"""
    return a.axis == b.axis and sum(end - start for start, end in (a.span, b.span)) >= a.size


def _whole(node: ir.Node, work: _Work) -> ir.Node:
    """What `node` computes, before slicing. It goes where the node is."""
    old = node.outputs[0]
    axis = _axis_after(node, work.axis)
    shape = ir.Shape([work.size if i == axis else d for i, d in enumerate(old.shape or ())])
    whole = ir.Node(
        node.domain,
        node.op_type,
        work.sources,
        list(node.attributes.values()),
        outputs=[ir.Value(shape=shape, type=old.type)],
        name=node.name,
        metadata_props=dict(node.metadata_props) or None,
    )
    assert node.graph is not None
    node.graph.insert_before(node, whole)
    return whole


def _axis_after(node: ir.Node, axis: int) -> int:
    """Which axis of the result an axis of the operands becomes."""
    if node.op_type == "Gather":
        x, index = node.inputs
        assert x is not None and index is not None
        return axis if axis < attribute(node, "axis", 0) % len(dims(x)) else axis - 1 + len(dims(index))
    if node.op_type == "Unsqueeze":
        rank = len(dims(node.outputs[0]))
        added = {a % rank for a in axes_of(node) or ()}
        return [i for i in range(rank) if i not in added][axis]
    return axis - sum(a < axis for a in _removed(node)) if node.op_type == "Squeeze" else axis


def _removed(squeeze: ir.Node) -> set[int]:
    """The axes that a Squeeze removes."""
    shape = dims(squeeze.inputs[0])  # type: ignore[arg-type]
    axes = axes_of(squeeze)
    return {i for i, d in enumerate(shape) if d == 1} if axes is None else {a % len(shape) for a in axes}


def _before_slices(node: ir.Node) -> _Work | None:
    """What `node` works on if the slices among its operands are taken from its result instead; None if they cannot."""
    if node.op_type not in PASSES:
        return None
    tensors = node.inputs[:1] if node.op_type in ONE_TENSOR else node.inputs
    if all(producer(v, "Slice") is None for v in tensors):
        return None
    cuts = [cut_of(v) for v in tensors]
    ranges = next((cut.ranges for cut in cuts if cut is not None), {})
    if len(ranges) != 1 or any(cut is not None and cut.ranges != ranges for cut in cuts):
        return None
    ((axis, span),) = ranges.items()
    sizes = {dims(cut.x)[axis] for cut in cuts if cut is not None}
    if len(sizes) != 1 or not _passes(node, axis, cuts):
        return None
    (size,) = sizes
    assert isinstance(size, int)
    sources = [v if cut is None else cut.x for v, cut in zip(tensors, cuts, strict=True)]
    return _Work([*sources, *node.inputs[len(tensors) :]], axis, size, span)


def _passes(node: ir.Node, axis: int, cuts: list[Cut | None]) -> bool:
    """Does each element of the result depend on operands at the same place along `axis` only?"""
    match node.op_type:
        case "Gather":
            return bool(attribute(node, "axis", 0) % len(dims(node.inputs[0])) != axis)  # type: ignore[arg-type]
        case "Slice":  # not past one along a later axis, which would move back
            cut = cut_of(node.outputs[0])
            return cut is not None and all(a < axis for a in cut.ranges)
        case "Unsqueeze":
            return axes_of(node) is not None
        case "Squeeze":
            return axis not in _removed(node)
        case "Concat":
            return all(cuts) and attribute(node, "axis") % len(dims(node.outputs[0])) != axis
        case "Div" | "Pow" if not _is_float(node):
            return False  # an integer divided by zero, which the program avoids, would stop it
    rank = len(dims(node.outputs[0]))
    for operand, cut in zip(node.inputs, cuts, strict=True):
        shape = dims(operand) if operand is not None else ()
        if cut is not None and len(shape) != rank:
            return False
        if cut is None and len(shape) >= rank - axis and shape[axis - rank] != 1:
            return False
    return True


def _is_float(node: ir.Node) -> bool:
    dtype = node.outputs[0].dtype
    return dtype is not None and dtype.is_floating_point()
