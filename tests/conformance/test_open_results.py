"""What JAX leaves open may differ; nothing else may."""

from types import SimpleNamespace

import numpy as np
import pytest

from jax2onnx.runtime import at_boundary
from tests.conformance.open_results import case_difference


def harness(group_name, **params):
    return SimpleNamespace(group_name=group_name, params=params)


def test_unstable_sort():
    unstable = harness("sort", is_stable=False, num_keys=1, num_arrays=2)
    stable = harness("sort", is_stable=True, num_keys=1, num_arrays=2)
    want = [np.int32([0, 0, 1, 1]), np.float32([5, 6, 7, 8])]
    other_order = [want[0], np.float32([6, 5, 7, 8])]
    other_partner = [want[0], np.float32([5, 7, 6, 8])]
    other_keys = [np.int32([0, 0, 1, 2]), want[1]]
    assert case_difference(unstable, [], want, want) is None
    assert case_difference(unstable, [], other_order, want) is None
    assert "differ" in case_difference(stable, [], other_order, want)
    assert "differ" in case_difference(unstable, [], other_partner, want)
    assert "differ" in case_difference(unstable, [], other_keys, want)
    assert "dtype" in case_difference(unstable, [], [want[0], want[1].astype(np.float64)], want)


def test_approx_top_k():
    case = harness("approx_top_k")
    operand = np.float32([[3, 1, 3, 2]])
    want = [np.float32([[3, 3, 2]]), np.int32([[0, 2, 3]])]
    assert case_difference(case, [operand], want, want) is None
    assert case_difference(case, [operand], [want[0], np.int32([[2, 0, 3]])], want) is None
    assert "differ" in case_difference(case, [operand], [want[0], np.int32([[0, 1, 3]])], want)
    assert "twice" in case_difference(case, [operand], [want[0], np.int32([[0, 0, 3]])], want)
    assert "out of range" in case_difference(case, [operand], [want[0], np.int32([[0, 2, 4]])], want)
    assert "differ" in case_difference(case, [operand], [np.float32([[3, 3, 1]]), np.int32([[0, 2, 1]])], want)
    assert "dtype" in case_difference(case, [operand], [want[0], want[1].astype(np.int64)], want)


def test_eigenvectors():
    a = np.float32([[2, 1], [1, 2]])
    want = [np.float32([[-1, 1], [1, 1]]) / np.float32(np.sqrt(2)), np.float32([1, 3])]
    assert case_difference(harness("eigh"), [a], [-want[0], want[1]], want) is None
    assert "eigenvalues" in case_difference(harness("eigh"), [a], [want[0], want[1] + 1], want)
    assert "differ" in case_difference(harness("lu"), [a], [-want[0], want[1]], want)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_cholesky(dtype):
    rng = np.random.default_rng(0)
    lower = np.tril(rng.normal(size=(30, 30)), -1).astype(dtype)
    if dtype == np.complex64:
        lower *= 1j + 1
    lower += 9 * np.eye(30, dtype=dtype)
    lower[-1, -1] = 0.01  # which is all but lost in the rounding of the last element of the matrix
    a = lower @ np.conj(lower.T)
    want = lower + np.triu(a, 1)
    as_good = want.copy()
    as_good[-1, -1] = 0.0103

    def message(got, group="cholesky"):
        return case_difference(harness(group), [a], [at_boundary(got)], [want])

    assert message(want) is None
    assert message(as_good) is None
    assert "differ" in message(as_good, "lu")
    flipped = np.where(np.eye(30), -want, want)
    for wrong in (flipped, want + np.triu(np.ones_like(want), 1), lower * 1.001 + np.triu(a, 1), want * np.nan):
        assert "differ" in message(wrong.astype(dtype))
    assert "dtype" in message(want.astype(np.complex128))
