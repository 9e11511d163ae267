"""Triangular and tridiagonal systems."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.lax.linalg import triangular_solve_p, tridiagonal_solve_p

from jax2onnx.decompose.linalg_common import indices, nan_unless, over_batches, real_dtype, replace
from jax2onnx.decompose.registry import decomposes

# Rows that are eliminated together. Steps of a solve: BLOCK for the inverses of all diagonal blocks, then n / BLOCK.
BLOCK = 16


@decomposes(triangular_solve_p)
@over_batches(2, 2)
def triangular_solve(
    a: Array, b: Array, *, left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool, unit_diagonal: bool
) -> Array:
    """x with op(a) x = b, or x op(a) = b; the other triangle of a is not read."""
    dtype = b.dtype
    if jnp.finfo(dtype).bits < 32:
        a, b = a.astype(np.float32), b.astype(np.float32)
    a = jnp.conj(a) if conjugate_a else a
    # x op(a) = b is op(a)^T x^T = b^T; and an upper triangle read backwards is a lower one.
    if transpose_a == left_side:
        a, lower = a.T, not lower
    b = b if left_side else b.T
    if lower:
        x = solve_lower(a, b, unit_diagonal=unit_diagonal)
    else:
        x = solve_lower(a[::-1, ::-1], b[::-1], unit_diagonal=unit_diagonal)[::-1]
    return (x if left_side else x.T).astype(dtype)


def solve_lower(a: Array, b: Array, *, unit_diagonal: bool) -> Array:
    """x with lower(a) x = b, by blocks of rows."""
    n, width = b.shape
    if 0 in (n, width):
        return b
    diagonal = jnp.ones((n,), a.dtype) if unit_diagonal else jnp.diagonal(a)
    a = jnp.tril(a, -1)
    if isinstance(n, int) and n <= BLOCK:
        return _substitute(a, diagonal, b)

    count = (n + BLOCK - 1) // BLOCK
    size = count * BLOCK
    a = jnp.pad(a, (0, size - n)).reshape(count, BLOCK, count, BLOCK)
    diagonal = jnp.pad(diagonal, (0, size - n), constant_values=1).reshape(count, BLOCK)
    b = jnp.pad(b, ((0, size - n), (0, 0))).reshape(count, BLOCK, width)

    on_diagonal = indices(count)[:, None, None, None] == indices(count)[:, None]
    blocks = jnp.sum(jnp.where(on_diagonal, a, 0), axis=2)
    left_of_it = jnp.where(on_diagonal, 0, a).reshape(count, BLOCK, size)
    inverses = jax.vmap(_substitute, (0, 0, None))(blocks, diagonal, jnp.eye(BLOCK, dtype=b.dtype))

    def step(x: Array, inputs: tuple[Array, ...]) -> tuple[Array, None]:
        i, left, inverse, rhs = inputs
        x_i = inverse @ (rhs - left @ x.reshape(size, width))
        return replace(x, i, x_i), None

    x, _ = lax.scan(step, jnp.zeros_like(b), (indices(count), left_of_it, inverses, b))
    return x.reshape(size, width)[:n]


def _substitute(strict: Array, diagonal: Array, b: Array) -> Array:
    """x with (strict + diag(diagonal)) x = b, row by row."""

    def step(x: Array, inputs: tuple[Array, ...]) -> tuple[Array, None]:
        i, row, pivot, rhs = inputs
        return replace(x, i, (rhs - row @ x) / pivot), None

    x, _ = lax.scan(step, jnp.zeros_like(b), (indices(b.shape[0]), strict, diagonal, b))
    return x


@decomposes(tridiagonal_solve_p)
@over_batches(1, 1, 1, 2)
def tridiagonal_solve(dl: Array, d: Array, du: Array, b: Array, *, perturb_singular: bool) -> Array:
    """Gaussian elimination with row interchanges: LAPACK's gtsv, or lagtf and lagts if a singular matrix is perturbed.

    The eliminated rows are (d, du, du2): an interchange fills in a second superdiagonal.
    """
    n, _ = b.shape
    if n == 0:
        return b
    du = jnp.where(indices(n) < n - 1, du, 0)

    def eliminate(carry: Any, inputs: Any) -> Any:
        d0, du0, b0, scale0 = carry  # the row above, as far as it is eliminated
        dl1, d1, du1, b1 = inputs
        scale1 = abs(dl1) + abs(d1) + abs(du1)
        # lagtf chooses the pivot relative to the size of its row.
        scaled = (dl1 != 0) & (abs(dl1) * scale0 > abs(d0) * scale1)
        interchange = scaled if perturb_singular else abs(d0) < abs(dl1)
        pivot, other = jnp.where(interchange, dl1, d0), jnp.where(interchange, d0, dl1)
        factor = jnp.where(other == 0, 0, other / pivot)
        upper, next_d = jnp.where(interchange, d1, du0), jnp.where(interchange, du0, d1)
        upper2, next_du = jnp.where(interchange, du1, 0), jnp.where(interchange, 0, du1)
        rhs, next_b = jnp.where(interchange, b1, b0), jnp.where(interchange, b0, b1)
        next_d = next_d - factor * upper
        next_du = next_du - factor * upper2
        scale1 = jnp.where(interchange, abs(next_d) + abs(next_du), scale1)
        return (next_d, next_du, next_b - factor * rhs, scale1), (pivot, upper, upper2, rhs)

    # A last row of zeros pushes the real last row out of the carry.
    xs = [jnp.concatenate([x[1:], jnp.zeros_like(x[:1])]) for x in (dl, d, du, b)]
    _, (pivot, upper, upper2, rhs) = lax.scan(eliminate, (d[0], du[0], b[0], abs(d[0]) + abs(du[0])), xs)

    largest = jnp.max(abs(jnp.stack([pivot, upper, upper2])))

    def substitute(carry: tuple[Array, Array], inputs: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
        x1, x2 = carry
        pivot, upper, upper2, rhs = inputs
        rhs = rhs - upper * x1 - upper2 * x2
        if perturb_singular:
            pivot = _perturbed(pivot, rhs, largest)
        x = rhs / pivot
        return (x, x1), x

    zero = jnp.zeros_like(b[0])
    _, x = lax.scan(substitute, (zero, zero), (pivot, upper, upper2, rhs), reverse=True)
    return x if perturb_singular else nan_unless(jnp.all(pivot != 0), x)


def _perturbed(pivot: Array, rhs: Array, largest: Array) -> Array:
    """The pivot, moved away from zero by about eps * largest if rhs / pivot would overflow."""
    limits = jnp.finfo(real_dtype(pivot.dtype))
    overflows = (abs(pivot) < 1) & ((pivot == 0) | (jnp.max(abs(rhs)) * limits.tiny > abs(pivot)))
    shift = jnp.maximum(limits.eps * largest, limits.tiny)
    return jnp.where(overflows, pivot + jnp.where(jnp.real(pivot) < 0, -shift, shift), pivot)
