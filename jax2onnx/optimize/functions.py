"""Functions of the model that rules write: an operator, and beside it what some inputs need.

So a question that nearly always has the same answer does not hide the graph, and equal nodes share it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import onnx_ir as ir

from jax2onnx.attributes import as_attribute
from jax2onnx.graphs import DOMAIN, roots
from jax2onnx.optimize.engine import Rewriter
from jax2onnx.optimize.queries import Dims, as_shape

FLOAT = ir.DataType.FLOAT
_KEY = "key"


def function_for(r: Rewriter, base: str, key: Hashable, body: Callable[[], ir.Graph]) -> ir.Function:
    """The function whose name begins with `base` that was made for this key, or a new one."""
    same = [f for f in r.model.functions.values() if f.domain == DOMAIN and f.name.startswith(base)]
    known = next((f for f in same if f.meta.get(_KEY) == key), None)
    if known is not None:
        return known
    name = f"{base}_{len(same) + 1}" if same else base
    function = ir.Function(DOMAIN, name, graph=body(), attributes=[])
    function.meta[_KEY] = key
    r.model.functions[function.identifier()] = function
    return function


def import_functions(model: ir.Model) -> None:
    """Say in all graphs that they may call the functions."""
    for graph in roots(model):
        graph.opset_imports.setdefault(DOMAIN, 1)


class Nodes:
    """The nodes of a graph that is being written."""

    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []

    def add(self, op: str, *inputs: ir.Value, shape: Dims, dtype: ir.DataType = FLOAT, **attributes: Any) -> ir.Value:
        result = ir.Value(shape=as_shape(shape), type=ir.TensorType(dtype))
        named = [as_attribute(k, v) for k, v in attributes.items()]
        self.nodes.append(ir.Node("", op, inputs, named, outputs=[result]))
        return result

    def known(self, content: Any, dtype: Any = np.int64) -> ir.Value:
        tensor = ir.Tensor(np.asarray(content, dtype))
        value = self.add("Constant", shape=tuple(tensor.shape), dtype=tensor.dtype, value=tensor)
        value.const_value = tensor
        return value
