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


def over_batches(*ranks: int) -> Callable[[Callable], Callable]:
    """Turn a function of single operands of these ranks into one that takes operands with leading batch axes."""

    def decorate(fn: Callable) -> Callable:
        @wraps(fn)
        def batched(*operands: Array, **params: Any) -> Any:
            batch = operands[0].shape[: operands[0].ndim - ranks[0]]
            if not batch:
                return fn(*operands, **params)
            # One merged batch axis keeps the matrix products in the loops simple.
            merged = [x.reshape(math.prod(batch), *x.shape[len(batch) :]) for x in operands]
            results = jax.vmap(partial(fn, **params))(*merged)
            return jax.tree.map(lambda x: x.reshape(*batch, *x.shape[1:]), results)

        return batched

    return decorate


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


def indices(n: int) -> Array:
    """0, 1, ..., n - 1."""
    return lax.iota(np.int32, n)


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
    strict = jnp.tril(a, -1) if lower else jnp.triu(a, 1)
    return strict + adjoint(strict) + jnp.diag(jnp.real(jnp.diagonal(a))).astype(a.dtype)


def power_of_two(x: Array) -> Array:
    """A power of two within a factor of two of each positive x, and 1 where x is 0 or not finite.

    Dividing by it is exact, and keeps the squares in a norm from overflowing or vanishing.
    """
    usable = (x > 0) & (x < np.inf)
    return jnp.where(usable, jnp.exp2(jnp.floor(jnp.log2(jnp.where(usable, x, 1)))), 1)


def reflector(x: Array, k: Array | int) -> tuple[Array, Array, Array]:
    """(v, tau, beta) with (1 - tau v v^H)^H x = (x[:k], beta, 0, ..., 0), v[k] = 1 and v[:k] = 0.

    As LAPACK's larfg has it: beta is real, and there is nothing to reflect (tau = 0) if x[k:] is (real, 0, ..., 0).
    """
    index = indices(x.shape[0])
    tail = jnp.where(index > k, x, 0)
    alpha = x[k] if isinstance(k, int) else at(x, k)
    tail_square = jnp.sum(square_magnitude(tail))
    norm = jnp.sqrt(square_magnitude(alpha) + tail_square)
    settled = tail_square == 0
    if is_complex(x):
        settled &= jnp.imag(alpha) == 0
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
    # T^-1 = diag(1 / tau) + strict upper triangle of V^H V, multiplied by diag(tau) from the left: tau may be 0.
    upper = tau[:, None] * jnp.triu(adjoint(v) @ v, 1)
    reversed_ = solve_lower(upper[::-1, ::-1], jnp.eye(k, dtype=v.dtype), unit_diagonal=True)
    return reversed_[::-1, ::-1] * tau
