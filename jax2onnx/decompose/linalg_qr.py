"""QR factorisations and products of Householder reflectors."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.lax.linalg import householder_product_p, ormqr_p, qr_p

from jax2onnx import compat
from jax2onnx.decompose.linalg_common import (
    adjoint,
    at,
    indices,
    on_or_below,
    over_batches,
    power_of_two,
    reflector,
    reflector_products,
    square_magnitude,
    take,
    tril,
    triu,
)
from jax2onnx.decompose.registry import decomposes


@decomposes(*compat.kinds.primitives("geqrf"))
@over_batches(2)
def geqrf(a: Array, **_) -> list[Array]:
    """R in the upper triangle, the Householder vectors below it; and their factors tau."""
    return list(_triangularise(a, None)[:2])


@decomposes(*compat.kinds.primitives("geqp3"))
@over_batches(2, 1)
def geqp3(a: Array, jpvt: Array, **_) -> list[Array]:
    """QR with column pivoting. Columns with jpvt != 0 come first; of the others always the one with most left in it.

    The result is of the reordered columns; the order counts from 1.
    """
    order = jnp.argsort(jpvt == 0, stable=True)
    packed, tau, swaps = _triangularise(take(a, order, 1), jnp.sum(jpvt != 0))
    return [packed, (take(order, swaps) + 1).astype(jpvt.dtype), tau]


def _triangularise(a: Array, fixed: Array | None) -> tuple[Array, Array, Array]:
    """Householder QR of `a`: packed factors, taus, column order. Columns from number `fixed` on are pivoted."""
    m, n = a.shape
    rank = compat.dims.smaller(m, n)
    column = indices(n)
    if rank == 0:
        return a, jnp.zeros((rank,), a.dtype), column
    row = indices(m)

    def step(carry: tuple[Array, Array], k: Array) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
        a, order = carry
        if fixed is not None:
            left = jnp.sum(jnp.where(row[:, None] >= k, square_magnitude(a), 0), axis=0)
            largest = lax.argmax(jnp.where(column < k, -1, left), 0, np.int32)
            chosen = jnp.where(k < fixed, k, largest)
            swap = jnp.where(column == k, chosen, jnp.where(column == chosen, k, column))
            a, order = take(a, swap, 1), take(order, swap)
        v, tau, beta = reflector(at(a, k, 1), k)
        # Below the diagonal `a` keeps what rounding leaves there: later reflectors do not read it.
        return (a - v[:, None] * (jnp.conj(tau) * (jnp.conj(v) @ a)), order), (v, tau, beta)

    # Exact scaling. Pivoting compares columns, so they get one scale.
    size = abs(a)
    scale = power_of_two(jnp.max(size, axis=0) if fixed is None else jnp.max(size)).astype(a.dtype)
    (r, order), (vt, tau, beta) = lax.scan(step, (a / scale, column), indices(rank))
    v = jnp.pad(vt.T, ((0, 0), (0, n - rank)))
    r = jnp.where(row[:, None] == column, jnp.pad(beta, (0, n - rank)), r)
    return jnp.where(on_or_below(m, n, -1), v, r * scale), tau, order


@decomposes(householder_product_p)
@over_batches(2, 1)
def householder_product(a: Array, taus: Array, **_) -> Array:
    """The first columns of H_0 H_1 ..., for reflectors packed below the diagonal of `a`."""
    m, n = a.shape
    eye = jnp.eye(m, n, dtype=a.dtype)
    if 0 in (m, n, *taus.shape):
        return eye
    v = _unpacked(a, taus)
    return eye - v @ (reflector_products(v, taus) @ adjoint(v)[:, :n])


@decomposes(ormqr_p)
@over_batches(2, 1, 2)
def ormqr(a: Array, taus: Array, c: Array, *, left: bool, transpose: bool, **_) -> Array:
    """Q c, Q^H c, c Q or c Q^H, where Q = H_0 H_1 ... is packed below the diagonal of `a`."""
    if 0 in (*taus.shape, *c.shape):
        return c
    v = _unpacked(a, taus)
    t = reflector_products(v, taus)
    t = adjoint(t) if transpose else t
    return c - v @ (t @ (adjoint(v) @ c)) if left else c - ((c @ v) @ t) @ adjoint(v)


def _unpacked(a: Array, taus: Array) -> Array:
    """The Householder vectors, as columns."""
    k = taus.shape[0]
    return tril(a[:, :k], -1) + jnp.eye(a.shape[0], k, dtype=a.dtype)


@decomposes(qr_p)
@over_batches(2)
def qr(a: Array, *, pivoting: bool, full_matrices: bool, **_) -> list[Array]:
    m, n = a.shape
    rank = compat.dims.smaller(m, n)
    k = m if full_matrices else rank
    packed, taus, order = _triangularise(a, jnp.int32(0) if pivoting else None)
    q = householder_product(jnp.pad(packed[:, :rank], ((0, 0), (0, k - rank))), taus)
    r = triu(packed[:k])
    # JAX has an order of zeros for an empty matrix.
    return [q, r, order if rank else jnp.zeros_like(order)] if pivoting else [q, r]
