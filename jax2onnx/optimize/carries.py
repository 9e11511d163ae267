"""What a loop carries from step to step for nothing: values that never change, that nothing depends on, or that are
always equal to others.

JAX programs have few of them. But a condition that was found to hold, or a choice between two equal values, leaves
carries behind that are only passed on; and libraries count what most programs do not ask for, or have counted already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from jax2onnx.graphs import bodies, output_positions, replace_inputs, roots, use_instead
from jax2onnx.optimize.queries import attribute, constant, used_values
from jax2onnx.optimize.shared import frozen_attributes

MAX_DEPTH = 6
"""Through how many nodes two values are compared."""

_Pairs = frozenset[tuple[ir.Value, ir.Value]]
"""Values that are taken to be equal."""


def drop_needless_carries(model: ir.Model) -> int:
    """Take them out of all loops, the innermost first; how many there were."""
    return sum(_visit(graph) for graph in roots(model))


def _visit(graph: ir.Graph) -> int:
    count = 0
    for node in list(graph):
        for body in bodies(node):
            count += _visit(body)
        if node.op_type in ("Loop", "Scan"):
            count += Carries(node).drop()
    return count


class Carries:
    """A Loop or Scan, and where its carries are among the inputs and outputs of the node and of its body."""

    def __init__(self, node: ir.Node):
        self.node = node
        self.body: ir.Graph = node.attributes["body"].as_graph()
        is_loop = node.op_type == "Loop"
        # A Loop has the number of steps and the condition before them, its body the step and the condition.
        self.first_in, self.first_out = (2, 1) if is_loop else (0, 0)
        scanned = 0 if is_loop else attribute(node, "num_scan_inputs")
        self.count = len(node.inputs) - self.first_in - scanned

    def drop(self) -> int:
        """Take out what is needless; how much that was."""
        merged = self._merge_equal()
        results = Counter(self.body.outputs.copy())
        fixed = {i for i in range(self.count) if self._is_fixed(i, results)}
        for i in sorted(fixed):
            start = self.node.inputs[self.first_in + i]
            use_instead(self.inside(i).uses(), start)
            use_instead(self.node.outputs[i].uses(), start)
        alive = self._alive()
        dropped = {i for i in range(self.count) if i in fixed or i not in alive}
        if len(dropped) == len(self.node.outputs):  # which nothing uses
            return merged
        if dropped:
            self.keep([i for i in range(self.count) if i not in dropped])
        return merged + len(dropped)

    def _merge_equal(self) -> int:
        """Use one carry for all that are always equal to it; how many were used for the same."""
        count = 0
        alike: dict[Any, int] = {}  # there may be thousands: each is compared with one that looks the same
        for j in range(self.count):
            look = _looks(self.start(j), None), _looks(self.update(j), self.inside(j))
            i = alike.setdefault(look, j)
            if i != j and self.are_equal(i, j):
                # The one that the graph returns stays.
                kept, other = (j, i) if self.node.outputs[j].is_graph_output() else (i, j)
                alike[look] = kept
                pairs = (self.inside(other), self.inside(kept)), (self.node.outputs[other], self.node.outputs[kept])
                count += any(value.uses() for value, _ in pairs)
                for value, first in pairs:
                    use_instead(value.uses(), first)
        return count

    def are_equal(self, i: int, j: int, pairs: _Pairs = frozenset(), depth: int = MAX_DEPTH) -> bool:
        """Do two carries start as the same, and does a step make the same of both if they are?"""
        if not _are_equal(self.start(i), self.start(j), pairs, depth):
            return False
        return _are_equal(self.update(i), self.update(j), pairs | {(self.inside(i), self.inside(j))}, depth)

    def inside(self, i: int) -> ir.Value:
        """A carry as the body gets it."""
        return self.body.inputs[self.first_in + i]

    def start(self, i: int) -> ir.Value | None:
        """What it is before the first step."""
        return self.node.inputs[self.first_in + i]

    def update(self, i: int) -> ir.Value:
        """What a step makes of it."""
        return self.body.outputs[self.first_out + i]

    def _is_fixed(self, i: int, results: Mapping[ir.Value, int]) -> bool:
        """Is a carry passed on as it is? Not if it is another result of the body, or of the graph, as well."""
        own, inside = self.body.outputs[self.first_out + i], self.inside(i)
        passed = own
        while (source := passed.producer()) is not None and source.op_type == "Identity":
            passed = source.inputs[0]  # type: ignore[assignment]
        is_another = results[own] > 1 or (inside is not own and inside in results)
        if passed is not inside or is_another or self.node.outputs[i].is_graph_output():
            return False
        return self.node.inputs[self.first_in + i] is not None

    def _alive(self) -> set[int]:
        """The carries that something behind the loop depends on, or whether it goes on."""
        outputs = list(self.body.outputs)
        wanted = outputs[: self.first_out] + outputs[self.first_out + self.count :]
        alive = {i for i, v in enumerate(self.node.outputs[: self.count]) if v.uses() or v.is_graph_output()}
        wanted += [outputs[self.first_out + i] for i in alive]
        position = {self.inside(i): i for i in range(self.count)}
        seen: set[ir.Value] = set()
        while wanted:
            value = wanted.pop()
            if value in seen:
                continue
            seen.add(value)
            if value in position and position[value] not in alive:
                alive.add(position[value])
                wanted.append(outputs[self.first_out + position[value]])
            source = value.producer()
            if source is not None and source.graph is self.body:
                wanted += used_values(source)
        return alive

    def keep(self, kept: list[int]) -> None:
        """Leave only these carries."""
        node, body = self.node, self.body
        _choose(body.inputs, self.first_in, self.count, kept)
        _choose(body.outputs, self.first_out, self.count, kept)
        inputs, places = list(node.inputs), list(range(len(node.outputs)))
        _choose(inputs, self.first_in, self.count, kept)
        _choose(places, 0, self.count, kept)
        give_inputs(node, inputs)
        keep_outputs(node, places)


def _looks(value: ir.Value | None, inside: ir.Value | None, depth: int = 2) -> Any:
    """What is equal for equal carries, of what they start with, or of what becomes of what is `inside`."""
    if value is None or value is inside:
        return ""
    known = value.const_value
    if known is not None:
        return known.tobytes() if known.size == 1 else known.size
    source = value.producer()
    if source is None or depth == 0 or bodies(source):
        return id(value) if inside is None else None
    return source.op_type, *(_looks(x, inside, depth - 1) for x in source.inputs)


def _are_equal(a: ir.Value | None, b: ir.Value | None, pairs: _Pairs, depth: int) -> bool:
    """Are two values always the same, to the bit, if those of the `pairs` are?"""
    if a is b or (a, b) in pairs:
        return True
    if a is None or b is None or a.dtype != b.dtype or depth == 0:
        return False
    x, y = constant(a), constant(b)
    if x is not None or y is not None:
        return x is not None and y is not None and x.size == 1 and x.shape == y.shape and x.tobytes() == y.tobytes()
    one, other = a.producer(), b.producer()
    if one is None or other is None or one.op_type != other.op_type or one.domain or other.domain:
        return False
    if bodies(one):
        loop = Carries(one) if one is other and one.op_type in ("Loop", "Scan") else None
        i, j = (list(node.outputs).index(value) for node, value in ((one, a), (other, b)))
        return loop is not None and max(i, j) < loop.count and loop.are_equal(i, j, pairs, depth - 1)
    if len(one.inputs) != len(other.inputs) or len(one.outputs) != 1 or len(other.outputs) != 1:
        return False
    if not all(_are_equal(p, q, pairs, depth - 1) for p, q in zip(one.inputs, other.inputs, strict=True)):
        return False
    return frozen_attributes(one) == frozen_attributes(other)


def _choose(values: list, first: int, count: int, kept: list[int]) -> None:
    values[first : first + count] = [values[first + i] for i in kept]


def give_inputs(node: ir.Node, inputs: Sequence[ir.Value | None]) -> None:
    """Let these be the inputs of a node."""
    node.resize_inputs(len(inputs))
    replace_inputs(node, enumerate(inputs))


def keep_outputs(node: ir.Node, places: Sequence[int]) -> None:
    """Leave only the outputs of a node that are at these places."""
    assert node.graph is not None
    positions = output_positions(node.graph)
    for place, moved in zip(node.outputs, [node.outputs[i] for i in places], strict=False):
        if place is not moved:
            take_over(place, moved, positions)
    node.resize_outputs(len(places))


def take_over(place: ir.Value, moved: ir.Value, positions: Mapping[ir.Value, Sequence[int]] | None = None) -> None:
    """Let a value be what another was, for all that use it; `positions` are those of the results of the graph."""
    place.shape, place.type = moved.shape, moved.type
    place.meta.clear()
    place.meta.update(moved.meta)
    use_instead(moved.uses(), place)
    if moved.is_graph_output():
        graph = moved.producer().graph  # type: ignore[union-attr]
        assert graph is not None
        for i in (output_positions(graph) if positions is None else positions)[moved]:
            graph.outputs[i] = place
        place.name, moved.name = moved.name, None
