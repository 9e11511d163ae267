"""`dot_general`: a contraction is one batched MatMul between transposed and reshaped operands, or a sum of products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

from jax2onnx.dimensions import likely_size
from jax2onnx.lower.context import Builder, Val
from jax2onnx.lower.dtypes import BOOL, FLOAT32, FLOAT64, INT32
from jax2onnx.lower.registry import lowers


@lowers(lax.dot_general_p)
def dot_general(
    g: Builder, a: Val, b: Val, *, dimension_numbers: Any, preferred_element_type: Any = None, **_: Any
) -> Val:
    """Sum over the contracted axes, for each index of the batch axes; the result has batch, then a's, then b's axes."""
    aval = g.avals_out[0]
    (contract_a, contract_b), (batch_a, batch_b) = dimension_numbers
    a, b = (g.cast(x, INT32 if aval.dtype == BOOL else aval.dtype) for x in (a, b))
    free_a = [i for i in range(a.rank) if i not in contract_a and i not in batch_a]
    free_b = [i for i in range(b.rank) if i not in contract_b and i not in batch_b]
    sizes = [[x.shape[i] for i in axes] for x, axes in ((a, batch_a), (a, free_a), (b, free_b), (a, contract_a))]
    batch, rows, columns, inner = sizes
    if any(isinstance(d, int) and d == 0 for d in (*inner, *aval.shape)):
        return g.full(aval.shape, 0, aval.dtype)
    if not inner:
        # An outer product: no sum, so plain multiplication.
        left = g.reshape(g.transpose(a, [*batch_a, *free_a]), (*batch, *rows, *[1] * len(columns)))
        right = g.reshape(g.transpose(b, [*batch_b, *free_b]), (*batch, *[1] * len(rows), *columns))
        return g.cast(g.Mul(left, right), aval.dtype)
    contract_a, contract_b = list(contract_a), list(contract_b)
    if batch and not rows and not columns and a.dtype in (FLOAT32, FLOAT64):
        # To ONNX Runtime this is one product of matrices for each dot product: up to 50 times slower than their sums.
        left, right = g.transpose(a, [*batch_a, *contract_a]), g.transpose(b, [*batch_b, *contract_b])
        return g.ReduceSum(g.Mul(left, right), axes=tuple(range(len(batch), left.rank)), keepdims=0)
    if _is_weight_times_rows(a, b, free_a, free_b, contract_b) and not batch_a:
        product = _product(g, b, a, (), (), free_b, free_a, contract_b, contract_a, aval.dtype)
        return g.transpose(product, [*range(len(free_b), len(aval.shape)), *range(len(free_b))])
    return _product(g, a, b, batch_a, batch_b, free_a, free_b, contract_a, contract_b, aval.dtype)


def _is_weight_times_rows(a: Val, b: Val, free_a: list[int], free_b: list[int], contract_b: list[int]) -> bool:
    """Does b hold rows, as in a batched W @ x? Then x @ W.T (its transpose) needs no Transpose of b.

    A small matrix W can be along any axis but the first: it is multiplied in place then.
    """
    if not free_a or not free_b:
        return False
    if contract_b != list(range(b.rank - len(contract_b), b.rank)):
        return a.rank == 2 and contract_b != [0] and likely_size(a.shape) <= likely_size(b.shape)
    return a.value.const_value is not None or len(free_b) > len(free_a)


def _product(
    g: Builder,
    a: Val,
    b: Val,
    batch_a: Sequence[int],
    batch_b: Sequence[int],
    free_a: list[int],
    free_b: list[int],
    contract_a: list[int],
    contract_b: list[int],
    dtype: np.dtype,
) -> Val:
    """The contraction with the axes (*batch, *free_a, *free_b)."""
    # MatMul takes vectors, but a matrix times a vector is one product per row to ONNX Runtime: 50 times slower.
    left_stays = len(contract_a) == 1 and len(free_a) != 1
    right_stays = len(contract_b) == 1 and not free_b and not free_a
    left = _matrix(g, a, batch_a, free_a, contract_a, left_stays, keep_rows=True)
    right = _matrix(g, b, batch_b, contract_b, free_b, right_stays, keep_rows=False)
    product = g.MatMul(left, right)
    product = g.cast(product, dtype)
    shape = [x.shape[i] for x, axes in ((a, batch_a), (a, free_a), (b, free_b)) for i in axes]
    return g.reshape(product, shape)


def _matrix(
    g: Builder,
    x: Val,
    batch: Sequence[int],
    rows: Sequence[int],
    columns: Sequence[int],
    stays: bool,
    *,
    keep_rows: bool,
) -> Val:
    """`x` as (*batch, rows, columns), the axes of each group merged into one.

    Without batch axes it may stay as it is, and the rows of the left operand need not be merged: MatMul treats them as
    batches of vectors.
    """
    x = g.transpose(x, [*batch, *rows, *columns])
    shape = [x.shape[i] for i in range(len(batch))]
    row_dims = x.shape[len(batch) : len(batch) + len(rows)]
    column_dims = x.shape[len(batch) + len(rows) :]
    if stays and not batch:
        return x
    if keep_rows and not batch and len(rows) > 1:
        return g.reshape(x, (*row_dims, math.prod(column_dims)))
    return g.reshape(x, (*shape, math.prod(row_dims), math.prod(column_dims)))
