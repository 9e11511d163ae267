"""Axes that are moved, and moved on after something that does not care about their order, are moved once.

Batching over heads or groups puts an axis in front for a softmax, and back for the product that follows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from jax2onnx.attributes import values_of
from jax2onnx.dimensions import likely_size
from jax2onnx.optimize.engine import Rewriter, RuleSet, first
from jax2onnx.optimize.queries import (
    Dims,
    aligned_dims,
    attribute,
    constant,
    dims,
    has_many,
    only_user,
    producer,
    scalar,
)
from jax2onnx.optimize.units import BINARY, UNARY
from jax2onnx.permutations import inverse, permuted
from jax2onnx.reshapes import reshape_operand

RULES = RuleSet()
LAST = RuleSet()
"""For when Transposes do not move towards the results any more."""

SOFTMAX = ("Softmax", "LogSoftmax")
STOPS = (*UNARY, *BINARY, *SOFTMAX)
MAX_STOPS = 8


@RULES.rewrites("Transpose", given=first(*STOPS))
def move_once(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """transpose(f(transpose(x))) = transpose(f(x)), where f treats the axes that move alike."""
    value, stops = node.inputs[0], list[tuple[ir.Node, int]]()
    while value is not None and only_user(value) is not None and len(stops) < MAX_STOPS:
        stop = producer(value, *STOPS)
        way = _way(stop) if stop is not None and not stop.domain else None
        if stop is None or way is None:
            break
        stops.append((stop, way))
        value = stop.inputs[way]
    before = producer(value, "Transpose")
    if value is None or before is None or before.inputs[0] is None or only_user(value) is None or not stops:
        return None
    perm = list(attribute(before, "perm"))
    kept = next((i for i, axis in enumerate(reversed(perm)) if axis != len(perm) - 1 - i), len(perm))
    if not all(_is_about(stop, way, kept) for stop, way in stops):
        return None
    x = result = before.inputs[0]
    back = inverse(perm)
    for stop, way in reversed(stops):
        operands = [v if v is None or _rank_without_ones(dims(v)) <= kept else _turned(r, v, back) for v in stop.inputs]
        operands[way] = result
        attributes = values_of(stop)
        result = r.op(stop.op_type, *operands, like=stop.outputs[0], shape=dims(x), **attributes)
    both = [perm[i] for i in attribute(node, "perm")]
    return result if both == sorted(both) else r.op("Transpose", result, like=node.outputs[0], perm=both)


def _way(stop: ir.Node) -> int | None:
    """Which operand has the shape of the result, if only one does."""
    found = [i for i, v in enumerate(stop.inputs) if v is not None and dims(v) == dims(stop.outputs[0])]
    return found[0] if len(found) == 1 else None


def _is_about(stop: ir.Node, way: int, kept: int) -> bool:
    """Does a node treat all axes alike, but for the last `kept`, or by numbers that are known?"""
    if stop.op_type in SOFTMAX:
        rank = len(dims(stop.outputs[0]))
        return attribute(stop, "axis", -1) % rank >= rank - kept
    return all(
        v is None or i == way or _rank_without_ones(dims(v)) <= kept or _is_small_constant(v)
        for i, v in enumerate(stop.inputs)
    )


def _is_small_constant(value: ir.Value) -> bool:
    return value.const_value is not None and value.const_value.nbytes <= 1 << 20


def _turned(r: Rewriter, value: ir.Value, perm: list[int]) -> ir.Value:
    """A known operand in another order of axes."""
    known = constant(value)
    if known is None:
        return value  # the one that is replaced
    return r.moved(known.reshape((1,) * (len(perm) - known.ndim) + known.shape).transpose(perm), value)


def _rank_without_ones(shape: Dims) -> int:
    return len(shape) - next((i for i, d in enumerate(shape) if d != 1), len(shape))


@RULES.rewrites("Transpose", given=first("Reshape"))
def transpose_before_merging(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Axes that are moved, those behind them joined, and moved again: moved once, then joined."""
    joined, y, perm = node.inputs[0], node.outputs[0], list(attribute(node, "perm"))
    join = producer(joined, "Reshape")
    x = join.inputs[0] if join is not None else None
    if joined is None or x is None or producer(x, "Transpose") is None or only_user(joined) is None:
        return None
    kept = len(perm) - 1
    if perm[-1] != kept or dims(x)[:kept] != dims(joined)[:kept] or len(dims(x)) <= len(perm):
        return None
    whole = [*perm[:-1], *range(kept, len(dims(x)))]
    target, is_zero_size = reshape_operand(permuted(dims(x), whole), dims(y))
    if target is None or is_zero_size:
        return None
    moved = r.transpose(x, whole)
    return r.op("Reshape", moved, r.const(target, np.int64), like=y)


