"""Symmetric matrices of two and three rows: the spectra of LAPACK, and vectors that reconstruct the matrix."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.decompose.linalg_cases import hard_symmetric, random
from tests.decompose.test_linalg_eigen import assert_eigh, eigh
from tests.helpers import check, check_run

pytestmark = pytest.mark.usefixtures("x64")


def matrices(n, dtype):
    """Hard ones, small integers with many equal eigenvalues, graded ones, of all sizes; the last two are not finite."""
    rng = np.random.default_rng(0)
    whole = rng.integers(-2, 3, (200, n, n))
    grades = 10.0 ** -np.arange(0, 3 * n, 3)
    graded = rng.normal(size=(50, n, n)) * grades * grades[:, None]
    close = np.eye(n) + 1e-7 * rng.normal(size=(50, n, n))
    hard = np.stack([a for a in hard_symmetric(n).values() if len(a) == n])
    a = np.concatenate([hard, *(x + x.mT for x in (whole, graded, close))])
    limits = np.finfo(dtype)
    a = np.concatenate([a, a[:5] * (limits.max / 1e6), a[:5] * (limits.tiny * 1e6), np.zeros((1, n, n)), a[:2]])
    a = a.astype(dtype)
    a[-2, 1, 0], a[-1, 1, 1] = np.nan, np.inf
    return a


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [2, 3])
def test_hard_matrices(n, dtype):
    a = matrices(n, dtype)
    v, w = eigh(a)
    assert np.isnan(v[-2:]).all() and np.isnan(w[-2:]).all()
    assert_eigh(a[:-2], v[:-2], w[:-2])
    diagonal = np.stack([np.diag(random(n)) for _ in range(3)]).astype(dtype)
    np.testing.assert_array_equal(eigh(diagonal)[1], np.sort(np.diagonal(diagonal, axis1=1, axis2=2)))


@pytest.mark.parametrize("lower", [True, False])
def test_reads_one_triangle(lower):
    a = random(2, 5, 3, 3)
    triangle = np.tril(a, -1) if lower else np.triu(a, 1)
    full = triangle + triangle.mT + a * np.eye(3)
    assert_eigh(full, *eigh(a, lower))
    assert_eigh(full[0, 0], *eigh(a[0, 0], lower))


def test_only_eigenvalues_of_a_batch_of_any_size():
    a = random(7, 3, 3, dtype=np.float32)
    fn = lambda a: jnp.linalg.eigvalsh(a, symmetrize_input=True)  # noqa: E731
    model = check(fn, a, dims=[("B", 3, 3)], atol=1e-5)
    assert [n.op_type for n in model.graph.node].count("Scan") == 1
    assert "Loop" not in [n.op_type for n in model.graph.node]
    check_run(model, fn, a[:0])
    check_run(model, fn, a[:1], atol=1e-5)


def test_one_matrix_and_its_vectors():
    def fn(a):
        v, w = lax.linalg.eigh(a + a.T)
        return (v * w) @ v.T, w

    for n in (2, 3):
        check(fn, random(n, n, dtype=np.float32), atol=1e-5)


def test_the_signs_of_lapack():
    """Of eigenvectors of two rows; those of three are found another way."""
    whole = np.array([[[i, k], [k, j]] for i in range(-3, 4) for j in range(-3, 4) for k in range(-3, 4)])
    drawn = random(200, 2, 2)
    for a in (whole.astype(np.float32), (drawn + drawn.mT).astype(np.float32)):
        check(jnp.linalg.eigh, a, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_largest_numbers_are_finite_and_the_smallest_are_numbers(dtype):
    limits = np.finfo(dtype)
    for n in (2, 3, 4):
        a = np.array([1, -0.5, 0.75, 0.25][:n]) * np.eye(n)
        check(jnp.linalg.eigvalsh, (a * limits.max).astype(dtype), rtol=1e-5)
        check(jnp.linalg.eigvalsh, (a * limits.smallest_subnormal * 8).astype(dtype), atol=limits.tiny)
