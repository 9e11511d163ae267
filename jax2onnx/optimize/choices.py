"""Several choices by one condition, in the body of a loop, are one If.

A solver that takes a step or leaves everything as it was, and an environment that starts again, choose for each part of
their state. A `Where` is slow, four times an `Add` of a few numbers; an If takes the time of one, whatever it returns.
What only one of its branches needs is computed there: not at all, if it is the other's turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import onnx_ir as ir

from jax2onnx.dimensions import is_static, likely_size
from jax2onnx.graphs import bodies, use_instead
from jax2onnx.optimize.engine import constants_for, rename_operator
from jax2onnx.optimize.queries import dims, scalar, used_values
from jax2onnx.optimize.simplify import RESHAPES
from jax2onnx.optimize.units import BINARY, UNARY

LEAST = 3
"""So many choices take longer than an If: of 2, both take the same."""

SMALL = 4096
"""A known number is repeated up to so many times for a branch that returns it."""

MOVED = {*UNARY, *BINARY, *RESHAPES, "Clip", "Concat", "Expand", "Gather", "Slice", "Transpose"}
"""What may go into a branch. Not products, whose weights ONNX Runtime would not prepare there."""

_Constants = Callable[[np.ndarray], ir.Value]


def choose_together(model: ir.Model) -> int:
    """Rewrite all groups of such choices; how many nodes that saves.

    Not in functions, which cannot use the constants of the main graph.
    """
    return _visit(model.graph, False, constants_for(model.graph, "choice"))


def _visit(graph: ir.Graph, is_repeated: bool, constant: _Constants) -> int:
    saved = 0
    for node in list(graph):
        for body in bodies(node):
            saved += _visit(body, is_repeated or node.op_type in ("Loop", "Scan"), constant)
    if not is_repeated:
        return saved
    by_condition: dict[ir.Value, list[ir.Node]] = {}
    for node in graph:
        if node.op_type == "Where" and _is_choice(node):
            by_condition.setdefault(node.inputs[0], []).append(node)  # type: ignore[arg-type]
    for condition, choices in by_condition.items():
        if len(choices) < LEAST:
            continue
        mine = set(choices)
        group = _independent([node for node in graph if node in mine])  # others have gone into a branch
        if len(group) >= LEAST:
            _as_one(graph, condition, group, constant)
            graph.sort()  # what depended on the first of them is before the last
            saved += len(group) - 1
    return saved


def _is_choice(node: ir.Node) -> bool:
    """Is one of two values taken as a whole?"""
    condition, *cases = node.inputs
    y = node.outputs[0]
    if condition is None or dims(condition) != () or condition.const_value is not None:
        return False
    return all(x is not None and (dims(x) == dims(y) or _is_repeatable(x, y)) for x in cases)


def _is_repeatable(x: ir.Value, y: ir.Value) -> bool:
    return scalar(x) is not None and is_static(dims(y)) and likely_size(dims(y)) <= SMALL


def _independent(choices: Iterable[ir.Node]) -> list[ir.Node]:
    """Those of some nodes of a graph, in their order, that use nothing which is computed from one before."""
    group: list[ir.Node] = []
    depends: dict[ir.Node, bool] = {}  # whether a node is in the group, or computed from one that is
    for choice in choices:
        left = [choice]
        while left:
            node = left[-1]
            sources = [v.producer() for v in used_values(node)]
            inside = [s for s in sources if s is not None and s.graph is choice.graph]
            unknown = [s for s in inside if s not in depends]
            if unknown and node not in depends:
                left += unknown
            else:
                depends.setdefault(left.pop(), any(depends[s] for s in inside))
        if not depends[choice]:
            group.append(choice)
            depends[choice] = True
    return group


def _as_one(graph: ir.Graph, condition: ir.Value, group: list[ir.Node], constant: _Constants) -> None:
    """Put an If in the place of the last of the choices."""
    last = group[-1]
    outputs = [ir.Value(shape=node.outputs[0].shape, type=node.outputs[0].type) for node in group]
    branches = []
    for i, name in ((1, "then"), (2, "else")):
        copies = [_copy(node, node.inputs[i], constant) for node in group]
        branch = ir.Graph([], [copy.outputs[0] for copy in copies], nodes=copies, name=name)
        branches.append(ir.AttrGraph(f"{name}_branch", branch))
    name = rename_operator(last.name, last.op_type, "If")
    notes = dict(last.metadata_props)
    graph.insert_after(last, ir.Node("", "If", [condition], branches, outputs=outputs, name=name, metadata_props=notes))
    results = list(graph.outputs)
    for node, output in zip(group, outputs, strict=True):
        old = node.outputs[0]
        use_instead(old.uses(), output)
        for i, result in enumerate(results):
            if result is old:
                graph.outputs[i] = output
    graph.remove(group, safe=True)
    for attribute in branches:
        _move_in(graph, attribute.as_graph())


def _copy(node: ir.Node, case: ir.Value | None, constant: _Constants) -> ir.Node:
    """A branch has to compute what it returns."""
    y = node.outputs[0]
    assert case is not None
    if dims(case) != dims(y):
        number = scalar(case)
        case = constant(np.full(dims(y), number, np.asarray(number).dtype))  # type: ignore[arg-type]
    result = ir.Value(shape=y.shape, type=y.type)
    name = rename_operator(node.name, node.op_type, "Identity")
    return ir.Node("", "Identity", [case], outputs=[result], name=name, metadata_props=dict(node.metadata_props))


def _move_in(graph: ir.Graph, branch: ir.Graph) -> None:
    """Move what only a branch needs into it; a result need not be copied then."""
    left = list(branch)
    while left:
        user = left.pop()
        for value in dict.fromkeys(user.inputs):
            source = value.producer() if value is not None else None
            if value is None or source is None or source.graph is not graph or not _can_move(source, branch):
                continue
            graph.remove(source)
            branch.insert_before(next(iter(branch)), source)
            left.append(source)
    for copy in [node for node in branch if node.op_type == "Identity"]:
        value = copy.inputs[0]
        source = value.producer() if value is not None else None
        if value is not None and source is not None and source.graph is branch and not value.is_graph_output():
            i = list(branch.outputs).index(copy.outputs[0])
            branch.outputs[i] = value
            branch.remove(copy, safe=True)


def _can_move(node: ir.Node, branch: ir.Graph) -> bool:
    if node.op_type not in MOVED or node.domain or len(node.outputs) != 1 or node.outputs[0].is_graph_output():
        return False
    return all(use.node.graph is branch for use in node.outputs[0].uses())
