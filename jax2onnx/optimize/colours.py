"""Arithmetic with numbers for each of a few channels: images are normalized with the channels first, if they are moved
there anyway. Then what is combined with one number lies side by side, and need not be repeated (`spans.py`)."""

from __future__ import annotations

import onnx_ir as ir

from jax2onnx.attributes import attributes_of
from jax2onnx.optimize.engine import Rewriter, RuleSet, first
from jax2onnx.optimize.layout import channels_first, turned_back
from jax2onnx.optimize.queries import attribute, dims, only_user, producer
from jax2onnx.optimize.spans import SHORT
from jax2onnx.optimize.units import BINARY
from jax2onnx.permutations import inverse

LAST = RuleSet()


@LAST.rewrites("Transpose", given=first(*BINARY))
def normalize_colours_in_planes(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """transpose(f(x, c)) = f(transpose(x), c) with known numbers c, one for each channel."""
    value, perm = node.inputs[0], list(attribute(node, "perm"))
    source = producer(value, *BINARY)
    if source is None or value is None or only_user(value) is None or len(perm) < 4:
        return None
    channels, operands = dims(value)[-1], [v for v in source.inputs if v is not None]
    if perm != channels_first(len(perm)) or not isinstance(channels, int) or not 1 < channels <= SHORT:
        return None
    varying = [v for v in operands if v.const_value is None]
    colours = [v for v in operands if v.const_value is not None and v.const_value.size == channels]
    if len(varying) != 1 or dims(varying[0]) != dims(value) or not any(dims(c)[-1] == channels for c in colours):
        return None
    back = inverse(perm)
    turned = [r.transpose(v, perm) if v is varying[0] else turned_back(r, v, back) for v in source.inputs]
    return r.op(source.op_type, *turned, like=node.outputs[0], **attributes_of(source))
