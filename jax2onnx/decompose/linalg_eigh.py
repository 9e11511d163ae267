"""Eigenvalues and eigenvectors of Hermitian matrices: reduction to tridiagonal form, then divide and conquer.

Divide and conquer has few, wide steps. All pairs of neighbouring blocks are merged at once, in matrices of full size
with masks, so that one loop over the levels does it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.lax.linalg import eigh_p

from jax2onnx.decompose import linalg_jacobi
from jax2onnx.decompose.linalg_common import (
    diagonal,
    hermitian,
    indices,
    nan_unless,
    over_batches,
    real_dtype,
    subset,
    take,
)
from jax2onnx.decompose.linalg_condense import apply_reflectors, scaled, to_tridiagonal
from jax2onnx.decompose.registry import decomposes

# The iteration for the roots converges quadratically; this many steps are never needed, but NaN must not loop forever.
ROOT_STEPS = 60


@decomposes(eigh_p)
def eigh(a: Array, *, lower: bool, subset_by_index: tuple[int, int] | None, **_) -> list[Array]:
    """Eigenvectors and ascending eigenvalues of the Hermitian matrix in one triangle of `a`."""
    results = (linalg_jacobi.eigh if linalg_jacobi.is_small(a) else _eigh)(a, lower=lower)
    return results if subset_by_index is None else [subset(x, *subset_by_index, axis=-1) for x in results]


@over_batches(2)
def _eigh(a: Array, *, lower: bool) -> list[Array]:
    n = a.shape[0]
    if n == 0:
        return [a, jnp.zeros((0,), real_dtype(a.dtype))]
    full, scale = scaled(hermitian(a, lower))
    if n == 1:
        v, w = jnp.ones_like(full), jnp.real(diagonal(full))
    else:
        d, e, reflectors, tau = to_tridiagonal(full)
        w, v = tridiagonal_eigh(d, e)
        v = apply_reflectors(reflectors, tau, v.astype(a.dtype))
    ok = jnp.all(jnp.isfinite(full))
    return [nan_unless(ok, v), nan_unless(ok, w * scale)]


def tridiagonal_eigh(d: Array, e: Array) -> tuple[Array, Array]:
    """(w, V) of the real symmetric tridiagonal matrix T with diagonal d and off-diagonals e, of norm about 1.

    T is block-diagonal plus |e_k| u u^T for each e_k between two blocks, with u = (..., 0, 1, sign(e_k), 0, ...).
    Blocks of size 1 are solved; each level merges pairs of solved blocks by solving their rank-one update.
    """
    n = d.shape[0]
    index = indices(n)
    e = jnp.pad(e, (0, 1))
    rho = abs(e)
    leaves = d - rho - jnp.pad(rho[:-1], (1, 0))

    def merge(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        size, d, v = state
        group = index // (2 * size)
        last = group * (2 * size) + size - 1  # the last row of the left block
        row = jnp.where(index <= last, last, last + 1)
        # Past the end there is no right block, and the padding of e does not couple anything.
        coupling = take(e, last)
        z = jnp.take_along_axis(v, row[None], 0, mode="clip")[0]
        z = jnp.where((index > last) & (coupling < 0), -z, z)
        d, q = _rank_one_update(d, z, abs(coupling), group)
        return 2 * size, d, v @ q

    _, w, v = lax.while_loop(lambda state: state[0] < n, merge, (jnp.int32(1), leaves, jnp.eye(n, dtype=d.dtype)))
    order = jnp.argsort(w)
    return take(w, order), take(v, order, 1)


class _Poles(NamedTuple):
    """The poles of all the secular equations: pole k is at `distance[i, k]` from pole i (infinite: in another one)."""

    distance: Array
    left: Array  # [i, k]: pole k is not right of pole i
    following: Array  # the pole right of pole i
    gap: Array  # the distance to there; infinite for the last pole
    weight: Array


def _rank_one_update(d: Array, z: Array, rho: Array, group: Array) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors of diag(d) + rho z z^T, separately in each group of indices.

    The eigenvalues are the roots of 1 + sum_k rho z_k^2 / (d_k - x) = 0, one right of each d_i. Only distances to the
    nearest d_i are computed, and z is replaced by the one that has exactly the computed roots (Gu and Eisenstat), which
    makes the eigenvectors orthogonal however close the roots are.
    """
    eps = jnp.finfo(d.dtype).eps
    n = d.shape[0]
    index = indices(n)
    # An entry of z that small does not move its eigenvalue (deflation). Others may be close together, but not equal.
    live = rho * abs(z) > 4 * eps
    pair = (group[:, None] == group) & live[:, None] & live
    left = pair & ((d < d[:, None]) | ((d == d[:, None]) & (index <= index[:, None])))
    rank = jnp.sum(left, axis=1, dtype=d.dtype)
    distance = (d - d[:, None]) + (eps / 1024) * (rank - rank[:, None])
    distance = jnp.where(pair, distance, np.inf)
    right_distance = jnp.where(left, np.inf, distance)
    following = jnp.argmin(right_distance, axis=1)
    weight = rho * z * z
    poles = _Poles(distance, left, following, jnp.min(right_distance, axis=1), weight)

    origin, offset = _roots(poles)
    to_root = take(distance, origin) - offset[:, None]  # [i, k]: from root i to pole k

    # z_k^2 rho = prod_i (root_i - d_k) / prod_{i != k} (d_i - d_k), paired so that each factor is in (0, 1).
    to_following = jnp.where((poles.gap == np.inf)[:, None], -1, take(distance, following))
    ratio = jnp.where(pair, to_root / jnp.where(left, to_following, distance), 1)
    z = jnp.where(z < 0, -1, 1) * jnp.sqrt(abs(jnp.prod(ratio, axis=0)))

    q = z[:, None] / to_root.T
    q = q / jnp.sqrt(jnp.sum(q * q, axis=0))
    q = jnp.where(live, q, index[:, None] == index)
    return jnp.where(live, take(d, origin) + offset, d), q


