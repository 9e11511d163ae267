"""Look into the bodies of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx


def bodies(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """All Loop, Scan and If bodies inside a graph, each with the operator that it belongs to."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield node.op_type, attribute.g
                yield from bodies(attribute.g)


def count(model: onnx.ModelProto) -> Counter[str]:
    """How often each operator occurs, in bodies too."""
    graphs = [model.graph, *(body for _, body in bodies(model.graph))]
    return Counter(node.op_type for graph in graphs for node in graph.node)


def body_counts(model: onnx.ModelProto, op_type: str) -> list[Counter[str]]:
    """The operators in each body of `op_type` (not in the bodies inside that)."""
    return [Counter(node.op_type for node in body.node) for op, body in bodies(model.graph) if op == op_type]
