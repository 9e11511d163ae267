"""Cases of which JAX leaves part of the result open, and how they are compared instead: the whole list of exceptions.

Everything that is not in `OPEN_RESULTS` must equal what `jax.jit` gives, within the tolerance of its dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jax2onnx.runtime import at_boundary
from tests.compare import CONFORMANCE, difference, factorisation_difference

Arrays = Sequence[np.ndarray]


def case_difference(harness: Any, args: Arrays, got: Arrays, want: Arrays) -> str | None:
    """What is wrong with the outputs `got` of a case, in words; None if nothing is."""
    for open_result in OPEN_RESULTS:
        if open_result.applies(harness):
            return open_result.difference(harness, args, got, want)
    return difference(got, want, tolerances=CONFORMANCE)


@dataclass(frozen=True)
class OpenResult:
    """Some cases, what JAX leaves open about them, and the comparison that fits."""

    cases: str
    why: str
    applies: Callable[[Any], bool]
    difference: Callable[[Any, Arrays, Arrays, Arrays], str | None]


def _factors(harness: Any, args: Arrays, got: Arrays, want: Arrays) -> str | None:
    (a,) = args
    return factorisation_difference(harness.group_name, a, got, want, CONFORMANCE[np.finfo(a.dtype).dtype.name])


def _factor_as_good_as_jax(harness: Any, args: Arrays, got: Arrays, want: Arrays) -> str | None:
    """JAX's factor, or else one whose square is as close to the matrix. Above the diagonal nothing is open."""
    message = difference(got, want, tolerances=CONFORMANCE)
    if message is None or got[0].shape != at_boundary(want[0]).shape or not np.isfinite(got[0]).all():
        return message
    (a,) = args
    factor = got[0][..., 0] + 1j * got[0][..., 1] if np.iscomplexobj(a) else got[0]
    if above := difference([at_boundary(np.triu(factor, 1))], [np.triu(want[0], 1)], tolerances=CONFORMANCE):
        return above

    def error(lower: np.ndarray) -> float:
        lower = np.tril(lower).astype(np.complex128)
        return float(np.abs(np.tril(lower @ np.conj(np.swapaxes(lower, -1, -2)) - a)).max())

    right_signs = (np.diagonal(factor, axis1=-2, axis2=-1).real > 0).all()
    return None if right_signs and error(factor) <= 4 * error(want[0]) else message


def _sorted_in_any_order(harness: Any, args: Arrays, got: Arrays, want: Arrays) -> str | None:
    """Keys as JAX has them, and each run of equal keys next to the same operands, in whatever order."""
    keys = harness.params["num_keys"]
    if message := difference(got[:keys], want[:keys], tolerances=CONFORMANCE):
        return message
    same_types = [(g.dtype, g.shape) for g in got] == [(w.dtype, w.shape) for w in want]
    if not same_types or want[0].ndim != 1:
        return difference(got, want, tolerances=CONFORMANCE)
    got, want = ([x[np.lexsort(tuple(reversed(rows)))] for x in rows] for rows in (got, want))
    return difference(got, want, tolerances=CONFORMANCE)


def _values_at_any_index(harness: Any, args: Arrays, got: Arrays, want: Arrays) -> str | None:
    """Values as JAX has them, and for each a different index at which it can be found."""
    if message := difference(got[:1], want[:1], tolerances=CONFORMANCE):
        return message
    values, indices = got[0], got[1]
    if (indices.dtype, indices.shape) != (want[1].dtype, want[1].shape):
        return difference(got, want, tolerances=CONFORMANCE)
    if ((indices < 0) | (indices >= args[0].shape[-1])).any() or (np.diff(np.sort(indices)) == 0).any():
        return "output 1: an index is out of range or given twice"
    return difference([np.take_along_axis(args[0], indices, axis=-1)], [values], rtol=0, atol=0)


OPEN_RESULTS = [
    OpenResult(
        "eig, eigh, svd, qr",
        "Eigenvectors, singular vectors and Q are unique only up to signs, phases and, for equal values, rotations; the"
        " eigenvalues of eig have no order. The spectrum is compared, and the equations that the factors must fulfil.",
        lambda harness: harness.group_name in ("eig", "eigh", "svd", "qr"),
        _factors,
    ),
    OpenResult(
        "cholesky, where it is ill-conditioned",
        "The float32 factors of the 200x200 matrices (condition 1e5 to 1e7) are off by more than the tolerance in JAX"
        " too, compared with exact arithmetic. A factor that is not within it must be as good as JAX's: L L' no further"
        " from the matrix than four times the distance that JAX's own has.",
        lambda harness: harness.group_name == "cholesky",
        _factor_as_good_as_jax,
    ),
    OpenResult(
        "sort with is_stable=False of several operands",
        "The order of elements with equal keys is open. Keys are compared as they are, and which operands stand next to"
        " each key.",
        lambda harness: (
            harness.group_name == "sort"
            and not harness.params["is_stable"]
            and harness.params["num_keys"] < harness.params["num_arrays"]
        ),
        _sorted_in_any_order,
    ),
    OpenResult(
        "approx_top_k",
        "Which index stands for a value that occurs several times is open (XLA sorts without keeping the order). Values"
        " are compared as they are, and each index must be another one at which the operand has that value.",
        lambda harness: harness.group_name == "approx_top_k",
        _values_at_any_index,
    ),
]
