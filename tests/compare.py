"""Compare what a model gave with what JAX gives: dtype, shape and values of every output.

`difference(got, want)` is None or a sentence about the first difference. `want` is as JAX has it, `got` as the model
has it (complex numbers as pairs of reals). Integers, booleans and key data must be equal; NaN must meet NaN, an
infinity the same infinity; other floats agree within |got - want| <= atol + rtol * |want|. With both tolerances zero,
the signs of zeros count too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from jax2onnx.runtime import at_boundary

# The tolerances of the conformance suite. A float dtype not listed here must be equal.
CONFORMANCE: Mapping[str, float] = {"float64": 1e-6, "float32": 2e-4, "float16": 4e-3, "bfloat16": 4e-2}

# For tests of single features: a few units in the last place.
TIGHT: Mapping[str, float] = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}


def difference(
    got: Sequence[np.ndarray],
    want: Sequence[jax.Array | np.ndarray],
    *,
    tolerances: Mapping[str, float] = TIGHT,
    rtol: float | None = None,
    atol: float | None = None,
    to_scale: bool = False,
) -> str | None:
    """The first difference between the outputs of a model and of JAX, in words; None if there is none.

    With `to_scale`, `atol` is for outputs up to 1 and grows with their largest number: sums and factors have errors
    of the size of what they are computed from.
    """
    if len(got) != len(want):
        return f"{len(got)} outputs instead of {len(want)}"
    for i, (g, w) in enumerate(zip(got, map(at_boundary, want), strict=True)):
        tolerance = tolerances.get(w.dtype.name, 0.0)
        r, a = (tolerance if given is None else given for given in (rtol, atol))
        if to_scale and a:
            sizes = np.abs(w.astype(np.float64))
            a *= float(sizes[np.isfinite(sizes)].max(initial=1.0))
        if message := _type_difference(g, w) or _value_difference(g, w, r, a):
            return f"output {i}: {message}"
    return None


def assert_same(
    got: Sequence[np.ndarray],
    want: Sequence[jax.Array | np.ndarray],
    *,
    rtol: float | None = None,
    atol: float | None = None,
    to_scale: bool = False,
) -> None:
    """Fail with a sentence if the outputs of a model are not those of JAX."""
    message = difference(got, want, rtol=rtol, atol=atol, to_scale=to_scale)
    assert message is None, message


def _type_difference(got: np.ndarray, want: np.ndarray) -> str | None:
    if got.dtype != want.dtype:
        return f"dtype {got.dtype.name} instead of {want.dtype.name}"
    if got.shape != want.shape:
        return f"shape {got.shape} instead of {want.shape}"
    return None


def _value_difference(got: np.ndarray, want: np.ndarray, rtol: float, atol: float) -> str | None:
    """The worst difference of two arrays of one dtype and shape."""
    if not jax.numpy.issubdtype(want.dtype, np.floating):
        wrong = got != want
        if not wrong.any():
            return None
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        return f"{wrong.sum()} of {wrong.size} values differ, first at {at}: {got[at]} instead of {want[at]}"
    g, w = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        error, allowed = np.abs(g - w), atol + rtol * np.abs(w)
        same = (g == w) | (np.isnan(g) & np.isnan(w)) | (np.isfinite(w) & (error <= allowed))
        if rtol == atol == 0:
            same &= np.isnan(w) | (np.signbit(g) == np.signbit(w))
        if same.all():
            return None
        # A NaN or an infinity in the wrong place is worse than any finite error.
        badness = np.where(same, -1.0, np.where(np.isfinite(error), error / np.maximum(allowed, 1e-300), np.inf))
    at = tuple(int(i) for i in np.unravel_index(np.argmax(badness), badness.shape))
    off = f", off by {error[at]:.3g} where {allowed[at]:.3g} is allowed" if np.isfinite(error[at]) else ""
    count = int((~same).sum())
    return f"{count} of {same.size} values differ, worst at {at}: {got[at]!s} instead of {want[at]!s}{off}"


# Factorisations: eigenvectors, singular vectors and Q are not unique, but what they multiply to is.

Matrices = list[np.ndarray]


def factorisation_difference(
    kind: str, a: np.ndarray, got: Sequence[np.ndarray], want: Sequence[jax.Array | np.ndarray], tolerance: float
) -> str | None:
    """Like `difference`, for the outputs of `kind` (a key of FACTORISATIONS) applied to the matrices `a`."""
    wanted = [np.asarray(w) for w in want]
    if len(got) != len(wanted):
        return f"{len(got)} outputs instead of {len(wanted)}"
    for i, (g, w) in enumerate(zip(got, wanted, strict=True)):
        if message := _type_difference(g, at_boundary(w)):
            return f"output {i}: {message}"
    if a.size == 0:
        return difference(got, wanted)
    joined = [g[..., 0] + 1j * g[..., 1] if np.iscomplexobj(w) else g for g, w in zip(got, wanted, strict=True)]
    wide = np.complex128 if np.iscomplexobj(a) else np.float64
    if not all(np.isfinite(g).all() for g in joined):
        return None if difference(got, wanted) is None else "NaN or infinity in the factors"
    for claim, left, right in FACTORISATIONS[kind](a.astype(wide), joined, wanted):
        # Errors in the factors are relative to the size of the whole matrix, not of one element.
        scale = max(1.0, float(np.abs(right).max(initial=0.0)))
        error = float(np.abs(left - right).max(initial=0.0))
        if not error <= tolerance * scale:
            return f"{claim} fails: off by {error:.3g} where {tolerance * scale:.3g} is allowed"
    return None


Claims = list[tuple[str, np.ndarray, np.ndarray]]


def _eigh(a: np.ndarray, got: Matrices, want: Matrices) -> Claims:
    v, w = got
    return [("same eigenvalues", w, want[1]), ("A V = V W", a @ v, v * w[..., None, :]), ("V' V = 1", *_gram(v))]


def _svd(a: np.ndarray, got: Matrices, want: Matrices) -> Claims:
    s = got[0]
    claims: Claims = [("same singular values", s, want[0])]
    if len(got) == 3:
        u, vt, k = got[1], got[2], s.shape[-1]
        product = (u[..., :k] * s[..., None, :]) @ vt[..., :k, :]
        claims += [("U S V' = A", product, a), ("U' U = 1", *_gram(u)), ("V' V = 1", *_gram(np.swapaxes(vt, -1, -2)))]
    return claims


def _qr(a: np.ndarray, got: Matrices, want: Matrices) -> Claims:
    q, r = got
    return [("Q R = A", q @ r, a), ("Q' Q = 1", *_gram(q)), ("R is upper triangular", np.triu(r), r)]


def _eig(a: np.ndarray, got: Matrices, want: Matrices) -> Claims:
    """The eigenvalues come first, in no particular order, then left and right vectors if they were asked for."""
    w = got[0]
    claims: Claims = [("same eigenvalues", *_paired(w, want[0]))]
    adjoint = np.conj(np.swapaxes(a, -1, -2))
    for vectors, expected in zip(got[1:], want[1:], strict=True):
        # Which of the two it is can be read off JAX's own result.
        right = _residual(a, expected, want[0]) <= _residual(adjoint, expected, np.conj(want[0]))
        m, values, claim = (a, w, "A V = V W") if right else (adjoint, np.conj(w), "A' U = U W'")
        claims.append((claim, m @ vectors, vectors * values[..., None, :]))
        claims.append(("vectors have length 1", np.linalg.norm(vectors, axis=-2), np.ones(w.shape)))
    return claims


def _schur(a: np.ndarray, got: Matrices, want: Matrices) -> Claims:
    t, q = got
    product = q @ t @ np.conj(np.swapaxes(q, -1, -2))
    below = np.tril(t, -1 if np.iscomplexobj(t) else -2)  # a real T may have 2x2 blocks on its diagonal
    return [("Q T Q' = A", product, a), ("Q' Q = 1", *_gram(q)), ("T is triangular", below, np.zeros_like(below))]


# For each group of such results: the equations (claim, left side, right side) that must hold for what was got.
FACTORISATIONS: Mapping[str, Callable[[np.ndarray, Matrices, Matrices], Claims]] = {
    "eig": _eig,
    "eigh": _eigh,
    "qr": _qr,
    "schur": _schur,
    "svd": _svd,
}


def _gram(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    product = np.conj(np.swapaxes(v, -1, -2)) @ v
    return product, np.broadcast_to(np.eye(v.shape[-1]), product.shape)


def _paired(got: np.ndarray, want: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The values of each row of `got` in an order in which each is next to the closest yet unused one of `want`."""
    rows, wanted = got.reshape(-1, got.shape[-1]).copy(), want.reshape(-1, want.shape[-1])
    for row, targets in zip(rows, wanted, strict=True):
        for i, target in enumerate(targets):
            j = i + int(np.argmin(np.abs(row[i:] - target)))
            row[i], row[j] = row[j], row[i]
    return rows.reshape(got.shape), want


def _residual(a: np.ndarray, vectors: np.ndarray, values: np.ndarray) -> float:
    return float(np.abs(a @ vectors - vectors * values[..., None, :]).max(initial=0.0))
