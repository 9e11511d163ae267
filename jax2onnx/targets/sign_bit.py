"""The sign bit of float32 zeros and NaN, which no operator of the standard reads before opset 26 (BitCast)."""

from __future__ import annotations

import onnx_ir as ir

from jax2onnx.graphs import all_nodes

DOMAIN = "jax2onnx.target"
NAME = "SignBit"
"""A node of this domain stands for what each target computes in its own way. None is left in a finished model."""

MICROSOFT = "com.microsoft"


def write_out(model: ir.Model, target: str) -> None:
    """Replace every such node."""
    for root in (model.graph, *model.functions.values()):
        for node in list(all_nodes(root)):
            if node.domain == DOMAIN:
                _write_out(node, target)
                if target == "onnxruntime":
                    for imports in (root.opset_imports, model.graph.opset_imports):
                        imports.setdefault(MICROSOFT, 1)


def _write_out(node: ir.Node, target: str) -> None:
    (x,), (result,) = node.inputs, node.outputs
    assert x is not None and node.graph is not None and result.name is not None
    nodes: list[ir.Node] = []

    def emit(op: str, *operands: ir.Value, dtype: ir.DataType, domain: str = "") -> ir.Value:
        value = ir.Value(shape=result.shape, type=ir.TensorType(dtype))
        attributes = [ir.AttrInt64("positive", 1)] if domain else []  # the result is unsigned
        made = ir.Node(domain, op, operands, attributes, outputs=[value], name=node.name.replace(NAME, op))
        made.metadata_props.update(node.metadata_props)
        nodes.append(made)
        return value

    if target == "onnxruntime":
        # This hash of four bytes is one-to-one: it differs from that of the absolute value if the sign bit does.
        size = emit("Abs", x, dtype=ir.DataType.FLOAT)
        hashes = [emit("MurmurHash3", v, dtype=ir.DataType.UINT32, domain=MICROSOFT) for v in (x, size)]
        bit = emit("Not", emit("Equal", *hashes, dtype=ir.DataType.BOOL), dtype=ir.DataType.BOOL)
    else:
        # Only of a zero. No NaN is less than anything.
        bit = emit("Less", emit("Reciprocal", x, dtype=ir.DataType.FLOAT), x, dtype=ir.DataType.BOOL)
    node.graph.insert_before(node, nodes)
    result.replace_all_uses_with(bit, replace_graph_outputs=True)
    bit.name = result.name
    node.graph.remove(node, safe=True)
