"""Attention without a mask, recognised by its maths: softmax(q k^T * scale) v for each head.

In ONNX Runtime the operator gives the same numbers bit for bit (NaN, infinities and overflow included) and takes 10 to
30% less time, since heads need not be moved to the front: it works on the projections as they are. It stays plain

- with a mask: the kernel adds the mask, so that NaN at a masked position leaks into the result, which in JAX it does
  not; and where everything is masked it differs, too (see `masked_attention.py`);
- if a size may be 0 and not only together with the result: the kernel refuses an empty batch and empty sequences.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from jax2onnx.optimize.engine import Rewriter, RuleSet, first
from jax2onnx.optimize.queries import Dims, as_shape, attribute, dims, only_user, producer, scalar

RULES = RuleSet()

OPSET = 23
HEADS_FIRST, HEADS_FIRST_TURNED = [0, 2, 1, 3], [0, 2, 3, 1]


class Attended(NamedTuple):
    """What attention consists of: queries, keys and values, each (batch, length, heads, size)."""

    q: ir.Value
    k: ir.Value
    v: ir.Value
    scale: float
    mask: ir.Node | None  # the Where by which some scores are replaced

    def fill(self) -> tuple[float, int] | None:
        """The number that scores are replaced by, and the position of the others among the operands of the mask."""
        if self.mask is None:
            return None
        scores = _scores(self.mask)
        number = scalar(self.mask.inputs[3 - scores])
        return (float(number), scores) if number is not None else None

    def attributes(self) -> dict[str, Any]:
        """Those of the operator."""
        heads = dims(self.q)[2]
        return {"q_num_heads": heads, "kv_num_heads": heads, "scale": self.scale}

    def has_known_sizes(self) -> bool:
        """If not, there may be nothing to attend to."""
        return all(isinstance(d, int) for d in dims(self.q))


@RULES.rewrites("Transpose", given=first("MatMul"))
def recognise_attention(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """softmax(q k^T * scale) v."""
    found = attended(r, node)
    if found is None or found.mask is not None:
        return None
    y, attributes = node.outputs[0], found.attributes()
    joined, shape = side_by_side(r, found), joined_dims(y)
    if found.has_known_sizes():
        result = r.op("Attention", *joined, like=y, shape=shape, **attributes)
    else:
        result = _unless_empty(r, joined, ir.Value(shape=as_shape(shape), type=y.type), attributes)
    return r.op("Reshape", result, r.const([0, 0, *dims(y)[2:]], np.int64), like=y)


def attended(r: Rewriter, node: ir.Node) -> Attended | None:
    """What is attended to if a Transpose moves the heads, which were moved to the front before, back again."""
    y = node.outputs[0]
    if r.opset < OPSET or y.dtype != ir.DataType.FLOAT or list(attribute(node, "perm")) != HEADS_FIRST:
        return None
    weighted = _only_used_here(node.inputs[0], "MatMul")
    softmax = _only_used_here(weighted.inputs[0], "Softmax") if weighted is not None else None
    if weighted is None or softmax is None or attribute(softmax, "axis", -1) not in (-1, 3):
        return None
    mask = _only_used_here(softmax.inputs[0], "Where")
    scores, scale = _scaled(softmax.inputs[0] if mask is None else mask.inputs[_scores(mask)])
    if scores is None or not 0 < scale < np.inf:
        return None
    q, k = _turned(scores.inputs[0], HEADS_FIRST), _turned(scores.inputs[1], HEADS_FIRST_TURNED)
    v = _turned(weighted.inputs[1], HEADS_FIRST)
    if q is None or k is None or v is None or not _fits(dims(q), dims(k), dims(v)):
        return None
    return Attended(q, k, v, scale, mask)


def _scores(mask: ir.Node) -> int:
    """Which of its operands a Where replaces by a number."""
    return 2 if scalar(mask.inputs[1]) is not None else 1


def side_by_side(r: Rewriter, found: Attended) -> list[ir.Value]:
    """The operands as the operator takes them, all heads in one axis."""
    return [_joined(r, x) for x in (found.q, found.k, found.v)]


def joined_dims(y: ir.Value) -> Dims:
    """The shape of a value (batch, length, heads, size) with all heads in one axis."""
    batch, length, heads, size = dims(y)
    return (batch, length, int(heads) * int(size))


def _unless_empty(r: Rewriter, operands: list[ir.Value], result: ir.Value, attributes: dict) -> ir.Value:
    """The result is empty just if the queries are, and then they are as good."""
    size = r.op("Size", operands[0], shape=[], dtype=ir.DataType.INT64)
    is_full = r.op("Greater", size, r.const(0, np.int64), shape=[], dtype=ir.DataType.BOOL)
    branches = []
    for name, op_type, inputs in (("then_branch", "Attention", operands), ("else_branch", "Identity", operands[:1])):
        output = ir.Value(shape=result.shape, type=result.type)
        node = ir.node(op_type, inputs, attributes if op_type == "Attention" else {}, outputs=[output], name=op_type)
        branches.append(ir.AttrGraph(name, ir.Graph([], [output], nodes=[node], name=name)))
    return r.op("If", is_full, like=result, **{branch.name: branch.value for branch in branches})  # type: ignore[arg-type]


@RULES.rewrites("Greater", given=first("Size"))
def ask_an_input_whether_it_is_empty(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Is a value empty? An input with the same symbolic sizes is at the same time, and needs to be asked only once."""
    size, graph = producer(node.inputs[0], "Size"), r.model.graph
    x = size.inputs[0] if size is not None else None
    if x is None or node.graph is not graph or scalar(node.inputs[1]) != 0:
        return None
    sizes = _symbolic(x)
    found = next((v for v in graph.inputs if _symbolic(v) == sizes and 0 not in dims(v)), None)
    if found is None or x in graph.inputs or 0 in dims(x):
        return None
    asked = r.op("Size", found, shape=[], dtype=ir.DataType.INT64)
    return r.op("Greater", asked, node.inputs[1], like=node.outputs[0])


