"""Factorisations and triangular systems of a few rows, written out.

Filters invert a matrix of two rows in each step of a loop, and simulations solve thousands of systems of three. Written
out, there is no loop to start, each step works only on what is left, and which row is where is a matter of a few known
permutations. Many matrices at once lie along the last axis: each operation then works on long rows, whatever it does
with the rows and columns of the matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jax2onnx.decompose.linalg_common import is_complex, over_batches

MOST_ROWS = 4
"""Of more rows, a loop is smaller."""


def is_small(a: Array) -> bool:
    """Is it a matrix, or are these matrices, to be worked on by what is here?"""
    sizes = a.shape[-2:]
    return not is_complex(a) and all(isinstance(n, int) and 0 < n <= MOST_ROWS for n in sizes)


def batch_last(fn: Callable, *operands: Array) -> Any:
    """A function of operands with or without a batch axis behind the others, applied to those with one before them."""
    results = fn(*(jnp.moveaxis(x, 0, -1) for x in operands))
    return jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0), results)


@over_batches(2, apply=batch_last)
def lu(a: Array) -> list[Array]:
    """P a = L U with partial pivoting: packed L and U, row interchanges, and the permutation they amount to."""
    m, n = a.shape[:2]
    order = jnp.broadcast_to(np.arange(m, dtype=np.int32).reshape(-1, *(1,) * (a.ndim - 2)), (m, *a.shape[2:]))
    rows, places, pivots = [], [], []
    for k in range(min(m, n)):
        pivot = jnp.zeros_like(order[0])
        if m - k > 1:
            size = abs(a[:, k])
            pivot = lax.argmax(jnp.where(size != size, np.inf, size), 0, np.int32)
            exchanged = jnp.take(_exchanges(m - k), pivot, 1, mode="clip")
            a, order = _rows(a, exchanged), _rows(order, exchanged) if k else exchanged
        pivots.append(pivot + k)
        row, a = a[:1], a[1:]
        rows.append(row)
        places.append(order[:1])
        order = order[1:]
        if m - k > 1:
            value = row[:, k : k + 1]
            factor = a[:, k : k + 1] / jnp.where(value == 0, 1, value)
            left = [a[:, :k]] if k else []
            right = [a[:, k + 1 :] - factor * row[:, k + 1 :]] if k < n - 1 else []
            a = jnp.concatenate([*left, factor, *right], 1)
    if m > n:
        rows.append(a)
        places.append(order)
    return [jnp.concatenate(rows), jnp.stack(pivots), jnp.concatenate(places)]


def _exchanges(m: int) -> np.ndarray:
    """In each column, the order of m rows after the first has been exchanged with one of them."""
    orders = np.tile(np.arange(m, dtype=np.int32)[:, None], m)
    orders[0] = np.arange(m)
    np.fill_diagonal(orders, 0)
    return orders


def _rows(x: Array, order: Array) -> Array:
    """The rows of `x` in this order, of each matrix in its own."""
    if order.ndim == 1:
        return jnp.take(x, order, 0, mode="clip")
    order = order.reshape(order.shape[0], *(1,) * (x.ndim - order.ndim), order.shape[1])
    return jnp.take_along_axis(x, jnp.broadcast_to(order, x.shape), 0, mode="promise_in_bounds")


@over_batches(2, apply=batch_last)
def cholesky(a: Array) -> Array:
    """L with L L^T = a, of which only the lower triangle is read; the upper one is left in the result."""
    n = a.shape[0]
    rest, columns, fails = a, [], []
    for k in range(n):
        pivot = rest[:1, :1]
        fails.append(pivot <= 0)  # a NaN is no failure: only what depends on it is NaN
        root = jnp.sqrt(pivot)
        below = rest[1:, :1] / root
        columns.append(jnp.concatenate([a[:k, k : k + 1], root, below] if k < n - 1 else [a[:k, k : k + 1], root]))
        rest = rest[1:, 1:] - below * jnp.swapaxes(below, 0, 1)
    failed = jnp.any(jnp.concatenate(fails), 0)
    return jnp.where(failed, np.asarray(np.nan, a.dtype), jnp.concatenate(columns, 1))


@over_batches(2, 2, apply=batch_last)
def solve(a: Array, b: Array, *, lower: bool, unit_diagonal: bool) -> Array:
    """x with lower(a) x = b or upper(a) x = b: each row, once it is known, is taken out of the others."""
    n = a.shape[0]
    rows: list[Array] = []
    for k in range(n) if lower else reversed(range(n)):
        row, b = (b[:1], b[1:]) if lower else (b[-1:], b[:-1])
        if not unit_diagonal:
            row = row / a[k : k + 1, k : k + 1]
        rows.append(row)
        if len(rows) < n:
            b = b - (a[k + 1 :, k : k + 1] if lower else a[:k, k : k + 1]) * row
    return jnp.concatenate(rows if lower else rows[::-1])
