"""What the linear-algebra decompositions share: mapping over batches, indexing in loops, Householder reflectors.

A loop step costs far more in an ONNX runtime than in XLA, and each operation of its body adds to that. So the
algorithms here take one step per row or column with a short body, keep shapes fixed, and update whole rows or matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jax2onnx import compat
from jax2onnx.errors import UnsupportedError


def mapped(fn: Callable, *operands: Array) -> Any:
    """A function of single operands, applied to those of a batch."""
    return jax.vmap(fn)(*operands)


def over_batches(*ranks: int, apply: Callable[..., Any] = mapped) -> Callable[[Callable], Callable]:
    """Turn a function of single operands of these ranks into one that takes operands with leading batch axes.

    `apply` does so for one batch axis, the first.
    """

    def decorate(fn: Callable) -> Callable:
        @wraps(fn)
        def batched(*operands: Array, **params: Any) -> Any:
            batch = operands[0].shape[: operands[0].ndim - ranks[0]]
            if not batch:
                return fn(*operands, **params)
            # One merged batch axis keeps the matrix products in the loops simple.
            merged = [x.reshape(math.prod(batch), *x.shape[len(batch) :]) for x in operands]
            results = apply(partial(fn, **params), *merged)
            return jax.tree.map(lambda x: x.reshape(*batch, *x.shape[1:]), results)

        return batched

    return decorate


def rows_to_add(n: Any, least: int) -> int:
    """How many rows and columns of zeros make a matrix of a symbolic size that may be less than `least` large enough.

    They are a block of their own, which an algorithm that starts at the upper left does not mix with the others.
    """
    return 0 if isinstance(n, int) or compat.dims.is_at_least(n, least) else least - 1


def at(x: Array, i: Array | int, axis: int = 0) -> Array:
    """x[i] along an axis, for an index that is known to be in bounds."""
    return lax.dynamic_index_in_dim(x, i, axis, keepdims=False, allow_negative_indices=False)


def replace(x: Array, i: Array, row: Array) -> Array:
    """`x` with its i-th row replaced."""
    return lax.dynamic_update_index_in_dim(x, row, i, 0, allow_negative_indices=False)


def part(x: Array, i: Array, length: int, axis: int = 0) -> Array:
    """x[i : i + length] along an axis, known to be in bounds."""
    return lax.dynamic_slice_in_dim(x, i, length, axis, allow_negative_indices=False)


def replace_part(x: Array, i: Array, new: Array, axis: int = 0) -> Array:
    """`x` with the entries from the i-th on along an axis replaced."""
    return lax.dynamic_update_slice_in_dim(x, new, i, axis, allow_negative_indices=False)


def take(x: Array, i: Array, axis: int = 0) -> Array:
    """x[i] along an axis for an array of indices, known to be in bounds."""
    return jnp.take(x, i, axis, mode="clip")


def subset(x: Array, start: int, stop: int, axis: int) -> Array:
    """x[start:stop] along an axis, which must have so many entries: JAX promises stop - start of them."""
    if not stop <= x.shape[axis]:
        raise UnsupportedError(f"subset_by_index={(start, stop)}, where there are only {x.shape[axis]}")
    return lax.slice_in_dim(x, start, stop, axis=axis)


def indices(n: int) -> Array:
    """0, 1, ..., n - 1."""
    return lax.iota(np.int32, n)


def on_or_below(m: int, n: int, k: int = 0) -> Array:
    """Which entries of an m x n matrix are on or below its k-th diagonal."""
    return indices(m)[:, None] >= indices(n) - k


def tril(a: Array, k: int = 0) -> Array:
    """The entries on and below the k-th diagonal. (As jnp.tril, in fewer operations.)"""
    m, n = a.shape
    return jnp.where(on_or_below(m, n, k), a, 0)


def triu(a: Array, k: int = 0) -> Array:
    """The entries on and above the k-th diagonal."""
    m, n = a.shape
    return jnp.where(on_or_below(m, n, k - 1), 0, a)


def diagonal(a: Array, k: int = 0) -> Array:
    """The k-th diagonal of a square matrix. (As jnp.diagonal, without a table of indices.)"""
    n = a.shape[0]
    if not isinstance(n, int) or n <= abs(k):
        return jnp.diagonal(a, k)
    start = k if k >= 0 else -k * n
    return a.reshape(n * n)[start : start + (n - abs(k) - 1) * (n + 1) + 1 : n + 1]


def adjoint(x: Array) -> Array:
    return jnp.conj(x).mT


def real_dtype(dtype: Any) -> Any:
    return jnp.finfo(dtype).dtype


def is_complex(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.complexfloating)


def square_magnitude(x: Array) -> Array:
    """|x|^2, as a real number."""
    return jnp.real(x) ** 2 + jnp.imag(x) ** 2 if is_complex(x) else x * x


def nan_unless(ok: Array, x: Array) -> Array:
    """`x` if `ok`, otherwise NaN everywhere: what JAX returns when LAPACK reports a failure."""
    return jnp.where(ok, x, jnp.asarray(complex(np.nan, np.nan) if is_complex(x) else np.nan, x.dtype))


def hermitian(a: Array, lower: bool) -> Array:
    """The Hermitian matrix of which `a` has one triangle; the other triangle of `a` is not read."""
    n = a.shape[0]
    full = jnp.where(on_or_below(n, n, 0 if lower else -1) == lower, a, adjoint(a))
    if is_complex(a):
        full = jnp.where(jnp.eye(n, dtype=bool), jnp.real(a).astype(a.dtype), full)
    return full


def power_of_two(x: Array) -> Array:
    """A power of two within a factor of two of each positive x, and 1 where x is 0 or not finite.

    Dividing by it is exact, and keeps the squares in a norm from overflowing or vanishing. The logarithm of the largest
    numbers is rounded up, to that of no number, and the powers near the smallest ones may be taken for 0.
    """
    usable, limits = (x > 0) & (x < np.inf), jnp.finfo(x.dtype)
    exponent = jnp.floor(jnp.log2(jnp.where(usable, x, 1)))
    exponent = jnp.clip(exponent, limits.minexp, limits.maxexp - 1)
    return lax.pow(jnp.full_like(x, 2), exponent)


def reflector(x: Array, k: Array | int) -> tuple[Array, Array, Array]:
    """(v, tau, beta) with (1 - tau v v^H)^H x = (x[:k], beta, 0, ..., 0), v[k] = 1 and v[:k] = 0.

    As LAPACK's larfg has it: beta is real, and there is nothing to reflect (tau = 0) if x[k:] is (real, 0, ..., 0).
    Of a matrix with entries up to 1, x may also be too small for its squares to have full precision: then it is noise.
    """
    limits = jnp.finfo(real_dtype(x.dtype))
    index = indices(x.shape[0])
    tail = jnp.where(index > k, x, 0)
    alpha = x[k] if isinstance(k, int) else at(x, k)
    tail_square = jnp.sum(square_magnitude(tail))
    square = square_magnitude(alpha) + tail_square
    norm = jnp.sqrt(square)
    settled = tail_square == 0
    if is_complex(x):
        settled &= jnp.imag(alpha) == 0
    settled |= square < limits.tiny / limits.eps
    re = jnp.real(alpha)
    beta = jnp.where(settled, re, jnp.where(re >= 0, -norm, norm))
    tau = jnp.where(settled, 0, (beta - alpha) / beta)
    v = jnp.where(index == k, 1, tail / jnp.where(settled, 1, alpha - beta))
    return v, tau, beta


def reflector_products(v: Array, tau: Array) -> Array:
    """T with H_0 H_1 ... = 1 - V T V^H, where H_i = 1 - tau_i v_i v_i^H and the v_i are the columns of V.

    From H_i to the product in one triangular inverse, instead of a loop of rank-one updates.
    """
    from jax2onnx.decompose.linalg_triangular import solve_lower

    k = tau.shape[0]
    # T^-1 is diag(1 / tau) plus the strict upper triangle of V^H V. Times diag(tau), because tau may be 0; and its
    # adjoint, which is lower triangular.
    lower = tril(adjoint(v) @ v, -1) * jnp.conj(tau)
    return adjoint(solve_lower(lower, jnp.eye(k, dtype=v.dtype), unit_diagonal=True)) * tau
