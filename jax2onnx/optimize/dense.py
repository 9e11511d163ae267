"""Products with a known matrix: what is done to their columns, and the order of their rows, can be in the matrix.

A batch normalization behind a dense layer is a part of it, (x @ w + b - mean) * scale + shift being one product and one
sum; so is one before it, if nothing is between. An image that was flattened before is taken as convolutions have it,
with the rows of the matrix in that order, and one that is made by a product is made as convolutions want it, by the
order of the columns: nothing is transposed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from jax2onnx.attributes import attributes_of
from jax2onnx.dimensions import is_static, likely_size
from jax2onnx.optimize import fold
from jax2onnx.optimize.batch_norm import is_sum, with_mean
from jax2onnx.optimize.engine import Rewriter, RuleSet, first, some
from jax2onnx.optimize.queries import KNOWN, attribute, constant, dims, only_user, producer
from jax2onnx.optimize.simplify import can_be_reshaped, reshaped
from jax2onnx.optimize.units import BINARY, UNARY
from jax2onnx.permutations import inverse, permuted

RULES = RuleSet()
rewrites = RULES.rewrites

PRODUCTS = ("MatMul", "Gemm")
FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
MOST_STEPS = 8
"""How many nodes are looked at between a product and the Transpose of its result."""


class _Dense(NamedTuple):
    """x @ w + bias, the matrix of which is known and used for nothing else."""

    x: ir.Value
    w: ir.Value
    bias: np.ndarray | None  # of the shape of a row
    source: ir.Value | None  # of the bias

    def columns(self) -> int:
        return int(dims(self.w)[1])

    def written(self, r: Rewriter, w: ir.Value, bias: np.ndarray | None, like: ir.Value) -> ir.Value:
        """The same with another matrix and another bias."""
        product = r.op("MatMul", self.x, w, like=like)
        return product if bias is None else r.op("Add", product, r.moved(bias, self.source), like=like)


def _dense(value: ir.Value | None) -> _Dense | None:
    """What `value` is, if it is used once."""
    if value is None or only_user(value) is None or value.dtype not in FLOATS:
        return None
    node = value.producer()
    if node is None or node.domain:
        return None
    if node.op_type in ("Add", "Sub"):
        found = _operand_and_row(node)
        inner = _dense(found[0]) if found is not None and producer(found[0], "MatMul") is not None else None
        if found is None or inner is None or dims(found[0]) != dims(value):
            return None
        bias = np.broadcast_to(-found[1] if node.op_type == "Sub" else found[1], (inner.columns(),))
        return inner._replace(bias=bias, source=found[2])
    if node.op_type not in PRODUCTS or node.attributes:
        return None
    x, w, *rest = node.inputs
    if x is None or w is None or not _is_own_matrix(w) or len(dims(x)) < 2:
        return None
    if not rest:
        return _Dense(x, w, None, None)
    row = _row(rest[0], int(dims(w)[1]))
    return _Dense(x, w, row, rest[0]) if row is not None else None


def _is_own_matrix(w: ir.Value) -> bool:
    """Is it a weight that would not be stored twice if one product had another?"""
    return w.const_value is not None and len(dims(w)) == 2 and len(w.uses()) == 1 and 0 not in dims(w)


def _row(value: ir.Value | None, columns: int) -> np.ndarray | None:
    """A known finite number for each column."""
    known = constant(value)
    if known is None or known.size not in (1, columns) or (known.size > 1 and known.shape[-1] != columns):
        return None
    return np.broadcast_to(known.reshape(-1), (columns,)) if np.isfinite(known).all() else None


def _operand_and_row(node: ir.Node) -> tuple[ir.Value, np.ndarray, ir.Value] | None:
    """x, and the known numbers that it is combined with, x being the first operand of Sub and Div."""
    a, b = node.inputs
    for x, other in ((a, b), (b, a))[: 1 if node.op_type in ("Sub", "Div") else 2]:
        if x is None or other is None or x.const_value is not None or not dims(x):
            continue
        columns = dims(x)[-1]
        row = _row(other, columns) if isinstance(columns, int) else None
        if row is not None:
            return x, row, other
    return None


@rewrites("Add", "Sub", given=some(KNOWN), needs=PRODUCTS)
def add_to_bias(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """(x @ w + b) + c = x @ w + (b + c)"""
    found, y = _operand_and_row(node), node.outputs[0]
    dense = _dense(found[0]) if found is not None else None
    if found is None or dense is None or dense.bias is None or dims(found[0]) != dims(y):
        return None
    shift = -found[1] if node.op_type == "Sub" else found[1]
    return dense.written(r, dense.w, dense.bias + shift, y)


@rewrites("Mul", "Div", given=some(KNOWN), needs=PRODUCTS)
def scale_columns(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """(x @ w + b) * k = x @ (w * k) + b * k, with numbers as a normalization has them, one for each column.

    One number for all is that of a program that may count on what it computes, floor(bits @ powers / 3): then only if
    nothing is rounded, or if it is seen to be that of a normalization that was not trained.
    """
    found, y = _operand_and_row(node), node.outputs[0]
    dense = _dense(found[0]) if found is not None else None
    if found is None or dense is None or dims(found[0]) != dims(y) or not _is_ordinary(found[1]):
        return None
    factor = (1 / found[1] if node.op_type == "Div" else found[1]).astype(found[1].dtype)
    is_rounded = (found[1] == found[1][0]).all() and abs(np.frexp(found[1][0])[0]) != 0.5
    if (is_rounded and not _is_shifted(y)) or not fold.can_be_scaled(dense.w, factor):
        return None
    return dense.written(r, fold.scaled(r, dense.w, factor), None if dense.bias is None else dense.bias * factor, y)


def _is_shifted(value: ir.Value) -> bool:
    """Is what a normalization adds to each column all that happens to a value? (Where it was not trained, zeros.)"""
    node = only_user(value)
    if node is None or node.op_type != "Add":
        return False
    shift = constant(node.inputs[node.inputs[0] is value])
    return shift is not None and (not shift.any() or shift.size == dims(value)[-1] != 1)


@rewrites(*PRODUCTS, given=first("Add"), needs=("Mul",))
def scale_rows(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """(x * k + c) @ w = x @ (k * w) + c @ w, also of (x - mean) * k + c, if x was rounded as well (`is_sum`)."""
    a, w, *rest = node.inputs
    if a is None or w is None or not _takes_rows(node, a) or a.dtype not in FLOATS:
        return None
    if likely_size(dims(w)) > fold.LARGEST:
        return None
    shifted = _operand_and_row_of(a, "Add")
    scaled = _operand_and_row_of(shifted[0], "Mul") if shifted is not None else None
    matrix, known = constant(w), _row(rest[0], int(dims(w)[1])) if rest else np.float32(0)
    if shifted is None or scaled is None or matrix is None or known is None or not _is_ordinary(scaled[1]):
        return None
    x, factor = scaled[:2]
    centered = _operand_and_row_of(x, "Sub")
    x, mean = centered[:2] if centered is not None else (x, np.zeros_like(factor))
    shift = with_mean(shifted[1], mean, factor)
    if shift is None or not is_sum(x):
        return None
    with np.errstate(invalid="ignore"):
        bias = (shift @ matrix + known).astype(matrix.dtype)
    if not np.isfinite(bias).all() or not fold.can_be_scaled(w, factor):
        return None
    product = r.op("MatMul", x, fold.scaled(r, w, factor[:, None]), like=node.outputs[0])
    return r.op("Add", product, r.moved(bias, rest[0] if rest else shifted[2]), like=node.outputs[0])


def _is_ordinary(factor: np.ndarray) -> bool:
    """Are weights times these numbers what weights can be, neither infinite nor nothing?"""
    return bool(((abs(factor) > 2.0**-32) & (abs(factor) < 2.0**32)).all())


def _operand_and_row_of(value: ir.Value, op_type: str) -> tuple[ir.Value, np.ndarray, ir.Value] | None:
    """What a value is made of by a node of this operator, if it is used once."""
    node = producer(value, op_type)
    found = _operand_and_row(node) if node is not None and only_user(value) is not None else None
    return found if found is not None and dims(found[0]) == dims(value) else None


# --------------------------------------------------------------------------------------------------- the order of axes


@rewrites(*PRODUCTS, given=first("Reshape"))
def order_rows_as_they_come(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Axes that are moved, joined and summed over: joined as they are, with the rows of the matrix in that order."""
    flat, w, *rest = node.inputs
    joined = producer(flat, "Reshape")
    turned = joined.inputs[0] if joined is not None else None
    turn = producer(turned, "Transpose")
    if flat is None or w is None or turned is None or turn is None or only_user(turned) is None:
        return None
    if flat.is_graph_output() or not all(_takes_rows(use.node, flat) for use in flat.uses()):
        return None  # the Transpose would be there anyway
    x, lead, perm = turn.inputs[0], len(dims(flat)) - 1, list(attribute(turn, "perm"))
    sizes = dims(turned)[lead:]
    if x is None or dims(turned)[:lead] != dims(flat)[:-1] or perm[:lead] != list(range(lead)) or not is_static(sizes):
        return None
    rows = reshaped(r, x, flat, at_once=True)
    if rows is None:
        return None
    order = [i - lead for i in inverse(perm)[lead:]]
    return r.op(
        node.op_type, rows, _in_order(r, w, 0, sizes, order), *rest, like=node.outputs[0], **attributes_of(node)
    )


