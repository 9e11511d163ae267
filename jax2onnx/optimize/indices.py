"""Indices: what JAX computes so that negative ones count from the end, the ONNX operators do themselves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from jax2onnx.attributes import attributes_of
from jax2onnx.dimensions import is_static
from jax2onnx.optimize.engine import Rewriter, RuleSet, first
from jax2onnx.optimize.intervals import LIMITS, fits
from jax2onnx.optimize.queries import KNOWN, attribute, axes_of, constant, dims, integers, only_user, producer, scalar
from jax2onnx.optimize.simplify import reshaped

RULES = RuleSet()

MOVES = ("Cast", "Reshape", "Squeeze", "Unsqueeze")
"""Operators that an index goes through on its way, with the same value."""


def _known_index(origins: Sequence[str]) -> bool:
    return origins[1] == KNOWN


@RULES.rewrites("Gather", given=_known_index)
def take_consecutive_positions(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Positions one after the other are a slice, and all of them are the array itself."""
    x, index = node.inputs[0], constant(node.inputs[1])
    assert x is not None and index is not None
    axis = attribute(node, "axis", 0) % len(dims(x))
    size = dims(x)[axis]
    if index.ndim != 1 or index.size < 2 or not isinstance(size, int):
        return None
    start = int(index[0]) % size
    if not np.array_equal(np.where(index < 0, index + size, index), np.arange(start, start + index.size)):
        return None
    if index.size == size:
        return x
    bounds = (r.const([i], np.int64) for i in (start, start + index.size, axis))
    return r.op("Slice", x, *bounds, like=node.outputs[0])


LAST = RuleSet()
"""What others see an index go through."""


