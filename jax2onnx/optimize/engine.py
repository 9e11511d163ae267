"""Local rewriting of ONNX graphs: rules look at one node and its surroundings and offer a replacement.

    @rewrites("Identity")
    def skip_identity(r, node):
        return node.inputs[0]

A rule gets the rewriter and a node, and returns the value that replaces the node's first result (a tuple of values for
several results), or None if it does not apply. New nodes come from `r.op`. The rewriter visits each node, and again
those whose surroundings changed, until nothing applies: the cost is linear in the graph and in the number of changes.

Most rules want a certain operator before the node. Saying so spares the others a call:

    @rewrites("Not", given=first("Not"))
    def cancel_not(r, node):
        return node.inputs[0].producer().inputs[0]

One that looks for an operator further away says that it `needs` it, and is not asked of models that do not have it.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from jax2onnx.attributes import as_attribute, as_tensor
from jax2onnx.graphs import all_nodes, bodies, detach, is_used, output_positions, roots, use_instead
from jax2onnx.naming import NAME
from jax2onnx.optimize.queries import as_shape, dims, used_values
from jax2onnx.optimize.rule_sets import Rule, RuleSet, all_known, first, operators_around, some, together
from jax2onnx.permutations import permuted

__all__ = [
    "Rewriter",
    "RuleSet",
    "all_known",
    "constants_for",
    "detach_bodies",
    "first",
    "fresh_name",
    "rename_operator",
    "some",
]

log = logging.getLogger("jax2onnx")

VISITS_PER_NODE = 200
GENERATIONS = 2000
"""Far more than any graph needs: two rules that undo each other must not make an export hang. What replaces a node of
one generation is of the next."""


class Rewriter:
    """Applies rules to all graphs of a model, and counts what each of them did.

    Those that are `settled` apply to nothing in the model as it is, and are asked once it has changed.
    """

    def __init__(self, model: ir.Model, rule_sets: Sequence[RuleSet], settled: Container[RuleSet] = ()):
        self.model = model
        self.opset = model.graph.opset_imports[""]
        self.counts: Counter[str] = Counter()
        self.is_changed = False  # also if nodes were only removed
        self.surroundings: set[ir.Node] = set()  # of what was changed: nodes for which something may be new
        self.operators: set[str] = set()  # that the model has, or had before some nodes were replaced
        self._rules = together(tuple(rule_sets))
        self._unsettled = together(tuple(s for s in rule_sets if s not in settled)) if settled else self._rules
        self._asked: dict[tuple[str, ...], list[Rule]] = {}  # by the operators of a node and of its operands
        self._queue: deque[ir.Node] = deque()
        self._queued: set[ir.Node] = set()
        self._node: ir.Node | None = None  # the node that a rule is looking at
        self._new: list[ir.Node] = []
        self._generations: dict[ir.Node, int] = {}  # of the nodes that rules have made
        self._dead: dict[ir.Node, None] = {}  # nodes that use nothing any more, and are removed in the end
        self._constants: dict[Any, ir.Value] = {}
        self._output_positions: dict[ir.Graph, dict[ir.Value, list[int]]] = {}  # of the graphs that were looked at
        self._functions: set[int] = set()  # ids of the graphs that cannot see the main graph's initializers

    def run(self, start: Container[str] | None = None, around: Container[ir.Node] | None = None) -> Counter[str]:
        """Rewrite until nothing applies. With `start`, only at nodes of these operators and around what changes; with
        `around`, at these nodes."""
        for graph in roots(self.model):
            nodes = list(all_nodes(graph))
            by_op: dict[str, bool] = {}  # whether nodes of an operator are visited
            for node in nodes:
                op_type = node.op_type
                if op_type not in by_op:
                    by_op[op_type] = op_type in self._rules.by_op and (start is None or op_type in start)
                if by_op[op_type] and (around is None or node in around):
                    self._queue.append(node)
            self.operators.update(by_op)
            if graph is not self.model.graph:
                self._functions.update(id(node.graph) for node in nodes)
        self._queued.update(self._queue)
        visits_left = VISITS_PER_NODE * (len(self._queue) + 100)
        while self._queue:
            node = self._queue.popleft()
            self._queued.discard(node)
            if node.graph is not None and node not in self._dead:
                self._visit(node)
            visits_left -= 1
            if not visits_left:
                self._warn()
                break
        self._bury_the_dead()
        return self.counts

    def _warn(self) -> None:
        log.warning("The optimizer does not come to rest: %s. Please report this.", self.counts.most_common(3))

    def _bury_the_dead(self) -> None:
        """Remove them all at once: for each call, a graph looks at all its outputs."""
        by_graph: dict[int, list[ir.Node]] = {}
        for node in self._dead:
            by_graph.setdefault(id(node.graph), []).append(node)
        for nodes in by_graph.values():
            graph = nodes[0].graph
            if graph is not None:
                graph.remove(nodes)
        self._dead.clear()

    def _enqueue(self, node: ir.Node | None) -> None:
        if node is not None and node.graph is not None and node not in self._queued:
            self._queue.append(node)
            self._queued.add(node)
            self.surroundings.add(node)

    def _visit(self, node: ir.Node) -> None:
        if not _is_used(node):
            self._remove(node)
            return
        if self._generations and self._generations.get(node, 0) >= GENERATIONS:
            return
        rules = self._rules_for(node)
        if not rules:
            return
        self._node = node
        for rule in rules:
            found = rule(self, node)
            if found is None:
                if self._new:
                    self._discard_new()
                continue
            replacements = found if isinstance(found, tuple) else (found,)
            self.counts[rule.__name__] += 1
            self._replace(node, replacements)
            return

    def _rules_for(self, node: ir.Node) -> list[Rule]:
        if node.op_type not in self._unsettled.by_op:
            return []
        key = operators_around(node)
        found = self._asked.get(key)
        if found is None:
            rules = self._unsettled.applicable(*key)
            found = [r.rule for r in rules if not r.needs or not r.needs.isdisjoint(self.operators)]
            self._asked[key] = found
        return found

    def _note_change(self) -> None:
        """Rules that are settled may apply now."""
        self.is_changed = True
        if self._unsettled is not self._rules:
            self._unsettled = self._rules
            self._asked.clear()

    def _note_operator(self, op_type: str) -> None:
        """A node of this operator is there now: rules that need one may apply."""
        if op_type not in self.operators:
            self.operators.add(op_type)
            self._asked.clear()

    def _discard_new(self) -> None:
        for node in reversed(self._new):
            if node.graph is not None:
                node.graph.remove(node, safe=True)
        self._new.clear()

    def _replace(self, node: ir.Node, replacements: Sequence[ir.Value]) -> None:
        self._note_change()
        generation = self._generations.get(node, 0) + 1
        if generation == GENERATIONS:
            self._warn()
        for new_node in self._new:
            self._generations[new_node] = generation
            self._enqueue(new_node)
        self._new.clear()
        for old, new in zip(node.outputs, replacements, strict=False):
            if old is new:  # the node was changed in place
                for user in old.consumers():
                    self._enqueue(user)
                continue
            for user in old.consumers():
                self._enqueue(user)
            self.redirect(old, new)
            self._enqueue(new.producer())
        if not _is_used(node):
            self._remove(node)
        else:
            self._enqueue(node)

    def replace_other(self, old: ir.Value, new: ir.Value) -> None:
        """Let everything that uses `old`, the result of another node than the one that is looked at, use `new`. What is
        used no more is removed before the rules are asked again."""
        for user in old.consumers():
            self._enqueue(user)
        self.redirect(old, new)
        self._enqueue(old.producer())

    def redirect(self, old: ir.Value, new: ir.Value) -> None:
        """Let everything that uses `old` use `new`; a graph output keeps its name."""
        if old.is_graph_output():
            producer = old.producer()
            assert producer is not None and producer.graph is not None
            graph = producer.graph
            new_producer = new.producer()
            own = new_producer is not None and new_producer.graph is graph and not new.is_graph_output()
            if not own:
                if producer.op_type == "Identity" and producer.inputs[0] is new:
                    use_instead(old.uses(), new)
                    return
                output = ir.Value(shape=old.shape, type=old.type)
                identity = ir.Node("", "Identity", [new], outputs=[output], name=producer.name)
                graph.insert_before(producer, identity)
                use_instead(old.uses(), new)
                new = output
            if graph not in self._output_positions:
                self._output_positions[graph] = output_positions(graph)
            positions = self._output_positions[graph]
            positions[new] = positions.pop(old)
            for i in positions[new]:
                graph.outputs[i] = new
            new.name, old.name = old.name, None
        use_instead(old.uses(), new)

    def forget_outputs(self, *graphs: ir.Graph | None) -> None:
        """The outputs of these graphs have been changed other than by `redirect`."""
        for graph in graphs:
            self._output_positions.pop(graph, None)  # type: ignore[arg-type]

    def _remove(self, node: ir.Node) -> None:
        """Remove a node that nothing uses, and what only it used."""
        stack = [node]
        while stack:
            dead = stack.pop()
            if dead in self._dead:
                continue
            if dead.graph is None or _is_used(dead):
                self._enqueue(dead)
                continue
            self._note_change()
            producers = [v.producer() for v in used_values(dead)]
            detach_bodies(dead)
            detach(dead)
            self._dead[dead] = None
            stack.extend(p for p in producers if p is not None)

    # ------------------------------------------------------------------------------------------------ for rules

    def op(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        like: ir.Value | None = None,
        shape: Iterable[Any] | None = None,
        dtype: ir.DataType | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> ir.Value:
        """A new node before the one that is looked at. Its result has the type of `like` but for what is given."""
        assert self._node is not None and self._node.graph is not None
        result = ir.Value(
            shape=as_shape(shape) if shape is not None else like.shape if like is not None else None,
            type=ir.TensorType(dtype) if dtype is not None else like.type if like is not None else None,
        )
        node = ir.Node(
            domain,
            op_type,
            inputs,
            [as_attribute(k, v) for k, v in attributes.items() if v is not None],
            outputs=[result],
            name=rename_operator(self._node.name, self._node.op_type, op_type),
            metadata_props=dict(self._node.metadata_props) or None,
        )
        self._node.graph.insert_before(self._node, node)
        self._new.append(node)
        self._note_operator(op_type)
        return result

    def transpose(self, x: ir.Value, perm: Sequence[int]) -> ir.Value:
        """A Transpose of `x` before the node that is looked at."""
        return self.op("Transpose", x, like=x, shape=permuted(dims(x), perm), perm=list(perm))

    def split(
        self, x: ir.Value, sizes: Sequence[int | str], axis: int, operand: ir.Value | None = None
    ) -> list[ir.Value]:
        """A Split of `x` before the node that is looked at; the `operand` has the sizes, if they are not all known."""
        assert self._node is not None and self._node.graph is not None
        shape = list(dims(x))
        parts = [ir.Value(shape=as_shape([*shape[:axis], size, *shape[axis + 1 :]]), type=x.type) for size in sizes]
        operands = [x, operand if operand is not None else self.const(sizes, np.int64)]
        name = rename_operator(self._node.name, self._node.op_type, "Split")
        notes = dict(self._node.metadata_props) or None
        attributes = [ir.AttrInt64("axis", axis)]
        node = ir.Node("", "Split", operands, attributes, outputs=parts, name=name, metadata_props=notes)
        self._node.graph.insert_before(self._node, node)
        self._new.append(node)
        self._note_operator("Split")
        return parts

    def inline(self, body: ir.Graph) -> tuple[ir.Value, ...]:
        """The results of a body of the node that is looked at, whose nodes are moved before it."""
        assert self._node is not None and self._node.graph is not None
        results, nodes = tuple(body.outputs), list(body)
        body.outputs.clear()
        body.remove(nodes)
        self._node.graph.insert_before(self._node, nodes)
        self._new.extend(nodes)
        return results

    def const(self, array: Any, dtype: Any = None, name: str | None = None) -> ir.Value:
        """A known array as an initializer (a Constant node inside a function)."""
        array = np.asarray(array, dtype)
        key = array.dtype, array.shape, array.tobytes()
        known = self._constants.get(key)
        return known if known is not None and self._sees_initializers() else self.tensor(as_tensor(array), key, name)

    def _sees_initializers(self) -> bool:
        """Whether the node that is looked at is in the main graph or in a body there, not in a function."""
        assert self._node is not None
        return id(self._node.graph) not in self._functions

    def moved(self, array: np.ndarray, source: ir.Value | None) -> ir.Value:
        """What became of the content of `source` (another shape, order, scale), as an initializer under its name."""
        return self.const(array, name=source.meta.get(NAME) if source is not None else None)

    def tensor(self, tensor: ir.TensorProtocol, key: Any = None, name: str | None = None) -> ir.Value:
        """A tensor as an initializer of the main graph; `key` says which tensors are equal."""
        assert self._node is not None
        root = self.model.graph
        if not self._sees_initializers():
            node = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)])
            node.outputs[0].shape, node.outputs[0].type = as_shape(tensor.shape), ir.TensorType(tensor.dtype)
            node.outputs[0].const_value = tensor
            self._node.graph.insert_before(self._node, node)  # type: ignore[union-attr]
            return node.outputs[0]
        if key is not None and key in self._constants:
            return self._constants[key]
        value = ir.Value(
            name=fresh_name(root, name or "folded"),
            shape=as_shape(tensor.shape),
            type=ir.TensorType(tensor.dtype),
            const_value=tensor,
        )
        if name is not None:
            value.meta[NAME] = name
        root.register_initializer(value)
        if key is not None:
            self._constants[key] = value
        return value


def _is_used(node: ir.Node) -> bool:
    """Does anything depend on a result of the node?"""
    for value in node.outputs:  # noqa: SIM110 - a loop is faster, and this is asked of every node
        if is_used(value):
            return True
    return False


def fresh_name(graph: ir.Graph, base: str) -> str:
    """A name for an initializer that the graph does not have yet."""
    name, n = base, len(graph.initializers)
    while name in graph.initializers:
        name, n = f"{base}_{n}", n + 1
    return name


def constants_for(graph: ir.Graph, base: str) -> Callable[[np.ndarray], ir.Value]:
    """A function from arrays to new initializers of the graph: one for each content."""
    known: dict[Any, ir.Value] = {}

    def constant_of(content: np.ndarray) -> ir.Value:
        key = (content.dtype, content.shape, content.tobytes())
        if key not in known:
            tensor = ir.Tensor(content)
            known[key] = ir.Value(
                name=fresh_name(graph, base),
                shape=ir.Shape(content.shape),
                type=ir.TensorType(tensor.dtype),
                const_value=tensor,
            )
            graph.register_initializer(known[key])
        return known[key]

    return constant_of


def rename_operator(name: str | None, old: str, new: str) -> str:
    """The name of a node that replaces another: the same scope, its own operator."""
    if name and name.endswith(old):
        return name[: len(name) - len(old)] + new
    return new


def detach_bodies(node: ir.Node) -> None:
    """Take the bodies of a dead node apart, so that they no longer use anything."""
    for body in bodies(node):
        for inner in reversed(list(body)):
            detach_bodies(inner)
            detach(inner)
            body.remove(inner)
