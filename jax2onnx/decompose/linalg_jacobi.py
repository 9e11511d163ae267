"""Eigenvalues and eigenvectors of symmetric matrices of two or three rows, by Jacobi's rotations.

Point clouds and tensors of stress have many of them. Each rotation makes one entry off the diagonal zero, and is a few
operations on as many numbers as there are matrices. The rows then take turns, so that the body of the loop is always
about the first two. As accurate as what is done with larger ones, and more so for small eigenvalues of graded matrices.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jax2onnx.decompose.linalg_common import is_complex, nan_unless, over_batches, power_of_two
from jax2onnx.decompose.linalg_small import batch_last

SWEEPS = {2: 1, 3: 5}
"""How often each entry off the diagonal is made zero, by the number of rows: they vanish quadratically."""


def is_small(a: Array) -> bool:
    """Are these matrices to be worked on by what is here?"""
    return not is_complex(a) and a.shape[-1] in SWEEPS


@over_batches(2, apply=batch_last)
def eigh(a: Array, *, lower: bool) -> list[Array]:
    """Eigenvectors and ascending eigenvalues of the symmetric matrix in one triangle of `a`."""
    n = a.shape[0]
    below = [(j, i) if lower else (i, j) for i in range(n) for j in range(i + 1, n)]
    entries = jnp.stack([a[i, j] for i, j in [*((i, i) for i in range(n)), *below]])
    ok = jnp.all(jnp.isfinite(entries), 0)
    scale = power_of_two(jnp.max(abs(entries), 0))
    entries = entries / scale
    identity = np.eye(n, dtype=a.dtype).reshape(n, n, *(1,) * (a.ndim - 2))
    columns = [jnp.broadcast_to(column, (n, *a.shape[2:])) for column in identity]
    if n == 2:
        (d0, d1, o), (v0, v1) = entries, columns
        turn = _rotation(d0, d1, o)
        d, v = [d0 - turn[0] * o, d1 + turn[0] * o], list(_turned(turn, v0, v1))
    else:
        d0, d1, d2, o01, o02, o12 = entries
        state = (d0, d1, d2), (o01, o12, o02), tuple(columns)
        (d, _, v), _ = lax.scan(_turn, state, None, length=3 * SWEEPS[3])
    for i, j in ((0, 1), (1, 2), (0, 1)) if n == 3 else ((0, 1),):
        d, v = _in_order(list(d), list(v), i, j)
    if n == 2:
        v = _signed(entries, v)
    return [nan_unless(ok, jnp.stack(v, 1)), nan_unless(ok, jnp.stack(d) * scale)]


def _rotation(d0: Array, d1: Array, o: Array) -> tuple[Array, Array, Array]:
    """Tangent, cosine and sine of the angle that makes o zero, in the matrix [[d0, o], [o, d1]]."""
    difference, twice = d1 - d0, 2 * o
    root = jnp.sqrt(difference * difference + twice * twice)
    total = difference + jnp.where(difference < 0, -root, root)
    tangent = twice / jnp.where(total == 0, 1, total)
    cosine = lax.rsqrt(1 + tangent * tangent)
    return tangent, cosine, tangent * cosine


def _turned(rotation: tuple[Array, Array, Array], x: Array, y: Array) -> tuple[Array, Array]:
    _, cosine, sine = rotation
    return cosine * x - sine * y, sine * x + cosine * y


def _turn(state: tuple, _: None) -> tuple[tuple, None]:
    """Make the entry between the first two rows zero; then the second and third are the first two."""
    (d0, d1, d2), (o01, o12, o20), (v0, v1, v2) = state
    rotation = _rotation(d0, d1, o01)
    shift = rotation[0] * o01
    o20, o12 = _turned(rotation, o20, o12)
    v0, v1 = _turned(rotation, v0, v1)
    return ((d1 + shift, d2, d0 - shift), (o12, o20, jnp.zeros_like(o01)), (v1, v2, v0)), None


def _in_order(d: list[Array], v: list[Array], i: int, j: int) -> tuple[list[Array], list[Array]]:
    """Exchange two eigenvalues, and their eigenvectors, where the first one is larger."""
    exchanged = d[i] > d[j]
    for x in (d, v):
        x[i], x[j] = jnp.where(exchanged, x[j], x[i]), jnp.where(exchanged, x[i], x[j])
    return d, v


def _signed(entries: Array, v: list[Array]) -> list[Array]:
    """Eigenvectors of two rows with the signs that LAPACK gives them."""
    d0, d1, o = entries
    falls, is_positive, trace = d0 > d1, o > 0, d0 + d1
    low = (falls & (is_positive == (trace >= 0))) | ((d0 == d1) & (trace < 0))
    high = jnp.where(falls, ~is_positive, abs(d0) <= abs(d1))
    places = zip(v, (0, 1), (low, high), strict=True)
    return [jnp.where((o != 0) & ((x[i] > 0) != positive), -x, x) for x, i, positive in places]
