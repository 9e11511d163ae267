"""Extremes of floats: ONNX Runtime's ReduceMax, ReduceMin and MaxPool ignore NaN (and may lose a neighbour of one)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from jax2onnx.targets.reductions import reduced_axes, without_reduced
from jax2onnx.targets.rewrite import Emitter, dims_of, dtype_of, expands

FLOATS = "f16 bf16 f32 f64"


@expands("ReduceMax ReduceMin", FLOATS)
def reduce_extreme_of_floats(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    """NaN where there is one, and the plain reduction elsewhere."""
    x, axes = e.operands[0], reduced_axes(node)
    wide = e.cast(x, ir.DataType.DOUBLE if dtype_of(x) == ir.DataType.DOUBLE else ir.DataType.FLOAT)
    dims = [1 if i in axes else d for i, d in enumerate(dims_of(x))]
    marks = e.cast(e.IsNaN(x, shape=dims_of(x), dtype=ir.DataType.BOOL), ir.DataType.INT32)
    positions = e.const(np.asarray(axes, np.int64))
    has_nan = e.cast(_reduce(e, "ReduceMax", marks, positions, axes, dims), ir.DataType.BOOL)
    plain = _reduce(e, node.op_type, wide, positions, axes, dims, legal=False)
    nan = e.const(np.asarray(np.nan, dtype_of(wide).numpy()))
    result = e.Where(has_nan, nan, plain, shape=dims, dtype=dtype_of(wide))
    return [without_reduced(e, node, e.cast(result, dtype_of(x)), axes)]


def _reduce(
    e: Emitter, op: str, x: ir.Value, positions: ir.Value, axes: Sequence[int], dims: list, *, legal: bool = True
) -> ir.Value:
    attributes = {"keepdims": 1} if e.opset >= 18 else {"keepdims": 1, "axes": list(axes)}
    operands = [x, positions] if e.opset >= 18 else [x]
    if legal:
        return e.emit(op, *operands, shape=dims, dtype=dtype_of(x), **attributes)
    return e.raw(op, *operands, shape=dims, dtype=dtype_of(x), **attributes)


@expands("MaxPool", "f32 f64")
def max_pool(e: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """MaxPool where the sum of all elements is a number, so that none is NaN; else NaN where a window has one."""
    if len(node.outputs) > 1:
        return None
    x, y = e.operands[0], node.outputs[0]
    attributes = {name: a.value for name, a in node.attributes.items()}
    total = e.ReduceSum(x, shape=[], keepdims=0)
    may_have_nan = e.IsNaN(total, shape=[], dtype=ir.DataType.BOOL)
    nan = e.const(np.asarray(np.nan, dtype_of(x).numpy()))

    def pool(operand: ir.Value) -> ir.Node:
        return _plain_node("MaxPool", [operand], y, dtype_of(operand), attributes)

    marks = _plain_node("IsNaN", [x], x, ir.DataType.BOOL)
    ones = _plain_node("Cast", marks.outputs, x, dtype_of(x), {"to": int(dtype_of(x))})
    marked = pool(ones.outputs[0])
    flags = _plain_node("Cast", marked.outputs, y, ir.DataType.BOOL, {"to": int(ir.DataType.BOOL)})
    pooled = pool(x)
    chosen = _plain_node("Where", [flags.outputs[0], nan, pooled.outputs[0]], y, dtype_of(x))
    careful = ir.Graph([], chosen.outputs, nodes=[marks, ones, marked, flags, pooled, chosen], name="with_nan")
    quick_pool = pool(x)
    quick = ir.Graph([], quick_pool.outputs, nodes=[quick_pool], name="without_nan")
    return [e.raw("If", may_have_nan, then_branch=careful, else_branch=quick, shape=dims_of(y), dtype=dtype_of(y))]


def _plain_node(
    op: str, inputs: Sequence[ir.Value], like: ir.Value, dtype: ir.DataType, attributes: dict | None = None
) -> ir.Node:
    result = ir.Value(shape=like.shape, type=ir.TensorType(dtype))
    return ir.Node("", op, inputs, ir.convenience.convert_attributes(attributes or {}), outputs=[result])
