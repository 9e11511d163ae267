"""What does not depend on the steps before leaves the body of a Scan: it is computed for all steps at once.

Where a loop indexes arrays by its counter, half of its body may be arithmetic on that counter. What depends on nothing
but scanned numbers becomes a scanned number itself; one that is the same at each step is a constant. In the end, when
formulas have been recognised, the same is done with small arrays: the projections of the inputs of a recurrent network,
random numbers from keys that are scanned. And what only goes into stacked results is computed behind the loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from jax2onnx.dimensions import likely_size
from jax2onnx.graphs import bodies, output_positions, replace_inputs, use_instead
from jax2onnx.optimize.batched import ELEMENTWISE, Batch, Constants
from jax2onnx.optimize.carries import keep_outputs, take_over
from jax2onnx.optimize.engine import constants_for, detach_bodies, rename_operator
from jax2onnx.optimize.queries import as_shape, attribute, constant, dims, splat
from jax2onnx.optimize.simplify import RESHAPES

NUMBERS = {*ELEMENTWISE, *RESHAPES}
PRODUCTS = ("MatMul", "Gemm")

SMALL = 1024
"""Of an array of so many elements, a node takes longer to start than to compute, also if all steps are far more than
the caches hold."""
CACHED = 1 << 16
"""So many elements stay in the caches until the next node uses them."""
MOST = 1 << 20
"""More elements for all steps are not stored..."""
MOST_OF_PRODUCT = 1 << 22
"""...nor those of a product, which for many rows at once takes a fraction of the time."""
FEW_ROWS = 4
"""Large products of more rows are quick as they are."""

_Stack = tuple[ir.Value, int]
"""The values at all steps of what is computed from scanned values, and from which end they are taken."""


def take_out_step_arithmetic(model: ir.Model) -> int:
    """Move arithmetic on numbers out of all Scan bodies, the innermost first; the number of nodes and inputs that
    bodies lost.

    Not in functions, which cannot use the constants of the main graph.
    """
    constant_of = constants_for(model.graph, "step_constant")
    count = 0
    for node in scans(model.graph):
        count += Scan(node, constant_of).compute_before()
        remove_without_results(node)
    return count


def remove_without_results(node: ir.Node) -> bool:
    """Remove a loop if all that it gave is computed outside of it by now."""
    if node.outputs:
        return False
    detach_bodies(node)
    node.graph.remove(node, safe=True)  # type: ignore[union-attr]
    return True


def scans(graph: ir.Graph) -> Iterator[ir.Node]:
    """The Scan nodes that take slices of the leading axis, and stack results along it, the innermost first."""
    for node in list(graph):
        for body in bodies(node):
            yield from scans(body)
        if node.op_type == "Scan" and not {"scan_input_axes", "scan_output_axes"} & set(node.attributes):
            yield node


class Scan:
    """A Scan node and, for the scanned values of its body, what they are slices of."""

    def __init__(self, node: ir.Node, constant_of: Constants, arrays: bool = False):
        self.node, self.constant_of, self.arrays = node, constant_of, arrays
        self.body: ir.Graph = node.attributes["body"].as_graph()
        scanned = attribute(node, "num_scan_inputs")
        self.states = len(node.inputs) - scanned
        # From which end a slice is taken matters too: only those that are taken at the same time can be combined.
        self.directions: Sequence[int] = attribute(node, "scan_input_directions", [0] * scanned)
        self.slices = list(self.body.inputs)[self.states :]
        self.wholes = list(node.inputs)[self.states :]
        self.whole: dict[ir.Value, _Stack] = {
            s: (w, d) for s, w, d in zip(self.slices, self.wholes, self.directions, strict=True) if w is not None
        }
        self.own = {*self.body.inputs, *(v for n in self.body for v in n.outputs)}
        self.length = dims(self.wholes[0])[0]  # type: ignore[arg-type]
        self.positions = output_positions(self.body)
        self.ends: Sequence[int] = attribute(node, "scan_output_directions", [0] * (len(node.outputs) - self.states))

    # ------------------------------------------------------------------------------------------------ before the loop

    def compute_before(self) -> int:
        """Take out what can be taken out before the loop; how much that was."""
        shared = self._share_slices()
        whole, moved = self.whole, dict[ir.Node, None]()
        for node in self.body:
            found = self._for_all_steps(node, whole)
            if found is not None:
                stacks, direction = found
                whole.update((v, (stack, direction)) for v, stack in zip(node.outputs, stacks, strict=True))
                moved[node] = None
        self._take_over_stacks({v: whole[v][0] for n in moved for v in n.outputs if v.is_graph_output()})
        scanned: list[tuple[ir.Value, ir.Value, int]] = []
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
        if not moved and not known and not shared:
            return 0
        for node in reversed(moved):
            self.body.remove(node, safe=True)
        # A Scan has to scan something.
        self.scan(scanned or [(self.slices[0], self.wholes[0], self.directions[0])])  # type: ignore[list-item]
        return len(moved) + known + shared

    def _share_slices(self) -> int:
        """Scan an array once, also if it is used for several things; how many slices become others."""
        first: dict[_Stack, ir.Value] = {}
        for value in self.slices:
            if value in self.whole and not value.is_graph_output():
                use_instead(value.uses(), first.setdefault(self.whole[value], value))
        twins = [v for v in self.slices if v in self.whole and first.get(self.whole[v], v) is not v]
        twins = [v for v in twins if not v.is_graph_output()]
        for value in twins:
            del self.whole[value]
        return len(twins)

    def _for_all_steps(self, node: ir.Node, whole: Mapping[ir.Value, _Stack]) -> tuple[list[ir.Value], int] | None:
        """The results of a node for all steps, if it is made of scanned values, and their direction."""
        own = self.own_operands(node)
        if not own or not all(v in whole for v in own):
            return None
        directions = {whole[v][1] for v in own}
        if len(directions) != 1 or self.gives_other_results(node, *directions) or not self.is_taken_out(node):
            return None
        graph = self.node.graph
        assert graph is not None
        stacks = {v: whole[v][0] for v in own}
        batch = Batch(node, stacks, self.length, lambda new: graph.insert_before(self.node, new), self.constant_of)  # type: ignore[arg-type]
        results = batch.results()
        return (results, directions.pop()) if results is not None else None

    def gives_other_results(self, node: ir.Node, direction: int) -> bool:
        """Does a node give a result of the body that is not just stacked up, from this end?"""
        found = [self.positions[v] for v in node.outputs if v.is_graph_output()]
        return any(len(at) > 1 or at[0] < self.states or self.ends[at[0] - self.states] != direction for at in found)

    def _take_over_stacks(self, stacks: Mapping[ir.Value, ir.Value]) -> None:
        """Let these be what the loop has stacked up: it no longer gives these results."""
        gone = {self.positions[v][0] for v in stacks}
        if not gone:
            return
        for value, stack in stacks.items():
            take_over(stack, self.node.outputs[self.positions[value][0]])
        left = [i for i in range(len(self.node.outputs)) if i not in gone]
        self.body.outputs[:] = [self.body.outputs[i] for i in left]
        keep_outputs(self.node, left)
        ends = [self.ends[i - self.states] for i in left if i >= self.states]
        self.node.attributes.pop("scan_output_directions", None)
        if any(ends):
            self.node.attributes["scan_output_directions"] = ir.AttrInt64s("scan_output_directions", ends)

    def own_operands(self, node: ir.Node) -> list[ir.Value]:
        """The operands that are values of the body."""
        return [v for v in node.inputs if v is not None and v in self.own]

    def is_possible(self, node: ir.Node) -> bool:
        """Can a node be computed for all steps at once, and is that better?"""
        own = self.own_operands(node)
        if not own or not self.is_taken_out(node):
            return False
        stacks = {v: ir.Value(shape=as_shape([self.length, *dims(v)]), type=v.type) for v in own}
        return Batch(node, stacks, self.length, None, self.constant_of).results() is not None

    def is_taken_out(self, node: ir.Node) -> bool:
        """Is a node better computed for all steps at once?"""
        if not self.arrays:
            operands = node.inputs[:1] if node.op_type in RESHAPES else node.inputs
            return node.op_type in NUMBERS and all(v is None or _is_number(v) for v in [*operands, *node.outputs])
        if any(v.shape is None for v in [*node.outputs, *node.inputs] if v is not None):
            return False
        if node.op_type in RESHAPES:
            return True
        sizes = [
            likely_size(dims(v)) for v in [*node.outputs, *(v for v in node.inputs if v in self.own)] if v is not None
        ]
        steps = likely_size([self.length])
        if node.op_type in PRODUCTS and likely_size(dims(node.outputs[0])[:-1]) <= FEW_ROWS:
            return max(sizes) * steps <= MOST_OF_PRODUCT
        return max(sizes) * steps <= (MOST if max(sizes) <= SMALL else CACHED)

    def scan(self, scanned: Sequence[tuple[ir.Value, ir.Value, int]]) -> None:
        """Let the body scan these: its input, the whole of it, and the direction."""
        node = self.node
        inputs = [*list(node.inputs)[: self.states], *(whole for _, whole, _ in scanned)]
        node.resize_inputs(len(inputs))
        replace_inputs(node, enumerate(inputs))
        self.body.inputs[:] = [*list(self.body.inputs)[: self.states], *(inner for inner, _, _ in scanned)]
        node.attributes["num_scan_inputs"] = ir.AttrInt64("num_scan_inputs", len(scanned))
        directions = [direction for _, _, direction in scanned]
        node.attributes.pop("scan_input_directions", None)
        if any(directions):
            node.attributes["scan_input_directions"] = ir.AttrInt64s("scan_input_directions", directions)

    # ------------------------------------------------------------------------------------------------ behind the loop

    def compute_behind(self) -> int:
        """Compute behind the loop what only goes into its stacked results; how many nodes leave the body."""
        made = list(self.node.outputs)[self.states :]
        backwards = attribute(self.node, "scan_output_directions", [0] * len(made))
        if not made or len(set(backwards)) > 1 or any(v.shape is None for v in self.own):
            return 0
        self.whole = {s: (w, d) for s, (w, d) in self.whole.items() if d == backwards[0]}
        sunk = [n for group in self._groups(self._sinkable()) if self._gain(group) > 0 for n in group]
        if sunk:
            behind = set(sunk)
            self._sink([n for n in self.body if n in behind], bool(backwards[0]))
        return len(sunk)

    def _sinkable(self) -> dict[ir.Node, None]:
        """The nodes whose results only go into stacked results, the last ones first."""
        states = set(list(self.body.outputs)[: self.states])
        found: dict[ir.Node, None] = {}
        for node in reversed(list(self.body)):
            if any(v in states or any(use.node not in found for use in v.uses()) for v in node.outputs):
                continue
            if self.is_possible(node):
                found[node] = None
        return found

    def _groups(self, nodes: Mapping[ir.Node, None]) -> list[list[ir.Node]]:
        """Nodes that have something to do with each other."""
        group_of: dict[ir.Value, list[ir.Node]] = {}
        for node in nodes:
            values = [*node.outputs, *(v for v in self.own_operands(node) if v not in self.whole)]
            joined = {id(group_of[v]): group_of[v] for v in values if v in group_of}
            group = max(joined.values(), key=len, default=[])
            for other in joined.values():
                if other is not group:
                    group += other
                    group_of.update((v, group) for n in other for v in (*n.outputs, *n.inputs) if v in group_of)
            group.append(node)
            group_of.update(dict.fromkeys(values, group))
        return list({id(group): group for group in group_of.values()}.values())

    def _stacked(self, nodes: Sequence[ir.Node]) -> list[ir.Value]:
        """What nodes that are computed behind the loop need of it, and is not there yet."""
        behind = set(nodes)
        needed = {v: None for n in nodes for v in self.own_operands(n) if v not in self.whole}
        there = set(list(self.body.outputs)[self.states :])
        return [v for v in needed if v not in there and v.producer() not in behind]

    def _needs_copy(self, value: ir.Value) -> bool:
        """A body must not give one value twice, nor what it is given."""
        return value.producer() is None or value.is_graph_output()

    def _gain(self, nodes: Sequence[ir.Node]) -> float:
        """How many nodes fewer a step has, in about the time that one takes."""
        copies = sum(map(self._needs_copy, self._stacked(nodes)))
        return sum(2 if n.op_type in PRODUCTS else 1 for n in nodes) - 0.75 * copies

    def _sink(self, nodes: Sequence[ir.Node], backwards: bool) -> None:
        """Compute these nodes behind the loop, which then is another node."""
        old, body, graph = self.node, self.body, self.node.graph
        assert graph is not None
        outside = {v for n in nodes for v in n.outputs}
        kept = [v for v in list(body.outputs)[self.states :] if v not in outside]
        more = self._stacked(nodes)
        place = dict(zip(body.outputs, old.outputs, strict=True))
        stacks = {v: whole for v, (whole, _) in self.whole.items()}
        results = [ir.Value(shape=v.shape, type=v.type) for v in list(old.outputs)[: self.states]]
        results += [ir.Value(shape=as_shape([self.length, *dims(v)]), type=v.type) for v in [*kept, *more]]
        stacks.update(zip([*kept, *more], results[self.states :], strict=True))
        last = old
        if results:
            attributes = [a for name, a in old.attributes.items() if name != "scan_output_directions"]
            if backwards and len(results) > self.states:
                directions = [1] * (len(results) - self.states)
                attributes.append(ir.AttrInt64s("scan_output_directions", directions))
            notes = dict(old.metadata_props) or None
            last = ir.Node("", "Scan", old.inputs, attributes, outputs=results, name=old.name, metadata_props=notes)
            graph.insert_after(old, last)
        self.node = last

        def insert(new: ir.Node) -> None:
            nonlocal last
            graph.insert_after(last, new)
            last = new

        for node in nodes:
            found = Batch(node, stacks, self.length, insert, self.constant_of).results()
            assert found is not None
            stacks.update(zip(node.outputs, found, strict=True))
        for value, result in zip(list(body.outputs)[: self.states], results, strict=False):
            take_over(result, place[value])
        for value in list(body.outputs)[self.states :]:
            take_over(stacks[value], place[value])
        body.outputs[self.states :] = [*kept, *map(self.copied, more)]
        for node in reversed(nodes):
            body.remove(node, safe=True)
        graph.remove(old, safe=True)
        if results:
            self._drop_unused_slices()

    def copied(self, value: ir.Value) -> ir.Value:
        """A value of the body as a result of its own."""
        if not self._needs_copy(value):
            return value
        result = ir.Value(shape=value.shape, type=value.type)
        name, notes = rename_operator(self.node.name, "Scan", "Identity"), dict(self.node.metadata_props) or None
        self.body.append(ir.Node("", "Identity", [value], outputs=[result], name=name, metadata_props=notes))
        return result

    def _drop_unused_slices(self) -> None:
        used = [i for i, s in enumerate(self.slices) if s.uses() or s.is_graph_output()] or [0]
        self.scan([(self.slices[i], self.wholes[i], self.directions[i]) for i in used])  # type: ignore[misc]


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
