"""Reductions over axes with others behind them, in ways that ONNX Runtime is fast at.

Its own way shares columns between threads, few at a time: the sums of 196 rows of 512 numbers take it 8 us with one
thread and 60 to 200 with two, the product with a row of ones 5; and those of 1 x 196 x 512, where what comes before is
smaller than the number of threads, 98. Largest numbers take it 40 and 100 us, 8 in two steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from jax2onnx.columns import Columns, Steps, columns_of, extreme_in_two_steps, in_two_steps
from jax2onnx.dimensions import is_static
from jax2onnx.optimize.engine import Rewriter, RuleSet
from jax2onnx.optimize.queries import attribute, axes_of, dims

LAST = RuleSet()

FEW_COLUMNS = 8
"""So few are turned into rows (`ends.py`)."""

STORED_ONES = 1024
"""More ones than that are not stored."""

FLOAT = ir.DataType.FLOAT
PLAIN_EXTREMES = (ir.DataType.INT32, ir.DataType.INT8, ir.DataType.UINT8)
"""Those that ONNX Runtime computes as they are. Of floats, only what is done where none is NaN is done in two steps
(`targets/nan.py`)."""


@LAST.rewrites("ReduceSum", "ReduceMean")
def add_rows_by_product(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Sums of the columns of one matrix: the product of a row of ones with it, which is more exact, too. Where that
    takes two Reshapes, as for the channels of an image, to reduce axes of size 1, too, does nearly as well."""
    x, y, found = node.inputs[0], node.outputs[0], _columns(node)
    if x is None or found is None or x.dtype != FLOAT or math.prod(found.behind) <= FEW_COLUMNS:
        return None
    if not is_static(found.before) or math.prod(found.before) != 1:
        return None
    if _keeps(node) and len(found.behind) > 1:
        axes = range(len(found.before) + len(found.rows))
        return r.op(node.op_type, x, r.const(axes, np.int64), like=y) if found.before else None
    count, columns = math.prod(found.rows), math.prod(found.behind)
    is_matrix = len(found.rows) == len(found.behind) == 1
    keeps = is_matrix and _keeps(node)
    matrix = x if is_matrix else _reshaped(r, x, [count, columns])
    shape = [*(found.before if is_matrix else ()), *([1] if keeps else ()), columns]
    sums = r.op("MatMul", _ones(r, [1, count] if keeps else [count]), matrix, like=y, shape=shape)
    if node.op_type == "ReduceMean":
        sums = r.op("Div", sums, r.const(np.float32(count)), like=sums)
    return sums if tuple(shape) == dims(y) else _reshaped(r, sums, dims(y))


@LAST.rewrites("ReduceSum", "ReduceMean")
def add_rows_in_two_steps(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Where there may be fewer matrices than threads."""
    x, found = node.inputs[0], _columns(node)
    if x is None or found is None or x.dtype not in (FLOAT, ir.DataType.DOUBLE) or not found.are_few():
        return None
    is_known = is_static(found.before)
    if math.prod(found.behind) <= FEW_COLUMNS or (is_known and (x.dtype == FLOAT or math.prod(found.before) > 1)):
        return None
    return _in_steps(r, node, in_two_steps(found, keeps=_keeps(node)))


@LAST.rewrites("ReduceMax", "ReduceMin")
def find_extremes_in_two_steps(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Of integers."""
    x, axes = node.inputs[0], axes_of(node)
    if x is None or not axes or x.dtype not in PLAIN_EXTREMES or attribute(node, "axes") is not None:
        return None
    return _in_steps(r, node, extreme_in_two_steps(dims(x), axes, keeps=_keeps(node)))


def _columns(node: ir.Node) -> Columns | None:
    x, axes = node.inputs[0], axes_of(node)
    return None if x is None or not axes or attribute(node, "axes") is not None else columns_of(dims(x), axes)


def _keeps(node: ir.Node) -> bool:
    return bool(attribute(node, "keepdims", 1))


def _in_steps(r: Rewriter, node: ir.Node, steps: Steps | None) -> ir.Value | None:
    if steps is None:
        return None
    op, x, y = node.op_type, node.inputs[0], node.outputs[0]
    blocks = r.op("Reshape", x, r.const(steps.operand, np.int64), like=x, shape=steps.shape)
    inner, outer = (r.const([axis], np.int64) for axis in (steps.axis + 1, steps.axis))
    partial = r.op(op, blocks, inner, like=y, shape=steps.after_first(), keepdims=int(steps.keeps_first))
    return r.op(op, partial, outer, like=y, keepdims=int(_keeps(node)))


def _ones(r: Rewriter, shape: Sequence[int]) -> ir.Value:
    if math.prod(shape) <= STORED_ONES:
        return r.const(np.ones(shape, np.float32))
    one = r.const(np.float32(1))
    return r.op("Expand", one, r.const(shape, np.int64), like=one, shape=shape)


def _reshaped(r: Rewriter, x: ir.Value, shape: Sequence[Any]) -> ir.Value:
    return r.op("Reshape", x, r.const(shape, np.int64), like=x, shape=shape)
