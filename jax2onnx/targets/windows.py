"""Convolution and pooling in float64, as matrix products over gathered windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from jax2onnx.dimensions import is_static
from jax2onnx.errors import UnsupportedError
from jax2onnx.targets.emitter import Emitter, dims_of
from jax2onnx.targets.plans import expands

INT64 = ir.DataType.INT64
Dims = Sequence[Any]  # ints, symbolic dimensions, or None where a size is known only at run time


def windows(
    e: Emitter,
    x: ir.Value,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Dims,
    flip: bool = False,
) -> ir.Value:
    """The elements under a window that slides over the last axes of `x`, zero-padded.

    Each of these axes becomes two: the position within the window and the position of the window.
    """
    dims = dims_of(x)
    lead = len(dims) - len(kernel)
    begin, end = pads[: len(kernel)], pads[len(kernel) :]
    if any(pads):
        amounts = np.array([*[0] * lead, *begin, *[0] * lead, *end])
        dims[lead:] = [
            d + b + t if isinstance(d, int) else None for d, b, t in zip(dims[lead:], begin, end, strict=True)
        ]
        x = e.Pad(x, e.const(amounts), shape=dims)
    for i in reversed(range(len(kernel))):
        size, axis = dims[lead + i], lead + i
        taps = np.arange(kernel[i])[:, None] * dilations[i]
        reach = int(taps.max(initial=0))
        if isinstance(size, int):
            starts = np.arange(0, max(size - reach, 0), strides[i])
            index = e.const((taps[::-1] if flip else taps) + starts)
        else:
            length = e.Squeeze(e.Shape(x, start=axis, end=axis + 1, shape=[1], dtype=INT64), shape=[])
            stop = e.Sub(length, e.const(np.array(reach)), shape=[])
            starts = e.Range(e.const(np.array(0)), stop, e.const(np.array(strides[i])), shape=[None], dtype=INT64)
            index = e.Add(e.const(taps[::-1] if flip else taps), starts, shape=[kernel[i], None])
        dims[axis : axis + 1] = dims_of(index)
        x = e.Gather(x, index, axis=axis, shape=dims)
    return x


def reshape(e: Emitter, x: ir.Value, dims: Dims, source: Sequence[int | None]) -> ir.Value:
    """`x` in another shape; a dimension that is not a number is that of the axis `source` of `x`."""
    unknown = [i for i, d in enumerate(dims) if not isinstance(d, int)]
    if not unknown:
        return e.Reshape(x, e.const(np.array(dims, np.int64)), allowzero=1, shape=dims)
    if len(unknown) == 1 and 0 not in dims:
        return e.Reshape(x, e.const(np.array([d if isinstance(d, int) else -1 for d in dims])), shape=dims)
    parts = [
        e.const(np.array([d])) if isinstance(d, int) else e.Shape(x, start=s, end=s + 1, shape=[1], dtype=INT64)  # type: ignore[operator]
        for d, s in zip(dims, source, strict=True)
    ]
    return e.Reshape(x, e.Concat(*parts, axis=0, shape=[len(dims)]), allowzero=1, shape=dims)


def contract(
    e: Emitter, patches: ir.Value, weights: ir.Value, groups: int, weights_axes: str, bias: ir.Value | None
) -> ir.Value:
    """Sum over the channels and positions in the window: patches (n, g, c, k, o, ...) with weights (g, ...)."""
    out = e.dims
    n_spatial = len(out) - 2
    k, o = "abdefh"[:n_spatial], "ijlpqr"[:n_spatial]
    pairs = "".join(a + b for a, b in zip(k, o, strict=True))
    grouped = [out[0], groups, *([out[1] // groups] if isinstance(out[1], int) else [None]), *out[2:]]
    result = e.Einsum(patches, weights, equation=f"ngc{pairs},{weights_axes}{k}->ngm{o}", shape=grouped)
    result = reshape(e, result, out, [0, 2, *range(3, len(grouped))])  # channels of unknown number are one group
    if bias is not None:
        column = [out[1], *[1] * n_spatial]
        result = e.Add(result, e.Reshape(bias, e.const(np.array(column)), shape=column), shape=out)
    return result


def geometry(node: ir.Node, n_spatial: int) -> tuple[list[int], list[int], list[int]]:
    """Strides, dilations and pads of a convolution or pooling node."""
    attributes = node.attributes
    if attributes.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or "output_shape" in attributes:
        raise UnsupportedError(f"{node.op_type} in float64 needs explicit pads.")
    if attributes.get_int("ceil_mode", 0):
        raise UnsupportedError(f"{node.op_type} in float64 cannot have ceil_mode=1.")
    ones, zeros = [1] * n_spatial, [0] * (2 * n_spatial)
    return (
        list(attributes.get_ints("strides", ones)),
        list(attributes.get_ints("dilations", ones)),
        list(attributes.get_ints("pads", zeros)),
    )


def kernel_of(node: ir.Node, weights: ir.Value) -> list[Any]:
    """The shape of the weights. All but the first dimension have to be numbers, with groups that too."""
    dims = dims_of(weights)
    if not is_static(dims if node.attributes.get_int("group", 1) != 1 else dims[1:]):
        raise UnsupportedError(f"{node.op_type} in float64 needs weights of a known shape, not {dims}.")
    return dims


@expands("Conv")
def conv(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    x, w, *bias = e.operands
    groups = node.attributes.get_int("group", 1)
    out_channels, in_channels, *kernel = kernel_of(node, w)
    strides, dilations, pads = geometry(node, len(kernel))
    spatial = dims_of(x)[2:]
    source = [0, None, None, *range(2, 2 + len(kernel))]
    grouped = reshape(e, x, [x.shape[0], groups, in_channels, *spatial], source)
    of_group = out_channels if groups == 1 else out_channels // groups
    weights = reshape(e, w, [groups, of_group, in_channels, *kernel], [])
    patches = windows(e, grouped, kernel, strides, dilations, pads)
    return [contract(e, patches, weights, groups, "gmc", bias[0] if bias else None)]


@expands("ConvTranspose")
def conv_transpose(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    """A convolution of the input with zeros put between its elements, by the flipped weights."""
    x, w, *bias = e.operands
    groups = node.attributes.get_int("group", 1)
    in_channels, out_channels, *kernel = kernel_of(node, w)
    n = len(kernel)
    strides, dilations, pads = geometry(node, n)
    extra = list(node.attributes.get_ints("output_padding", [0] * n))
    spatial = dims_of(x)[2:]
    source = [0, None, None, *range(2, 2 + n)]
    of_group = in_channels if groups == 1 else in_channels // groups
    x = reshape(e, x, [x.shape[0], groups, of_group, *spatial], [*source[:2], 1, *source[3:]])
    for i, stride in enumerate(strides):
        if stride > 1:
            x = spread(e, x, 3 + i, stride)
    reach = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
    before = [r - p for r, p in zip(reach, pads[:n], strict=True)]
    after = [r - p + t - (s - 1) for r, p, t, s in zip(reach, pads[n:], extra, strides, strict=True)]
    patches = windows(e, x, kernel, [1] * n, dilations, [*before, *after], flip=True)
    weights = reshape(e, w, [groups, of_group, out_channels, *kernel], [])
    return [contract(e, patches, weights, groups, "gcm", bias[0] if bias else None)]


def spread(e: Emitter, x: ir.Value, axis: int, stride: int) -> ir.Value:
    """Put stride - 1 zeros after each element along an axis."""
    dims = dims_of(x)
    rank = len(dims)
    column = [*dims[: axis + 1], 1, *dims[axis + 1 :]]
    x = e.Unsqueeze(x, e.const(np.array([axis + 1])), shape=column)
    amounts = np.zeros(2 * (rank + 1), np.int64)
    amounts[rank + 1 + axis + 1] = stride - 1
    column[axis + 1] = stride
    x = e.Pad(x, e.const(amounts), shape=column)
    size = dims[axis] * stride if isinstance(dims[axis], int) else None
    out = [*dims[:axis], size, *dims[axis + 1 :]]
    if is_static(out):
        return reshape(e, x, out, [])
    merged = e.Mul(e.Shape(x, start=axis, end=axis + 1, shape=[1], dtype=INT64), e.const(np.array([stride])), shape=[1])
    parts = [
        *([e.Shape(x, start=0, end=axis, shape=[axis], dtype=INT64)] if axis else []),
        merged,
        *([e.Shape(x, start=axis + 2, shape=[rank - axis - 1], dtype=INT64)] if axis + 1 < rank else []),
    ]
    return e.Reshape(x, e.Concat(*parts, axis=0, shape=[rank]), allowzero=1, shape=out)


@expands("AveragePool")
def average_pool(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    (x,) = e.operands
    kernel = list(node.attributes.get_ints("kernel_shape"))
    n = len(kernel)
    strides, dilations, pads = geometry(node, n)

    def total(of: ir.Value) -> ir.Value:
        patches = windows(e, of, kernel, strides, dilations, pads)
        axes = e.const(np.arange(2, 2 + 2 * n, 2))
        return e.ReduceSum(patches, axes, keepdims=0)

    if node.attributes.get_int("count_include_pad", 0) or not any(pads):
        return [e.Div(total(x), float(math.prod(kernel)))]
    dims = e.Shape(x, shape=[2 + n], dtype=INT64)
    ones = e.Expand(e.const(np.array(1.0)), dims, shape=x.shape)
    return [e.Div(total(x), total(ones))]


def reduce(e: Emitter, op: str, x: ir.Value, axes: Sequence[int], dims: Dims) -> ir.Value:
    """Reduce some axes to size 1 (they became an operand in opset 18)."""
    if e.opset >= 18:
        return e.emit(op, x, e.const(np.array(axes)), shape=dims)
    return e.emit(op, x, axes=list(axes), shape=dims)


@expands("GlobalAveragePool")
def global_average_pool(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    (x,) = e.operands
    return [reduce(e, "ReduceMean", x, range(2, len(x.shape)), e.dims)]


@expands("GlobalMaxPool", "f16 bf16 f32 f64")
def global_max_pool(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    (x,) = e.operands
    return [reduce(e, "ReduceMax", x, range(2, len(x.shape)), e.dims)]


@expands("InstanceNormalization")
def instance_normalization(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    x, scale, bias = e.operands
    axes = range(2, len(x.shape))
    dims = [*x.shape[:2], *[1] * len(axes)]
    column = [x.shape[1], *[1] * len(axes)]
    centered = e.Sub(x, reduce(e, "ReduceMean", x, axes, dims))
    variance = reduce(e, "ReduceMean", e.Mul(centered, centered), axes, dims)
    epsilon = float(np.float32(node.attributes.get_float("epsilon", 1e-5)))
    normal = e.Div(centered, e.Sqrt(e.Add(variance, epsilon, shape=dims), shape=dims))
    target = e.const(np.array([-1, *[1] * len(axes)]))
    scale, bias = (e.Reshape(v, target, shape=column) for v in (scale, bias))
    return [e.Add(e.Mul(normal, scale), bias)]
