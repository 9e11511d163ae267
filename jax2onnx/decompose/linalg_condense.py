"""Unitary reductions to condensed form: Hessenberg, tridiagonal, bidiagonal. One Householder reflector per column.

The reduced part of the matrix keeps what rounding leaves of the annihilated entries: no later step reads it.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax
from jax.lax.linalg import hessenberg_p, tridiagonal_p

from jax2onnx import compat
from jax2onnx.decompose.linalg_common import (
    adjoint,
    at,
    diagonal,
    hermitian,
    indices,
    on_or_below,
    over_batches,
    power_of_two,
    real_dtype,
    reflector,
    reflector_products,
    rows_to_add,
)
from jax2onnx.decompose.registry import decomposes


def scaled(a: Array) -> tuple[Array, Array]:
    """`a` divided by a power of two near its largest entry, and that power. Squares then do not overflow or vanish."""
    scale = power_of_two(jnp.max(abs(a)))
    return a / scale.astype(a.dtype), scale


def apply_reflectors(v: Array, tau: Array, c: Array) -> Array:
    """H_0 H_1 ... c, for reflectors in the columns of v."""
    return c - v @ (reflector_products(v, tau) @ (adjoint(v) @ c))


def to_hessenberg(a: Array) -> tuple[Array, Array, Array]:
    """(h, V, tau) with a = Q h Q^H for the Q of the reflectors (V, tau); h is to be read from its subdiagonal on."""

    def step(a: Array, k: Array) -> tuple[Array, tuple[Array, Array]]:
        v, tau, _ = reflector(at(a, k, 1), k + 1)
        a = a - v[:, None] * (jnp.conj(tau) * (jnp.conj(v) @ a))
        a = a - (tau * (a @ v))[:, None] * jnp.conj(v)
        return a, (v, tau)

    h, (vt, tau) = lax.scan(step, a, indices(a.shape[0] - 1))
    return h, vt.T, tau


@decomposes(hessenberg_p)
@over_batches(2)
def hessenberg(a: Array, **_) -> list[Array]:
    """The Hessenberg form in the upper part, the Householder vectors below it; and their factors tau."""
    n = a.shape[0]
    if more := rows_to_add(n, 2):
        packed, tau = hessenberg(jnp.pad(a, (0, more)))
        return [packed[:n, :n], tau[: n - 1]]
    if n <= 1:
        return [a, jnp.zeros((max(n - 1, 0),), a.dtype)]
    a, scale = scaled(a)
    h, v, tau = to_hessenberg(a)
    return [jnp.where(on_or_below(n, n, -2), jnp.pad(v, ((0, 0), (0, 1))), h * scale.astype(a.dtype)), tau]


def to_tridiagonal(a: Array) -> tuple[Array, Array, Array, Array]:
    """(d, e, V, tau) with a = Q T Q^H: T has the diagonal d and both off-diagonals e, Q the reflectors (V, tau)."""

    def step(a: Array, k: Array) -> tuple[Array, tuple[Array, ...]]:
        v, tau, beta = reflector(at(a, k, 1), k + 1)
        x = tau * (a @ v)
        w = x - (0.5 * tau * jnp.vdot(x, v)) * v
        left, right = jnp.stack([v, w], 1), jnp.stack([w, v], 1)
        return a - left @ adjoint(right), (beta, v, tau)

    n = a.shape[0]
    # Where n may be 1, the last column has a reflector as well, of nothing: ONNX Runtime dies of some empty products.
    t, (e, vt, tau) = lax.scan(step, a, indices(n - 1 if compat.dims.is_at_least(n, 2) else n))
    return jnp.real(diagonal(t)), e[: n - 1], vt.T, tau


@decomposes(tridiagonal_p)
@over_batches(2)
def tridiagonal(a: Array, *, lower: bool, **_) -> list[Array]:
    """T and the Householder vectors packed into one triangle of `a`; the diagonals of T; and the factors tau."""
    n = a.shape[0]
    if n == 1:
        none = jnp.zeros((0,), real_dtype(a.dtype))
        return [jnp.real(a).astype(a.dtype), jnp.real(a)[0], none, none.astype(a.dtype)]
    # From the last column upwards in an upper triangle is from the first one downwards in the reversed matrix.
    full = hermitian(a, lower)
    full, scale = scaled(full if lower else jnp.flip(full))
    d, e, v, tau = to_tridiagonal(full)
    d, e, v, tau = d * scale, e * scale, jnp.pad(v[:, : n - 1], ((0, 0), (0, 1))), tau[: n - 1]
    index = indices(n)
    row, column = index[:, None], index
    t = jnp.where(row == column, d, jnp.where(row == column + 1, jnp.pad(e, (0, 1)), v))
    if not lower:
        t, d, e, tau = map(jnp.flip, (t, d, e, tau))
    return [jnp.where(row >= column if lower else row <= column, t.astype(a.dtype), a), d, e, tau]


def to_bidiagonal(a: Array) -> tuple[Array, Array, tuple[Array, Array], tuple[Array, Array]]:
    """(d, e, (V_l, tau_l), (V_r, tau_r)) with a = Q_l B Q_r^H, for an `a` with no fewer rows than columns.

    B has the diagonal d and the superdiagonal e (its last entry is no part of B).
    """

    def step(a: Array, k: Array) -> tuple[Array, tuple[Array, ...]]:
        v, tau, d = reflector(at(a, k, 1), k)
        a = a - v[:, None] * (jnp.conj(tau) * (jnp.conj(v) @ a))
        # With a padding column, the last row has a reflector as well: of nothing.
        u, tau_u, e = reflector(jnp.conj(at(a, k)), k + 1)
        a = a - (tau_u * (a @ u))[:, None] * jnp.conj(u)
        return a, (d, e, v, tau, u, tau_u)

    n = a.shape[1]
    _, (d, e, v, tau, u, tau_u) = lax.scan(step, jnp.pad(a, ((0, 0), (0, 1))), indices(n))
    return d, e, (v.T, tau), (u.T[:n], tau_u)
