"""Cholesky and LU factorisations."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.lax.linalg import (
    cholesky_p,
    cholesky_update_p,
    lu_p,
    lu_pivots_to_permutation_p,
    symmetric_product_p,
)

from jax2onnx import compat
from jax2onnx.decompose import linalg_small
from jax2onnx.decompose.linalg_common import (
    adjoint,
    at,
    hermitian,
    indices,
    is_complex,
    nan_unless,
    on_or_below,
    over_batches,
    replace,
    take,
)
from jax2onnx.decompose.registry import decomposes


@decomposes(cholesky_p)
def cholesky(a: Array, **_) -> Array:
    """The lower factor. Like LAPACK, leaves the upper triangle of `a` in the result."""
    return linalg_small.cholesky(a) if linalg_small.is_small(a) else _cholesky(a)


@over_batches(2)
def _cholesky(a: Array) -> Array:
    """Row by row of the upper factor U with U^H U = a."""
    n = a.shape[0]
    if n == 0:
        return a
    index = indices(n)

    def step(u: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        i, row = inputs
        row = row - jnp.conj(at(u, i, 1)) @ u
        pivot = jnp.real(at(row, i))
        return replace(u, i, jnp.where(index >= i, row / jnp.sqrt(pivot), 0)), pivot

    full = hermitian(a, lower=True)
    u, pivots = lax.scan(step, jnp.zeros_like(a), (index, full))
    fails = jnp.any(pivots <= 0)  # a NaN is no failure: only what depends on it is NaN
    return nan_unless(~fails, jnp.where(on_or_below(n, n), adjoint(u), a))


@decomposes(cholesky_update_p)
def cholesky_update(r: Array, w: Array, **_) -> Array:
    """The upper factor of r^T r + w w^T: one Givens rotation of each row of r with w."""

    def step(w: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        k, row = inputs
        x, y = at(row, k), at(w, k)
        largest = jnp.maximum(abs(x), abs(y))
        x, y = x / largest, y / largest
        norm = jnp.sqrt(x * x + y * y)
        c, s = jnp.where(y == 0, 1, x / norm), jnp.where(y == 0, 0, y / norm)
        return c * w - s * row, c * row + s * w

    if 0 in r.shape:
        return r
    return lax.scan(step, w, (indices(w.shape[0]), r))[1]


@decomposes(lu_p)
def lu(a: Array, **_) -> list[Array]:
    """P a = L U with partial pivoting: packed L and U, row interchanges, and the permutation they amount to."""
    return linalg_small.lu(a) if linalg_small.is_small(a) else _lu(a)


@over_batches(2)
def _lu(a: Array) -> list[Array]:
    """Each step finishes one column of L and one row of U, and takes their product out of the rest: many matrices at
    once, where a product of each row with what is known would be a MatMul of its own for each of them. The rows stay
    where they are until the end; `order` tells which row is in which place.
    """
    m, n = a.shape
    rank = compat.dims.smaller(m, n)
    index = indices(m)
    if rank == 0:
        return [a, jnp.zeros((rank,), np.int32), index]

    def step(carry: Any, k: Array) -> tuple[Any, tuple[Array, ...]]:
        rest, order, below = carry  # `below` are the rows that are left
        column = at(rest, k, 1)
        magnitude = abs(jnp.real(column)) + abs(jnp.imag(column)) if is_complex(column) else abs(column)
        place = lax.argmax(jnp.where(index < k, -1, take(magnitude, order)), 0, np.int32)
        chosen = at(order, place)
        order = jnp.where(index == k, chosen, jnp.where(index == place, at(order, k), order))
        below = below & (index != chosen)

        row = at(rest, chosen)
        pivot = at(row, k)
        column = jnp.where(below, column / jnp.where(pivot == 0, 1, pivot), 0)
        return (rest - column[:, None] * row, order, below), (column, row, place)

    start = (a, index, jnp.ones((m,), bool))
    (_, order, _), (lt, u, pivots) = lax.scan(step, start, indices(rank))  # the columns of L^T are in the order of a
    lower = jnp.pad(take(lt, order, 1).T, ((0, 0), (0, n - rank)))
    u = jnp.pad(u, ((0, m - rank), (0, 0)))
    return [jnp.where(on_or_below(m, n, -1), lower, u), pivots, order]


@decomposes(lu_pivots_to_permutation_p)
@over_batches(1)
def lu_pivots_to_permutation(pivots: Array, *, permutation_size: int, **_) -> Array:
    """The permutation that exchanging place k with place pivots[k], for each k in turn, amounts to."""
    index = indices(permutation_size)
    if 0 in (*pivots.shape, permutation_size):
        return index

    def step(order: Array, inputs: tuple[Array, Array]) -> tuple[Array, None]:
        i, j = inputs
        return jnp.where(index == i, at(order, j), jnp.where(index == j, at(order, i), order)), None

    return lax.scan(step, index, (indices(pivots.shape[0]), pivots))[0]


@decomposes(symmetric_product_p)
def symmetric_product(a: Array, c: Array, *, alpha: float, beta: float, **_) -> Array:
    return alpha * (a @ a.mT) + beta * c
