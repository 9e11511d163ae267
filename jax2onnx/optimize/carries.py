"""What a loop carries from step to step for nothing: values that never change, and values that nothing depends on.

JAX programs have few of them. But a condition that was found to hold, or a choice between two equal values, leaves
carries behind that are only passed on; and libraries count what most programs do not ask for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from jax2onnx.graphs import bodies, output_positions, roots, use_instead
from jax2onnx.optimize.queries import attribute, used_values


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
        results = Counter(self.body.outputs.copy())
        fixed = {i for i in range(self.count) if self._is_fixed(i, results)}
        for i in sorted(fixed):
            start = self.node.inputs[self.first_in + i]
            use_instead(self.inside(i).uses(), start)
            use_instead(self.node.outputs[i].uses(), start)
        alive = self._alive()
        dropped = {i for i in range(self.count) if i in fixed or i not in alive}
        if len(dropped) == len(self.node.outputs):  # which nothing uses
            return 0
        if dropped:
            self.keep([i for i in range(self.count) if i not in dropped])
        return len(dropped)

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


def _choose(values: list, first: int, count: int, kept: list[int]) -> None:
    values[first : first + count] = [values[first + i] for i in kept]


def give_inputs(node: ir.Node, inputs: Sequence[ir.Value | None]) -> None:
    """Let these be the inputs of a node."""
    node.resize_inputs(len(inputs))
    for i, value in enumerate(inputs):
        node.replace_input_with(i, value)


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
