"""A node for all steps of a loop at once: what it computes from arrays that have the steps as a leading axis.

The result is for each step what the node computes there. Each operator has a rule that says where the further axis
goes; a node that has none, or for which there is no simple way, stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from jax2onnx.attributes import as_attribute, values_of
from jax2onnx.optimize.draws import THREEFRY
from jax2onnx.optimize.engine import rename_operator
from jax2onnx.optimize.queries import Dims, as_shape, attribute, axes_of, constant, dims, integers
from jax2onnx.optimize.simplify import REDUCTIONS
from jax2onnx.optimize.units import BINARY, UNARY

ELEMENTWISE = {
    *UNARY,
    *BINARY,
    *("Mod", "Clip", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "BitShift", "IsInf", THREEFRY),
} - {"log1p", "expm1", "erfc"}

MOST_KNOWN = 1 << 12
"""So many known numbers are stored for all steps."""

Insert = Callable[[ir.Node], None] | None
"""Puts a new node into its graph; None where it is only asked whether there is a rule."""
Constants = Callable[[np.ndarray], ir.Value]


class Batch:
    """A node, and which of its operands there are for all steps; the nodes that rules emit are inserted elsewhere."""

    def __init__(
        self, node: ir.Node, stacks: Mapping[ir.Value, ir.Value], length: Any, insert: Insert, constant_of: Constants
    ):
        self.node, self.length, self.constant_of = node, length, constant_of
        self._insert = insert
        self.scanned = [v is not None and v in stacks for v in node.inputs]
        self.inputs = [stacks[v] if v is not None and v in stacks else v for v in node.inputs]

    def results(self) -> list[ir.Value] | None:
        """The results of the node for all steps, or None."""
        rule = _RULES.get(self.node.op_type) if not self.node.domain or self.node.op_type == THREEFRY else None
        return rule(self) if rule is not None else None

    def same(self, *inputs: ir.Value | None, **attributes: Any) -> list[ir.Value]:
        """The same operator with these operands, and attributes that differ."""
        values = {**values_of(self.node), **attributes}
        shapes = [(self.length, *dims(v)) for v in self.node.outputs]
        return self.emit(self.node.op_type, inputs, shapes, [v.type for v in self.node.outputs], values)

    def emit(
        self, op_type: str, inputs: Sequence[ir.Value | None], shapes: Sequence[Dims], types: Any, attributes: Any
    ) -> list[ir.Value]:
        """A new node; its results have these shapes and types."""
        results = [ir.Value(shape=as_shape(s), type=t) for s, t in zip(shapes, types, strict=True)]
        if self._insert is None:
            return results
        node = ir.Node(
            self.node.domain if op_type == self.node.op_type else "",
            op_type,
            inputs,
            [as_attribute(k, v) for k, v in attributes.items()],
            outputs=results,
            name=rename_operator(self.node.name, self.node.op_type, op_type),
            metadata_props=dict(self.node.metadata_props) or None,
        )
        self._insert(node)
        return results

    def one(self, op_type: str, x: ir.Value, operand: Sequence[int], shape: Dims) -> ir.Value:
        """A node that moves the elements of x as a vector of known integers says."""
        known = self.constant_of(np.asarray(operand, np.int64))
        return self.emit(op_type, [x, known], [shape], [x.type], {})[0]

    def aligned(self, i: int, rank: int) -> ir.Value | None:
        """An operand for all steps, with so many axes behind that of the steps as broadcasting needs."""
        x, own = self.inputs[i], self.node.inputs[i]
        if x is None or own is None or not self.scanned[i] or len(dims(own)) >= rank:
            return x
        missing = rank - len(dims(own))
        return self.one("Unsqueeze", x, range(1, 1 + missing), (self.length, *[1] * missing, *dims(own)))

    def rank(self, i: int = 0) -> int:
        """How many axes an operand has at each step."""
        own = self.node.inputs[i]
        return len(dims(own)) if own is not None else 0

    def only_first(self) -> bool:
        """Is the first operand the only one that there is for all steps?"""
        return self.scanned[0] and not any(self.scanned[1:])

    def moved_axis(self, default: int = -1) -> int:
        """Where the axis is that the node has as an attribute."""
        axis = attribute(self.node, "axis", default)
        return axis + 1 if axis >= 0 else axis


Rule = Callable[[Batch], list[ir.Value] | None]


def _elementwise(b: Batch) -> list[ir.Value] | None:
    if b.node.op_type == "Clip" and not b.only_first():
        return None  # its bounds have to be scalars
    rank = len(dims(b.node.outputs[0]))
    return b.same(*(b.aligned(i, rank) for i in range(len(b.inputs))))


def _reshape(b: Batch) -> list[ir.Value] | None:
    shape = dims(b.node.outputs[0])
    if not b.only_first() or not all(isinstance(d, int) and d > 0 for d in shape):
        return None
    return b.same(b.inputs[0], b.constant_of(np.asarray([-1, *shape], np.int64)))


def _units(b: Batch) -> list[ir.Value] | None:
    axes = axes_of(b.node)
    if axes is None or not b.only_first():
        return None
    rank = len(dims(b.node.outputs[0])) if b.node.op_type == "Unsqueeze" else b.rank()
    x, result = b.inputs[0], b.node.outputs[0]
    assert x is not None
    return [b.one(b.node.op_type, x, [a % rank + 1 for a in axes], (b.length, *dims(result)))]


def _transpose(b: Batch) -> list[ir.Value] | None:
    perm = attribute(b.node, "perm", list(reversed(range(b.rank()))))
    return b.same(b.inputs[0], perm=[0, *(p + 1 for p in perm)])


def _reduce(b: Batch) -> list[ir.Value] | None:
    axes, rank = axes_of(b.node), b.rank()
    if not b.only_first() or not rank or not axes or "axes" in b.node.attributes:
        return None
    return b.same(b.inputs[0], b.constant_of(np.asarray([a % rank + 1 for a in axes], np.int64)))


def _concat(b: Batch) -> list[ir.Value] | None:
    parts: list[ir.Value] = []
    for x, is_scanned in zip(b.inputs, b.scanned, strict=True):
        known = None if is_scanned else constant(x)
        if known is not None and isinstance(b.length, int) and known.size * b.length <= MOST_KNOWN:
            parts.append(b.constant_of(np.repeat(known[None], b.length, axis=0)))
        elif is_scanned and x is not None:
            parts.append(x)
        else:
            return None
    return b.same(*parts, axis=b.moved_axis())


def _slice(b: Batch) -> list[ir.Value] | None:
    axes = integers(b.node.inputs[3]) if len(b.node.inputs) > 3 else None
    if not b.only_first() or axes is None:
        return None
    moved = b.constant_of(np.asarray([a % b.rank() + 1 for a in axes], np.int64))
    return b.same(*b.inputs[:3], moved, *b.inputs[4:])


def _gather(b: Batch) -> list[ir.Value] | None:
    axis = attribute(b.node, "axis", 0) % b.rank()
    if b.only_first():
        return b.same(*b.inputs, axis=axis + 1)
    return b.same(*b.inputs, axis=0) if not b.scanned[0] and not axis else None


def _along_axis(default: int) -> Rule:
    """Of the first operand, along one axis."""

    def rule(b: Batch) -> list[ir.Value] | None:
        return b.same(*b.inputs, axis=b.moved_axis(default)) if b.only_first() and b.rank() else None

    return rule


def _expand(b: Batch) -> list[ir.Value] | None:
    shape = integers(b.node.inputs[1])
    if not b.only_first() or shape is None:
        return None
    rank = len(dims(b.node.outputs[0]))
    target = [1] * (1 + rank - len(shape)) + list(shape)
    return b.same(b.aligned(0, rank), b.constant_of(np.asarray(target, np.int64)))


def _pad(b: Batch) -> list[ir.Value] | None:
    pads = integers(b.node.inputs[1])
    if not b.only_first() or pads is None or len(b.inputs) > 3:
        return None
    half = len(pads) // 2
    return b.same(b.inputs[0], b.constant_of(np.asarray([0, *pads[:half], 0, *pads[half:]], np.int64)), *b.inputs[2:])


def _cumulative(b: Batch) -> list[ir.Value] | None:
    axis = constant(b.node.inputs[1])
    if not b.only_first() or axis is None:
        return None
    return b.same(b.inputs[0], b.constant_of(np.asarray(axis % b.rank() + 1)))


def _matmul(b: Batch) -> list[ir.Value] | None:
    (x, y), ranks = b.inputs, (b.rank(0), b.rank(1))
    assert x is not None and y is not None
    if all(b.scanned):
        return b.same(x, y) if ranks[0] == ranks[1] >= 2 else None
    if b.scanned[0]:
        return b.same(x, y) if ranks[1] <= max(ranks[0], 2) and ranks != (1, 1) else None
    if ranks == (2, 1):  # A x for all x, as rows, is X A'
        turned = b.emit("Transpose", [x], [dims(x)[::-1]], [x.type], {"perm": [1, 0]})[0]
        return b.same(y, turned)
    return b.same(x, y) if 2 <= ranks[1] >= ranks[0] else None


def _gemm(b: Batch) -> list[ir.Value] | None:
    x, y = b.inputs[:2]
    if not b.only_first() or b.node.attributes:
        return None
    result = b.node.outputs[0]
    shape = (b.length, *dims(result))
    product = b.emit("MatMul", [x, y], [shape], [result.type], {})[0]
    return b.emit("Add", [product, b.inputs[2]], [shape], [result.type], {})


_RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(REDUCTIONS, _reduce),
    **dict.fromkeys(["Softmax", "LogSoftmax", "LayerNormalization"], _along_axis(-1)),
    **dict.fromkeys(["Split", "ArgMax", "ArgMin"], _along_axis(0)),
    **dict.fromkeys(["Squeeze", "Unsqueeze"], _units),
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Concat": _concat,
    "Slice": _slice,
    "Gather": _gather,
    "TopK": _along_axis(-1),
    "Expand": _expand,
    "Pad": _pad,
    "CumSum": _cumulative,
    "MatMul": _matmul,
    "Gemm": _gemm,
}
