"""RotaryEmbedding: pairs of numbers, turned by an angle for each position, recognised by their maths.

A pair is either two neighbours, or the same place in both halves of a head. In ONNX Runtime the operator takes a third
to a sixth of the time of the formula, for the same numbers but for the last digit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from jax2onnx.optimize.engine import Rewriter, RuleSet, first, some
from jax2onnx.optimize.queries import attribute, axes_of, constant, dims, integers, producer

RULES = RuleSet()

OPSET = 23


class Half(NamedTuple):
    """The first or second numbers of all pairs in x."""

    x: ir.Value
    is_second: bool
    is_interleaved: bool


@RULES.rewrites("Concat")
def recognise_rotation_of_halves(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """[a * cos - b * sin, b * cos + a * sin], where x is [a, b]."""
    y = node.outputs[0]
    if attribute(node, "axis") % len(dims(y)) != len(dims(y)) - 1 or len(node.inputs) != 2:
        return None
    return _rotated(r, y, node.inputs[0], node.inputs[1], interleaved=False)


@RULES.rewrites("Reshape", given=first("Concat"))
def recognise_rotation_of_neighbours(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """The same, with the results as neighbours."""
    stacked, y = producer(node.inputs[0], "Concat"), node.outputs[0]
    if stacked is None or len(stacked.inputs) != 2:
        return None
    rank = len(dims(y))
    parts = [producer(v, "Unsqueeze") for v in stacked.inputs]
    if attribute(stacked, "axis") % (rank + 1) != rank or any(p is None for p in parts):
        return None
    if any([a % (rank + 1) for a in axes_of(p) or ()] != [rank] for p in parts if p is not None):
        return None
    first, second = (p.inputs[0] for p in parts if p is not None)
    return _rotated(r, y, first, second, interleaved=True)


@RULES.rewrites("Add", given=some("Mul"), needs=("Concat",))
def recognise_rotation_of_whole(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """x * cos + [-b, a] * sin, where x is [a, b], and cos and sin are the same for both halves."""
    for straight, crossed in _orders(node):
        for x, cos in _orders(producer(straight, "Mul")):
            for turned, sin in _orders(producer(crossed, "Mul")):
                joined = producer(turned, "Concat")
                if joined is None or len(joined.inputs) != 2:
                    continue
                (before, whole), (left, negative), (right, plain) = map(_turned, (x, *joined.inputs))
                minus = producer(negative, "Neg")
                second, first = _half(minus.inputs[0] if minus is not None else None), _half(plain)
                if before != left or before != right or whole is None:
                    continue
                if first != Half(whole, False, False) or second != Half(whole, True, False):
                    continue
                angles = [_first_half(r, v) for v in (cos, sin)]
                if angles[0] is not None and angles[1] is not None:
                    return _emit(r, node.outputs[0], x, angles[0], angles[1], interleaved=False)
    return None


def _orders(node: ir.Node | None) -> Iterator[tuple[ir.Value, ir.Value]]:
    if node is not None and len(node.inputs) == 2 and node.inputs[0] is not None and node.inputs[1] is not None:
        yield node.inputs[0], node.inputs[1]
        yield node.inputs[1], node.inputs[0]


def _turned(value: ir.Value | None) -> tuple[list[int] | None, ir.Value | None]:
    """The order of axes and the operand of a Transpose that leaves the last axis where it is."""
    node = producer(value, "Transpose")
    perm = list(attribute(node, "perm")) if node is not None else []
    return (perm, node.inputs[0]) if node is not None and perm[-1] == len(perm) - 1 else (None, value)


def _first_half(r: Rewriter, value: ir.Value) -> ir.Value | None:
    """Half of an array, if the other half is the same: known, or computed from the same numbers twice."""
    array = constant(value)
    size = dims(value)[-1]
    if not isinstance(size, int) or size % 2:
        return None
    if array is not None:
        half = np.ascontiguousarray(array[..., : size // 2])
        return r.const(half) if half.tobytes() == np.ascontiguousarray(array[..., size // 2 :]).tobytes() else None
    shape = [*dims(value)[:-1], size // 2]
    twice = producer(value, "Concat")
    if twice is not None:
        is_last = attribute(twice, "axis") % len(shape) == len(shape) - 1
        return twice.inputs[0] if is_last and len(twice.inputs) == 2 and len(set(twice.inputs)) == 1 else None
    node = producer(value, "Cos", "Sin", "Unsqueeze")
    if node is None or node.inputs[0] is None:
        return None
    if node.op_type == "Unsqueeze" and any(a % len(shape) == len(shape) - 1 for a in axes_of(node) or (-1,)):
        return None
    inner = _first_half(r, node.inputs[0])
    return None if inner is None else r.op(node.op_type, inner, *node.inputs[1:], like=value, shape=shape)


def _rotated(
    r: Rewriter, y: ir.Value, first: ir.Value | None, second: ir.Value | None, interleaved: bool
) -> ir.Value | None:
    difference, total = producer(first, "Sub"), producer(second, "Add")
    if difference is None or total is None:
        return None
    for a, cos in _orders(producer(difference.inputs[0], "Mul")):
        for b, sin in _orders(producer(difference.inputs[1], "Mul")):
            left, right = _half(a), _half(b)
            if left is None or right is None or left.is_second or not right.is_second or left.x is not right.x:
                continue
            if left.is_interleaved != interleaved or right.is_interleaved != interleaved:
                continue
            for one, other in _orders(total):
                if _is_product(one, b, cos) and _is_product(other, a, sin):
                    return _emit(r, y, left.x, cos, sin, interleaved)
    return None


def _is_product(value: ir.Value, a: ir.Value, b: ir.Value) -> bool:
    return any(x is a and y is b for x, y in _orders(producer(value, "Mul")))


def _half(value: ir.Value | None) -> Half | None:
    node = producer(value, "Split", "Slice", "Gather")
    if node is None or node.inputs[0] is None or value is None:
        return None
    x = node.inputs[0]
    size, last = dims(x)[-1], len(dims(x)) - 1
    if not isinstance(size, int) or size % 2 or dims(value) != (*dims(x)[:-1], size // 2):
        return None
    if node.op_type == "Split":
        if attribute(node, "axis", 0) % (last + 1) != last or len(node.outputs) != 2:
            return None
        return Half(x, value is node.outputs[1], False)
    if node.op_type == "Gather":
        places = integers(node.inputs[1]) if attribute(node, "axis", 0) % (last + 1) == last else None
        for start in (0, 1):
            if places == tuple(range(start, size, 2)):
                return Half(x, start == 1, True)
        return None
    starts, axes = integers(node.inputs[1]), axes_of(node, 3)
    steps = integers(node.inputs[4]) if len(node.inputs) > 4 else (1,)
    if starts is None or axes is None or steps is None or [a % (last + 1) for a in axes] != [last]:
        return None
    if steps == (1,) and starts in ((0,), (size // 2,)):
        return Half(x, starts != (0,), False)
    return Half(x, starts == (1,), True) if steps == (2,) and starts in ((0,), (1,)) else None


def _emit(r: Rewriter, y: ir.Value, x: ir.Value, cos: ir.Value, sin: ir.Value, interleaved: bool) -> ir.Value | None:
    """The operator. The angles have a position for each row, heads are on one of the axes beside it."""
    if r.opset < OPSET or y.dtype != ir.DataType.FLOAT or dims(x) != dims(y) or dims(cos) != dims(sin):
        return None
    if len(dims(x)) != 4 or 0 in dims(x):
        return None
    batch, *_, size = dims(x)
    shape = (1,) * (4 - len(dims(cos))) + dims(cos)
    for heads, positions in ((2, 1), (1, 2)):
        length, count = dims(x)[positions], dims(x)[heads]
        if shape[heads] == 1 and shape[positions] == length and shape[0] in (1, batch) and shape[3] == int(size) // 2:
            break
    else:
        return None
    if not isinstance(count, int):
        return None
    angles, places = [cos, sin], None
    if isinstance(batch, int) and isinstance(length, int):
        per_row = shape[0] == batch
        target = [batch, length, shape[3]] if per_row else [length, shape[3]]
        angles = [r.op("Reshape", v, r.const(target, np.int64), like=v, shape=target) for v in angles]
        places = None if per_row else r.const(np.tile(np.arange(length), (batch, 1)), np.int64)
    else:
        angles = [_for_each_row(r, v, heads - 4, x) for v in angles]
    flag = 1 if interleaved else None
    if heads == 1:
        return r.op("RotaryEmbedding", x, *angles, places, like=y, interleaved=flag)
    rows = [batch, length, count * int(size)]
    joined = r.op("Reshape", x, r.const([0, 0, rows[2]], np.int64), like=x, shape=rows)
    result = r.op("RotaryEmbedding", joined, *angles, places, like=y, shape=rows, num_heads=count, interleaved=flag)
    return r.op("Reshape", result, r.const([0, 0, count, size], np.int64), like=y)


def _for_each_row(r: Rewriter, angles: ir.Value, heads: int, x: ir.Value) -> ir.Value:
    """The angles (batch, positions, size / 2), without the axis of heads, which is counted from the end."""
    shape = list(dims(angles))
    if len(shape) >= -heads:
        del shape[heads]
        angles = r.op("Squeeze", angles, r.const([heads], np.int64), like=angles, shape=shape)
    batch = dims(x)[0]
    if shape == [batch, *shape[-2:]]:
        return angles
    ones = r.const([1, 1], np.int64)
    if isinstance(batch, int):
        rows = r.const([batch, 1, 1], np.int64)
    else:
        rows = r.op("Concat", _size_of_batch(r, x), ones, like=ones, shape=[3], axis=0)
    return r.op("Expand", angles, rows, like=angles, shape=[batch, *shape[-2:]])


def _size_of_batch(r: Rewriter, x: ir.Value) -> ir.Value:
    """The size of the first axis: of an input of the graph that has it, so that all layers compute it once."""
    batch, node = dims(x)[0], x.producer()
    inputs = node.graph.inputs if node is not None and node.graph is not None else ()
    source = next((v for v in inputs if batch in dims(v)), x)
    axis = dims(source).index(batch)
    return r.op("Shape", source, like=r.const([0], np.int64), start=axis, end=axis + 1)
