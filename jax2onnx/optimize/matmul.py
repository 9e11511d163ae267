"""Matrix products: transposes that a product can absorb or do without."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from jax2onnx.dimensions import is_static, likely_size
from jax2onnx.optimize.engine import Rewriter, RuleSet, first, some
from jax2onnx.optimize.queries import SPLATS, attribute, constant, dims, only_user, producer, splat
from jax2onnx.optimize.simplify import reshaped
from jax2onnx.optimize.units import BINARY, UNARY
from jax2onnx.reshapes import reshape_operand

PASSED = {*BINARY, *UNARY}
LONGEST_WAY = 12
"""How many steps behind a product are looked at."""

FEW_COLUMNS, SMALL_MATRIX = 8, 1024
"""A large matrix times fewer columns takes ONNX Runtime longer than two Transposes."""

RULES = RuleSet()
rewrites = RULES.rewrites


@rewrites("Transpose", given=first("MatMul"))
def transpose_of_product(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """(A B)' = B' A', where primes swap the last two axes, if that takes fewer Transposes."""
    product, y = node.inputs[0], node.outputs[0]
    matmul = producer(product, "MatMul")
    if matmul is None or product is None or len(product.uses()) != 1 or product.is_graph_output():
        return None
    a, b = matmul.inputs
    assert a is not None and b is not None
    if len(dims(a)) != len(dims(b)):
        return None
    shape = dims(product)
    outer = [i if i < len(shape) - 2 else 2 * len(shape) - 3 - i for i in attribute(node, "perm")]
    turns = [_swapped(b), _swapped(a)]
    old = 1 + sum(source is not x for x, (source, _) in zip((b, a), turns, strict=True))
    if old <= sum(not _stays(perm) for perm in (outer, *(perm for _, perm in turns))):
        return None
    operands = [source if _stays(perm) else r.transpose(source, perm) for source, perm in turns]
    turned = r.op("MatMul", *operands, like=product, shape=_swap(shape))
    return turned if _stays(outer) else r.op("Transpose", turned, like=y, perm=outer)


