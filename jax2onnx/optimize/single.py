"""Parts that are taken out of the last axis, and put together along it again, keep that axis in between.

`x, y, z = state` and `jnp.stack([f(x, y), g(z), x])`, as in many simulations, are a Gather for each number and, behind
the arithmetic, an Unsqueeze for each; the same with the coordinates of many points at once, `p[:, 0]`. A Gather of one
index along an axis keeps that axis, with a size of 1: then there is none to add.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from jax2onnx.graphs import bodies, use_instead
from jax2onnx.optimize.engine import constants_for, rename_operator
from jax2onnx.optimize.queries import as_shape, axes_of, constant, dims, integers
from jax2onnx.optimize.simplify import REDUCTIONS, RESHAPES
from jax2onnx.optimize.units import BINARY, UNARY

ELEMENTWISE = {*UNARY, *BINARY}
SMALL_BYTES = 64 * 1024
"""Known operands up to this size are stored with the further axis; others are not stored twice."""

_Constants = Callable[[np.ndarray], ir.Value]
_Group = dict[ir.Node, None]


def keep_single_axes(model: ir.Model) -> int:
    """Rewrite all groups of such parts for which that takes fewer nodes; how many are saved.

    Not in functions, which cannot use the constants of the main graph.
    """
    return _visit(model.graph, constants_for(model.graph, "index"))


def _visit(graph: ir.Graph, constant: _Constants) -> int:
    saved = sum(_visit(body, constant) for node in graph for body in bodies(node))
    groups = _groups(graph)
    order = {node: i for i, node in enumerate(graph)} if groups else {}
    for group in groups:
        if not all(_is_elementwise(node) or _is_part(node) for node in group):
            continue  # what it is taken from has got a further axis meanwhile
        gain = sum(_gain(node, group) for node in group)
        gain -= len({x for node in group for x in _from_outside(node, group)})
        if gain > 0:
            extended: dict[ir.Value, ir.Value] = {}
            for node in sorted(group, key=order.__getitem__):
                _extend_operands(node, group, extended, constant)
            for node in group:
                _keep_axis(node, group, constant)
            saved += gain
    return saved


def _groups(graph: ir.Graph) -> list[_Group]:
    """The nodes that take out such parts, with those that compute with them."""
    group_of: dict[ir.Node, _Group] = {}
    for node in graph:
        if len(node.outputs) != 1 or node.outputs[0].is_graph_output() or node.outputs[0].shape is None:
            continue
        if _is_elementwise(node):
            joined = {id(group_of[p]): group_of[p] for p in map(ir.Value.producer, _parts(node)) if p in group_of}
            if not joined:
                continue
            group = max(joined.values(), key=len)
            for other in joined.values():
                if other is not group:
                    group.update(other)
                    group_of.update(dict.fromkeys(other, group))
        elif _is_part(node):
            group = {}
        else:
            continue
        group[node] = None
        group_of[node] = group
    return list({id(group): group for group in group_of.values()}.values())


def _is_elementwise(node: ir.Node) -> bool:
    return node.op_type in ELEMENTWISE and node.domain == ""


def _parts(node: ir.Node) -> list[ir.Value]:
    """The operands that need a further axis if the result of an elementwise node has one. Numbers fit all."""
    is_number = not dims(node.outputs[0])
    return [x for x in node.inputs if x is not None and x.shape is not None and (is_number or dims(x))]


def _is_part(node: ir.Node) -> bool:
    """Is it a Gather of one known index along the last axis, or a sum over it, or does it just remove that axis?"""
    x, y = node.inputs[0] if node.inputs else None, node.outputs[0]
    if x is None or x.shape is None or not dims(x) or dims(x)[:-1] != dims(y):
        return False
    if node.op_type in RESHAPES:
        return dims(x)[-1] == 1
    if node.op_type in REDUCTIONS:
        return axes_of(node) in ((-1,), (len(dims(x)) - 1,))
    if node.op_type != "Gather" or node.inputs[1] is None or dims(node.inputs[1]) != ():
        return False
    axis = node.attributes.get_int("axis", 0)
    return axis in (-1, len(dims(x)) - 1) and integers(node.inputs[1]) is not None


def _from_outside(node: ir.Node, group: _Group) -> list[ir.Value]:
    """The operands that need a further axis, are not of the group, and not known."""
    if not _is_elementwise(node) or not dims(node.outputs[0]):
        return []
    return [x for x in _parts(node) if x.producer() not in group and not _is_small_constant(x)]


def _is_small_constant(x: ir.Value) -> bool:
    return x.const_value is not None and x.const_value.nbytes <= SMALL_BYTES


def _gain(node: ir.Node, group: _Group) -> int:
    """How many nodes fewer there are if the result of this one keeps its axis."""
    part = node.outputs[0]
    is_needed = bool(_as_they_are(part, group))
    return len(_extending(part)) + (not is_needed if node.op_type in RESHAPES else -is_needed)


def _extending(part: ir.Value) -> list[ir.Node]:
    """The nodes that add that axis again."""
    nodes = [use.node for use in part.uses() if use.node.op_type in RESHAPES]
    return [n for n in nodes if dims(n.outputs[0]) == (*dims(part), 1) and not n.outputs[0].is_graph_output()]


def _as_they_are(part: ir.Value, group: _Group) -> list[ir.Usage]:
    """The uses that what has a further axis would not do for."""
    extending = set(_extending(part))
    others = [use for use in part.uses() if not (use.node in group and _is_elementwise(use.node))]
    return [use for use in others if not (use.node in extending or _takes_both(use, part))]


def _takes_both(use: ir.Usage, part: ir.Value) -> bool:
    """Does a node combine a number with something larger, give it a known shape, or add more axes?"""
    node = use.node
    if node.op_type == "Reshape" and use.idx == 0:
        return all(size > 0 for size in integers(node.inputs[1]) or (0,))
    if node.op_type == "Unsqueeze":
        return dims(node.outputs[0])[: len(dims(part)) + 2] == (*dims(part), 1, 1)
    return not dims(part) and _is_elementwise(node) and len(dims(node.outputs[0])) > 0


def _extend_operands(
    node: ir.Node, group: _Group, extended: dict[ir.Value, ir.Value], new_constant: _Constants
) -> None:
    """Let an elementwise node use operands with a further axis."""
    if not _is_elementwise(node) or not dims(node.outputs[0]):
        return
    for i, x in enumerate(node.inputs):
        if x is None or x not in _parts(node) or x.producer() in group:
            continue
        if x not in extended:
            known = constant(x) if _is_small_constant(x) else None
            extended[x] = new_constant(known[..., None]) if known is not None else _unsqueezed(node, x, new_constant)
        node.replace_input_with(i, extended[x])


def _unsqueezed(before: ir.Node, x: ir.Value, new_constant: _Constants) -> ir.Value:
    result = ir.Value(shape=as_shape([*dims(x), 1]), type=x.type)
    name = rename_operator(before.name, before.op_type, "Unsqueeze")
    operands = [x, new_constant(np.asarray([len(dims(x))], np.int64))]
    node = ir.Node("", "Unsqueeze", operands, outputs=[result], name=name, metadata_props=dict(before.metadata_props))
    assert before.graph is not None
    before.graph.insert_before(before, node)
    return result


def _keep_axis(node: ir.Node, group: _Group, new_constant: _Constants) -> None:
    """Let all that can use the result with its axis."""
    part, graph = node.outputs[0], node.graph
    assert graph is not None
    needed, extending = _as_they_are(part, group), _extending(part)
    whole = node.inputs[0] if node.op_type in RESHAPES else part
    for other in extending:
        use_instead(other.outputs[0].uses(), whole)
        assert other.graph is not None
        other.graph.remove(other, safe=True)
    for use in part.uses():
        if use.node.op_type == "Unsqueeze" and use not in needed:
            added = range(len(dims(part)) + 1, len(dims(use.node.outputs[0])))
            use.node.replace_input_with(1, new_constant(np.asarray(added, np.int64)))
    if node.op_type in RESHAPES:
        use_instead([use for use in part.uses() if use not in needed], whole)
        if not needed:
            graph.remove(node, safe=True)
        return
    if node.op_type == "Gather":
        node.replace_input_with(1, new_constant(np.asarray(integers(node.inputs[1]), np.int64)))
    if node.op_type in REDUCTIONS:
        node.attributes["keepdims"] = ir.AttrInt64("keepdims", 1)
    without = part.shape
    axis = new_constant(np.asarray([len(dims(part))], np.int64))
    part.shape = as_shape([*dims(part), 1])
    if needed:
        again = ir.Value(shape=without, type=part.type)
        name = rename_operator(node.name, node.op_type, "Squeeze")
        notes = dict(node.metadata_props)
        graph.insert_after(node, ir.Node("", "Squeeze", [part, axis], outputs=[again], name=name, metadata_props=notes))
        use_instead(needed, again)
