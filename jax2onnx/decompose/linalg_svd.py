"""Singular values and vectors: reduction to bidiagonal form, then the symmetric eigenproblem that has them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax.linalg import svd_p

from jax2onnx import compat
from jax2onnx.decompose.linalg_common import (
    adjoint,
    diagonal,
    indices,
    nan_unless,
    over_batches,
    real_dtype,
    subset,
    take,
)
from jax2onnx.decompose.linalg_condense import apply_reflectors, scaled, to_bidiagonal
from jax2onnx.decompose.linalg_eigh import tridiagonal_eigh
from jax2onnx.decompose.linalg_qr import qr
from jax2onnx.decompose.registry import decomposes


@decomposes(svd_p)
def svd(
    a: Array, *, full_matrices: bool, compute_uv: bool, subset_by_index: tuple[int, int] | None = None, **_
) -> list[Array]:
    """Descending singular values s, and U, V^H with a = U diag(s) V^H."""
    results = _svd(a, full_matrices=full_matrices, compute_uv=compute_uv)
    if subset_by_index is None or full_matrices:  # which can only be asked for with all of them
        return results
    start, stop = subset_by_index
    if start == 0:  # then JAX takes fewer if there are fewer
        stop = compat.dims.smaller(compat.dims.smaller(*a.shape[-2:]), stop)
    axes = (-1, -1, -2)[: len(results)]
    return [subset(x, start, stop, axis) for x, axis in zip(results, axes, strict=True)]


@over_batches(2)
def _svd(a: Array, *, full_matrices: bool, compute_uv: bool) -> list[Array]:
    m, n = a.shape
    if compute_uv and compat.dims.is_undecided(m, n):
        return _svd_by_qr(a, full_matrices)
    if compat.dims.is_undecided(m, n):  # rows of zeros make it tall, and add singular values of zero
        tall = jnp.pad(a, ((0, compat.dims.non_negative(n - m)), (0, 0)))
        (s,) = _svd(tall, full_matrices=False, compute_uv=False)
        return [take(s, indices(compat.dims.smaller(m, n)))]
    if m < n:  # of the adjoint, U and V change places
        s, *vectors = _svd(adjoint(a), full_matrices=full_matrices, compute_uv=compute_uv)
        return [s, *(adjoint(x) for x in reversed(vectors))]
    if n == 0:
        s = jnp.zeros((0,), real_dtype(a.dtype))
        u = jnp.eye(m, m if full_matrices else 0, dtype=a.dtype)
        return [s, u, jnp.zeros((0, 0), a.dtype)] if compute_uv else [s]

    a, scale = scaled(a)
    ok = jnp.all(jnp.isfinite(a))
    d, e, left, right = to_bidiagonal(a)
    s, u, v = _bidiagonal_svd(d, e[:-1])
    s = nan_unless(ok, s * scale)
    if not compute_uv:
        return [s]
    # The reflectors also have the columns of a full U: those after the first n are not mixed with others.
    u = jnp.pad(u.astype(a.dtype), ((0, m - n), (0, m - n if full_matrices else 0)))
    if full_matrices:
        u = u + jnp.diag(jnp.arange(m) >= n).astype(a.dtype)
    u = apply_reflectors(*left, u)
    v = apply_reflectors(*right, v.astype(a.dtype))
    return [s, nan_unless(ok, u), nan_unless(ok, adjoint(v))]


def _svd_by_qr(a: Array, full_matrices: bool) -> list[Array]:
    """Of a matrix that may be tall or wide. What R has of rows is never more than its columns: R^H is not wide."""
    m, n = a.shape
    k = compat.dims.smaller(m, n)
    q, r = qr(a, pivoting=False, full_matrices=full_matrices)
    s, v, uh = _svd(adjoint(r[:k]), full_matrices=full_matrices, compute_uv=True)
    u = adjoint(uh)
    if full_matrices:
        u = jnp.pad(u, (0, m - k)) + jnp.diag(jnp.arange(m) >= k).astype(a.dtype)
    return [s, q @ u, adjoint(v)]


def _bidiagonal_svd(d: Array, e: Array) -> tuple[Array, Array, Array]:
    """(s, U, V) of the real square upper bidiagonal matrix with diagonal d and superdiagonal e.

    The tridiagonal matrix with a zero diagonal and the off-diagonals d_0, e_0, d_1, e_1, ... has the eigenvalues s, -s
    with the eigenvectors (v_0, u_0, v_1, u_1, ...) / sqrt(2) and (v_0, -u_0, v_1, -u_1, ...) / sqrt(2).
    """
    n = d.shape[0]
    off_diagonal = jnp.stack([d, jnp.pad(e, (0, 1))], 1).reshape(2 * n)[:-1]
    w, x = tridiagonal_eigh(jnp.zeros((2 * n,), d.dtype), off_diagonal)
    s = jnp.maximum(jnp.flip(w)[:n], 0)
    v, u = jax.vmap(_orthonormal, 1)(jnp.flip(x, 1)[:, :n].reshape(n, 2, n))
    return s, u, v


def _orthonormal(x: Array) -> Array:
    """The columns of x made orthonormal from left to right.

    They are so already, except those of singular values that are nearly zero: there the eigenvectors of s and -s mix.
    """
    q, r = qr(x, pivoting=False, full_matrices=False)
    return q * jnp.where(diagonal(r) < 0, -1, 1)
