"""Arithmetic on the number of a step leaves the body of a Scan: it is done for all steps at once, before the loop.

Where a loop indexes arrays by its counter, half of its body may be arithmetic on that counter. What depends on nothing
but scanned numbers becomes a scanned number itself; one that is the same at each step is a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from jax2onnx.graphs import bodies, use_instead
from jax2onnx.optimize.engine import constants_for, rename_operator
from jax2onnx.optimize.queries import attribute, constant, splat

ELEMENTWISE = {
    *("Add", "Sub", "Mul", "Div", "Mod", "Pow", "Max", "Min", "Neg", "Abs", "Sign", "Floor", "Ceil", "Clip", "Cast"),
    *("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Where", "Not", "And", "Or", "Xor"),
    *("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "BitShift"),
    *("Exp", "Log", "Sqrt", "Reciprocal", "Sin", "Cos", "Tanh", "Sigmoid"),
}
MOVES = {"Reshape", "Squeeze", "Unsqueeze"}

_Stack = tuple[ir.Value, int]
"""The values of a scanned number at all steps, and from which end they are taken."""


def take_out_step_arithmetic(model: ir.Model) -> int:
    """Move such nodes out of all Scan bodies, the innermost first; the number of nodes and inputs that bodies lost.

    Not in functions, which cannot use the constants of the main graph.
    """
    return _visit(model.graph, constants_for(model.graph, "step_constant"))


def _visit(graph: ir.Graph, constant_of: Callable[[np.ndarray], ir.Value]) -> int:
    count = 0
    for node in list(graph):
        for body in bodies(node):
            count += _visit(body, constant_of)
        if node.op_type == "Scan" and "scan_input_axes" not in node.attributes:
            count += _Scan(node, constant_of).simplify()
    return count


class _Scan:
    """A Scan node and, for the scanned values of its body, what they are slices of."""

    def __init__(self, node: ir.Node, constant_of: Callable[[np.ndarray], ir.Value]):
        self.node, self.constant_of = node, constant_of
        self.body: ir.Graph = node.attributes["body"].as_graph()
        scanned = attribute(node, "num_scan_inputs")
        self.states = len(node.inputs) - scanned
        # From which end a slice is taken matters too: only those that are taken at the same time can be combined.
        self.directions: Sequence[int] = attribute(node, "scan_input_directions", [0] * scanned)
        self.slices = list(self.body.inputs)[self.states :]
        self.wholes = list(node.inputs)[self.states :]
        self.own = {*self.body.inputs, *(v for n in self.body for v in n.outputs)}

    def simplify(self) -> int:
        """Take out what can be taken out; how much that was."""
        whole = {s: (w, d) for s, w, d in zip(self.slices, self.wholes, self.directions, strict=True)}
        moved: dict[ir.Node, None] = {}
        for node in self.body:
            found = self._for_all_steps(node, whole)
            if found is not None:
                whole[node.outputs[0]] = found
                moved[node] = None
        scanned: list[tuple[ir.Value, ir.Value | None, int]] = []
        known = 0
        for value, (stack, direction) in whole.items():
            uses = [use for use in value.uses() if use.node not in moved]
            if not uses and not value.is_graph_output():
                continue
            content = None if value.is_graph_output() else _same_at_each_step(value, stack)
            if content is not None:
                known += 1
                replacement = self.constant_of(content)
            else:
                replacement = value if value in self.slices else ir.Value(shape=value.shape, type=value.type)
                scanned.append((replacement, stack, direction))
            use_instead(uses, replacement)
        if not moved and not known:
            return 0
        for node in reversed(moved):
            self.body.remove(node, safe=True)
        # A Scan has to scan something.
        self._scan(scanned or [(self.slices[0], self.wholes[0], self.directions[0])])
        return len(moved) + known

    def _for_all_steps(self, node: ir.Node, whole: Mapping[ir.Value, _Stack]) -> _Stack | None:
        """The result of a node for all steps, if it is made of scanned numbers, and their direction."""
        result = node.outputs[0]
        inputs = node.inputs[:1] if node.op_type in MOVES else node.inputs
        scanned = [v for v in inputs if v in whole]
        if node.op_type not in MOVES | ELEMENTWISE or result.is_graph_output() or not _is_number(result):
            return None
        if not all(v is None or ((v in whole or v not in self.own) and _is_number(v)) for v in inputs):
            return None
        directions = {whole[v][1] for v in scanned}
        if len(directions) != 1:
            return None
        stacks = [whole[v][0] if v in whole else v for v in inputs]
        length = whole[scanned[0]][0].shape[0]
        rank = len(result.shape)
        if node.op_type in ELEMENTWISE:
            if any(len(v.shape) != rank for v in scanned) or (node.op_type == "Clip" and len(scanned) > 1):
                return None  # one element per step and one row per step would not meet; bounds have to be scalars
            stack = self._emit(node, node.op_type, stacks, [length, *result.shape])
        elif len(inputs[0].shape) == rank:
            stack = stacks[0]
        else:
            target = self.constant_of(np.asarray([-1] + [1] * rank, np.int64))
            stack = self._emit(node, "Reshape", [stacks[0], target], [length, *result.shape])
        return stack, directions.pop()

    def _emit(self, node: ir.Node, op_type: str, inputs: Sequence[ir.Value | None], shape: Sequence[Any]) -> ir.Value:
        """What `node` does, before the loop."""
        result = ir.Value(shape=ir.Shape(shape), type=node.outputs[0].type)
        new = ir.Node(
            "",
            op_type,
            inputs,
            list(node.attributes.values()) if op_type == node.op_type and op_type not in MOVES else [],
            outputs=[result],
            name=rename_operator(node.name, node.op_type, op_type),
            metadata_props=dict(node.metadata_props) or None,
        )
        self.node.graph.insert_before(self.node, new)  # type: ignore[union-attr]
        return result

    def _scan(self, scanned: Sequence[tuple[ir.Value, ir.Value | None, int]]) -> None:
        """Let the body scan these: its input, the whole of it, and the direction."""
        node = self.node
        inputs = [*list(node.inputs)[: self.states], *(whole for _, whole, _ in scanned)]
        node.resize_inputs(len(inputs))
        for i, value in enumerate(inputs):
            node.replace_input_with(i, value)
        self.body.inputs[:] = [*list(self.body.inputs)[: self.states], *(inner for inner, _, _ in scanned)]
        node.attributes["num_scan_inputs"] = ir.AttrInt64("num_scan_inputs", len(scanned))
        directions = [direction for _, _, direction in scanned]
        node.attributes.pop("scan_input_directions", None)
        if any(directions):
            node.attributes["scan_input_directions"] = ir.AttrInt64s("scan_input_directions", directions)


def _is_number(value: ir.Value) -> bool:
    """Is this a scalar, or an array of one element?"""
    return value.shape is not None and all(isinstance(d, int) and d == 1 for d in value.shape)


def _same_at_each_step(number: ir.Value, whole: ir.Value) -> np.ndarray | None:
    """The content of a scanned number, if that is known and the same at each step."""
    if not _is_number(number):
        return None
    array = constant(whole)
    if array is not None:
        return np.asarray(array[0]) if len(array) and array.tobytes() == array[:1].tobytes() * len(array) else None
    content = splat(whole)
    return None if content is None else np.full([int(d) for d in number.shape], content)  # type: ignore[union-attr, arg-type]
