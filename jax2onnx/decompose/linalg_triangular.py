"""Triangular and tridiagonal systems."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.lax.linalg import triangular_solve_p, tridiagonal_solve_p

from jax2onnx import compat
from jax2onnx.decompose import linalg_small
from jax2onnx.decompose.linalg_common import at, diagonal, indices, nan_unless, over_batches, real_dtype, replace, tril
from jax2onnx.decompose.registry import decomposes

# Larger systems are solved by blocks of that many rows. Smaller ones are solved row by row: slower, but then a zero on
# the diagonal makes infinite what it makes infinite in LAPACK.
BLOCK = 16


@decomposes(triangular_solve_p)
def triangular_solve(
    a: Array, b: Array, *, left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool, unit_diagonal: bool
) -> Array:
    """x with op(a) x = b, or x op(a) = b; the other triangle of a is not read."""
    dtype = b.dtype
    if jnp.finfo(dtype).bits < 32:
        a, b = a.astype(np.float32), b.astype(np.float32)
    a = jnp.conj(a) if conjugate_a else a
    # x op(a) = b is op(a)^T x^T = b^T.
    if transpose_a == left_side:
        a, lower = a.mT, not lower
    b = b if left_side else b.mT
    solve = linalg_small.solve if linalg_small.is_small(a) and 0 not in b.shape else _solve
    x = solve(a, b, lower=lower, unit_diagonal=unit_diagonal)
    return (x if left_side else x.mT).astype(dtype)


@over_batches(2, 2)
def _solve(a: Array, b: Array, *, lower: bool, unit_diagonal: bool) -> Array:
    if lower:
        return solve_lower(a, b, unit_diagonal=unit_diagonal)
    # An upper triangle read backwards is a lower one.
    return jnp.flip(solve_lower(jnp.flip(a), jnp.flip(b, 0), unit_diagonal=unit_diagonal), 0)


def solve_lower(a: Array, b: Array, *, unit_diagonal: bool) -> Array:
    """x with lower(a) x = b."""
    n, width = b.shape
    if 0 in (n, width):
        return b
    pivots = jnp.ones((n,), a.dtype) if unit_diagonal else diagonal(a)
    a = tril(a, -1)
    if isinstance(n, int) and n <= BLOCK:
        return _unit_lower_inverse(a) @ b if unit_diagonal else _substitute(a, pivots, b)

    # One block at least, also where n may be 0 at run time.
    count = (n + BLOCK - 1) // BLOCK if compat.dims.is_positive(n) else n // BLOCK + 1
    size = count * BLOCK
    a = jnp.pad(a, (0, size - n)).reshape(count, BLOCK, count, BLOCK)
    b = jnp.pad(b, ((0, size - n), (0, 0))).reshape(count, BLOCK, width)
    on_diagonal = indices(count)[:, None, None, None] == indices(count)[:, None]
    blocks = jnp.sum(jnp.where(on_diagonal, a, 0), axis=2)
    left_of_it = jnp.where(on_diagonal, 0, a).reshape(count, BLOCK, size)
    pivots = jnp.pad(pivots, (0, size - n), constant_values=1).reshape(count, BLOCK)
    inverses = _unit_lower_inverse(blocks / pivots[:, :, None]) / pivots[:, None]

    def step(x: Array, inputs: tuple[Array, ...]) -> tuple[Array, None]:
        i, left, strict, pivot, inverse, rhs = inputs
        rhs = rhs - left @ x.reshape(size, width)
        x_i = inverse @ rhs
        # An inverse is less accurate than elimination; correcting by what it leaves makes up for that.
        x_i = x_i + inverse @ (rhs - (pivot[:, None] * x_i + strict @ x_i))
        return replace(x, i, x_i), None

    inputs = (indices(count), left_of_it, blocks, pivots, inverses, b)
    x, _ = lax.scan(step, jnp.zeros_like(b), inputs)
    return x.reshape(size, width)[:n]


def _unit_lower_inverse(strict: Array) -> Array:
    """(1 + strict)^-1 for small strictly lower triangular matrices: of blocks on the diagonal that double in size."""
    n = strict.shape[-1]
    block = [np.arange(n) >> level for level in range((n - 1).bit_length() + 1)]
    same = np.stack([b[:, None] == b for b in block])

    def double(x: Array, in_new_block: Array) -> tuple[Array, None]:
        # [[p, 0], [q, r]]^-1 is [[p^-1, 0], [-r^-1 q p^-1, r^-1]].
        return x - x @ jnp.where(in_new_block, strict, 0) @ x, None

    eye = jnp.broadcast_to(jnp.eye(n, dtype=strict.dtype), strict.shape)
    return lax.scan(double, eye, same[1:] & ~same[:-1])[0] if n > 1 else eye


def _substitute(strict: Array, diagonal: Array, b: Array) -> Array:
    """x with (strict + diag(diagonal)) x = b: each row, once it is known, is taken out of those that follow.

    For many small systems this is far faster than a product of each row with what is known, which would be a MatMul of
    its own for each system.
    """

    def step(rest: Array, inputs: tuple[Array, ...]) -> tuple[Array, Array]:
        i, column, pivot = inputs
        x = at(rest, i) / pivot
        return rest - column[:, None] * x, x

    return lax.scan(step, b, (indices(b.shape[0]), strict.T, diagonal))[1]


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
    """The pivot; if rhs / pivot would overflow, moved away from zero by eps * largest, or 3, 7, 15, ... times that."""
    limits = jnp.finfo(real_dtype(pivot.dtype))
    smallest = jnp.max(abs(rhs)) * limits.tiny
    overflows = (abs(pivot) < 1) & ((pivot == 0) | (smallest > abs(pivot)))
    shift = jnp.maximum(limits.eps * largest, limits.tiny)
    doublings = jnp.maximum(jnp.ceil(jnp.log2((smallest - abs(pivot)) / shift + 1)), 1)
    shift = shift * (lax.pow(jnp.full_like(doublings, 2), doublings) - 1)
    return jnp.where(overflows, pivot + jnp.where(jnp.real(pivot) < 0, -shift, shift), pivot)
