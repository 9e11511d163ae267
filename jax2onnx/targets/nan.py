"""Extremes of floats: ONNX Runtime's ReduceMax, ReduceMin and MaxPool ignore NaN, and may lose a neighbour of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from jax2onnx.errors import UnsupportedError
from jax2onnx.targets.reductions import reduced_axes, without_reduced
from jax2onnx.targets.rewrite import Emitter, dims_of, dtype_of, expands

FLOATS = "f16 bf16 f32 f64"
BOOL = ir.DataType.BOOL


@expands("ReduceMax ReduceMin", FLOATS, as_function=True)
def reduce_extreme_of_floats(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    """NaN where there is one, and the plain reduction elsewhere."""
    x, axes = e.operands[0], reduced_axes(node)
    wide = e.cast(x, ir.DataType.DOUBLE if dtype_of(x) == ir.DataType.DOUBLE else ir.DataType.FLOAT)
    dims = [1 if i in axes else d for i, d in enumerate(dims_of(x))]
    # Of no elements at all, the largest uint8 is 0.
    marks = e.cast(e.IsNaN(x, shape=dims_of(x), dtype=BOOL), ir.DataType.UINT8)
    positions = e.const(np.asarray(axes, np.int64))
    has_nan = e.cast(_reduce(e, "ReduceMax", marks, positions, axes, dims), BOOL)
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


@expands("MaxPool", "f16 bf16")
def max_pool_of_halves(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    if len(node.outputs) > 1:
        raise UnsupportedError(f"MaxPool with indices has no kernel for {e.dtype.name.lower()} in onnxruntime.")
    attributes = {name: a.value for name, a in node.attributes.items()}
    return [e.cast(e.MaxPool(e.cast(e.operands[0], ir.DataType.FLOAT), **attributes), e.dtype)]


@expands("MaxPool", "f32 f64", as_function=True)
def max_pool(e: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """MaxPool where the sum of all elements is finite, so that none is NaN or infinite; else a careful one.

    The careful one gives NaN where a window has one, and -inf (not the lowest finite number) where it has nothing else.
    """
    if len(node.outputs) > 1:
        return None
    x, y = e.operands[0], node.outputs[0]
    dtype, numpy_dtype = dtype_of(x), dtype_of(x).numpy()
    attributes = {name: a.value for name, a in node.attributes.items()}
    total = e.ReduceSum(x, shape=[], keepdims=0)
    is_special = e.IsNaN(e.Mul(total, 0.0, shape=[]), shape=[], dtype=BOOL)
    nan, lowest = (e.const(np.asarray(v, numpy_dtype)) for v in (np.nan, -np.inf))
    nodes: list[ir.Node] = []

    def add(op: str, inputs: Sequence[ir.Value], like: ir.Value, dtype: ir.DataType, **attributes: Any) -> ir.Value:
        nodes.append(_plain_node(op, inputs, like, dtype, attributes))
        return nodes[-1].outputs[0]

    def any_in_window(flags: ir.Value) -> ir.Value:
        pooled = add("MaxPool", [add("Cast", [flags], x, dtype, to=int(dtype))], y, dtype, **attributes)
        return add("Cast", [pooled], y, BOOL, to=int(BOOL))

    has_nan = any_in_window(add("IsNaN", [x], x, BOOL))
    has_more = any_in_window(add("Greater", [x, lowest], x, BOOL))
    pooled = add("Where", [has_more, add("MaxPool", [x], y, dtype, **attributes), lowest], y, dtype)
    careful = ir.Graph([], [add("Where", [has_nan, nan, pooled], y, dtype)], nodes=nodes, name="careful")
    plain = _plain_node("MaxPool", [x], y, dtype, attributes)
    quick = ir.Graph([], plain.outputs, nodes=[plain], name="quick")
    return [e.raw("If", is_special, then_branch=careful, else_branch=quick, shape=dims_of(y), dtype=dtype)]


def _plain_node(
    op: str, inputs: Sequence[ir.Value], like: ir.Value, dtype: ir.DataType, attributes: dict | None = None
) -> ir.Node:
    result = ir.Value(shape=like.shape, type=ir.TensorType(dtype))
    return ir.Node("", op, inputs, ir.convenience.convert_attributes(attributes or {}), outputs=[result])
