"""Attention recognised by its maths: softmax(q k^T * scale + bias) v for each head, whichever way its axes are written.

In ONNX Runtime the operator gives the same numbers (without a bias bit for bit, NaN, infinities and overflow included)
and takes 10 to 50% less time, since heads need not be moved to the front: it works on the projections as they are.
Heads of queries may share keys and values, which are then not repeated. Here it is written where nothing else is to be
asked; `masked_attention.py` is about the rest:

- masks: the kernel adds them, so that NaN at a masked position leaks into the result, which in JAX it does not;
- biases, of which a row may be such that the kernel takes it for a mask of everything;
- sizes that may be 0 and not only together with the result: the kernel refuses an empty batch and empty sequences.

Scores that are capped (tanh) stay plain: the kernel takes two to three times as long.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from jax2onnx.dimensions import is_static
from jax2onnx.optimize.attended import ENDS, Attended, attended
from jax2onnx.optimize.engine import Rewriter, RuleSet, first
from jax2onnx.optimize.queries import as_shape, attribute, dims, producer, scalar
from jax2onnx.optimize.views import Axes, View, arranged

RULES = RuleSet()


@RULES.rewrites(*ENDS, needs=("Softmax",))
def recognise_attention(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """softmax(q k^T * scale) v."""
    found = attended(r, node, masked=False)
    if found is None or found.scores.mask is not None or found.scores.biases:
        return None
    if not found.has_known_sizes() and not _is_empty_with_queries(found):
        return None
    operands, y = side_by_side(r, found), node.outputs[0]
    if found.has_known_sizes():
        result = r.op("Attention", *operands, like=y, shape=found.shape(), **found.attributes())
    else:
        result = _unless_empty(r, operands, ir.Value(shape=as_shape(found.shape()), type=y.type), found.attributes())
    return put_back(r, found, result)


def _is_empty_with_queries(found: Attended) -> bool:
    """Is the result empty just if the queries are, and of the same shape?"""
    sizes = found.sizes()
    names = {size for size in sizes.values() if isinstance(size, str)}
    return names <= {sizes["batch"], sizes["queries"]} and sizes["size"] == sizes["value_size"]


def side_by_side(r: Rewriter, found: Attended) -> list[ir.Value]:
    """The operands as the operator takes them."""
    return [_arranged(r, view, axes) for view, axes in zip(found[:3], found.wanted()[:3], strict=True)]


def put_back(r: Rewriter, found: Attended, result: ir.Value) -> ir.Value:
    """The result of the operator as the product with the values was."""
    return _arranged(r, View(result, found.wanted()[3]), found.y.axes)


def _arranged(r: Rewriter, view: View, axes: Axes) -> ir.Value:
    result = arranged(r, view, axes)
    assert result is not None  # or it would not have been found
    return result


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
    if attribute(node, "axis", 0) % (axis + 2) != axis or not is_static(sizes):
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
