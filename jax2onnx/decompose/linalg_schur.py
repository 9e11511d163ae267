"""The Schur form, by Francis' implicit double-shift QR algorithm on the Hessenberg form."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.lax.linalg import schur_p

from jax2onnx.decompose.linalg_common import (
    adjoint,
    at,
    diagonal,
    indices,
    is_complex,
    nan_unless,
    over_batches,
    part,
    real_dtype,
    reflector,
    replace_part,
    rows_to_add,
    triu,
)
from jax2onnx.decompose.linalg_condense import apply_reflectors, scaled, to_hessenberg
from jax2onnx.decompose.registry import decomposes

# LAPACK gives up after that many sweeps per row as well.
SWEEPS_PER_ROW = 30


@decomposes(schur_p)
@over_batches(2)
def schur(a: Array, *, compute_schur_vectors: bool, **_) -> list[Array]:
    """(T, Z) with a = Z T Z^H: T upper triangular, with 2 x 2 blocks on the diagonal for complex pairs of a real a."""
    n = a.shape[0]
    if more := rows_to_add(n, 3):
        return [x[:n, :n] for x in schur(jnp.pad(a, (0, more)), compute_schur_vectors=compute_schur_vectors)]
    if n == 0:
        return [a, a] if compute_schur_vectors else [a]
    a, scale = scaled(a)
    t, z, ok = quasi_triangular(a, compute_schur_vectors)
    if a.shape[0] > 1:
        t, z = (split_blocks if is_complex(a) else _standardised)(t, z)
    t = nan_unless(ok, t * scale.astype(a.dtype))
    return [t, nan_unless(ok, z)] if compute_schur_vectors else [t]


def quasi_triangular(a: Array, vectors: bool) -> tuple[Array, Array, Array]:
    """(t, z, ok) with a = z t z^H and blocks of size 1 and 2 on the diagonal of t. Without `vectors`, z has no rows."""
    n = a.shape[0]
    ok = jnp.all(jnp.isfinite(a))
    z = jnp.eye(n if vectors else 0, n, dtype=a.dtype)
    if n <= 2:
        return a, z, ok
    h, reflectors, tau = to_hessenberg(a)
    if vectors:
        z = apply_reflectors(reflectors, tau, z)
    # One more row and column, of zeros: every reflector then has three rows. z shares its columns with h.
    hz = jnp.concatenate([jnp.pad(h, ((0, 1), (0, 1))), jnp.pad(z, ((0, 0), (0, 1)))])

    def unfinished(state: Any) -> Array:
        sweep, _, _, last, _ = state
        return (last > 0) & (sweep < SWEEPS_PER_ROW * n)

    def iterate(state: Any) -> Any:
        sweep, stalled, first, last, hz = state
        hz = _sweep(hz, first, last, stalled % 10 == 9)
        hz, new_first, new_last = _deflated(hz, n)
        return sweep + 1, jnp.where(new_last == last, stalled + 1, 0), new_first, new_last, hz

    hz, first, last = _deflated(hz, n)
    state = (jnp.int32(0), jnp.int32(0), first, last, hz)
    _, _, _, last, hz = lax.while_loop(unfinished, iterate, state)
    return hz[:n, :n], hz[n + 1 :, :n], ok & (last == 0)


def _deflated(hz: Array, n: int) -> tuple[Array, Array, Array]:
    """Set what is negligible below the diagonal to zero; the first and last row of the lowest block that is left.

    Blocks of up to 2 rows are finished; the last row is 0 if there are no others. The largest entry is about 1.
    """
    limits = jnp.finfo(real_dtype(hz.dtype))
    index = indices(n)
    entries = abs(diagonal(hz[:n, :n]))
    below = jnp.pad(abs(diagonal(hz[:n, :n], -1)), (0, 1))
    size = entries + jnp.pad(entries[1:], (0, 1))
    coupled = below > jnp.maximum(limits.eps * size, limits.eps**2)
    row, column = indices(hz.shape[0])[:, None], indices(n + 1)
    zero = (row > column + 1) | ((row == column + 1) & ~jnp.pad(coupled, (0, 1)))
    hz = jnp.where(zero & (row <= n), 0, hz)
    chain = coupled & jnp.pad(coupled[1:], (0, 1))
    last = jnp.max(jnp.where(chain, index + 2, 0))
    first = jnp.max(jnp.where(~coupled & (index < last - 1), index + 1, 0))
    return hz, first, last


def _sweep(hz: Array, first: Array, last: Array, exceptional: Array) -> Array:
    """One double-shift QR step on the block of rows first ... last: chase a bulge of three rows down its diagonal."""

    def after_shifts() -> Array:
        """The first column of (h - s_1)(h - s_2), up to a factor, for the shifts s_1 and s_2."""
        corner = part(part(hz, last - 2, 3), last - 2, 3, 1)
        a, bc, d = corner[1, 1], corner[1, 2] * corner[2, 1], corner[2, 2]
        if not is_complex(hz):  # of two real shifts, the one nearer to the corner is used twice
            half = (a - d) / 2
            root = jnp.sqrt(jnp.maximum(half * half + bc, 0))
            far = half + jnp.where(half < 0, -root, root)
            near = d - jnp.where(far == 0, 0, bc / far)
            both_real = half * half + bc >= 0
            a, bc, d = jnp.where(both_real, near, a), jnp.where(both_real, 0, bc), jnp.where(both_real, near, d)
        # Other shifts now and then break a cycle.
        size = (abs(corner[2, 1]) + abs(corner[1, 0])).astype(hz.dtype)
        away = corner[2, 2] + 0.75 * size
        a, d = jnp.where(exceptional, away, a), jnp.where(exceptional, away, d)
        bc = jnp.where(exceptional, -0.4375 * size * size, bc)
        top = part(part(hz, first, 3), first, 3, 1)
        a, d = a - top[0, 0], d - top[0, 0]
        x = jnp.stack([(a * d - bc) / top[1, 0] + top[0, 1], top[1, 1] - top[0, 0] - a - d, top[2, 1]])
        return x / jnp.max(abs(x))

    start = after_shifts()

    def step(state: tuple[Array, Array]) -> tuple[Array, Array]:
        k, hz = state
        rows = part(hz, k, 3)
        v, tau, _ = reflector(jnp.where(k == first, start, at(rows, jnp.maximum(k - 1, 0), 1)), 0)
        hz = replace_part(hz, k, rows - v[:, None] * (jnp.conj(tau) * (jnp.conj(v) @ rows)))
        columns = part(hz, k, 3, 1)
        return k + 1, replace_part(hz, k, columns - (tau * (columns @ v))[:, None] * jnp.conj(v), 1)

    return lax.while_loop(lambda state: state[0] < last, step, (first, hz))[1]


def blocks(t: Array) -> tuple[Array, Array, Array, Array, Array]:
    """(is a 2 x 2 block, a, b, c, d) for the blocks [[a, b], [c, d]] that may start in each row but the last."""
    entries, below = diagonal(t), diagonal(t, -1)
    return below != 0, entries[:-1], diagonal(t, 1), below, entries[1:]


def _rotated(t: Array, z: Array, start: Array, x: Array, y: Array) -> tuple[Array, Array]:
    """t and z after a change of basis by [[x, -conj(y)], [y, conj(x)]] in each block."""
    x, y = jnp.where(start, x, 1), jnp.where(start, y, 0)
    on_diagonal = jnp.pad(x, (0, 1), constant_values=1) * jnp.pad(jnp.conj(x), (1, 0), constant_values=1)
    g = jnp.diag(on_diagonal) + jnp.diag(y, -1) - jnp.diag(jnp.conj(y), 1)
    return adjoint(g) @ t @ g, z @ g


def _standardised(t: Array, z: Array) -> tuple[Array, Array]:
    """Split the 2 x 2 blocks that have real eigenvalues; make the two diagonal entries of the others equal."""
    start, a, b, c, d = blocks(t)
    half = (a - d) / 2
    discriminant = half * half + b * c
    is_pair = start & (discriminant < 0)

    far = half + jnp.where(half < 0, -1, 1) * jnp.sqrt(abs(discriminant))
    length = jnp.sqrt(far * far + c * c)
    spread = jnp.sqrt((b + c) ** 2 + (a - d) ** 2)
    spread = jnp.where(spread == 0, 1, spread)
    cosine = jnp.sqrt(0.5 * (1 + abs(b + c) / spread))
    sine = -half / (spread * cosine) * jnp.where(b + c < 0, -1, 1)
    cosine, sine = jnp.where(a == d, 1, cosine), jnp.where(a == d, 0, sine)
    t, z = _rotated(t, z, start, jnp.where(is_pair, cosine, far / length), jnp.where(is_pair, sine, c / length))

    row, column = indices(t.shape[0])[:, None], indices(t.shape[0])
    entries = diagonal(t)
    mean = (entries[:-1] + entries[1:]) / 2
    paired = jnp.pad(is_pair, (0, 1)), jnp.pad(is_pair, (1, 0))
    entries = jnp.where(paired[0], jnp.pad(mean, (0, 1)), jnp.where(paired[1], jnp.pad(mean, (1, 0)), entries))
    t = jnp.where(row == column, entries, t)
    return jnp.where((row > column + 1) | ((row == column + 1) & ~paired[0]), 0, t), z


def split_blocks(t: Array, z: Array) -> tuple[Array, Array]:
    """The complex upper triangular form of a quasi-triangular one, real or complex."""
    start, a, b, c, d = blocks(t)
    half = (a - d) / 2
    discriminant = half * half + b * c
    if is_complex(t):
        root = jnp.sqrt(discriminant)
        root = jnp.where(jnp.real(jnp.conj(half) * root) < 0, -root, root)
        far = half + root
        second = d - jnp.where(far == 0, 0, b * c / far)
        first = d + far
    else:
        root = jnp.sqrt(abs(discriminant))
        real = half + jnp.where(half < 0, -root, root)
        is_pair = discriminant < 0
        zero = jnp.zeros_like(root)
        far = lax.complex(jnp.where(is_pair, half, real), jnp.where(is_pair, root, zero))
        first = d + far
        second = jnp.where(is_pair, jnp.conj(first), d - jnp.where(real == 0, 0, b * c / real))
    length = jnp.sqrt(jnp.real(far) ** 2 + jnp.imag(far) ** 2 + abs(c) ** 2).astype(far.dtype)
    entries = diagonal(t).astype(far.dtype)
    t, z = _rotated(t.astype(far.dtype), z.astype(far.dtype), start, far / length, c / length)
    entries = jnp.where(jnp.pad(start, (0, 1)), jnp.pad(first, (0, 1)), entries)
    entries = jnp.where(jnp.pad(start, (1, 0)), jnp.pad(second, (1, 0)), entries)
    return triu(t, 1) + jnp.diag(entries), z
