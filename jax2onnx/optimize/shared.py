"""Passes over whole graphs: equal nodes are computed once, and what nothing uses is removed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx_ir as ir

from jax2onnx.optimize.engine import detach_bodies


def share_equal_nodes(model: ir.Model) -> int:
    """Common subexpressions: nodes with the same operator, operands and attributes become one.

    A body sees the nodes of the graphs around it; what two bodies have in common stays in both.
    """
    count = 0

    def visit(graph: ir.Graph, outer: dict[Any, ir.Node]) -> None:
        nonlocal count
        seen = dict(outer) if outer else {}
        repeated: list[ir.Node] = []
        for node in list(graph):
            bodies = [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]
            if bodies:
                for body in bodies:
                    visit(body, seen)
                continue
            key = _key(node)
            first = seen.setdefault(key, node)
            if first is node or any(v.is_graph_output() for v in node.outputs):
                continue
            for old, new in zip(node.outputs, first.outputs, strict=True):
                for use in old.uses():
                    use.node.replace_input_with(use.idx, new)
            repeated.append(node)
            count += 1
        graph.remove(repeated, safe=True)

    for graph in [model.graph, *(f.graph for f in model.functions.values())]:
        visit(graph, {})
    return count


def _key(node: ir.Node) -> Any:
    return node.domain, node.op_type, len(node.outputs), tuple(map(id, node.inputs)), frozen_attributes(node)


def frozen_attributes(node: ir.Node) -> tuple[Any, ...]:
    """The attributes of a node as something that can be compared."""
    return tuple(sorted((name, _frozen(a)) for name, a in node.attributes.items()))


def _frozen(attribute: ir.Attr) -> Any:
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.value  # `as_tensor` looks at all its methods first
        return f"{tensor.dtype}{tensor.shape}", tensor.tobytes() if tensor.nbytes <= 1024 else id(tensor)
    return str(attribute.value)


def remove_unused(model: ir.Model) -> None:
    """Remove nodes and initializers that no result depends on."""
    graphs = [model.graph, *(f.graph for f in model.functions.values())]
    live = {node for graph in graphs for node in _nodes(graph)}
    for graph in graphs:
        _remove_unused_nodes(graph, live)
    initializers = model.graph.initializers
    for name, value in list(initializers.items()):
        if not _has_users(value, live) and not value.is_graph_output() and not value.is_graph_input():
            del initializers[name]


def _nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    """All nodes of a graph, those in bodies included."""
    for node in graph:
        yield node
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                yield from _nodes(attribute.as_graph())


def _has_users(value: ir.Value, live: set[ir.Node]) -> bool:
    """Does a node of the model use it? Bodies that were lowered and then left out forget what they used."""
    for use in tuple(value.uses()):
        if use.node not in live:
            use.node.replace_input_with(use.idx, None)
    return bool(value.uses())


def _remove_unused_nodes(graph: ir.Graph, live: set[ir.Node]) -> None:
    for node in reversed(list(graph)):
        if not any(_has_users(v, live) or v.is_graph_output() for v in node.outputs):
            detach_bodies(node)
            graph.remove(node, safe=True)
            continue
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                _remove_unused_nodes(attribute.as_graph(), live)