def _roots(poles: _Poles) -> tuple[Array, Array]:
    """The root right of each pole: the pole it is nearest to, and its distance from there."""
    eps = jnp.finfo(poles.weight.dtype).eps
    index = indices(poles.weight.shape[0])
    is_last = poles.gap == np.inf
    w_left, w_right = poles.weight, jnp.where(is_last, 0, take(poles.weight, poles.following))
    # No root is further than this right of the last pole; a little more, so that rounding leaves it inside.
    total = (1 + 4 * eps) * jnp.sum(jnp.where(poles.distance < np.inf, poles.weight, 0), axis=1)
    gap = jnp.where(is_last, total, poles.gap)

    # The sign at the middle of the gap tells which end is nearer.
    term = poles.weight / (poles.distance - gap[:, None] / 2)
    middle = 1 + jnp.sum(term, axis=1)
    from_left = is_last | (middle >= 0)
    origin = jnp.where(from_left, index, poles.following)
    distance = take(poles.distance, origin)
    left_end = jnp.where(from_left, 0, -gap)
    right_end = left_end + gap
    lower = jnp.where(from_left, jnp.where(middle < 0, gap / 2, 0), -gap / 2)
    upper = jnp.where(from_left, jnp.where(middle < 0, gap, gap / 2), 0)

    # All but the poles at the ends taken as constant.
    rest = middle - w_left / (-gap / 2) - w_right / (gap / 2)
    start = _two_pole_root(
        rest,
        rest * (left_end + right_end) + w_left + w_right,
        rest * left_end * right_end + w_left * right_end + w_right * left_end,
    )

    def inside(x: Array, lower: Array, upper: Array) -> Array:
        usable = (x >= lower) & (x <= upper) & (x != left_end) & (x != right_end)
        return jnp.where(usable, x, (lower + upper) / 2)

    def unfinished(state: Any) -> Array:
        step, _, _, _, busy = state
        return jnp.any(busy) & (step < ROOT_STEPS)

    def improve(state: Any) -> Any:
        step, x, lower, upper, _ = state
        to_pole = distance - x[:, None]
        term = poles.weight / to_pole
        slope = term / to_pole
        f = 1 + jnp.sum(term, axis=1)
        left_slope = jnp.sum(jnp.where(poles.left, slope, 0), axis=1)
        right_slope = jnp.sum(jnp.where(poles.left, 0, slope), axis=1)
        lower, upper = jnp.where(f < 0, x, lower), jnp.where(f < 0, upper, x)
        # Fit value and slopes by one pole at each end and a constant.
        p, q = left_end - x, right_end - x
        move = _two_pole_root(
            f - p * left_slope - q * right_slope, (p + q) * f - p * q * (left_slope + right_slope), p * q * f
        )
        new = inside(x + move, lower, upper)
        busy = (abs(f) > eps * (1 + jnp.sum(abs(term), axis=1))) & (abs(new - x) > eps * abs(x))
        return step + 1, jnp.where(busy, new, x), lower, upper, busy

    state = (jnp.int32(0), inside(start, lower, upper), lower, upper, total > 0)
    return origin, lax.while_loop(unfinished, improve, state)[1]


def _two_pole_root(c: Array, a: Array, b: Array) -> Array:
    """The root between the poles of c + s / (p - x) + t / (q - x), given as c x^2 - a x + b = 0."""
    root = jnp.sqrt(abs(a * a - 4 * b * c))
    return jnp.where(a <= 0, (a - root) / (2 * c), 2 * b / (a + root))
