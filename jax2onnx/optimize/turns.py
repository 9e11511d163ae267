"""Products whose operands and result are moved by slow Transposes are turned around, if that makes these fast.

ONNX Runtime is fast at a Transpose where the last axis stays, so that whole rows are copied, and where just two
neighbouring groups of axes are exchanged: 0.1 to 0.5 ns an element. All others take 4 ns, and more if the array does
not fit into the cache. (Two fast ones amount to a slow one, but ONNX Runtime makes them one again.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from jax2onnx.dimensions import is_static
from jax2onnx.optimize.engine import Rewriter, RuleSet, first
from jax2onnx.optimize.queries import MANY, Dims, attribute, dims, only_user, producer
from jax2onnx.permutations import permuted

LAST = RuleSet()

SHORT_ROW = 4
"""Rows of fewer elements are not copied faster than single elements."""

SMALL = 1 << 20
"""Bytes of a known operand that is moved here, and not when the model is loaded."""

SLOW = 4.0
"""Nanoseconds for an element that is copied by itself."""

Perm = Sequence[int]


class _Moved(NamedTuple):
    """An operand of a product, and the one that it becomes: moved, and its rows and columns joined."""

    source: ir.Value
    perm: list[int]
    shape: Dims  # of the matrices
    is_joined: bool

    def time(self) -> float:
        if self.perm == sorted(self.perm) or self.source.const_value is not None:
            return 0.0
        kept = len(self.perm) - 2
        if not self.is_joined and self.perm == [*range(kept), kept + 1, kept]:
            return 0.0  # ONNX Runtime multiplies with a transposed matrix
        return _time(dims(self.source), self.perm)


@LAST.rewrites("Transpose", given=first("MatMul", "Reshape"), needs=("MatMul",))
def turn_product(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """(A B)' = B' A', where primes swap rows and columns, each of which may be several axes."""
    moved, y, perm = node.inputs[0], node.outputs[0], list(attribute(node, "perm"))
    assert moved is not None
    split = producer(moved, "Reshape")
    product = split.inputs[0] if split is not None else moved
    matmul = producer(product, "MatMul")
    if matmul is None or product is None or only_user(product) is None or only_user(moved) is None:
        return None
    a, b = matmul.inputs
    if a is None or b is None or not is_static(dims(moved)) or _count(dims(moved)) < MANY:
        return None
    if min(len(dims(a)), len(dims(b))) < 2:  # a vector
        return None
    *batch, rows, columns = dims(product)
    places = _places(dims(moved), len(batch), rows)
    if not dims(a)[:-2] == dims(b)[:-2] == tuple(batch) or dims(moved)[: len(batch)] != tuple(batch) or places is None:
        return None
    left, right = _operand(b), _operand(a)
    if left is None or right is None:
        return None
    outer = [places.index(i) for i in perm]
    turned = permuted(dims(moved), places)
    new = _time(turned, outer) + left[1].time() + right[1].time()
    old = _time(dims(moved), perm) + left[0].time() + right[0].time()
    if old - new < SLOW / 2 * _count(dims(moved)):
        return None
    operands = [_apply(r, way[1]) for way in (left, right)]
    result = r.op("MatMul", *operands, like=product, shape=[*batch, columns, rows])
    if turned != dims(result):
        result = r.op("Reshape", result, r.const(turned, np.int64), like=y, shape=turned)
    return result if outer == sorted(outer) else r.op("Transpose", result, like=y, perm=outer)


def _operand(x: ir.Value) -> tuple[_Moved, _Moved] | None:
    """A matrix as it is made, and how its transpose could be."""
    join = producer(x, "Reshape")
    inner = join.inputs[0] if join is not None else x
    turn = producer(inner, "Transpose")
    *batch, rows, columns = dims(x)
    if turn is None or turn.inputs[0] is None or inner is None or only_user(x) is None or only_user(inner) is None:
        same = list(range(len(dims(x))))
        swapped = [*same[:-2], same[-1], same[-2]]
        return _Moved(x, same, dims(x), False), _Moved(x, swapped, (*batch, columns, rows), False)
    places = _places(dims(inner), len(batch), rows)
    if places is None or dims(inner)[: len(batch)] != tuple(batch) or not is_static(dims(x)):
        return None
    source, perm = turn.inputs[0], list(attribute(turn, "perm"))
    is_joined = join is not None
    return (
        _Moved(source, perm, dims(x), is_joined),
        _Moved(source, [perm[i] for i in places], (*batch, columns, rows), is_joined),
    )


def _places(shape: Dims, lead: int, rows: int | str) -> list[int] | None:
    """The axes of an array with its columns before its rows; both come after axes of a batch."""
    for end in range(lead, len(shape) + 1):
        if is_static((rows, *shape)) and _count(shape[lead:end]) == rows:
            return [*range(lead), *range(end, len(shape)), *range(lead, end)]
    return None


def _apply(r: Rewriter, way: _Moved) -> ir.Value:
    known = way.source.const_value
    if known is not None and known.nbytes <= SMALL:
        return r.moved(known.numpy().transpose(way.perm).reshape(way.shape), way.source)
    x = way.source if way.perm == sorted(way.perm) else r.transpose(way.source, way.perm)
    if dims(x) == way.shape:
        return x
    return r.op("Reshape", x, r.const(way.shape, np.int64), like=x, shape=way.shape)  # also of one row, or one column


def _count(shape: Dims) -> int:
    return math.prod(int(d) for d in shape)


def _time(shape: Dims, perm: Perm) -> float:
    """About how many nanoseconds a Transpose takes."""
    groups = _grouped(shape, perm)
    order = [sorted(groups).index(group) for group in groups]
    sizes = [_count(permuted(shape, group)) for group in groups]
    return math.prod(sizes) * _time_of_element(sizes, order)


def _time_of_element(sizes: Sequence[int], order: Perm) -> float:
    if list(order) == sorted(order):
        return 0.0
    if order[-1] == len(order) - 1 and sizes[-1] >= SHORT_ROW:  # whole rows are copied
        return 0.3
    ends = [i for i, (a, b) in enumerate(itertools.pairwise(order), 1) if b != a + 1]  # of groups that stay together
    if len(ends) == 1:  # one matrix
        return 0.2
    if len(ends) == 2 and order[0] == 0:  # many, which may be small
        return 0.5 if math.prod(sizes[ends[0] :]) >= MANY else 1.5
    return SLOW


def _grouped(shape: Dims, perm: Perm) -> list[list[int]]:
    """The axes that stay side by side, as groups in their new order."""
    found: list[list[int]] = []
    used = [a for a in perm if shape[a] != 1]
    place = {a: i for i, a in enumerate(sorted(used))}
    for a in used:
        if found and place[a] == place[found[-1][-1]] + 1:
            found[-1].append(a)
        else:
            found.append([a])
    return found
