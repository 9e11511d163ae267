"""Batched products in which one operand has several axes of rows, as the groups and queries of grouped-query attention.

Joining these axes makes one product per batch, but takes large results apart and transposes them where a program wants
the groups in front. MatMul can have the groups as further batches instead: a fourth of the time for long sequences.
"""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from jax2onnx.optimize.engine import Rewriter, RuleSet, first
from jax2onnx.optimize.queries import Dims, attribute, dims, only_user, producer, scalar
from jax2onnx.permutations import permuted

RULES = RuleSet()


class Order(NamedTuple):
    """The axes of a product with groups as batches: groups, batches, rows, and what MatMul sums over or makes."""

    groups: list[int]
    batches: list[int]
    rows: int

    @classmethod
    def of(cls, axes: list[int], batches: int) -> Order | None:
        """The first axes of a value in this order, given as their places in (*batches, *rows)."""
        *front, rows = axes
        groups, inner = front[: len(front) - batches], front[len(front) - batches :]
        return cls(groups, inner, rows) if inner == list(range(batches)) and groups else None

    def axes(self, last: int) -> list[int]:
        return [*self.groups, *self.batches, self.rows, last]


@RULES.rewrites("Transpose", given=first("Reshape", "Mul", "Div"))
def groups_of_rows_as_batches(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """The product of joined rows, split and with some of these axes moved to the front."""
    value, factor = node.inputs[0], None
    scaling = producer(value, "Mul", "Div")
    if scaling is not None:
        value, factor = scaling.inputs
        if scalar(factor) is None or only_user(scaling.outputs[0]) is None:
            return None
    product = _before_split(value)
    if product is None or value is None:
        return None
    a, b = product.inputs
    joined = producer(a, "Reshape")
    x = joined.inputs[0] if joined is not None else None
    if a is None or b is None or x is None:
        return None
    batches, perm = len(dims(a)) - 2, list(attribute(node, "perm"))
    last = len(perm) - 1
    if not _joins(dims(x), dims(a), batches, rows_first=True) or dims(value)[:-1] != dims(x)[:-1] or perm[-1] != last:
        return None
    order = Order.of(perm[:-1], batches)
    if order is None:
        return None
    axes = order.axes(last)
    turned = r.transpose(x, axes)
    y = node.outputs[0]
    result = r.op("MatMul", turned, b, like=y)
    return result if scaling is None else r.op(scaling.op_type, result, factor, like=y)


@RULES.rewrites("Transpose", given=first("Reshape"))
def groups_of_columns_as_batches(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """The product with joined columns that were moved there: turned around, they are rows in the order from before."""
    value = node.inputs[0]
    product = _before_split(value)
    if product is None or value is None:
        return None
    a, b = product.inputs
    joined = producer(b, "Reshape")
    moved = producer(joined.inputs[0], "Transpose") if joined is not None else None
    if a is None or b is None or moved is None or moved.inputs[0] is None:
        return None
    x, columns, batches = moved.inputs[0], moved.outputs[0], len(dims(b)) - 2
    perm = list(attribute(moved, "perm"))
    if not _joins(dims(columns), dims(b), batches, rows_first=False) or perm[batches] != len(perm) - 1:
        return None
    if dims(value) != (*dims(columns)[:batches], dims(a)[-2], *dims(columns)[batches + 1 :]):
        return None
    # Places in the product, which has its rows where `columns` has what is summed over.
    order = Order.of([perm.index(i) for i in range(len(perm) - 1)], batches)
    if order is None:
        return None
    axes = order.axes(batches)
    swapped = [*range(batches), batches + 1, batches]
    turned = r.transpose(a, swapped)
    result = r.op("MatMul", x, turned, like=value, shape=permuted(dims(value), axes))
    return r.op("Transpose", result, like=node.outputs[0], perm=[axes.index(i) for i in attribute(node, "perm")])


def _before_split(value: ir.Value | None) -> ir.Node | None:
    """The product that a Reshape splits, both for nothing else."""
    split = producer(value, "Reshape")
    if split is None or value is None or only_user(value) is None or split.inputs[0] is None:
        return None
    return producer(split.inputs[0], "MatMul") if only_user(split.inputs[0]) is not None else None


def _joins(apart: Dims, joined: Dims, batches: int, *, rows_first: bool) -> bool:
    """Are several axes between the batches and the last one (or behind the one after the batches) made one?"""
    if not batches or len(joined) != batches + 2 or len(apart) < batches + 3 or apart[:batches] != joined[:batches]:
        return False
    return apart[-1] == joined[-1] if rows_first else apart[batches] == joined[batches]