def _takes_rows(node: ir.Node, flat: ir.Value) -> bool:
    """Is it a product with a matrix whose rows can be in any order?"""
    if node.op_type not in PRODUCTS or node.domain or node.attributes or node.inputs[0] is not flat:
        return False
    w = node.inputs[1]
    return w is not None and w is not flat and _is_own_matrix(w)


def _in_order(r: Rewriter, w: ir.Value, axis: int, sizes: tuple, order: list[int]) -> ir.Value:
    """A matrix, its rows or columns being joined axes of these sizes, with these in another order: done while
    exporting, when the file is written."""
    rows, columns = dims(w)
    apart = [*sizes, columns] if axis == 0 else [rows, *sizes]
    perm = [*order, len(sizes)] if axis == 0 else [0, *(i + 1 for i in order)]
    parts = r.op("Reshape", w, r.const(apart, np.int64), like=w, shape=apart)
    return r.op("Reshape", r.transpose(parts, perm), r.const([rows, columns], np.int64), like=w)


@rewrites("Transpose", given=first("Reshape", *UNARY, *BINARY), needs=PRODUCTS)
def order_columns_as_wanted(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """The columns of a product that are split into axes, which are then moved: in the order in which they are wanted,
    with only arithmetic of each element between."""
    perm, y = list(attribute(node, "perm")), node.outputs[0]
    steps, split = _steps_to(node.inputs[0], len(perm), "Reshape")
    if split is None:
        return None
    flat = split.inputs[0]
    assert flat is not None
    before, _ = _steps_to(flat, len(dims(flat)), *PRODUCTS, "Add", "Sub")
    product = (before[-1] if before else split).inputs[0]
    dense = _dense(product)
    apart, lead = dims(split.outputs[0]), len(dims(flat)) - 1
    sizes = apart[lead:]
    if product is None or dense is None or any(s.op_type not in UNARY for s in before):
        return None
    shape = permuted(apart, perm)
    if apart[:lead] != dims(flat)[:-1] or perm[:lead] != list(range(lead)):
        return None
    if not is_static(sizes) or not can_be_reshaped(dims(flat), shape):
        return None
    order = [i - lead for i in perm[lead:]]
    bias = dense.bias
    if bias is not None:
        bias = bias.reshape([int(d) for d in sizes]).transpose(order).reshape(-1)
    value: ir.Value | None = dense.written(r, _in_order(r, dense.w, 1, sizes, order), bias, product)
    for step in reversed(before):
        value = r.op(step.op_type, value, like=step.outputs[0], **attributes_of(step))
    assert value is not None
    target = ir.Value(shape=ir.Shape(shape), type=flat.type)
    value = reshaped(r, value, target, at_once=True)
    for step in reversed(steps):
        operands = [value if x is not None and x.const_value is None else _turned(r, x, perm) for x in step.inputs]
        value = r.op(step.op_type, *operands, like=step.outputs[0], shape=dims(y), **attributes_of(step))
    return value


def _steps_to(value: ir.Value | None, rank: int, *op_types: str) -> tuple[list[ir.Node], ir.Node | None]:
    """The arithmetic of each element, with known numbers, between a value and a node of these operators, the last
    first; and that node, if there is one."""
    steps: list[ir.Node] = []
    while value is not None and only_user(value) is not None and len(steps) <= MOST_STEPS:
        found = producer(value, *op_types)
        if found is not None:
            return steps, found
        node = producer(value, *UNARY, *BINARY)
        operands = [x for x in node.inputs if x is not None and x.const_value is None] if node is not None else []
        if node is None or node.domain or len(operands) != 1 or len(dims(operands[0])) != rank:
            return steps, None
        if dims(operands[0]) != dims(value):
            return steps, None
        steps.append(node)
        value = operands[0]
    return steps, None


def _turned(r: Rewriter, known: ir.Value | None, perm: list[int]) -> ir.Value | None:
    """Known numbers for what has its axes in another order."""
    array = constant(known)
    if array is None or array.ndim == 0:
        return known
    return r.moved(array.reshape((1,) * (len(perm) - array.ndim) + array.shape).transpose(perm), known)
