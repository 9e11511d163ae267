"""What a step does independently of the steps before is done for all steps at once, outside of the loop (`steps.py`).

A state that depends on no other, such as the key that each step splits, stands in the way: what is made of it changes
from step to step. But it can have a loop of its own, before the other one, which gives what it is at each step. And an
array that is only written to, here and there at each step, need not be carried: what is written is stacked up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from jax2onnx.dimensions import is_static, likely_size
from jax2onnx.graphs import bodies, use_instead
from jax2onnx.optimize.carries import Carries, take_over
from jax2onnx.optimize.draws import THREEFRY
from jax2onnx.optimize.engine import constants_for, rename_operator
from jax2onnx.optimize.queries import Dims, as_shape, attribute, constant, dims, only_user, producer
from jax2onnx.optimize.steps import MOST, Scan, remove_without_results, scans

WORTH = 12
"""So many nodes take longer than the steps of another loop."""
HASH = 120
IN_ORDER = 200_000
"""So many elements a ScatterND writes in their order (`targets/FACTS.md`)."""


def compute_before_loops(model: ir.Model) -> int:
    """Move what is independent of other steps out of Scan bodies; how many nodes and inputs these lost."""
    return _move_out(model, [Scan.compute_before, _delay, _stack_updates, _separate, Scan.compute_before])


def compute_behind_loops(model: ir.Model) -> int:
    """Move what only goes into stacked results out of Scan bodies; how many nodes these lost."""
    return _move_out(model, [Scan.compute_behind])


def _move_out(model: ir.Model, moves: Sequence[Callable[[Scan], int]]) -> int:
    constant_of = constants_for(model.graph, "step_constant")
    count = 0
    for node in scans(model.graph):
        for move in moves:
            count += move(Scan(node, constant_of, arrays=True))
            if remove_without_results(node):
                break
    return count


def _stack_updates(loop: Scan) -> int:
    """Write to arrays that the loop only writes to behind it, all at once; how many there were."""
    node, body = loop.node, loop.body
    graph = node.graph
    assert graph is not None
    if any(attribute(node, "scan_output_directions", [])):
        return 0
    found = [i for i in range(loop.states) if _is_only_written_to(loop, i)]
    for i in found:
        scatter = body.outputs[i].producer()
        assert scatter is not None
        _, index, update = scatter.inputs
        assert index is not None and update is not None
        node.resize_outputs(len(node.outputs) + 1)
        stack = node.outputs[-1]
        stack.shape, stack.type = as_shape([loop.length, *dims(update)]), update.type
        body.outputs.append(loop.copied(update))
        whole, final = loop.whole[index][0], node.outputs[i]
        if "reduction" not in scatter.attributes and _is_all(whole, dims(final), dims(update)):
            take_over(stack, final)
            continue
        result = ir.Value(shape=final.shape, type=final.type)
        new = _copy(scatter, {scatter.inputs[0]: node.inputs[i], index: whole, update: stack}, [result])  # type: ignore[dict-item]
        graph.insert_after(node, new)
        take_over(result, final)
    if found:
        Carries(node).keep([i for i in range(loop.states) if i not in found])
    return len(found)


def _is_only_written_to(loop: Scan, i: int) -> bool:
    """Is a state given to nothing but a ScatterND, at scanned positions, whose result is the next state?

    If they are many, no position may occur twice: ONNX Runtime would write there in any order.
    """
    state, result = loop.body.inputs[i], loop.body.outputs[i]
    scatter = result.producer()
    if scatter is None or scatter.op_type != "ScatterND" or scatter.inputs[0] is not state or result.uses():
        return False
    _, index, update = scatter.inputs
    if only_user(state) is not scatter or index not in loop.whole or update not in loop.own:
        return False
    whole, direction = loop.whole[index]
    if direction or not is_static((loop.length, *dims(update))):
        return False
    known = constant(whole)
    is_once = known is not None and known.shape[-1] == 1 and known.size == len(np.unique(known[known >= 0]))
    return is_once or likely_size([loop.length, *dims(update)]) <= IN_ORDER


def _is_all(index: ir.Value, shape: Dims, update: Dims) -> bool:
    """Are these all positions of an array along its first axis, in their order?"""
    known = constant(index)
    if known is None or not shape or shape[1:] != update:
        return False
    return known.shape == (shape[0], 1) and np.array_equal(known[:, 0], np.arange(len(known)))


def _separate(loop: Scan) -> int:
    """Give the states that depend on no other a loop of their own, if more becomes independent by that; how many."""
    origins = _origins(loop)
    chains = {i: _chain(loop, i) for i in range(loop.states) if origins.get(loop.body.outputs[i], i) == i}
    if not chains or len(chains) == loop.states:
        return 0
    apart = {node for chain in chains.values() for node in chain}
    available = {s for s in loop.slices if loop.whole[s][1] == loop.directions[0]}
    available.update(loop.body.inputs[i] for i in chains)
    gain = 0
    for node in loop.body:
        own = loop.own_operands(node)
        if all(v in available for v in own) and loop.is_possible(node):
            available.update(node.outputs)
            stays = node in apart or loop.gives_other_results(node, loop.directions[0])
            gain += 0 if stays else HASH if node.op_type == THREEFRY else 1
    if gain < WORTH:
        return 0
    _move(loop, sorted(chains), [node for node in loop.body if node in apart])
    return len(chains)


def _origins(loop: Scan) -> dict[ir.Value, int | None]:
    """For the values of a body, the only state that each of them is computed from, None if that is not so simple.

    What is computed from no state is not among them.
    """
    origins: dict[ir.Value, int | None] = {v: i for i, v in enumerate(list(loop.body.inputs)[: loop.states])}
    for node in loop.body:
        found = {origins[v] for v in loop.own_operands(node) if v in origins}
        if bodies(node):
            found = {None}
        if found:
            origins.update(dict.fromkeys(node.outputs, found.pop() if len(found) == 1 else None))
    return origins


def _chain(loop: Scan, i: int) -> set[ir.Node]:
    """The nodes that compute the next value of a state."""
    nodes: set[ir.Node] = set()
    wanted = [loop.body.outputs[i]]
    while wanted:
        value = wanted.pop()
        node = value.producer()
        if value in loop.own and node is not None and node not in nodes:
            nodes.add(node)
            wanted += loop.own_operands(node)
    return nodes


def _move(loop: Scan, states: list[int], nodes: list[ir.Node]) -> None:
    """Let a Scan before this one carry these states, and this one scan what they are at each step."""
    body, graph = loop.body, loop.node.graph
    assert graph is not None
    inputs = [*(body.inputs[i] for i in states), *loop.slices]
    copy_of = {v: ir.Value(shape=v.shape, type=v.type) for v in inputs}
    copies = [_copy(node, copy_of) for node in nodes]
    before = [ir.Value(shape=copy_of[v].shape, type=v.type) for v in inputs[: len(states)]]
    copies += [
        ir.Node("", "Identity", [copy_of[v]], outputs=[b]) for v, b in zip(inputs[: len(states)], before, strict=True)
    ]
    used = [s for s in loop.slices if copy_of[s].uses()] or loop.slices[:1]
    inner = ir.Graph(
        [copy_of[v] for v in [*inputs[: len(states)], *used]],
        [*(copy_of[body.outputs[i]] for i in states), *before],
        nodes=copies,
        name="body",
    )
    backwards = loop.directions[0]
    attributes: list[ir.Attr] = [ir.AttrGraph("body", inner), ir.AttrInt64("num_scan_inputs", len(used))]
    if any(loop.directions):
        attributes.append(ir.AttrInt64s("scan_input_directions", [loop.whole[s][1] for s in used]))
        attributes.append(ir.AttrInt64s("scan_output_directions", [backwards] * len(before)))
    finals = [ir.Value(shape=v.shape, type=v.type) for v in inputs[: len(states)]]
    stacks = [ir.Value(shape=as_shape([loop.length, *dims(v)]), type=v.type) for v in before]
    operands = [*(loop.node.inputs[i] for i in states), *(loop.whole[s][0] for s in used)]
    notes = dict(loop.node.metadata_props) or None
    new = ir.Node(
        "", "Scan", operands, attributes, outputs=[*finals, *stacks], name=loop.node.name, metadata_props=notes
    )
    graph.insert_before(loop.node, new)
    _scan_instead(loop, dict(zip(states, zip(finals, stacks, strict=True), strict=True)), backwards)


def _scan_instead(loop: Scan, states: dict[int, tuple[ir.Value, ir.Value]], backwards: int) -> None:
    """Let a loop scan some of its states: for each, there is the last value and what it is at each step."""
    body = loop.body
    slices = [ir.Value(shape=body.inputs[i].shape, type=body.inputs[i].type) for i in states]
    for (i, (final, _)), slice_ in zip(states.items(), slices, strict=True):
        take_over(final, loop.node.outputs[i])
        use_instead(body.inputs[i].uses(), slice_)
    Carries(loop.node).keep([i for i in range(loop.states) if i not in states])
    loop.states -= len(states)
    scanned = [(s, *loop.whole[s]) for s in loop.slices]
    loop.scan([*scanned, *((s, stack, backwards) for s, (_, stack) in zip(slices, states.values(), strict=True))])


def _delay(loop: Scan) -> int:
    """A state that is what was scanned a step before is scanned itself, its first value in front; how many."""
    for i in range(loop.states):
        result = loop.body.outputs[i]
        copy = producer(result, "Identity")
        source = copy.inputs[0] if copy is not None else None
        if source not in loop.whole or likely_size([loop.length, *dims(result)]) > MOST or result.uses():
            continue
        assert copy is not None
        whole, backwards = loop.whole[source]
        start = loop.node.inputs[i]
        rest = (loop.length - 1 if isinstance(loop.length, int) else None, *dims(result))
        bounds = [[1], [np.iinfo(np.int64).max], [0]] if backwards else [[0], [-1], [0]]
        first = _before(loop, "Unsqueeze", [start, loop.constant_of(np.asarray([0]))], (1, *dims(result)))
        others = _before(loop, "Slice", [whole, *(loop.constant_of(np.asarray(b)) for b in bounds)], rest)
        parts = [others, first] if backwards else [first, others]
        stack = _before(loop, "Concat", parts, (loop.length, *dims(result)), axis=0)
        last = loop.constant_of(np.asarray(0 if backwards else -1))
        final = _before(loop, "Gather", [whole, last], dims(result), axis=0)
        _scan_instead(loop, {i: (final, stack)}, backwards)
        loop.body.remove(copy, safe=True)
        return 1 + _delay(Scan(loop.node, loop.constant_of, arrays=True))
    return 0


def _before(loop: Scan, op_type: str, inputs: Sequence[ir.Value | None], shape: Sequence[Any], **axis: int) -> ir.Value:
    """The result of a new node before the loop."""
    assert loop.node.graph is not None and inputs[0] is not None
    result = ir.Value(shape=as_shape(shape), type=inputs[0].type)
    attributes = [ir.AttrInt64(name, value) for name, value in axis.items()]
    name, notes = rename_operator(loop.node.name, "Scan", op_type), dict(loop.node.metadata_props) or None
    node = ir.Node("", op_type, inputs, attributes, outputs=[result], name=name, metadata_props=notes)
    loop.node.graph.insert_before(loop.node, node)
    return result


def _copy(node: ir.Node, copy_of: dict[ir.Value, ir.Value], results: Sequence[ir.Value] = ()) -> ir.Node:
    """The same node for copies of its operands, which gives copies of its results."""
    made = results or [ir.Value(shape=v.shape, type=v.type) for v in node.outputs]
    copy_of.update(zip(node.outputs, made, strict=True))
    return ir.Node(
        node.domain,
        node.op_type,
        [copy_of.get(v, v) if v is not None else None for v in node.inputs],
        list(node.attributes.values()),
        outputs=made,
        name=node.name,
        metadata_props=dict(node.metadata_props) or None,
    )
