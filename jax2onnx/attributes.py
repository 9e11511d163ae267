"""Attributes of ONNX nodes from Python values, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from jax2onnx.graphs import static_shape


def as_attribute(name: str, value: Any) -> ir.Attr:
    """An attribute with the ONNX type that fits `value` (`ir.node` finds that out too, ten times as slowly)."""
    if isinstance(value, ir.Attr):  # of another node
        return value
    if isinstance(value, (int, np.integer)):
        return ir.AttrInt64(name, int(value))
    if isinstance(value, float):
        return ir.AttrFloat32(name, value)
    if isinstance(value, str):
        return ir.AttrString(name, value)
    if isinstance(value, np.dtype):
        return ir.AttrInt64(name, int(ir.DataType.from_numpy(value)))
    if isinstance(value, (tuple, list)):
        if value and isinstance(value[0], float):
            return ir.AttrFloat32s(name, list(value))
        if value and isinstance(value[0], str):
            return ir.AttrStrings(name, list(value))
        return ir.AttrInt64s(name, value)
    if isinstance(value, np.ndarray):
        return ir.AttrTensor(name, as_tensor(value))
    if isinstance(value, ir.Graph):  # a protocol: all its methods are looked for in what is none
        return ir.AttrGraph(name, value)
    return ir.AttrTensor(name, value)


def as_tensor(array: np.ndarray) -> ir.Tensor:
    """A tensor with the content of an array."""
    return ir.Tensor(array, shape=static_shape(array.shape))  # to make a shape takes as long as all the rest


def attributes_of(node: ir.Node) -> dict[str, ir.Attr]:
    """The attributes of a node by name, to give them to another node as they are."""
    return node.attributes.data


def values_of(node: ir.Node) -> dict[str, Any]:
    """The attributes of a node as Python values, by name."""
    return {name: a.value for name, a in node.attributes.items()}
