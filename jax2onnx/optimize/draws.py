"""Random bits: the draws of a program that do not depend on each other are made together.

`threefry2x32` is a hash of 120 operators, on arrays that mostly are small. It is one node until the end. Programs split
a key and draw with each of the new keys; then one hash of all their counts takes hardly longer than the first of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from jax2onnx.graphs import bodies, roots, use_instead
from jax2onnx.optimize.engine import Rewriter, RuleSet, constants_for, rename_operator
from jax2onnx.optimize.queries import aligned_dims, as_shape, constant, dims, used_values
from jax2onnx.optimize.simplify import broadcast

THREEFRY = "threefry2x32"
RULES = RuleSet()
rewrites = RULES.rewrites

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA

LARGEST = 1 << 14
"""Draws of more elements are made each on its own: to put them together and take them apart would take longer."""


@rewrites(THREEFRY)
def write_out_threefry(r: Rewriter, node: ir.Node) -> tuple[ir.Value, ...]:
    """Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (2011). Twenty rounds, a key after each four."""
    y = node.outputs[0]
    k0, k1, x0, x1 = node.inputs
    assert k0 is not None and k1 is not None

    def op(name: str, a: ir.Value | None, b: ir.Value | int | None, **attributes: Any) -> ir.Value:
        b = r.const(b, np.uint32) if isinstance(b, int) else b
        assert a is not None and b is not None
        return r.op(name, a, b, like=y, shape=_together(a, b), **attributes)

    keys = [k0, k1, op("BitwiseXor", op("BitwiseXor", k0, k1), PARITY)]
    x0, x1 = op("Add", x0, k0), op("Add", x1, k1)
    for i in range(5):
        for rotation in ROTATIONS[i % 2]:
            x0 = op("Add", x0, x1)
            # Products are computed faster than shifts to the left.
            left, right = op("Mul", x1, 1 << rotation), op("BitShift", x1, 32 - rotation, direction="RIGHT")
            x1 = op("BitwiseXor", op("BitwiseOr", left, right), x0)
        first, second = keys[(i + 1) % 3], keys[(i + 2) % 3]
        x0, x1 = op("Add", x0, first), op("Add", x1, op("Add", second, i + 1))
    return x0, x1


def _together(a: ir.Value, b: ir.Value) -> ir.Shape:
    """The shape of what is computed of two operands, which need not be as large as the hash; unknown sizes stay so."""
    rank = max(len(dims(a)), len(dims(b)))
    sizes = [broadcast([(p,), (q,)]) for p, q in zip(aligned_dims(a, rank), aligned_dims(b, rank), strict=True)]
    return ir.Shape(None if size is None else as_shape(size)[0] for size in sizes)


def write_out_draws(model: ir.Model) -> int:
    """Replace every hash by the operators that it consists of; how many there were."""
    return Rewriter(model, [RULES]).run().total()


def draw_together(model: ir.Model) -> int:
    """Make one hash of those in a graph that do not depend on each other; how many are saved."""
    constant_of = constants_for(model.graph, "counts")
    saved = _visit(model.graph, constant_of)
    if saved:
        for graph in roots(model):
            graph.sort()
    return saved


def _visit(graph: ir.Graph, constant_of: Any) -> int:
    level: dict[ir.Value, int] = {}
    by_level: dict[int, list[ir.Node]] = {}
    saved = 0
    for node in graph:
        saved += sum(_visit(body, constant_of) for body in bodies(node))
        above = max((level.get(v, 0) for v in used_values(node)), default=0)
        if node.op_type == THREEFRY and _is_joined(node):
            above += 1
            by_level.setdefault(above, []).append(node)
        if above:
            level.update(dict.fromkeys(node.outputs, above))
    for nodes in by_level.values():
        if len(nodes) > 1:
            _Together(graph, nodes, constant_of).draw()
            saved += len(nodes) - 1
    return saved


def _is_joined(node: ir.Node) -> bool:
    shape = _known_dims(node.outputs[0])
    if shape is None or any(v.is_graph_output() for v in node.outputs):
        return False
    return 0 < math.prod(shape) <= LARGEST and all(x is None or _known_dims(x) is not None for x in node.inputs)


def _known_dims(value: ir.Value) -> tuple[int, ...] | None:
    found = tuple(d for d in dims(value) if isinstance(d, int))
    return found if len(found) == len(dims(value)) else None


class _Together:
    """Several hashes as one, of vectors of all their operands."""

    def __init__(self, graph: ir.Graph, nodes: Sequence[ir.Node], constant_of: Any):
        self.graph, self.nodes, self.constant_of = graph, nodes, constant_of
        self.shapes = [_known_dims(n.outputs[0]) or () for n in nodes]
        self.sizes = [math.prod(s) for s in self.shapes]

    def draw(self) -> None:
        """Put the one in the place of all."""
        total = (sum(self.sizes),)
        hashed = self._emit(THREEFRY, [self._joined(i) for i in range(4)], [total, total], domain=self.nodes[0].domain)
        for i, whole in enumerate(hashed):
            sizes = self.constant_of(np.asarray(self.sizes, np.int64))
            parts = self._emit("Split", [whole, sizes], [(n,) for n in self.sizes], axis=0)
            for node, part, shape in zip(self.nodes, parts, self.shapes, strict=True):
                use_instead(node.outputs[i].uses(), self._reshaped(part, shape))
        self.graph.remove(self.nodes, safe=True)

    def _joined(self, i: int) -> ir.Value:
        """The operands number `i` of all of them, one after the other; a number if they are the same everywhere."""
        operands = [n.inputs[i] for n in self.nodes]
        known = [constant(x) for x in operands]
        parts = [np.broadcast_to(k, s).reshape(-1) for k, s in zip(known, self.shapes, strict=True) if k is not None]
        if len(parts) == len(operands):
            whole = np.concatenate(parts)
            return self.constant_of(whole[0] if (whole == whole[0]).all() else whole)
        vectors = [self._vector(x, k, s) for x, k, s in zip(operands, known, self.shapes, strict=True)]
        return self._emit("Concat", vectors, [(sum(self.sizes),)], axis=0)[0]

    def _vector(self, x: ir.Value | None, known: np.ndarray | None, shape: tuple[int, ...]) -> ir.Value:
        assert x is not None
        if known is not None:
            return self.constant_of(np.broadcast_to(known, shape).reshape(-1))
        size = math.prod(_known_dims(x) or ())
        flat = self._reshaped(self._expanded(x, shape) if 1 < size < math.prod(shape) else x, (-1,))
        return self._expanded(flat, (math.prod(shape),))

    def _expanded(self, x: ir.Value, shape: tuple[int, ...]) -> ir.Value:
        return self._moved("Expand", x, shape, shape)

    def _reshaped(self, x: ir.Value, target: tuple[int, ...]) -> ir.Value:
        size = math.prod(_known_dims(x) or ())
        return self._moved("Reshape", x, target, (size,) if target == (-1,) else target)

    def _moved(self, op_type: str, x: ir.Value, operand: tuple[int, ...], shape: tuple[int, ...]) -> ir.Value:
        if dims(x) == shape:
            return x
        return self._emit(op_type, [x, self.constant_of(np.asarray(operand, np.int64))], [shape])[0]

    def _emit(
        self, op_type: str, inputs: Sequence[ir.Value], shapes: Sequence[Any], domain: str = "", **attributes: int
    ) -> list[ir.Value]:
        """A new node; the graph is put in order in the end."""
        first = self.nodes[0]
        results = [ir.Value(shape=as_shape(s), type=first.outputs[0].type) for s in shapes]
        node = ir.Node(
            domain,
            op_type,
            inputs,
            [ir.AttrInt64(name, value) for name, value in attributes.items()],
            outputs=results,
            name=rename_operator(first.name, first.op_type, op_type),
            metadata_props=dict(first.metadata_props) or None,
        )
        self.graph.insert_before(self.nodes[-1], node)
        return results
