"""Operators that are, for the dtypes they have no kernel for, other operators in disguise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from jax2onnx.errors import UnsupportedError
from jax2onnx.targets.rewrite import Emitter, expands

INTEGERS = "i32 i64 u32 u64"


@expands("Gemm", INTEGERS)
def gemm(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    """A matrix product and a sum. (The factors alpha and beta are floats: only 1 makes sense for integers.)"""
    a, b, *c = node.inputs
    attributes = node.attributes
    if attributes.get_float("alpha", 1.0) != 1.0 or (c and attributes.get_float("beta", 1.0) != 1.0):
        raise UnsupportedError("Gemm of integers cannot have a factor alpha or beta other than 1.")
    if attributes.get_int("transA", 0):
        a = e.Transpose(a, perm=[1, 0], shape=reversed(a.shape))
    if attributes.get_int("transB", 0):
        b = e.Transpose(b, perm=[1, 0], shape=reversed(b.shape))
    product = e.MatMul(a, b)
    return [e.Add(product, c[0]) if c and c[0] is not None else product]


@expands("Relu", "i8 i16 i32 i64")
def relu(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    (x,) = node.inputs
    return [e.Max(x, 0)]


@expands("CastLike", "f16")
def cast_like(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    dtype = node.outputs[0].dtype
    return [e.Cast(node.inputs[0], to=int(dtype), dtype=dtype)]


@expands("OneHot", "f64 f16 bf16 i8 i16 u8 u16 u32 u64 b8")
def one_hot(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    """The one-hot mask as int64, and a choice between the two values."""
    indices, depth, values = node.inputs
    wide = ir.DataType.INT64
    for name, operand in (("indices", indices), ("depth", depth)):
        if operand.dtype not in (ir.DataType.INT32, wide) and not operand.dtype.is_integer():
            raise UnsupportedError(f"OneHot in onnxruntime cannot have {operand.dtype.name.lower()} {name}.")
    indices, depth = (e.legalizer.image(v, wide) if v.dtype != wide else v for v in (indices, depth))
    mask = e.OneHot(indices, depth, e.const(np.array([0, 1])), axis=node.attributes.get_int("axis", -1))
    condition = e.Cast(mask, to=int(ir.DataType.BOOL), dtype=ir.DataType.BOOL)
    off, on = (e.Gather(values, e.const(np.array(i)), shape=[]) for i in (0, 1))
    return [e.Where(condition, on, off, dtype=values.dtype)]


@expands("ConstantOfShape", "f8e4m3fn f8e4m3fnuz f8e5m2 f8e5m2fnuz f8e8m0 f4e2m1 i4 u4 i2 u2")
def constant_of_shape(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    dtype = node.outputs[0].dtype
    wide = ir.DataType.INT32 if dtype.is_integer() else ir.DataType.FLOAT
    value = node.attributes["value"].as_tensor().numpy().astype(wide.numpy())
    filled = e.ConstantOfShape(node.inputs[0], value=ir.tensor(value), dtype=wide)
    return [e.Cast(filled, to=int(dtype), dtype=dtype)]
