"""Eigenvalues and eigenvectors of general matrices, from the Schur form."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax
from jax.lax.linalg import eig_p

from jax2onnx.decompose.linalg_common import (
    adjoint,
    diagonal,
    indices,
    is_complex,
    nan_unless,
    over_batches,
    real_dtype,
    replace,
    rows_to_add,
    square_magnitude,
)
from jax2onnx.decompose.linalg_condense import scaled
from jax2onnx.decompose.linalg_schur import quasi_triangular, split_blocks
from jax2onnx.decompose.registry import decomposes


@decomposes(eig_p)
@over_batches(2)
def eig(a: Array, *, compute_left_eigenvectors: bool, compute_right_eigenvectors: bool, **_) -> list[Array]:
    """Eigenvalues; on demand the left eigenvectors u, u^H a = w u^H; on demand the right eigenvectors v, a v = w v."""
    n = a.shape[0]
    if more := rows_to_add(n, 3):
        both = {"compute_left_eigenvectors": compute_left_eigenvectors}
        results = eig(jnp.pad(a, (0, more)), **both, compute_right_eigenvectors=compute_right_eigenvectors)
        return [results[0][:n], *(v[:n, :n] for v in results[1:])]
    is_real = not is_complex(a)
    dtype = jnp.result_type(a.dtype, jnp.complex64)
    vectors = compute_left_eigenvectors or compute_right_eigenvectors
    if n == 0:
        empty = jnp.zeros((0, 0), dtype)
        return [jnp.zeros((0,), dtype), *[empty] * (compute_left_eigenvectors + compute_right_eigenvectors)]
    a, scale = scaled(a)
    a, d = balanced(a)
    t, z, ok = quasi_triangular(a, vectors)
    t, z = split_blocks(t, z) if n > 1 else (t.astype(dtype), z.astype(dtype))
    w = diagonal(t)
    results = [nan_unless(ok, w * scale.astype(dtype))]
    if compute_left_eigenvectors:  # the right ones of t^H, which is upper triangular if read backwards
        left = jnp.flip(_triangular_eigenvectors(jnp.flip(adjoint(t))))
        results.append(nan_unless(ok, _normalised((z @ left) / d, w, is_real)))
    if compute_right_eigenvectors:
        right = _triangular_eigenvectors(t)
        results.append(nan_unless(ok, _normalised((z @ right) * d, w, is_real)))
    return results


def balanced(a: Array) -> tuple[Array, Array]:
    """(d^-1 a d, d) for the diagonal matrix d that makes each row about as large as its column; d is a column here.

    Otherwise rounding errors of the largest entries hide eigenvalues that depend on the smallest ones. The entries of d
    are powers of two: nothing is rounded.
    """
    n = a.shape[0]
    sizes = jnp.where(jnp.eye(n, dtype=bool), 0, abs(a))

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        i, exponents, _ = state
        current = sizes * jnp.exp2(exponents[None, :] - exponents[:, None])
        change = 0.25 * (jnp.log2(current.sum(1)) - jnp.log2(current.sum(0)))  # row and column both move, in a pair
        change = jnp.where(abs(change) < jnp.inf, change, 0)
        return i + 1, exponents + change, jnp.max(abs(change))

    start = (jnp.int32(0), jnp.zeros(n, sizes.dtype), jnp.full((), jnp.inf, sizes.dtype))
    exponents = jnp.round(lax.while_loop(lambda state: (state[0] < 100) & (state[2] > 0.25), step, start)[1])
    ratios = jnp.exp2(exponents[None, :] - exponents[:, None])
    d = jnp.exp2(exponents - jnp.max(exponents))[:, None]
    return a * ratios.astype(a.dtype), d.astype(jnp.result_type(a.dtype, jnp.complex64))


def _triangular_eigenvectors(t: Array) -> Array:
    """The right eigenvectors of an upper triangular matrix of norm about 1: all at once by substitution, from below."""
    n = t.shape[0]
    limits = jnp.finfo(real_dtype(t.dtype))
    index = indices(n)
    w = diagonal(t)
    # Equal eigenvalues are taken as different by so little.
    smallest = jnp.maximum(limits.eps * abs(w), limits.tiny**0.5)

    def step(x: Array, inputs: tuple[Array, Array]) -> tuple[Array, None]:
        i, row = inputs
        difference = row[i] - w
        difference = jnp.where(abs(difference) < smallest, smallest.astype(t.dtype), difference)
        x_i = jnp.where(index > i, -(row @ x) / difference, (index == i).astype(t.dtype))
        # Vectors of nearly equal eigenvalues grow; their largest entry stays at 1.
        shrink = (1 / jnp.maximum(1, abs(x_i))).astype(t.dtype)
        return replace(x, i, x_i) * shrink, None

    return lax.scan(step, jnp.zeros_like(t), (index, t), reverse=True)[0]


def _normalised(v: Array, w: Array, is_real: bool) -> Array:
    """The columns of v with norm 1 and a real largest entry; real or in conjugate pairs for a real matrix."""
    largest = jnp.take_along_axis(v, jnp.argmax(square_magnitude(v), axis=0)[None], 0)
    v = v * (jnp.conj(largest) / abs(largest))
    if is_real:
        v = jnp.where(jnp.imag(w) == 0, jnp.real(v).astype(v.dtype), v)
    v = v / jnp.sqrt(jnp.sum(square_magnitude(v), axis=0)).astype(v.dtype)
    return jnp.where(jnp.imag(w) < 0, jnp.conj(jnp.roll(v, 1, axis=1)), v) if is_real else v