@rewrites("MatMul", given=some("Reshape"))
def join_before_turning(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Rows in several axes that are columns here, as in gradients of weights: joined first, so that they are turned as
    a matrix, which ONNX Runtime does while it multiplies."""
    operands = [_joined_before(r, x) for x in node.inputs]
    if not any(operands):
        return None
    return r.op("MatMul", *[new or x for new, x in zip(operands, node.inputs, strict=True)], like=node.outputs[0])


def _joined_before(r: Rewriter, matrix: ir.Value | None) -> ir.Value | None:
    """The Transpose of a reshaped `x` where `matrix` is a reshaped Transpose of x."""
    join = producer(matrix, "Reshape")
    moved = join.inputs[0] if join is not None else None
    turn = producer(moved, "Transpose")
    x = turn.inputs[0] if turn is not None else None
    if matrix is None or moved is None or turn is None or x is None or len(dims(matrix)) != 2:
        return None
    perm, (rows, columns) = list(attribute(turn, "perm")), dims(matrix)
    if only_user(matrix) is None or only_user(moved) is None or len(perm) == 2:
        return None
    first = perm[0]
    if perm != [*range(first, len(perm)), *range(first)]:
        return None
    if (first == len(perm) - 1 and dims(x)[-1] == rows) or (first == 1 and dims(x)[0] == columns):
        target, is_zero_size = reshape_operand(dims(x), (columns, rows))
        if target is not None and not is_zero_size:
            joined = r.op("Reshape", x, r.const(target, np.int64), like=matrix, shape=(columns, rows))
            return r.transpose(joined, [1, 0])
    return None


def _swapped(x: ir.Value) -> tuple[ir.Value, list[int]]:
    """What to transpose, and how, to get `x` with its last two axes swapped."""
    turn = producer(x, "Transpose")
    if turn is None or turn.inputs[0] is None:
        return x, _swap(range(len(dims(x))))
    return turn.inputs[0], _swap(attribute(turn, "perm"))


def _swap(axes: Sequence[Any]) -> list[Any]:
    return [*axes[:-2], axes[-1], axes[-2]]


def _stays(perm: list[int]) -> bool:
    return perm == sorted(perm)


@rewrites("MatMul", given=first("Transpose"))
def multiply_in_place(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A matrix times the axis of `x` that a Transpose has moved to the end: where it was before.

    The Transpose comes after the product then, if it meets another one on its way.
    """
    turned, w = node.inputs
    turn = producer(turned, "Transpose")
    if turn is None or turned is None or w is None or only_user(turned) is None or not _meets_transpose(turned):
        return None
    x, perm = turn.inputs[0], list(attribute(turn, "perm"))
    assert x is not None
    if x.const_value is not None:
        return None
    axis, shape, columns = perm[-1], list(dims(x)), dims(w)[-1]
    behind = shape[axis + 1 :]
    result = [*shape[:axis], columns, *behind]
    if not behind:
        product = r.op("MatMul", x, w, like=x, shape=result)
    else:
        if len(behind) > 1 and not is_static(shape):
            return None
        if likely_size(behind) < FEW_COLUMNS and likely_size(dims(w)) > SMALL_MATRIX:
            return None
        if w.const_value is None and likely_size(dims(w)) >= likely_size(shape):
            return None  # what is turned must become smaller: else, of two that are, each would turn the other
        flat = [*shape[: axis + 1], math.prod(int(d) for d in behind) if len(behind) > 1 else behind[0]]
        left = r.transpose(w, [1, 0])  # done while exporting, if w is known
        if len(behind) > 1:
            x = r.op("Reshape", x, r.const(flat, np.int64), like=x, shape=flat)
        product = r.op("MatMul", left, x, like=x, shape=[*flat[:axis], columns, flat[-1]])
        if len(behind) > 1:
            product = r.op("Reshape", product, r.const(result, np.int64), like=product, shape=result)
    return r.op("Transpose", product, like=node.outputs[0], perm=perm)


def _meets_transpose(value: ir.Value) -> bool:
    """Is there a Transpose behind `value`, with only products with a matrix and arithmetic with constants between?"""
    for _ in range(LONGEST_WAY):
        node = only_user(value)
        if node is None or node.op_type == "Transpose":
            return node is not None
        if node.op_type == "MatMul":
            if node.inputs[0] is not value or len(dims(node.inputs[1])) != 2:  # type: ignore[arg-type]
                return False
        elif node.op_type not in PASSED or any(
            x is not None and x is not value and x.const_value is None for x in node.inputs
        ):
            return False
        value = node.outputs[0]
    return False


@rewrites("Reshape", given=first("MatMul"))
def keep_rows_of_product(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """reshape(reshape(x) @ w) where the reshapes only merge and split the rows: x @ w.

    MatMul takes rows in any number of axes.
    """
    product, y = node.inputs[0], node.outputs[0]
    matmul = producer(product, "MatMul")
    if matmul is None or product is None or only_user(product) is None:
        return None
    a, w = matmul.inputs
    inner = producer(a, "Reshape")
    if inner is None or w is None or len(dims(w)) != 2:
        return None
    x = inner.inputs[0]
    assert x is not None
    if dims(x)[-1:] != dims(w)[:1] or dims(y) != (*dims(x)[:-1], dims(w)[1]):
        return None
    return r.op("MatMul", x, w, like=y)


@rewrites("MatMul", given=some(*SPLATS))
def repeat_by_expanding(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A column times a row of ones, or a column of ones times a row: each is repeated (an image of one pixel grows)."""
    a, b = node.inputs
    y = node.outputs[0]
    if a is None or b is None or dims(a)[-1] != 1 or min(len(dims(a)), len(dims(b))) < 2 or not is_static(dims(y)):
        return None
    for x, ones in ((a, b), (b, a)):
        if splat(ones) == 1 and x.const_value is None:
            return r.op("Expand", x, r.const(dims(y), np.int64), like=y)
    return None


@rewrites("Add", given=some("Reshape"))
def add_bias_before_reshape(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """reshape(x) + bias = reshape(x + bias) where the reshape splits the last axis, which is all that the bias has.

    The bias then follows its product directly, as runtimes like it.
    """
    for outer, bias in (tuple(node.inputs), tuple(node.inputs)[::-1]):
        split = producer(outer, "Reshape")
        known = constant(bias)
        if split is None or known is None or outer is None or only_user(outer) is None:
            continue
        x = split.inputs[0]
        assert x is not None
        if producer(x, "MatMul") is None or dims(outer) != dims(node.outputs[0]):
            continue
        rank = len(dims(x)) - 1
        tail = dims(outer)[rank:]
        if dims(x)[:-1] != dims(outer)[:rank] or not is_static(tail):
            continue
        shape = known.shape
        while len(shape) > len(tail) and shape[0] == 1:
            shape = shape[1:]
        if shape != tail or math.prod(shape) != dims(x)[-1]:
            continue
        total = r.op("Add", x, r.moved(known.reshape(-1), bias), like=x)
        return reshaped(r, total, node.outputs[0])
    return None


@rewrites("Add", given=some("MatMul"))
def recognise_gemm(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """a @ b + bias of matrices."""
    for product, bias in (tuple(node.inputs), tuple(node.inputs)[::-1]):
        matmul = producer(product, "MatMul")
        if matmul is None or product is None or bias is None or only_user(product) is None:
            continue
        a, b = matmul.inputs
        if a is None or b is None or len(dims(a)) != 2 or len(dims(b)) != 2:
            continue
        columns = dims(product)[1:]
        if dims(bias) not in (columns, (1, *columns)) or product.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
            continue
        return r.op("Gemm", a, b, bias, like=node.outputs[0])
    return None


@rewrites("Split")
def reshape_before_split(r: Rewriter, node: ir.Node) -> tuple[ir.Value, ...] | None:
    """Parts of the last axis that are all reshaped into (heads, size) can be cut off the heads of one reshape."""
    x, parts = node.inputs[0], node.outputs
    users = [only_user(part) for part in parts]
    if x is None or any(u is None or u.op_type != "Reshape" for u in users):
        return None
    rank = len(dims(x))
    shapes = {dims(u.outputs[0]) for u in users if u is not None}
    if attribute(node, "axis", 0) % rank != rank - 1 or len(shapes) != 1:
        return None
    (shape,) = shapes
    heads, size = shape[-2:] if len(shape) == rank + 1 else (None, None)
    if shape[: rank - 1] != dims(x)[:-1] or not isinstance(heads, int) or not isinstance(size, int):
        return None
    if any(dims(part)[-1] != heads * size for part in parts):
        return None
    whole = (*dims(x)[:-1], heads * len(parts), size)
    target, is_zero_size = reshape_operand(dims(x), whole)
    if target is None or is_zero_size:
        return None
    wide = r.op("Reshape", x, r.const(target, np.int64), like=x, shape=whole)
    pieces = r.split(wide, [heads] * len(parts), axis=rank - 1)
    # The reshapes of the parts are left without work: the pieces have their shapes already.
    flat = [reshaped(r, piece, part) for piece, part in zip(pieces, parts, strict=True)]
    return None if None in flat else tuple(flat)  # type: ignore[arg-type]