@LAST.rewrites("Gather", "GatherElements", given=lambda origins: origins[1] == "Cast")
def take_by_any_integers(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Indices may have 32 bits or 64."""
    cast = producer(node.inputs[1], "Cast")
    index = cast.inputs[0] if cast is not None else None
    if cast is None or index is None or index.dtype not in (ir.DataType.INT32, ir.DataType.INT64):
        return None
    if not _keeps_values(cast) and not fits(index, cast.outputs[0].dtype):  # type: ignore[arg-type]
        return None
    node.replace_input_with(1, index)
    return node.outputs[0]


@RULES.rewrites("Clip")
def leave_wrapping_to_the_operator(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Clip(i < 0 ? i + n : i, 0, n - 1) is, where it is only an index along an axis of size n, Clip(i, -n, n - 1)."""
    if len(node.inputs) != 3 or scalar(node.inputs[1]) != 0:
        return None
    x, y, high = node.inputs[0], node.outputs[0], node.inputs[2]
    last = _size(high)
    if last is None or high is None:
        return None
    assert x is not None and x.dtype is not None
    size = Size(last.name, last.number + 1)
    way: list[ir.Node] = []
    value = x
    while (move := producer(value, *MOVES)) is not None:
        if move.op_type == "Cast" and not _keeps_values(move):
            return None
        way.append(move)
        value = move.inputs[0]  # type: ignore[assignment]
    index = _before_wrapping(value, size)
    if index is None or not _is_only_an_index(y, x, size):
        return None
    if dims(index) != dims(value):  # the size that was added has an axis more
        if set(dims(value)) - {1}:
            return None
        index = r.op("Reshape", index, r.const(dims(value), np.int64), like=value)
    for move in reversed(way):
        index = r.op(move.op_type, index, *move.inputs[1:], like=move.outputs[0], **attributes_of(move))
    for use in y.uses():
        if use.node.op_type == "Equal":
            use.node.replace_input_with(1 - use.idx, index)
    dtype = x.dtype.numpy()
    low = r.op("Sub", r.const(-1, dtype), high, like=high) if size.name else r.const(-size.number, dtype)
    return r.op("Clip", index, low, high, like=y)


@RULES.rewrites("Clip", given=first("Cast"))
def clip_before_cast(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """An unsigned index has only one end to be clipped at, and a kernel for it that is right (unlike that of int64)."""
    cast, low, high = producer(node.inputs[0], "Cast"), *map(scalar, (*node.inputs[1:], None, None)[:2])
    x, y = cast.inputs[0] if cast is not None else None, node.outputs[0]
    if cast is None or x is None or x.dtype != ir.DataType.UINT32 or not _keeps_values(cast):
        return None
    if low is None or high is None or low > 0 or not 0 <= high <= LIMITS[x.dtype].max:
        return None
    return r.op("Cast", r.op("Min", x, r.const(high, np.uint32), like=x), like=y, to=int(y.dtype))  # type: ignore[arg-type]


def _keeps_values(cast: ir.Node) -> bool:
    """Can all integers of the dtype that is converted be the same in the other one?"""
    source, target = (LIMITS.get(v.dtype) for v in (cast.inputs[0], cast.outputs[0]))  # type: ignore[union-attr, arg-type]
    return source is not None and target is not None and target.min <= source.min and source.max <= target.max


class Size(NamedTuple):
    """The size of an axis: a number, and the name of what is to be added to it ("" for nothing)."""

    name: str
    number: int


def _size_of_axis(dim: int | str) -> Size:
    if isinstance(dim, int):
        return Size("", dim)
    sum_of_both = re.fullmatch(r"(.+) ([+-]) (\d+)", dim)
    return Size(sum_of_both[1], int(sum_of_both[2] + sum_of_both[3])) if sum_of_both else Size(dim, 0)


def _size(value: ir.Value | None) -> Size | None:
    """The size that a value of one element is: a known number, or what Shape says of an axis, and a number more."""
    number = scalar(value)
    if number is not None:
        return Size("", int(number))
    node = producer(value, "Shape", "Add", "Sub", *MOVES)
    if node is None or node.inputs[0] is None:
        return None
    if node.op_type == "Shape":
        axes = dims(node.inputs[0])[attribute(node, "start", 0) : attribute(node, "end")]
        return _size_of_axis(axes[0]) if len(axes) == 1 else None
    size = _size(node.inputs[0])
    if node.op_type in MOVES or size is None:
        return size
    more = scalar(node.inputs[1])
    if more is None:
        return None
    return Size(size.name, size.number + int(more if node.op_type == "Add" else -more))


def _before_wrapping(value: ir.Value, size: Size) -> ir.Value | None:
    """The index i if `value` is i < 0 ? i + size : i."""
    where = producer(value, "Where")
    if where is None:
        return None
    less, add, index = producer(where.inputs[0], "Less"), producer(where.inputs[1], "Add"), where.inputs[2]
    if less is None or add is None or index is None:
        return None
    is_negative = less.inputs[0] is index and scalar(less.inputs[1]) == 0
    is_shifted = any(a is index and _size(b) == size for a, b in (add.inputs, add.inputs[::-1]))
    return index if is_negative and is_shifted else None


def _is_only_an_index(value: ir.Value, unclipped: ir.Value | None, size: Size) -> bool:
    """Is `value` used for nothing but as an index along an axis of this size, and to see whether it was clipped?"""
    if value.is_graph_output() or not value.uses():
        return False
    for node, i in value.uses():
        data = node.inputs[0]
        assert data is not None
        match node.op_type:
            case "Gather" | "GatherElements" | "ScatterElements" if i == 1:
                fits = _size_of_axis(dims(data)[attribute(node, "axis", 0)]) == size
            case "GatherND" | "ScatterND" if i == 1:
                fits = dims(value)[-1] == 1 and _is_size_of(node, 0, size)
            case "Concat" if dims(value)[-1] == 1:
                fits = _is_component(node, i, size)
            case "Equal":
                fits = unclipped is not None and node.inputs[1 - i] is unclipped
            case "Compress" | "Cast" | "Expand" | "Reshape" | "Squeeze" | "Unsqueeze" if i == 0:
                fits = _is_only_an_index(node.outputs[0], None, size)
            case _:
                fits = False
        if not fits:
            return False
    return True


def _is_size_of(node: ir.Node, component: int, size: Size) -> bool:
    """Has the axis along which a component of index vectors moves this size?"""
    assert node.inputs[0] is not None
    return _size_of_axis(dims(node.inputs[0])[attribute(node, "batch_dims", 0) + component]) == size


def _is_component(concat: ir.Node, i: int, size: Size) -> bool:
    """Is the operand `i` of a Concat a component of index vectors, along an axis of this size, and nothing else?"""
    vectors = concat.outputs[0]
    rank = len(dims(vectors))
    before = [dims(part)[-1] for part in concat.inputs[:i] if part is not None]
    if attribute(concat, "axis") % rank != rank - 1 or not is_static(before) or vectors.is_graph_output():
        return False
    return all(
        use.node.op_type in ("GatherND", "ScatterND") and use.idx == 1 and _is_size_of(use.node, sum(before), size)  # type: ignore[arg-type]
        for use in vectors.uses()
    )


@RULES.rewrites("Gather", given=first("Concat"))
def pick_from_concatenation(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Just the elements that one part of a Concat consists of: that part. One element: from the part that has it."""
    x, index, y = node.inputs[0], node.inputs[1], node.outputs[0]
    wanted, concat = integers(index), producer(x, "Concat")
    if x is None or index is None or concat is None or wanted is None or len(dims(index)) > 1:
        return None
    rank = len(dims(x))
    axis, length = attribute(concat, "axis") % rank, dims(x)[attribute(concat, "axis")]
    if attribute(node, "axis", 0) % rank != axis or not isinstance(length, int):
        return None
    places = [i % length for i in wanted if -length <= i < length]
    if len(places) != len(wanted):
        return None
    start = 0
    for part in concat.inputs:
        assert part is not None
        size = dims(part)[axis]
        if not isinstance(size, int):  # what is cut at a position that is not known
            return None
        if len(dims(index)) == 1 and places == list(range(start, start + size)):
            return part
        if len(dims(index)) == 0 and start <= places[0] < start + size:
            if size == 1:
                return r.op("Squeeze", part, r.const([axis], np.int64), like=y)
            return r.op("Gather", part, r.const(places[0] - start, np.int64), like=y, axis=axis)
        start += size
    return None


PICK = RuleSet()


@PICK.rewrites("Squeeze", "Reshape", given=first("Slice"))
def pick_one(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """One element of an axis, cut out and without the axis: a Gather. Its other axes may be split or joined then."""
    cut, y = producer(node.inputs[0], "Slice"), node.outputs[0]
    if cut is None or only_user(cut.outputs[0]) != node:
        return None
    starts, axes, shape = integers(cut.inputs[1]), integers(cut.inputs[3]), dims(cut.outputs[0])
    if starts is None or axes is None or len(axes) != 1:
        return None
    axis = axes[0] % len(shape)
    size = dims(cut.inputs[0])[axis]  # type: ignore[arg-type]
    if shape[axis] != 1 or not (isinstance(size, int) and -size <= starts[0] < size):
        return None
    rest = shape[:axis] + shape[axis + 1 :]
    if node.op_type == "Squeeze" and rest != dims(y):
        return None
    picked = r.op("Gather", cut.inputs[0], r.const(starts[0], np.int64), like=y, shape=rest, axis=axis)
    return reshaped(r, picked, y, at_once=True)


@PICK.rewrites("Squeeze", "Reshape", given=first("Split"))
def pick_one_part(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """One of the parts of a Split, of size 1 and without the axis: a Gather. Its other axes may be split or joined
    then, if other parts are picked as well."""
    part, y = node.inputs[0], node.outputs[0]
    split = producer(part, "Split")
    if split is None or part is None or split.inputs[0] is None:
        return None
    shape = dims(part)
    axis = attribute(split, "axis", 0) % len(shape)
    sizes = [dims(v)[axis] for v in split.outputs]
    if shape[axis] != 1 or not is_static(sizes):
        return None
    users = [user for v in (split.inputs[0], *split.outputs) for user in v.consumers()]
    if not _picks(node, axis) and (node.op_type == "Squeeze" or not any(_picks(user, axis) for user in users)):
        return None
    position = sum(sizes[: list(split.outputs).index(part)])  # type: ignore[arg-type]
    rest = shape[:axis] + shape[axis + 1 :]
    picked = r.op("Gather", split.inputs[0], r.const(position, np.int64), like=y, shape=rest, axis=axis)
    return reshaped(r, picked, y, at_once=True)


def _picks(node: ir.Node, axis: int) -> bool:
    """Does a node take one element of an axis, or remove it, and nothing else?"""
    x = node.inputs[0]
    if x is None:
        return False
    if node.op_type == "Gather":
        return attribute(node, "axis", 0) % len(dims(x)) == axis and scalar(node.inputs[1]) is not None
    squeezed = axes_of(node) if node.op_type == "Squeeze" else None
    return squeezed is not None and [a % len(dims(x)) for a in squeezed] == [axis]
