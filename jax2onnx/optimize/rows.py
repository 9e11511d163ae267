"""Rows that are taken out of an array, computed with, and stacked again keep their axis in between.

`rho, momentum, energy = state` and `jnp.stack([f(rho), g(momentum), h(energy)])`, as in simulations, are a Gather for
each row and, behind the arithmetic, an Unsqueeze for each, or a Reshape of all. An axis of size 1 before all others is
in nobody's way: other operands need none. A Gather of one index along the first axis keeps it: then there is none to
add.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from jax2onnx.graphs import bodies, use_instead
from jax2onnx.optimize.engine import constants_for, rename_operator
from jax2onnx.optimize.queries import as_shape, attribute, dims, integers, only_user, producer
from jax2onnx.optimize.simplify import RESHAPES
from jax2onnx.optimize.slices import cut_of
from jax2onnx.optimize.units import BINARY, UNARY

ELEMENTWISE = {*UNARY, *BINARY}

_Constants = Callable[[np.ndarray], ir.Value]


class _Group(NamedTuple):
    """The nodes that take out rows of some rank, those that compute more of them, and what joins them."""

    rows: dict[ir.Node, None]
    stacks: dict[ir.Node, ir.Node]
    """The Concats, and the Reshape behind each."""

    def extending(self, node: ir.Node) -> list[ir.Node]:
        """The nodes that add the axis again."""
        row = node.outputs[0]
        users = [use.node for use in row.uses() if use.node.op_type in RESHAPES and use.idx == 0]
        return [n for n in users if dims(n.outputs[0]) == (1, *dims(row)) and not n.outputs[0].is_graph_output()]

    def as_they_are(self, node: ir.Node) -> list[ir.Usage]:
        """The uses that a row with a further axis would not do for."""
        row, extending = node.outputs[0], self.extending(node)
        others = [use for use in row.uses() if use.node not in self.rows and use.node not in self.stacks]
        return [use for use in others if use.node not in extending and not _takes_both(use, row)]

    def gain(self) -> int:
        """How many nodes fewer there are if all rows keep their axis."""
        found = len(self.stacks)
        for node in self.rows:
            is_needed = bool(self.as_they_are(node))
            found += len(self.extending(node)) + (not is_needed if node.op_type in RESHAPES else -is_needed)
        return found


def keep_rows(model: ir.Model) -> int:
    """Rewrite all groups of such rows for which that takes fewer nodes; how many are saved.

    Not in functions, which cannot use the constants of the main graph.
    """
    return _visit(model.graph, constants_for(model.graph, "row"))


def _visit(graph: ir.Graph, constant: _Constants) -> int:
    saved = sum(_visit(body, constant) for node in graph for body in bodies(node))
    ranks = sorted({len(dims(node.outputs[0])) for node in graph if _is_row(node)} - {0})
    for rank in ranks:
        rows = _rows(graph, rank)
        stacks = {c: r for c, r in _stacks(graph) if all(x.producer() in rows for x in c.inputs)}  # type: ignore[union-attr]
        group = _Group(rows, stacks)
        gain = group.gain()
        if gain > 0:
            _keep_axes(graph, group, constant)
            saved += gain
    return saved


def _is_row(node: ir.Node) -> bool:
    """Does it take one row out of an array, at a known place, or remove the axis of a single one?"""
    x, y = node.inputs[0] if node.inputs else None, node.outputs[0]
    if x is None or x.shape is None or y.shape is None or node.domain or x.const_value is not None:
        return False
    if node.op_type in RESHAPES:
        return dims(x) == (1, *dims(y))
    if node.op_type != "Gather" or attribute(node, "axis", 0) not in (0, -len(dims(x))):
        return False
    return dims(node.inputs[1]) == () and integers(node.inputs[1]) is not None  # type: ignore[arg-type]


def _rows(graph: ir.Graph, rank: int) -> dict[ir.Node, None]:
    """The nodes whose results are such rows of this rank, or computed of them."""
    found: dict[ir.Node, None] = {}
    for node in graph:
        y = node.outputs[0]
        if node.domain or y.shape is None or len(dims(y)) != rank or y.is_graph_output():
            continue
        sources = [x.producer() for x in node.inputs if x is not None]
        if node.op_type == "Slice":
            belongs = sources[0] in found and cut_of(y) is not None
        else:
            belongs = _is_row(node) or (node.op_type in ELEMENTWISE and any(source in found for source in sources))
        if belongs:
            found[node] = None
    return found


def _stacks(graph: ir.Graph) -> Iterator[tuple[ir.Node, ir.Node]]:
    """Concats of what could be rows, and the Reshape behind each."""
    for node in graph:
        concat = producer(node.inputs[0], "Concat") if node.op_type == "Reshape" else None
        y = node.outputs[0]
        if concat is None or only_user(concat.outputs[0]) != node or y.is_graph_output():
            continue
        first = dims(concat.inputs[0])  # type: ignore[arg-type]
        is_along_first = attribute(concat, "axis") in (0, -len(first))
        if is_along_first and dims(y) == (len(concat.inputs), *first) and all(dims(x) == first for x in concat.inputs):  # type: ignore[arg-type]
            yield concat, node


def _takes_both(use: ir.Usage, row: ir.Value) -> bool:
    """Does a node combine a row with something of more axes, or give it a known shape?"""
    node = use.node
    if node.op_type == "Reshape" and use.idx == 0:
        return all(size > 0 for size in integers(node.inputs[1]) or (0,))
    return node.op_type in ELEMENTWISE and not node.domain and len(dims(node.outputs[0])) > len(dims(row))


def _keep_axes(graph: ir.Graph, group: _Group, constant: _Constants) -> None:
    needed = {node: group.as_they_are(node) for node in group.rows}
    extending = {node: group.extending(node) for node in group.rows}
    for node in group.rows:
        row = node.outputs[0]
        for other in extending[node]:
            use_instead(other.outputs[0].uses(), row)
            other.graph.remove(other, safe=True)  # type: ignore[union-attr]
        if node.op_type in RESHAPES:
            use_instead([use for use in row.uses() if use not in needed[node]], node.inputs[0])
            if not needed[node]:
                graph.remove(node, safe=True)
            continue
        _keep_axis(node, needed[node], constant)
    for concat, reshape in group.stacks.items():
        concat.outputs[0].shape = reshape.outputs[0].shape
        use_instead(reshape.outputs[0].uses(), concat.outputs[0])
        graph.remove(reshape, safe=True)


def _keep_axis(node: ir.Node, needed: list[ir.Usage], constant: _Constants) -> None:
    row = node.outputs[0]
    if node.op_type == "Gather":
        node.replace_input_with(1, constant(np.asarray(integers(node.inputs[1]), np.int64)))
    elif node.op_type == "Slice":
        axes = [axis % len(dims(row)) + 1 for axis in integers(node.inputs[3]) or ()]
        node.replace_input_with(3, constant(np.asarray(axes, np.int64)))
    without = row.shape
    row.shape = as_shape([1, *dims(row)])
    if needed:
        again = ir.Value(shape=without, type=row.type)
        name, notes = rename_operator(node.name, node.op_type, "Squeeze"), dict(node.metadata_props)
        operands = [row, constant(np.asarray([0], np.int64))]
        squeeze = ir.Node("", "Squeeze", operands, outputs=[again], name=name, metadata_props=notes)
        assert node.graph is not None
        node.graph.insert_after(node, squeeze)
        use_instead(needed, again)
