"""Recurrent networks on top of each other that run in one loop: the lowest becomes a node of its own, before the loop.

What is left is a loop over its results, in which the next layer is the lowest. What is between the two is done for all
steps at once (`independent.py`).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from jax2onnx.graphs import use_instead
from jax2onnx.optimize.carries import give_inputs, keep_outputs
from jax2onnx.optimize.cells import Formula, formulas
from jax2onnx.optimize.engine import Rewriter, RuleSet
from jax2onnx.optimize.gates import Cell, gru, lstm
from jax2onnx.optimize.queries import attribute, dims, used_values
from jax2onnx.optimize.recurrent import direction_of, network_of, results_of

RULES = RuleSet()


@RULES.rewrites("Scan")
def run_the_lowest_layer_first(r: Rewriter, node: ir.Node) -> tuple[ir.Value, ...] | None:
    """A Scan of a cell and of other states, which do not see its states, only what it gives, and the same inputs."""
    body = node.attributes["body"].as_graph()
    states = len(node.inputs) - attribute(node, "num_scan_inputs")
    if states < 2:
        return None
    direction = direction_of(node)
    if direction is None:
        return None
    results = formulas(body, body.outputs)
    found = _lowest(body, results, states)
    if found is None:
        return None
    cell, hidden, memory = found
    own = [hidden] if memory is None else [hidden, memory]
    given = [i for i in range(states, len(results)) if results[i] is results[hidden]]
    rest = [i for i in range(len(results)) if i not in (*own, *given)]
    if not _is_apart(body, body.outputs[hidden], [body.outputs[i] for i in rest], own):
        return None
    made = network_of(r, node, cell, hidden, memory, direction)
    if made is None:
        return None
    places = [1 if i == hidden else 2 if i == memory else 0 for i in (*own, *given)]
    old = [node.outputs[i] for i in (*own, *given)]
    for value, new in zip(old, results_of(r, made, list(zip(old, places, strict=True))), strict=True):
        if value is not new:
            r.redirect(value, new)
    _run_above(r, node, made, hidden, rest)
    return tuple(node.outputs)


def _lowest(body: ir.Graph, results: list[Formula | None], states: int) -> tuple[Cell, int, int | None] | None:
    """A cell that reads only the inputs and its own states, and where these are; not the only one."""
    scanned = set(body.inputs[states:])
    for hidden in range(states):
        h = body.inputs[hidden]
        found: list[tuple[Cell | None, int | None]] = [(gru(results[hidden], h), None)] if states > 1 else []
        if states > 2:
            others = [m for m in range(states) if m != hidden]
            found += [(lstm(results[hidden], results[m], body.inputs[m]), m) for m in others]
        for cell, memory in found:
            if cell is not None and all(set(gate.matrices) <= {*scanned, h} for gate in cell.gates):
                return cell, hidden, memory
    return None


def _is_apart(body: ir.Graph, link: ir.Value, outputs: list[ir.Value], without: list[int]) -> bool:
    """Can these outputs be computed from `link`, without the inputs at these places?"""
    gone, todo, seen = {body.inputs[i] for i in without}, list(outputs), {link}
    while todo:
        value = todo.pop()
        if value in gone:
            return False
        source = value.producer()
        if value in seen or source is None or source.graph is not body:
            continue
        seen.add(value)
        todo += used_values(source)
    return bool(outputs)


def _run_above(r: Rewriter, node: ir.Node, made: ir.Node, hidden: int, rest: list[int]) -> None:
    """Let a Scan do only the rest, over the results of the network that was `made`."""
    body, states = node.attributes["body"].as_graph(), len(node.inputs) - attribute(node, "num_scan_inputs")
    state, link = body.inputs[hidden], body.outputs[hidden]
    axes = [1] if len(dims(state)) == 2 else [1, 2]
    steps = dims(made.outputs[0])[0]
    below = r.op("Squeeze", made.outputs[0], r.const(axes, np.int64), like=state, shape=[steps, *dims(state)])
    given = ir.Value(name=f"{link.name}_given", shape=state.shape, type=state.type)
    use_instead(link.uses(), given)
    kept = [i for i in rest if i < states]
    scanned = list(zip(body.inputs[states:], node.inputs[states:], strict=True))
    body.inputs[:] = [*(body.inputs[i] for i in kept), given]
    body.outputs[:] = [body.outputs[i] for i in rest]
    for dead in reversed(list(body)):
        if not any(v.uses() or v.is_graph_output() for v in dead.outputs):
            body.remove(dead, safe=True)
    also = [(inner, whole) for inner, whole in scanned if inner.uses()]
    body.inputs.extend(inner for inner, _ in also)
    give_inputs(node, [*(node.inputs[i] for i in kept), below, *(whole for _, whole in also)])
    node.attributes["num_scan_inputs"] = ir.AttrInt64("num_scan_inputs", 1 + len(also))
    if "scan_input_directions" in node.attributes:
        reads = [attribute(node, "scan_input_directions")[0]] * (1 + len(also))
        node.attributes["scan_input_directions"] = ir.AttrInt64s("scan_input_directions", reads)
    keep_outputs(node, rest)
    r.forget_outputs(node.graph, body)
    if "scan_output_directions" in node.attributes:
        writes = attribute(node, "scan_output_directions")
        node.attributes["scan_output_directions"] = ir.AttrInt64s(
            "scan_output_directions", [writes[i - states] for i in rest if i >= states]
        )
