"""Normalization over the channels of images, between convolutions, where the channels come first (ConvNeXt).

ONNX's operators normalize the last axes, and would take a Transpose before and one behind. Written out, they take none:
that is as fast for several images, and 2 to 4% slower for a whole network of one image (`targets/FACTS.md`). Where one
side is no convolution, they stay.

Until nothing else moves, such a normalization is one node, of an operator of our own.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from jax2onnx.attributes import attributes_of
from jax2onnx.naming import NAME
from jax2onnx.optimize.convolution import scaled_kernel
from jax2onnx.optimize.engine import Rewriter, RuleSet, first
from jax2onnx.optimize.layout import channels_last, left_behind, moved_behind
from jax2onnx.optimize.pointwise import as_convolution
from jax2onnx.optimize.queries import attribute, constant, dims, only_user, producer

RULES = RuleSet()
LAST = RuleSet()

NORMALIZATIONS = {
    "LayerNormalization": "LayerNormalizationOfChannels",
    "RMSNormalization": "RMSNormalizationOfChannels",
}
"""By the operator, ours for channels that come first."""
DOMAIN = "jax2onnx"
AXES_OPSET = 18
"""Since then, the axes of a ReduceMean are an operand."""


@RULES.rewrites(*NORMALIZATIONS, given=first("Transpose"), needs=("Conv",))
def normalize_channels_in_front(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Where they are, if it saves the Transposes on both sides."""
    found, y = channels_last(node.inputs[0]), node.outputs[0]
    if found is None or not _is_of_channels(node) or left_behind(node, found[1]) >= 0:
        return None
    x, perm = found
    epsilon = attribute(node, "epsilon", 1e-5)
    result = r.op(NORMALIZATIONS[node.op_type], x, *node.inputs[1:], like=x, domain=DOMAIN, epsilon=epsilon)
    return moved_behind(r, result, perm, y)


def _is_of_channels(node: ir.Node) -> bool:
    """Is it a normalization over one axis, with known numbers?"""
    if node.op_type not in NORMALIZATIONS or len(node.outputs) > 1:
        return False
    x, *parameters = node.inputs
    if x is None or x.dtype != ir.DataType.FLOAT or attribute(node, "axis", -1) not in (-1, len(dims(x)) - 1):
        return False
    return all(v is not None and v.const_value is not None for v in parameters)


@RULES.rewrites("MatMul", needs=tuple(NORMALIZATIONS))
def multiply_by_convolution_before_norm(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A product with the channels before or behind a normalization that can have them in front."""
    return as_convolution(r, node, _is_of_channels)


@LAST.rewrites(*NORMALIZATIONS.values())
def write_out_norm(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias."""
    user = only_user(node.outputs[0])
    if user is not None and _is_taken_in_by(user, node):
        return None
    result = _normalized(r, node)
    columns = (-1, *[1] * (len(dims(result)) - 2))
    for op_type, parameter in zip(("Mul", "Add"), node.inputs[1:], strict=False):
        numbers = constant(parameter)
        assert numbers is not None
        result = r.op(op_type, result, r.moved(numbers.reshape(columns), parameter), like=result)
    return result


@LAST.rewrites("Conv", given=first(*NORMALIZATIONS.values()))
def take_in_scale_and_bias(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Those of a normalization become part of the kernel and the bias of a convolution behind it.

    What is normalized is not large, so that nothing is lost but in rounding.
    """
    normal = producer(node.inputs[0], *NORMALIZATIONS.values())
    if normal is None or not _is_taken_in_by(node, normal):
        return None
    kernel, bias = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    scale, *shift = (constant(v) for v in normal.inputs[1:])
    assert kernel is not None and scale is not None
    for numbers in shift:
        assert numbers is not None
        bias = _shifted_bias(r, kernel, numbers, bias)
    kernel = scaled_kernel(r, kernel, scale, axis=1)
    operands = (_normalized(r, normal), kernel, *([] if bias is None else [bias]))
    return r.op("Conv", *operands, like=node.outputs[0], **attributes_of(node))


def _is_taken_in_by(conv: ir.Node, normal: ir.Node) -> bool:
    """Can a convolution have the scale and the bias of a normalization in its own? What it pads is without a bias."""
    y = normal.outputs[0]
    if conv.op_type != "Conv" or conv.inputs[0] is not y or only_user(y) is None or attribute(conv, "group", 1) != 1:
        return False
    if any(v is not None and v.const_value is None for v in conv.inputs[1:]):
        return False
    is_padded = "auto_pad" in conv.attributes or any(attribute(conv, "pads", ()))
    parameters = [constant(v) for v in normal.inputs[1:]]
    return all(p is not None and np.isfinite(p).all() for p in parameters) and not (is_padded and len(parameters) > 1)


def _normalized(r: Rewriter, node: ir.Node) -> ir.Value:
    """Without scale and bias."""
    x = node.inputs[0]
    assert x is not None
    sizes = [d if i != 1 else 1 for i, d in enumerate(dims(x))]

    def mean(value: ir.Value) -> ir.Value:
        if r.opset < AXES_OPSET:
            return r.op("ReduceMean", value, like=value, shape=sizes, axes=[1], keepdims=1)
        return r.op("ReduceMean", value, r.const([1], np.int64), like=value, shape=sizes, keepdims=1)

    if node.op_type == NORMALIZATIONS["LayerNormalization"]:
        x = r.op("Sub", x, mean(x), like=x)
    variance = mean(r.op("Mul", x, x, like=x))
    epsilon = r.const(attribute(node, "epsilon"), np.float32)
    deviation = r.op("Sqrt", r.op("Add", variance, epsilon, like=variance), like=variance)
    return r.op("Div", x, deviation, like=x)


def _shifted_bias(r: Rewriter, kernel: ir.Value, shift: np.ndarray, bias: ir.Value | None) -> ir.Value:
    """The bias of a convolution, and what it makes of `shift`, computed when it is written."""
    tensor = kernel.const_value
    own = bias.const_value if bias is not None else None
    assert tensor is not None

    def read(read_kernel: Callable[[], np.ndarray] = tensor.numpy) -> ir.TensorProtocol:
        weights = read_kernel()
        pixels = weights.reshape(*weights.shape[:2], -1)
        sums = np.einsum("oip,i->o", pixels, shift, dtype=np.float64)  # without a copy in double precision
        return ir.Tensor((sums if own is None else sums + own.numpy()).astype(np.float32))

    name = (bias or kernel).meta.get(NAME)
    return r.tensor(ir.LazyTensor(read, tensor.dtype, ir.Shape(tensor.shape[:1])), name=name)
