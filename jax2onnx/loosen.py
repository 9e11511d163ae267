"""`loosen_internal_shapes`: the bodies of Loop, Scan and If without the sizes of their values.

Metadata only. Some tools cannot follow exact shapes into bodies; what is left there are dtypes and ranks.
"""

from __future__ import annotations

import onnx_ir as ir

from jax2onnx.graphs import all_nodes, bodies, roots

FORGOTTEN = {
    *("Reshape", "Squeeze", "Unsqueeze", "Expand", "Concat", "Gather", "GatherND", "Slice"),
    *("Range", "Shape", "NonZero", "Cast", "Constant", "ConstantOfShape"),
}
"""Operators that rearrange: nothing at all is said about their results."""


def loosen(model: ir.Model) -> None:
    """Forget the sizes of all values inside bodies, and all about those that shape arithmetic gives."""
    for graph in roots(model):
        for node in all_nodes(graph):
            for body in bodies(node):
                _loosen_body(body)


def _loosen_body(body: ir.Graph) -> None:
    outputs = set(body.outputs)
    for value in body.inputs:
        _keep_rank(value)
    for node in body:
        forgotten = node.op_type in FORGOTTEN or (node.op_type == "Add" and _is_index(node.outputs[0]))
        for value in node.outputs:
            if forgotten and value not in outputs:
                value.type = value.shape = None
            else:
                _keep_rank(value)


def _is_index(value: ir.Value) -> bool:
    return value.dtype in (ir.DataType.INT32, ir.DataType.INT64)


def _keep_rank(value: ir.Value) -> None:
    if value.shape is not None:
        value.shape = ir.Shape([None] * len(value.shape))