@RULES.rewrites("Gather", given=first("Transpose"))
def pick_before_transpose(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """What is moved and then taken apart, as queries, keys and values are, is taken apart and then moved."""
    turned, y = node.inputs[0], node.outputs[0]
    before = producer(turned, "Transpose")
    axis = _picked_axis(node)
    if before is None or turned is None or before.inputs[0] is None or axis is None or turned.is_graph_output():
        return None
    if any(user.inputs[0] is not turned or _picked_axis(user) != axis for user in turned.consumers()):
        return None
    x, perm = before.inputs[0], list(attribute(before, "perm"))
    place = perm.pop(axis)
    if perm == sorted(perm) and place == len(perm):
        return None  # it makes columns rows, so that they are picked as a whole
    shape = [d for i, d in enumerate(dims(x)) if i != place]
    part = r.op("Gather", x, node.inputs[1], like=y, shape=shape, axis=place)
    return r.op("Transpose", part, like=y, perm=[i - (i > place) for i in perm]) if perm != sorted(perm) else part


def _picked_axis(node: ir.Node) -> int | None:
    """The axis from which a node takes one known element, which is gone then."""
    if node.op_type != "Gather" or scalar(node.inputs[1]) is None or dims(node.inputs[1]) != ():  # type: ignore[arg-type]
        return None
    return int(attribute(node, "axis", 0)) % len(dims(node.inputs[0]))  # type: ignore[arg-type]


@RULES.rewrites("Reshape", given=first("Gather"))
def slice_what_is_joined_again(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Columns in groups, of which one is picked, side by side again: a slice of the columns."""
    y, pick = node.outputs[0], producer(node.inputs[0], "Gather")
    axis = _picked_axis(pick) if pick is not None else None
    split = producer(pick.inputs[0], "Reshape") if pick is not None else None
    x = split.inputs[0] if split is not None else None
    if pick is None or split is None or x is None or axis is None or only_user(pick.outputs[0]) is None:
        return None
    (*lead, count), width, index = dims(split.outputs[0])[: axis + 1], dims(y)[-1], int(scalar(pick.inputs[1]))
    if not isinstance(count, int) or not isinstance(width, int) or not -count <= index < count or 0 in dims(x):
        return None
    if dims(y) != (*lead, width) or dims(x) != (*lead, count * width):
        return None
    start = index % count * width
    places = [r.const([i], np.int64) for i in (start, start + width, axis)]
    return r.op("Slice", x, *places, like=y)


@LAST.rewrites("Transpose", given=first(*UNARY, *BINARY, "Clip"))
def move_what_is_combined(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """transpose(f(x, y)) = f(transpose(x), transpose(y)), where x and y are small and f(x, y) is not, as in an outer
    product."""
    value, y, perm = node.inputs[0], node.outputs[0], list(attribute(node, "perm"))
    found = _small_operands(value, likely_size(dims(y)) // 4, MAX_STOPS)
    if value is None or found is None or 4 * sum(likely_size(dims(v)) for v in found) > likely_size(dims(y)):
        return None
    if sum(_moves(aligned_dims(v, len(perm)), perm) for v in found) > 1 and not has_many(y):
        return None
    return _of_moved(r, value, perm, {v: _moved(r, v, perm) for v in found})


def _small_operands(value: ir.Value | None, few: int, steps: int) -> dict[ir.Value, None] | None:
    """The values that one is computed from, element by element, if each has few elements, but for known ones."""
    if value is None or not dims(value) or _is_small_constant(value):
        return {}
    if likely_size(dims(value)) <= few:
        return {value: None}
    node = producer(value, *UNARY, *BINARY, "Clip")
    if node is None or node.domain or only_user(value) is None or not steps:
        return None
    found: dict[ir.Value, None] = {}
    for operand in node.inputs:
        more = _small_operands(operand, few, steps - 1)
        if more is None:
            return None
        found.update(more)
    return found


def _of_moved(r: Rewriter, value: ir.Value, perm: list[int], moved: Mapping[ir.Value, ir.Value]) -> ir.Value:
    """A value with its axes in another order, computed from operands that have them in that order."""
    if not dims(value) or scalar(value) is not None:
        return value
    if value in moved:
        return moved[value]
    node = value.producer()
    if node is None or _is_small_constant(value):
        return _turned(r, value, perm)
    operands = [v if v is None else _of_moved(r, v, perm, moved) for v in node.inputs]
    shape = permuted(aligned_dims(value, len(perm)), perm)
    return r.op(node.op_type, *operands, like=value, shape=shape, **values_of(node))


def _moved(r: Rewriter, value: ir.Value, perm: list[int]) -> ir.Value:
    """A value with its axes in another order, those that broadcasting adds included."""
    shape, missing = aligned_dims(value, len(perm)), len(perm) - len(dims(value))
    if missing:
        value = r.op("Unsqueeze", value, r.const(range(missing), np.int64), like=value, shape=shape)
    return r.transpose(value, perm)


def _moves(shape: Dims, perm: list[int]) -> bool:
    """Are the elements in another order then?"""
    axes = [axis for axis in perm if shape[axis] != 1]
    return axes != sorted(axes)
