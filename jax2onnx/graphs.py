"""The graphs of a model: the main one, those of its functions, and the bodies of their nodes."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterable, Iterator

import onnx_ir as ir

_node_of = operator.attrgetter("node")

DOMAIN = "jax2onnx"
"""The domain of functions that stand for an operator and what some inputs need beside it."""

WITH_BODIES = frozenset(["If", "Loop", "Scan", "SequenceMap"])
"""The operators of ONNX whose attributes are graphs."""


@functools.lru_cache(maxsize=4096)
def static_shape(shape: tuple[int, ...]) -> ir.Shape:
    """The shape of a value whose sizes are known, which many values may share."""
    return ir.Shape(shape, frozen=True)


def roots(model: ir.Model) -> list[ir.Graph]:
    """The main graph and the graphs of the functions (bodies are inside them)."""
    return [model.graph, *(f.graph for f in model.functions.values())]


def bodies(node: ir.Node) -> list[ir.Graph]:
    """The graphs among the attributes of a node.

    Passes ask this of every node, so that the answer has to be quick where it is mostly given: there are none.
    """
    if not node.domain and node.op_type not in WITH_BODIES:
        return []
    return [a.value for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]


def all_nodes(graph: ir.Graph | ir.Function) -> Iterator[ir.Node]:
    """The nodes of a graph in order, each before those in its bodies. (Its own method takes three times as long.)"""
    for node in graph:
        yield node
        if node.op_type in WITH_BODIES or node.domain:
            for body in bodies(node):
                yield from all_nodes(body)


def is_used(value: ir.Value) -> bool:
    """Does a node use a value, or is it a result of a graph?"""
    return bool(value.uses()) or value.is_graph_output()


def use_instead(uses: Iterable[ir.Usage], value: ir.Value | None) -> None:
    """Let these uses of some value be uses of this one."""
    uses = tuple(uses)
    if len(uses) == 1:  # mostly
        replace_inputs(uses[0].node, [(uses[0].idx, value)])
        return
    for node, of_node in itertools.groupby(uses, _node_of):
        replace_inputs(node, [(use.idx, value) for use in of_node])


def replace_inputs(node: ir.Node, changes: Iterable[tuple[int, ir.Value | None]]) -> None:
    """Replace several inputs of a node at once.

    Not public in onnx-ir, whose own method copies all inputs for each of them: a Concat may have thousands.
    """
    inputs = list(node.inputs)
    for i, value in changes:
        old = inputs[i]
        if old is not None:
            old._remove_usage(node, i)
        if value is not None:
            value._add_usage(node, i)
        inputs[i] = value
    node._inputs = tuple(inputs)


def detach(node: ir.Node) -> None:
    """Let a node use nothing any more."""
    for i, value in enumerate(node.inputs):
        if value is not None:
            value._remove_usage(node, i)
    node._inputs = (None,) * len(node.inputs)


def output_positions(graph: ir.Graph) -> dict[ir.Value, list[int]]:
    """Where each of the results of a graph is among them: it may have thousands, and they are asked for one by one."""
    positions: dict[ir.Value, list[int]] = {}
    for i, value in enumerate(graph.outputs.copy()):
        positions.setdefault(value, []).append(i)
    return positions
