"""Passes over whole graphs: equal nodes are computed once, and what nothing uses is removed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from jax2onnx.graphs import all_nodes, bodies, output_positions, roots, use_instead
from jax2onnx.naming import NAME
from jax2onnx.optimize.engine import detach_bodies

SMALL_BYTES = 16 * 1024
"""Constants up to this size are compared by content."""

_CONTENT = "content"
"""The key under which an initializer remembers how it is compared."""


def share_equal_nodes(model: ir.Model) -> int:
    """Common subexpressions: nodes with the same operator, operands and attributes become one.

    A body sees the nodes of the graphs around it; what two bodies have in common stays in both.
    """
    count = 0

    def visit(graph: ir.Graph, outer: dict[Any, ir.Node]) -> None:
        nonlocal count
        seen = dict(outer) if outer else {}
        repeated: list[ir.Node] = []
        positions = output_positions(graph)
        for node in list(graph):
            inside = bodies(node)
            if inside:
                for body in inside:
                    visit(body, seen)
                continue
            first = _first(node, seen)
            if first is node or not _return_instead(node, first, positions):
                continue
            for old, new in zip(node.outputs, first.outputs, strict=True):
                use_instead(old.uses(), new)
            repeated.append(node)
            count += 1
        graph.remove(repeated, safe=True)

    for graph in roots(model):
        visit(graph, {})
    return count


def _return_instead(node: ir.Node, first: ir.Node, positions: Mapping[ir.Value, Sequence[int]]) -> bool:
    """Let a graph return the results of a node in place of those of another; whether none of the others' is left.

    `positions` are those of the results of the graph.
    """
    returned = [(old, new) for old, new in zip(node.outputs, first.outputs, strict=True) if old.is_graph_output()]
    if not returned:
        return True
    graph = node.graph
    if graph is None or first.graph is not graph or any(new.is_graph_output() for _, new in returned):
        return False  # which are none of this graph's, or would be two of its results
    for old, new in returned:
        for i in positions[old]:
            graph.outputs[i] = new
        new.name, old.name = old.name, None
    return True


def share_equal_constants(graph: ir.Graph) -> int:
    """Rules make constants as they need them. Those that have different names in the program stay, even if equal."""
    seen: dict[Any, ir.Value] = {}
    count = 0
    # The dictionaries themselves: there may be thousands, and their wrappers are ten times as slow.
    used = [(value, value.meta.data) for value in graph.initializers.data.values() if value.uses()]
    names = Counter(meta.get(NAME) for _, meta in used)
    for value, meta in used:
        name = meta.get(NAME)
        if name is not None and names[name] == 1:
            continue
        content = meta.get(_CONTENT)
        if content is None:
            content = value.meta[_CONTENT] = _content(value)
        first = seen.setdefault((name, content), value)
        if first is not value and not value.is_graph_output():
            use_instead(value.uses(), first)
            count += 1
    return count


def _content(value: ir.Value) -> Any:
    """The content of an initializer as something that can be compared, or something that is equal to no other."""
    tensor = value.const_value
    if tensor is None or tensor.nbytes > SMALL_BYTES or value.is_graph_input():
        return object()
    return int(tensor.dtype), tuple(tensor.shape), tensor.tobytes()


def _first(node: ir.Node, seen: dict[Any, ir.Node]) -> ir.Node:
    """The first of the nodes seen that is equal to this one; attributes, which take longest, are looked at last."""
    op_type = node.op_type
    is_commutative = op_type in COMMUTATIVE and not node.domain
    operands = _in_any_order(node) if is_commutative else tuple(map(id, node.inputs))
    key = node.domain, op_type, len(node.outputs), operands
    first = seen.setdefault(key, node)
    if first is node or not (node.attributes or first.attributes):
        return first
    seen.setdefault((key, frozen_attributes(first)), first)
    return seen.setdefault((key, frozen_attributes(node)), node)


COMMUTATIVE = frozenset(["Add", "Mul", "And", "Or", "Xor", "Equal"])
"""Operators whose operands may be exchanged, to the bit."""


def _in_any_order(node: ir.Node) -> tuple[int, ...]:
    """The operands of a node as something that is equal where they make no difference: (a - b)^2 is (b - a)^2."""
    x, y = node.inputs
    if x is y and node.op_type == "Mul" and x is not None:
        difference = x.producer()
        if difference is not None and difference.op_type == "Sub":
            return (0, *sorted(map(id, difference.inputs)))
    return (id(x), id(y)) if id(x) <= id(y) else (id(y), id(x))


def frozen_attributes(node: ir.Node) -> tuple[Any, ...]:
    """The attributes of a node as something that can be compared."""
    return tuple(sorted((name, _frozen(a)) for name, a in node.attributes.items()))


def _frozen(attribute: ir.Attr) -> Any:
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.value  # `as_tensor` looks at all its methods first
        return f"{tensor.dtype}{tensor.shape}", tensor.tobytes() if tensor.nbytes <= SMALL_BYTES else id(tensor)
    return str(attribute.value)


def remove_unused(model: ir.Model) -> None:
    """Remove nodes and initializers that no result depends on."""
    graphs = roots(model)
    live = {node for graph in graphs for node in all_nodes(graph)}
    for graph in graphs:
        _remove_unused_nodes(graph, live)
    initializers = model.graph.initializers
    for name, value in list(initializers.items()):
        if not _has_users(value, live) and not value.is_graph_output() and not value.is_graph_input():
            del initializers[name]


def _has_users(value: ir.Value, live: set[ir.Node]) -> bool:
    """Does a node of the model use it? Bodies that were lowered and then left out forget what they used."""
    uses = value.uses()
    forgotten = [use for use in uses if use[0] not in live]
    if forgotten:
        use_instead(forgotten, None)
    return len(forgotten) < len(uses)


def _remove_unused_nodes(graph: ir.Graph, live: set[ir.Node]) -> None:
    for node in reversed(list(graph)):
        if not any(_has_users(v, live) or v.is_graph_output() for v in node.outputs):
            detach_bodies(node)
            graph.remove(node, safe=True)
            continue
        for body in bodies(node):
            _remove_unused_nodes(body, live)