def _symbolic(value: ir.Value) -> set[str]:
    return {d for d in dims(value) if isinstance(d, str)}


def _only_used_here(value: ir.Value | None, op_type: str) -> ir.Node | None:
    node = producer(value, op_type)
    return node if node is not None and value is not None and _is_used_once(value) else None


def _is_used_once(value: ir.Value) -> bool:
    """Is a value used once, but for the size of the mask that is applied to it?"""
    others = [use.node for use in value.uses() if not _leads_to(use.node, "Shape", "Expand", "Trilu", "Where")]
    return len(others) == 1 and not value.is_graph_output()


def _leads_to(node: ir.Node, *op_types: str) -> bool:
    """Is it the first of these operators, each of which has only the next one as its user?"""
    found: ir.Node | None = node
    for op_type in op_types[:-1]:
        if found is None or found.op_type != op_type:
            return False
        found = only_user(found.outputs[0])
    return found is not None and found.op_type == op_types[-1]


def _scaled(value: ir.Value | None) -> tuple[ir.Node | None, float]:
    """The product, and the number that it is multiplied by, which the operator wants to be positive."""
    scaled = producer(value, "Mul", "Div")
    if scaled is None:
        return _only_used_here(value, "MatMul"), 1.0
    factor = scalar(scaled.inputs[1])
    if factor is None or not factor > 0 or value is None or not _is_used_once(value):
        return None, 1.0
    return _only_used_here(scaled.inputs[0], "MatMul"), float(factor if scaled.op_type == "Mul" else 1 / factor)


def _turned(value: ir.Value | None, perm: list[int]) -> ir.Value | None:
    node = producer(value, "Transpose")
    return node.inputs[0] if node is not None and list(attribute(node, "perm")) == perm else None


def _fits(q: Dims, k: Dims, v: Dims) -> bool:
    """Do the shapes belong together, and is the result empty if any of them is?"""
    if not all(isinstance(d, int) and d > 0 for d in (*q[2:], *k[2:], *v[2:])) or 0 in (*q, *k):
        return False
    if not {d for d in k if isinstance(d, str)} <= set(q) or (q[3] != v[3] and any(isinstance(d, str) for d in q)):
        return False
    return q[0] == k[0] == v[0] and q[2] == k[2] == v[2] and q[3] == k[3] and k[1] == v[1]


def _joined(r: Rewriter, x: ir.Value) -> ir.Value:
    """The heads side by side, as the projection gave them; a factor after it stays one."""
    shape = joined_dims(x)
    target = [0, 0, shape[2]]
    scaled = producer(x, "Mul", "Div")
    if scaled is not None and scaled.inputs[0] is not None and scalar(scaled.inputs[1]) is not None:
        inner = r.op("Reshape", scaled.inputs[0], r.const(target, np.int64), like=x, shape=shape)
        return r.op(scaled.op_type, inner, scaled.inputs[1], like=x, shape=shape)
    return r.op("Reshape", x, r.const(target, np.int64), like=x, shape=shape)


@RULES.rewrites("Split", given=first("Reshape"))
def split_before_heads(r: Rewriter, node: ir.Node) -> tuple[ir.Value, ...] | None:
    """Queries, keys and values that are split as heads, but used side by side, are split as they are."""
    heads = producer(node.inputs[0], "Reshape")
    if heads is None or node.inputs[0] is None or heads.inputs[0] is None or len(dims(node.inputs[0])) < 2:
        return None
    x, (*lead, count, size) = heads.inputs[0], dims(node.inputs[0])
    axis = len(lead)
    if not isinstance(count, int) or not isinstance(size, int) or dims(x) != (*lead, count * size):
        return None
    sizes = [dims(part)[axis] for part in node.outputs]
    if attribute(node, "axis", 0) % (axis + 2) != axis or not all(isinstance(n, int) for n in sizes):
        return None
    widths = [int(n) * size for n in sizes]
    for part, width in zip(node.outputs, widths, strict=True):
        users = [use.node for use in part.uses()]
        if part.is_graph_output() or any(u.op_type != "Reshape" for u in users):
            return None
        if any(dims(u.outputs[0]) != (*lead, width) for u in users):
            return None
        if any(after.op_type == "Reshape" for u in users for after in u.outputs[0].consumers()):
            return None  # they are about to become heads again (`matmul.reshape_before_split`)
    parts = r.split(x, widths, axis)
    for old, new in zip(node.outputs, parts, strict=True):
        for use in old.uses():
            r.redirect(use.node.outputs[0], new)
    return tuple(node.outputs)
