"""Numbers that are taken out of a vector, and put together as a vector again, stay vectors of one element in between.

`x, y, z = state` and `jnp.stack([f(x, y), g(z), x])`, as in many simulations, are a Gather for each number and, behind
the arithmetic, an Unsqueeze for each. A Gather of one index along an axis keeps that axis: then there is none to add.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from jax2onnx.graphs import bodies, use_instead
from jax2onnx.optimize.engine import constants_for, dims, integers, rename_operator
from jax2onnx.optimize.simplify import RESHAPES
from jax2onnx.optimize.units import BINARY, UNARY

ELEMENTWISE = {*UNARY, *BINARY}

_Constants = Callable[[np.ndarray], ir.Value]


def keep_single_axes(model: ir.Model) -> int:
    """Rewrite all groups of such numbers for which that takes fewer nodes; how many are saved.

    Not in functions, which cannot use the constants of the main graph.
    """
    return _visit(model.graph, constants_for(model.graph, "index"))


def _visit(graph: ir.Graph, constant: _Constants) -> int:
    saved = sum(_visit(body, constant) for node in graph for body in bodies(node))
    for group in _groups(graph):
        gain = sum(_gain(node, group) for node in group)
        if gain > 0:
            for node in group:
                _keep_axis(node, group, constant)
            saved += gain
    return saved


def _groups(graph: ir.Graph) -> list[dict[ir.Node, None]]:
    """The nodes whose results are numbers from vectors, with those that compute with them."""
    group_of: dict[ir.Node, dict[ir.Node, None]] = {}
    for node in graph:
        if len(node.outputs) != 1 or node.outputs[0].is_graph_output() or node.outputs[0].shape is None:
            continue
        if dims(node.outputs[0]) != ():
            continue
        if node.op_type in ELEMENTWISE and node.domain == "":
            operands = [v.producer() for v in node.inputs if v is not None]
            joined = {id(group_of[p]): group_of[p] for p in operands if p is not None and p in group_of}
            if not joined:
                continue
            group = max(joined.values(), key=len)
            for other in joined.values():
                if other is not group:
                    group.update(other)
                    group_of.update(dict.fromkeys(other, group))
        elif _is_element(node):
            group = {}
        else:
            continue
        group[node] = None
        group_of[node] = group
    return list({id(group): group for group in group_of.values()}.values())


def _is_element(node: ir.Node) -> bool:
    """Is it a Gather of one known element of a vector, or the only element of one?"""
    x = node.inputs[0] if node.inputs else None
    if x is None or x.shape is None or len(x.shape) != 1:
        return False
    return node.op_type in RESHAPES or (node.op_type == "Gather" and integers(node.inputs[1]) is not None)


def _gain(node: ir.Node, group: dict[ir.Node, None]) -> int:
    """How many nodes fewer there are if the result of this one is a vector."""
    number = node.outputs[0]
    is_needed = bool(_as_numbers(number, group))
    return len(_unsqueezed(number)) + (not is_needed if node.op_type in RESHAPES else -is_needed)


def _unsqueezed(number: ir.Value) -> list[ir.Node]:
    """The nodes that make a vector of one element of it."""
    nodes = [use.node for use in number.uses() if use.node.op_type in RESHAPES]
    return [n for n in nodes if dims(n.outputs[0]) == (1,) and not n.outputs[0].is_graph_output()]


def _as_numbers(number: ir.Value, group: dict[ir.Node, None]) -> list[ir.Usage]:
    """The uses that a vector of one element would not do for."""
    unsqueezed = set(_unsqueezed(number))
    return [use for use in number.uses() if not (use.node in group or use.node in unsqueezed or _spreads(use.node))]


def _spreads(node: ir.Node) -> bool:
    """Does a node combine its operands with a larger one?"""
    return node.op_type in ELEMENTWISE and node.domain == "" and len(dims(node.outputs[0])) > 0


def _keep_axis(node: ir.Node, group: dict[ir.Node, None], constant: _Constants) -> None:
    """Let all that can use a vector of one element instead of the number."""
    number, graph = node.outputs[0], node.graph
    assert graph is not None
    needed, unsqueezed = _as_numbers(number, group), _unsqueezed(number)
    vector = node.inputs[0] if node.op_type in RESHAPES else number
    for other in unsqueezed:
        use_instead(other.outputs[0].uses(), vector)
        assert other.graph is not None
        other.graph.remove(other, safe=True)
    if node.op_type in RESHAPES:
        use_instead([use for use in number.uses() if use not in needed], vector)
        if not needed:
            graph.remove(node, safe=True)
        return
    if node.op_type == "Gather":
        node.replace_input_with(1, constant(np.asarray(integers(node.inputs[1]), np.int64)))
    number.shape = ir.Shape([1])
    if needed:
        again = ir.Value(shape=ir.Shape([]), type=number.type)
        name = rename_operator(node.name, node.op_type, "Reshape")
        operands = [number, constant(np.asarray([], np.int64))]
        notes = dict(node.metadata_props)
        graph.insert_after(node, ir.Node("", "Reshape", operands, outputs=[again], name=name, metadata_props=notes))
        use_instead(needed, again)
