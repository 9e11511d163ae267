"""Operators that are, for the dtypes they have no kernel for, other operators in disguise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from jax2onnx.dimensions import is_static
from jax2onnx.errors import UnsupportedError
from jax2onnx.targets.emitter import Emitter, dims_of
from jax2onnx.targets.plans import expands

INTEGERS = "i32 i64 u32 u64"
BOOL = ir.DataType.BOOL
INT64 = ir.DataType.INT64


@expands("Gemm", INTEGERS)
def gemm(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    """A matrix product and a sum. (The factors alpha and beta are floats: only 1 makes sense for integers.)"""
    a, b, *c = e.operands
    attributes = node.attributes
    if attributes.get_float("alpha", 1.0) != 1.0 or (c and attributes.get_float("beta", 1.0) != 1.0):
        raise UnsupportedError("Gemm of integers cannot have a factor alpha or beta other than 1.")
    if attributes.get_int("transA", 0):
        a = e.Transpose(a, perm=[1, 0], shape=reversed(a.shape))
    if attributes.get_int("transB", 0):
        b = e.Transpose(b, perm=[1, 0], shape=reversed(b.shape))
    product = e.MatMul(a, b)
    return [e.Add(product, c[0]) if c and c[0] is not None else product]


# ------------------------------------------------------------------------------------------------ order of int64

KEEP_VALUES = {"Gather", "GatherND", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
SMALL_RESULT = {"ArgMax", "ArgMin", "NonZero", "Shape", "Size"}  # positions and sizes
INSIDE_INT32 = {getattr(ir.DataType, n) for n in ("BOOL", "INT4", "INT8", "INT16", "INT32", "UINT4", "UINT8", "UINT16")}
INT32_RANGE = -(2**31), 2**31 - 1
SIZE_RANGE = 0, 2**31 - 2**16  # no array has 2^31 elements; and something may be added to a size

Range = tuple[int, int]


def fits_int32(value: ir.Value | None) -> bool:
    """Whether all elements surely lie in the range of int32, where the runtime compares int64 correctly."""
    if value is None:
        return True
    found = _range(value)
    return found is not None and INT32_RANGE[0] <= found[0] and found[1] <= INT32_RANGE[1]


def _range(value: ir.Value | None, depth: int = 8) -> Range | None:
    """Between which numbers all elements surely lie, if that is known."""
    content = ir.convenience.get_const_tensor(value) if value is not None else None
    if content is not None and content.size <= 1024:
        array = content.numpy()
        return (int(array.min()), int(array.max())) if array.size else (0, 0)
    node = value.producer() if value is not None else None
    if node is None or node.domain or depth == 0:
        return None
    op, inputs = node.op_type, node.inputs
    if op == "Cast":
        return INT32_RANGE if inputs[0] is not None and inputs[0].dtype in INSIDE_INT32 else None
    if op in SMALL_RESULT:
        return SIZE_RANGE
    if op in KEEP_VALUES:
        return _range(inputs[0], depth - 1)
    if op == "Clip" and len(inputs) < 3:
        return None
    chosen = inputs[1:] if op in ("Where", "Clip") else inputs
    found = [_range(v, depth - 1) for v in chosen] if op in COMBINED else [None]
    known = [r for r in found if r is not None]
    return COMBINED[op](known) if len(known) == len(found) else None


def _hull(ranges: Sequence[Range]) -> Range:
    return min(low for low, _ in ranges), max(high for _, high in ranges)


COMBINED: dict[str, Callable[[Sequence[Range]], Range]] = {
    **dict.fromkeys(("Where", "Clip", "Concat", "Max", "Min"), _hull),
    "Add": lambda r: (r[0][0] + r[1][0], r[0][1] + r[1][1]),
    "Sub": lambda r: (r[0][0] - r[1][1], r[0][1] - r[1][0]),
}


@expands("Max Min", "i64")
def extreme(e: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    if all(fits_int32(v) for v in node.inputs):
        return None
    compare = "Greater" if node.op_type == "Max" else "Less"
    result, *rest = e.operands
    for x in rest:
        better = e.emit(compare, x, result, dtype=BOOL)
        result = e.Where(better, x, result, dtype=INT64)
    return [result if rest else e.Identity(result)]


@expands("Clip", "i64")
def clip(e: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    x, low, high = [*e.operands, None, None][:3]
    if all(fits_int32(v) for v in (x, low, high)):
        return None
    x = e.Max(x, low) if low is not None else x
    x = e.Min(x, high) if high is not None else x
    return [x if low is not None or high is not None else e.Identity(x)]


@expands("Sign", "i64")
def sign(e: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    (x,) = e.operands
    if fits_int32(x):
        return None
    above, below = e.Greater(x, 0, dtype=BOOL), e.Less(x, 0, dtype=BOOL)
    return [e.Sub(e.cast(above, INT64), e.cast(below, INT64))]


@expands("Relu", "i8 i16 i32 i64")
def relu(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    (x,) = e.operands
    return [e.Max(x, 0)]


@expands("Mod", "i64 u64")
def remainder(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    """The remainder with the sign of the dividend. It is the same for divisors 1 and -1, and 1 never overflows."""
    x, y = e.operands
    if y.dtype == INT64:
        y = e.Where(e.Equal(y, -1, dtype=BOOL, shape=y.shape), e.const(np.array(1)), y, dtype=INT64, shape=y.shape)
    return [e.Sub(x, e.Mul(e.Div(x, y), y))]


@expands("Div", "i32 i64")
def one_by(e: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """1 / x is -(-1 / x): times y, the runtime would make it y / x, and of 1 % x = 1 - (1 / x) * x a 0."""
    one = ir.convenience.get_const_tensor(e.operands[0])
    if one is None or one.size != 1 or int(one.numpy().reshape(())) != 1:
        return None
    return [e.Neg(e.Div(e.const(-one.numpy()), e.operands[1]))]


# ------------------------------------------------------------------------------------------------ other


@expands("PRelu", "f64 i32 i64 u32 u64")
def parametric_relu(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    x, slope = e.operands
    return [e.Where(e.Less(x, 0, dtype=BOOL), e.Mul(x, slope), x, dtype=x.dtype)]


@expands("CastLike", "f16")
def cast_like(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    return [e.Cast(e.operands[0], to=int(e.dtype), dtype=e.dtype)]


@expands("DepthToSpace SpaceToDepth", "i64 u64")
def blocks(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    """Blocks of pixels to channels or back: split the axes, permute, join."""
    (x,) = e.operands
    b, (n, c, h, w), out = node.attributes.get_int("blocksize"), dims_of(x), e.dims
    if node.op_type == "SpaceToDepth":
        split, perm = [n, c, out[2], b, out[3], b], [0, 3, 5, 1, 2, 4]
    elif node.attributes.get_string("mode", "DCR") == "DCR":
        split, perm = [n, b, b, out[1], h, w], [0, 3, 4, 1, 5, 2]
    else:
        split, perm = [n, out[1], b, b, h, w], [0, 1, 4, 2, 5, 3]
    if not is_static((*split, *out)):
        raise UnsupportedError(
            f"{node.op_type} of 64-bit integers in onnxruntime needs a known shape, not {dims_of(x)}."
        )
    x = e.Reshape(x, e.const(np.array(split)), allowzero=1, shape=split)
    x = e.Transpose(x, perm=perm, shape=[split[p] for p in perm])
    return [e.Reshape(x, e.const(np.array(out)), allowzero=1)]


@expands("OneHot", "f64 f16 bf16 i8 i16 u8 u16 u32 u64 b8")
def one_hot(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    """The one-hot mask as int64, and a choice between the two values."""
    indices, depth, values = e.operands
    wide = ir.DataType.INT64
    for name, operand in (("indices", indices), ("depth", depth)):
        if operand.dtype not in (ir.DataType.INT32, wide) and not operand.dtype.is_integer():
            raise UnsupportedError(f"OneHot in onnxruntime cannot have {operand.dtype.name.lower()} {name}.")
    indices, depth = (e.cast(v, wide) for v in (indices, depth))
    mask = e.OneHot(indices, depth, e.const(np.array([0, 1])), axis=node.attributes.get_int("axis", -1))
    condition = e.cast(mask, BOOL)
    off, on = (e.Gather(values, e.const(np.array(i)), shape=[]) for i in (0, 1))
    return [e.Where(condition, on, off, dtype=values.dtype)]


@expands("ConstantOfShape", "f8e4m3fn f8e4m3fnuz f8e5m2 f8e5m2fnuz f8e8m0 f4e2m1 i4 u4 i2 u2")
def constant_of_shape(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    wide = ir.DataType.INT32 if e.dtype.is_integer() else ir.DataType.FLOAT
    value = node.attributes["value"].as_tensor().numpy().astype(wide.numpy())
    return [e.cast(e.ConstantOfShape(e.operands[0], value=ir.tensor(value), dtype=wide), e.dtype)]
