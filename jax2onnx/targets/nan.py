"""Extremes of floats: ONNX Runtime's ReduceMax, ReduceMin and MaxPool ignore NaN, and may lose a neighbour of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from jax2onnx.attributes import values_of
from jax2onnx.columns import Steps, extreme_in_two_steps
from jax2onnx.dimensions import likely_size
from jax2onnx.errors import UnsupportedError
from jax2onnx.targets.emitter import Emitter, dims_of, dtype_of
from jax2onnx.targets.plans import expands
from jax2onnx.targets.reductions import reduced_axes, without_reduced

FLOATS = "f16 bf16 f32 f64"
BOOL = ir.DataType.BOOL


MANY = 16 * 1024
"""From so many elements on, to add them up and see whether that is NaN takes less time than to look at each."""


@expands("ReduceMax ReduceMin", f"{FLOATS} f8e4m3fn f8e4m3fnuz f8e5m2 f8e5m2fnuz", as_function=True)
def reduce_extreme_of_floats(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    """NaN where there is one, and the plain reduction elsewhere."""
    x, axes = e.operands[0], reduced_axes(node)
    wide = e.cast(x, ir.DataType.DOUBLE if dtype_of(x) == ir.DataType.DOUBLE else ir.DataType.FLOAT)
    dims = [1 if i in axes else d for i, d in enumerate(dims_of(x))]
    positions = e.const(np.asarray(axes, np.int64))
    nan = e.const(np.asarray(np.nan, dtype_of(wide).numpy()))
    if e.opset >= 18 and likely_size(dims_of(x)) >= MANY:
        steps = extreme_in_two_steps(dims_of(x), axes, keeps=True)
        result = _reduce_many(e, node.op_type, wide, positions, nan, dims, steps)
        return [without_reduced(e, node, e.cast(result, dtype_of(x)), axes)]
    # Of no elements at all, the largest uint8 is 0.
    marks = e.cast(e.IsNaN(x, shape=dims_of(x), dtype=BOOL), ir.DataType.UINT8)
    has_nan = e.cast(_reduce(e, "ReduceMax", marks, positions, axes, dims), BOOL)
    plain = _reduce(e, node.op_type, wide, positions, axes, dims, legal=False)
    result = e.Where(has_nan, nan, plain, shape=dims, dtype=dtype_of(wide))
    return [without_reduced(e, node, e.cast(result, dtype_of(x)), axes)]


def _reduce_many(
    e: Emitter, op: str, x: ir.Value, positions: ir.Value, nan: ir.Value, dims: list, steps: Steps | None
) -> ir.Value:
    """If the sum of all is not NaN, none of them is, and the plain reduction is right, or one in two steps."""
    dtype = dtype_of(x)
    like = ir.Value(shape=ir.Shape(dims))

    def reduce(add: _Add, op: str, x: ir.Value) -> ir.Value:
        return add(op, [x, positions], like, dtype_of(x), keepdims=1)

    def careful(add: _Add) -> ir.Value:
        marks = add("Cast", [add("IsNaN", [x], x, BOOL)], x, dtype, to=int(dtype))
        has_nan = add("Cast", [reduce(add, "ReduceMax", marks)], like, BOOL, to=int(BOOL))
        return add("Where", [has_nan, nan, reduce(add, op, x)], like, dtype)

    is_special = e.IsNaN(e.ReduceSum(x, shape=[], keepdims=0), shape=[], dtype=BOOL)
    if steps is None:
        return _either(e, is_special, careful, lambda add: reduce(add, op, x))
    operand, inner, outer = (e.const(np.asarray(v, np.int64)) for v in (steps.operand, [steps.axis + 1], [steps.axis]))

    def quick(add: _Add) -> ir.Value:
        blocks = add("Reshape", [x, operand], ir.Value(shape=ir.Shape(steps.shape)), dtype)
        after = ir.Value(shape=ir.Shape(steps.after_first()))
        partial = add(op, [blocks, inner], after, dtype, keepdims=int(steps.keeps_first))
        return add(op, [partial, outer], like, dtype, keepdims=1)

    return _either(e, is_special, careful, quick)


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
    attributes = values_of(node)
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
    attributes = values_of(node)
    total = e.ReduceSum(x, shape=[], keepdims=0)
    is_special = e.IsNaN(e.Mul(total, 0.0, shape=[]), shape=[], dtype=BOOL)
    nan, lowest = (e.const(np.asarray(v, numpy_dtype)) for v in (np.nan, -np.inf))

    def pool(add: _Add, x: ir.Value) -> ir.Value:
        return add("MaxPool", [x], y, dtype, **attributes)

    def any_in_window(add: _Add, flags: ir.Value) -> ir.Value:
        return add("Cast", [pool(add, add("Cast", [flags], x, dtype, to=int(dtype)))], y, BOOL, to=int(BOOL))

    def careful(add: _Add) -> ir.Value:
        has_nan = any_in_window(add, add("IsNaN", [x], x, BOOL))
        has_more = any_in_window(add, add("Greater", [x, lowest], x, BOOL))
        pooled = add("Where", [has_more, pool(add, x), lowest], y, dtype)
        return add("Where", [has_nan, nan, pooled], y, dtype)

    return [_either(e, is_special, careful, lambda add: pool(add, x))]


_Add = Callable[..., ir.Value]
"""Adds a node to a branch: (operator, operands, a value of the same shape, dtype, attributes) -> its result."""


def _either(
    e: Emitter, condition: ir.Value, then: Callable[[_Add], ir.Value], other: Callable[[_Add], ir.Value]
) -> Any:
    """An If whose branches have kernels as they are."""

    def branch(name: str, build: Callable[[_Add], ir.Value]) -> ir.Graph:
        nodes: list[ir.Node] = []

        def add(op: str, inputs: Sequence[ir.Value], like: ir.Value, dtype: ir.DataType, **attributes: Any) -> ir.Value:
            result = ir.Value(shape=like.shape, type=ir.TensorType(dtype))
            nodes.append(ir.Node("", op, inputs, ir.convenience.convert_attributes(attributes), outputs=[result]))
            return result

        return ir.Graph([], [build(add)], nodes=nodes, name=name)

    careful, quick = branch("careful", then), branch("quick", other)
    like = quick.outputs[0]
    return e.raw("If", condition, then_branch=careful, else_branch=quick, shape=dims_of(like), dtype=dtype_of(like))
