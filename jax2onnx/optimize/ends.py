"""Columns and inner axes, which ONNX Runtime often goes through element by element, become rows before.

It adds up the rows of a matrix of few columns that way: 12,288 rows of 8 numbers in 550 us, their transpose in 12 + 8.
It takes 90 us for one column of them, and 2 for a row of the transpose, and 45 ms for 1,200 columns of 512 rows of 20,
0.7 by way of the transpose. And before a Softmax it moves the axis to the end itself, slowly, unless the axis is the
last but one.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from jax2onnx.dimensions import is_static, likely_size
from jax2onnx.optimize.engine import Rewriter, RuleSet, first
from jax2onnx.optimize.queries import KNOWN, attribute, axes_of, constant, dims, producer, scalar
from jax2onnx.permutations import inverse

LAST = RuleSet()

MANY = 8 * 1024
"""So many elements pay for two nodes more."""

FEW_COLUMNS = 32
"""With more columns than that, whole rows are added at once."""

FEW_ROWS = 8
"""With fewer rows than that, a column is too short to be copied at once. Then an index for each element is faster."""


FEW_PARTS = 8
"""So many columns are cut apart all at once."""


@LAST.rewrites("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin")
def reduce_columns(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Of the leading axes, with few elements behind them; or of any axes, with only one element behind."""
    x, axes, y = node.inputs[0], axes_of(node), node.outputs[0]
    if x is None or not axes or likely_size(dims(x)) < MANY or attribute(node, "axes") is not None:
        return None
    shape = dims(x)
    reduced = sorted(a % len(shape) for a in axes)
    behind = shape[reduced[-1] + 1 :]
    if not behind or not is_static(behind):
        return None
    columns = math.prod(int(d) for d in behind)
    if columns == 1:
        kept = shape[: len(shape) - len(behind)]
        rows = r.op("Squeeze", x, r.const(range(len(kept), len(shape)), np.int64), like=x, shape=kept)
    elif columns <= FEW_COLUMNS and reduced == list(range(len(reduced))):
        perm = [*range(len(reduced), len(shape)), *reduced]
        rows = r.transpose(x, perm)
        reduced = list(range(len(behind), len(shape)))
    else:
        return None
    left = [d for i, d in enumerate(dims(rows)) if i not in reduced]
    result = r.op(node.op_type, rows, r.const(reduced, np.int64), like=y, shape=left, keepdims=0)
    if list(dims(y)) == left:
        return result
    added = sorted({a % len(shape) for a in axes} if attribute(node, "keepdims", 1) else set())
    if columns == 1:
        added += range(len(dims(y)) - len(behind), len(dims(y)))
    return r.op("Unsqueeze", result, r.const(added, np.int64), like=y)


@LAST.rewrites("Gather")
def take_column(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """One of few columns of many rows: a part of all of them, if there are others that are wanted by themselves."""
    x, index, y = node.inputs[0], node.inputs[1], node.outputs[0]
    if x is None or index is None or len(dims(x)) < 2 or dims(index) or scalar(index) is None:
        return None
    shape, axis = dims(x), attribute(node, "axis", 0) % len(dims(x))
    columns = shape[-1]
    if (
        axis < len(shape) - 1
        or not isinstance(columns, int)
        or not 1 < columns <= FEW_PARTS
        or likely_size(shape) < MANY
    ):
        return None
    if sum(_takes_single_columns(user, x) for user in x.consumers()) > 1:
        return _part(r, x, index, y)
    rows = r.transpose(x, [axis, *range(axis)])
    return r.op("Gather", rows, index, like=y, axis=0)


@LAST.rewrites("Gather", given=first("Transpose"))
def take_part(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """One of few columns that have all been made rows, to be taken one by one."""
    rows, index, y = node.inputs[0], node.inputs[1], node.outputs[0]
    turn = producer(rows, "Transpose")
    x = turn.inputs[0] if turn is not None else None
    if turn is None or rows is None or x is None or index is None or dims(index) or scalar(index) is None:
        return None
    last, columns = len(dims(x)) - 1, dims(x)[-1]
    if list(attribute(turn, "perm")) != [last, *range(last)] or attribute(node, "axis", 0) % (last + 1):
        return None
    if not isinstance(columns, int) or not 1 < columns <= FEW_PARTS or likely_size(dims(x)) < MANY:
        return None
    others = [user for user in rows.consumers() if user is not node]
    if any(user.op_type != "Gather" or dims(user.outputs[0]) != dims(y) for user in others):
        return None
    is_split = any(_takes_single_columns(user, x) for user in x.consumers())
    return _part(r, x, index, y) if others or is_split else None


def _part(r: Rewriter, x: ir.Value, index: ir.Value, like: ir.Value) -> ir.Value:
    """One column of `x`, by itself."""
    axis = len(dims(x)) - 1
    part = r.split(x, [1] * int(dims(x)[-1]), axis)[int(scalar(index))]
    return r.op("Squeeze", part, r.const([axis], np.int64), like=like)


def _takes_single_columns(node: ir.Node, x: ir.Value) -> bool:
    """Is it a Gather of one column of `x`, or has it become the parts that are one column each?"""
    rank = len(dims(x))
    if node.op_type not in ("Gather", "Split") or node.inputs[0] is not x or len(node.inputs) < 2:
        return False
    is_one = node.op_type == "Split" or dims(node.inputs[1]) == ()  # type: ignore[arg-type]
    has_axis = attribute(node, "axis", 0) % rank == rank - 1
    return is_one and has_axis and all(dims(y)[rank - 1 :] in ((), (1,)) for y in node.outputs)


@LAST.rewrites("Gather", given=lambda origins: origins[1] == KNOWN)
def take_columns(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Known columns of several rows."""
    x, index, y = node.inputs[0], node.inputs[1], node.outputs[0]
    known = constant(index)
    if x is None or index is None or known is None or not known.ndim or likely_size(dims(y)) < MANY:
        return None
    shape, axis = dims(x), attribute(node, "axis", 0) % len(dims(x))
    rows = shape[:-1]
    if axis < len(shape) - 1 or likely_size(rows) <= 1:
        return None
    if likely_size(rows) < FEW_ROWS:
        if not is_static(rows):
            return None
        wanted = [*rows, known.size]
        flat = r.moved(known.reshape(-1), index)
        indices = r.op("Expand", flat, r.const(wanted, np.int64), like=index, shape=wanted)
        found = r.op("GatherElements", x, indices, like=y, shape=wanted, axis=axis)
        return found if known.ndim == 1 else r.op("Reshape", found, r.const(dims(y), np.int64), like=y)
    turned = r.transpose(x, [axis, *range(axis)])
    columns = r.op("Gather", turned, index, like=y, shape=[*known.shape, *rows], axis=0)
    perm = [*range(known.ndim, known.ndim + axis), *range(known.ndim)]
    return r.op("Transpose", columns, like=y, perm=perm)


@LAST.rewrites("Softmax", "LogSoftmax")
def move_to_the_end(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """An axis with two or more behind it."""
    x, y = node.inputs[0], node.outputs[0]
    assert x is not None
    shape = dims(x)
    axis = attribute(node, "axis", -1) % len(shape)
    if axis >= len(shape) - 2 or likely_size(shape) < MANY:
        return None
    perm = [*(i for i in range(len(shape)) if i != axis), axis]
    turned = r.transpose(x, perm)
    result = r.op(node.op_type, turned, like=turned, axis=-1)
    return r.op("Transpose", result, like=y, perm=inverse(perm))
