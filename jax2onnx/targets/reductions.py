"""Integer reductions, by MatMul, ArgMax and ScatterElements, which are exact.

The runtime's own compute in double precision (rounding above 2^53, saturating instead of wrapping), and its int64
maximum compares the halves of a number wrongly: see FACTS.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from jax2onnx.dimensions import is_static, likely_size
from jax2onnx.errors import UnsupportedError
from jax2onnx.targets.emitter import Emitter, dims_of, dtype_of
from jax2onnx.targets.plans import expands

INT64 = ir.DataType.INT64
INTEGERS = "i8 i16 i32 i64 u8 u16 u32 u64"
# How many bits a sum may have before it is rounded or wraps.
SUM_BITS = {ir.DataType.INT32: 31, INT64: 53}

STORED_ONES = 1024
"""More ones than that are not stored."""

MANY_SUMS = 256
"""So many sums are two to five times as fast with a column of ones as with a vector."""


def reduced_axes(node: ir.Node) -> list[int]:
    """The axes that a reduction reduces: an operand or, in older opsets, an attribute."""
    rank = len(dims_of(node.inputs[0]))  # type: ignore[arg-type]
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        content = ir.convenience.get_const_tensor(node.inputs[1])
        if content is None:
            raise UnsupportedError(f"{node.op_type} of integers in onnxruntime needs axes that are known.")
        axes = content.numpy().tolist()
    else:
        axes = list(node.attributes.get_ints("axes", []))
    if not axes:
        return [] if node.attributes.get_int("noop_with_empty_axes", 0) else list(range(rank))
    return sorted(a % rank for a in axes)


def without_reduced(e: Emitter, node: ir.Node, x: ir.Value, axes: Sequence[int]) -> ir.Value:
    """`x`, whose reduced axes have size 1, as the node returns it: with or without them."""
    if node.attributes.get_int("keepdims", 1) or not axes:
        return e.Identity(x)
    return e.Squeeze(x, e.const(np.array(axes)))


# ------------------------------------------------------------------------------------------------ sums


def operand_bits(x: ir.Value) -> int | None:
    """How many bits the elements of `x` have if it was a narrower integer or boolean before it was cast."""
    node = x.producer()
    if node is None or node.op_type != "Cast" or node.inputs[0] is None or node.inputs[0].dtype is None:
        return None
    dtype = node.inputs[0].dtype
    if dtype == ir.DataType.BOOL:
        return 1
    return dtype.bitwidth if dtype.is_integer() else None


def is_small(x: ir.Value, axes: Sequence[int]) -> bool:
    """Whether a sum cannot be so large that the runtime gets it wrong. (Masks are counted all the time.)"""
    bits = operand_bits(x)
    sizes = [dims_of(x)[a] for a in axes]
    if bits is None or x.dtype not in SUM_BITS or not is_static(sizes):
        return bits == 1 and x.dtype in SUM_BITS  # no array has 2^31 elements
    return bits + math.prod(sizes).bit_length() < SUM_BITS[x.dtype]


@expands("ReduceSum", INTEGERS)
def reduce_sum(e: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """A product with ones."""
    x, axes = e.operands[0], reduced_axes(node)
    return None if is_small(x, axes) else [summed(e, node, x, axes)]


@expands("ReduceSumSquare", INTEGERS)
def reduce_sum_square(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    x = e.operands[0]
    return [summed(e, node, e.Mul(x, x, shape=x.shape), reduced_axes(node))]


@expands("ReduceL1", INTEGERS)
def reduce_l1(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    x = e.operands[0]
    return [summed(e, node, e.Abs(x, shape=x.shape), reduced_axes(node))]


def summed(e: Emitter, node: ir.Node, x: ir.Value, axes: Sequence[int]) -> ir.Value:
    """The sum over `axes`, one after the other, the last one first.

    Where there may be no rows, with a column of ones: with a vector, MatMul refuses that.
    """
    dims = dims_of(x)
    if 0 in dims and is_static(e.dims):  # MatMul refuses a vector and no rows
        return e.Expand(e.const(np.zeros((), dtype_of(x).numpy())), e.const(np.array(e.dims, np.int64)))
    if any(a < len(dims) - 2 for a in axes) and not set(axes) >= set(range(min(axes), len(dims))):
        kept = [i for i in range(len(dims)) if i not in axes]
        dims = [dims[i] for i in (*kept, *axes)]
        x = e.Transpose(x, perm=[*kept, *axes], shape=dims)
        positions = list(range(len(kept), len(dims)))
    else:
        positions = list(axes)
    for axis in reversed(positions):
        is_last, size = axis == len(dims) - 1, dims[axis]
        del dims[axis]
        is_stored = isinstance(size, int) and size <= STORED_ONES
        if is_last and (not is_static(dims) or (is_stored and likely_size(dims) >= MANY_SUMS)):
            column = e.MatMul(x, ones_like_axis(e, x, axis, as_column=True), shape=[*dims, 1])
            if axes == [axis] and node.attributes.get_int("keepdims", 1):
                return column
            x = e.Squeeze(column, e.const(np.array([-1])), shape=dims)
            continue
        ones = ones_like_axis(e, x, axis)
        x = e.MatMul(x, ones, shape=dims) if is_last else e.MatMul(ones, x, shape=dims)
    if not axes:
        return e.Identity(x)
    if node.attributes.get_int("keepdims", 1):
        x = e.Unsqueeze(x, e.const(np.array(axes)))
    return x


def ones_like_axis(e: Emitter, x: ir.Value, axis: int, *, as_column: bool = False) -> ir.Value:
    """As many ones as `x` has elements along an axis."""
    size, dtype = dims_of(x)[axis], dtype_of(x)
    if isinstance(size, int) and size <= STORED_ONES:
        return e.const(np.ones((size, 1) if as_column else size, dtype.numpy()))
    length = (
        e.const(np.array([size]))
        if isinstance(size, int)
        else e.Shape(x, start=axis, end=axis + 1, shape=[1], dtype=INT64)
    )
    ones = e.Expand(e.const(np.array(1, dtype.numpy())), length, shape=[size])
    return e.Unsqueeze(ones, e.const(np.array([1])), shape=[size, 1]) if as_column else ones


@expands("Einsum", "i8 i16 i32 i64 u8 u16 u32 u64")
def einsum(e: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """Where an axis of one operand only is summed, the runtime uses its ReduceSum: reduce it before."""
    equation = node.attributes.get_string("equation").replace(" ", "")
    sources, arrow, result = equation.partition("->")
    terms = sources.split(",")
    if not arrow or "." in equation:
        raise UnsupportedError(f"Einsum of integers in onnxruntime needs an explicit equation, not {equation!r}.")
    wide = INT64 if e.dtype in (INT64, ir.DataType.UINT64) else ir.DataType.INT32
    alone = [[c for c in term if c not in result and sources.count(c) == 1] for term in terms]
    if not any(alone) and wide == e.dtype:
        return None
    operands = []
    for x, term, axes in zip(e.operands, terms, alone, strict=True):
        x = e.cast(x, wide)
        if axes:
            positions = np.array([term.index(c) for c in axes])
            dims = [d for d, c in zip(dims_of(x), term, strict=True) if c not in axes]
            x = e.ReduceSum(x, e.const(positions), keepdims=0, shape=dims)
        operands.append(x)
    reduced = ",".join("".join(c for c in term if c not in axes) for term, axes in zip(terms, alone, strict=True))
    return [e.cast(e.Einsum(*operands, equation=f"{reduced}->{result}"), e.dtype)]


# ------------------------------------------------------------------------------------------------ products, extremes


@expands("ReduceProd", INTEGERS)
def reduce_prod(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    x, axes = e.operands[0], reduced_axes(node)
    for axis in axes:
        x = scattered(e, x, axis, "mul", np.array(1, x.dtype.numpy()))
    return [without_reduced(e, node, x, axes)]


@expands("ReduceMax ReduceMin", "i64 u32 u64")
def reduce_extreme(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    """The element at the position of the extreme; where there may be none, all scattered onto the neutral element."""
    x, axes = e.operands[0], reduced_axes(node)
    is_max = node.op_type == "ReduceMax"
    limits = np.iinfo(x.dtype.numpy())
    for axis in axes:
        dims = dims_of(x)
        size = dims[axis]
        dims[axis] = 1
        if isinstance(size, int) and size > 0:
            position = e.emit("ArgMax" if is_max else "ArgMin", x, axis=axis, keepdims=1, shape=dims, dtype=INT64)
            x = e.GatherElements(x, position, axis=axis, shape=dims)
        else:
            neutral = np.array(limits.min if is_max else limits.max, x.dtype.numpy())
            x = scattered(e, x, axis, "max" if is_max else "min", neutral)
    return [without_reduced(e, node, x, axes)]


def scattered(e: Emitter, x: ir.Value, axis: int, reduction: str, neutral: np.ndarray) -> ir.Value:
    """Reduce one axis to size 1 by scattering all its elements onto one neutral element."""
    dims = dims_of(x)
    sizes = e.Shape(x, shape=[len(dims)], dtype=INT64)
    indices = e.Expand(e.const(np.array(0)), sizes, shape=dims)
    dims[axis] = 1
    parts = [
        *([e.Shape(x, start=0, end=axis, shape=[axis], dtype=INT64)] if axis else []),
        e.const(np.array([1])),
        *([e.Shape(x, start=axis + 1, shape=[len(dims) - axis - 1], dtype=INT64)] if axis + 1 < len(dims) else []),
    ]
    target = e.Concat(*parts, axis=0, shape=[len(dims)]) if len(parts) > 1 else parts[0]
    start = e.Expand(e.const(neutral), target, shape=dims)
    return e.ScatterElements(start, indices, x, axis=axis, reduction=reduction, shape=dims)
