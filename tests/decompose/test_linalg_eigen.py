"""Eigenvalues, singular values and Schur forms: the spectra of LAPACK, and vectors that reconstruct the matrix."""

from functools import partial

import jax
import numpy as np
import pytest
from jax import lax

import jax2onnx
from jax2onnx import runtime
from jax2onnx.decompose import linalg_eig, linalg_eigh, linalg_svd
from tests.decompose.linalg_cases import (
    REAL,
    adjoint,
    assert_equal_up_to_rounding,
    assert_unitary,
    definition,
    hard_general,
    hard_symmetric,
    random,
)
from tests.helpers import quick

pytestmark = pytest.mark.usefixtures("x64")


def batch(matrices, dtype):
    """The matrices as one batch, because compiling is what takes time. The last two are not finite."""
    a = np.stack([*matrices.values(), *[np.eye(*matrices["random"].shape)] * 2]).astype(dtype)
    a[-2, 1, 0], a[-1, 2, 2] = np.nan, np.inf
    return a


def finite(a, results):
    """The batch and its results without the last two, which are NaN."""
    for x in results:
        assert np.isnan(x[-2:]).all()
    return [x[:-2] for x in (a, *results)]


def sizes(a):
    return np.linalg.norm(a.astype(np.result_type(a, np.float64)), axis=(-2, -1)).reshape(-1)


# ------------------------------------------------------------------------------------------------------------ eigh


def eigh(a, lower=True, subset=None):
    return definition(lax.linalg.eigh_p, a, lower=lower, sort_eigenvalues=True, subset_by_index=subset, algorithm=None)


def assert_eigh(a, v, w):
    assert_unitary(v)
    assert (np.diff(w, axis=-1) >= 0).all()
    expected = np.linalg.eigvalsh(a)
    n = a.shape[-1]
    matrices = zip(a.reshape(-1, n, n), v.reshape(-1, n, n), w.reshape(-1, n), expected.reshape(-1, n), strict=True)
    for one, v1, w1, e1 in matrices:
        size = np.abs(e1).max(initial=0)
        assert_equal_up_to_rounding(w1, e1, size)
        assert_equal_up_to_rounding((v1 * w1) @ adjoint(v1), one, size)


@pytest.mark.parametrize("dtype", quick([np.float64], REAL))
def test_eigh_of_hard_matrices(dtype):
    a = batch(hard_symmetric(26), dtype)
    a, v, w = finite(a, eigh(a))
    assert_eigh(a, v, w)
    # Diagonal matrices are exact.
    (k,) = [i for i, name in enumerate(hard_symmetric(2)) if name == "diagonal"]
    np.testing.assert_array_equal(w[k], np.sort(np.diag(a[k])))
    np.testing.assert_array_equal(a[k] @ v[k], v[k] * w[k])


def test_eigh_of_a_number():
    a = random(3, 1, 1, dtype=np.complex64)
    a = a + adjoint(a)
    assert_eigh(a, *eigh(a))


@pytest.mark.parametrize("lower", quick([True], [True, False]))
def test_eigh_reads_one_triangle(lower):
    a = random(2, 3, 5, 5, dtype=np.complex128)
    triangle = np.tril(a, -1) if lower else np.triu(a, 1)
    full = triangle + adjoint(triangle) + a.real * np.eye(5)
    assert_eigh(full, *eigh(a, lower))


def test_eigh_subset():
    a = random(2, 2) + random(2, 2).T
    v, w = eigh(a, subset=(1, 2))
    assert_equal_up_to_rounding(w, np.linalg.eigvalsh(a)[1:])
    assert_equal_up_to_rounding(a @ v, v * w)


@pytest.mark.parametrize("shape", [(0, 0), (2, 0, 0)])
def test_empty(shape):
    a = np.zeros(shape)
    results = [*eigh(a), *svd(a), *schur(a), *eig(a)]
    assert all(x.size == 0 for x in results)


# ------------------------------------------------------------------------------------------------------------- svd


def svd(a, full_matrices=True, compute_uv=True, subset=None):
    params = {"full_matrices": full_matrices, "compute_uv": compute_uv, "subset_by_index": subset, "algorithm": None}
    return definition(lax.linalg.svd_p, a, **params)


def assert_svd(a, s, u, vh):
    assert_unitary(u)
    assert_unitary(adjoint(vh))
    assert (np.diff(s, axis=-1) <= 0).all()
    assert (s >= 0).all()
    (m, n), k = a.shape[-2:], s.shape[-1]
    expected = np.linalg.svd(a, compute_uv=False).reshape(-1, k)
    u, vh = u[..., :k].reshape(-1, m, k), vh[..., :k, :].reshape(-1, k, n)
    for one, s1, u1, vh1, e1 in zip(a.reshape(-1, m, n), s.reshape(-1, k), u, vh, expected, strict=True):
        size = e1.max(initial=0)
        assert_equal_up_to_rounding(s1, e1, size)
        assert_equal_up_to_rounding((u1 * s1) @ vh1, one, size)


@pytest.mark.parametrize("dtype", quick([np.float32], REAL))
def test_svd_of_hard_matrices(dtype):
    a = batch(hard_general(12), dtype)
    assert_svd(*finite(a, svd(a)))


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((1, 1), np.float32), pytest.param((2, 3, 2, 4), np.complex64, marks=pytest.mark.slow)],
)
def test_svd(shape, dtype):
    a = random(*shape, dtype=dtype)
    assert_svd(a, *svd(a))


@pytest.mark.slow
def test_svd_parts():
    a = random(6, 4)
    expected = np.linalg.svd(a, compute_uv=False)
    (s,) = svd(a, full_matrices=False, compute_uv=False, subset=(0, 9))  # as many as there are
    assert_equal_up_to_rounding(s, expected)
    s, u, vh = svd(a, full_matrices=False, subset=(1, 3))
    assert_equal_up_to_rounding(s, expected[1:3])
    assert_equal_up_to_rounding(a @ adjoint(vh), u * s)


@pytest.mark.slow
def test_singular_values_of_a_symbolic_size():
    model = jax2onnx.to_onnx(lambda a: lax.linalg.svd(a, full_matrices=False, subset_by_index=(0, 2)), ["f32[N,4]"])
    for n in (1, 2, 5):
        a = random(n, 4, dtype=np.float32)
        u, s, vh = runtime.run(model, [a])
        assert_equal_up_to_rounding(s, np.linalg.svd(a, compute_uv=False)[:2])
        assert_equal_up_to_rounding(a @ adjoint(vh), u * s, 4)


@pytest.mark.parametrize("fn", [lax.linalg.eigh, partial(lax.linalg.svd, full_matrices=False)])
def test_more_than_there_are(fn):
    with pytest.raises(jax2onnx.UnsupportedError, match=r"\(1, 9\), where there are only 4"):
        jax2onnx.to_onnx(lambda a: fn(a, subset_by_index=(1, 9)), ["f32[4,4]"])


@pytest.mark.parametrize("shape", [(3, 0), (0, 3)])
@pytest.mark.parametrize("full_matrices", [True, False])
def test_svd_of_no_rows_or_columns(shape, full_matrices):
    params = {"full_matrices": full_matrices, "compute_uv": True, "subset_by_index": None, "algorithm": None}
    expected = lax.linalg.svd_p.bind(np.zeros(shape), **params)
    for a, e in zip(svd(np.zeros(shape), full_matrices), expected, strict=True):
        np.testing.assert_array_equal(a, e)


# ---------------------------------------------------------------------------------------------------- schur and eig


def schur(a):
    params = {"compute_schur_vectors": True, "sort_eig_vals": False, "select_callable": None}
    return definition(lax.linalg.schur_p, a, **params)


def assert_schur(a, t, z):
    assert_unitary(z)
    assert not np.tril(t, -2).any()
    below = np.diagonal(t, -1, -2, -1)
    if np.iscomplexobj(t):
        assert not below.any()
    else:  # pairs of complex eigenvalues, in the standard form of LAPACK
        diagonal, above = np.diagonal(t, 0, -2, -1), np.diagonal(t, 1, -2, -1)
        assert not ((below[..., 1:] != 0) & (below[..., :-1] != 0)).any()
        standard = (diagonal[..., 1:] == diagonal[..., :-1]) & (above * below < 0)
        assert ((below == 0) | standard).all()
    n = a.shape[-1]
    for one, t1, z1, size in zip(a.reshape(-1, n, n), t.reshape(-1, n, n), z.reshape(-1, n, n), sizes(a), strict=True):
        assert_equal_up_to_rounding(z1 @ t1 @ adjoint(z1), one, size)


@pytest.mark.parametrize("dtype", quick([np.complex128], [np.float32, np.complex128]))
def test_schur_of_hard_matrices(dtype):
    a = batch(hard_general(8), dtype)
    assert_schur(*finite(a, schur(a)))


@pytest.mark.parametrize(("n", "dtype"), [(1, np.complex64), (2, np.float64)])
def test_schur_of_small_matrices(n, dtype):
    a = random(10, n, n, dtype=dtype)
    assert_schur(a, *schur(a))


def eig(a, left=True, right=True):
    params = {"compute_left_eigenvectors": left, "compute_right_eigenvectors": right, "implementation": None}
    if "enable_eigvec_derivs" in lax.linalg.eig.__kwdefaults__:
        params["enable_eigvec_derivs"] = False
    return definition(lax.linalg.eig_p, a, **params)


def assert_eig(a, w, left, right):
    n = a.shape[-1]
    parts = [x.reshape(-1, n, n) for x in (a, left, right)]
    for one, left1, right1, w1, size in zip(*parts, w.reshape(-1, n), sizes(a), strict=True):
        assert_equal_up_to_rounding(one @ right1, right1 * w1, size)
        assert_equal_up_to_rounding(adjoint(left1) @ one, w1[:, None] * adjoint(left1), size)
        for v in (left1, right1):
            np.testing.assert_allclose(np.linalg.norm(v, axis=0), 1, rtol=1e-5)
            largest = np.abs(v) > (1 - 1e-5) * np.abs(v).max(0)
            assert ((np.abs(v.imag) < 1e-6) & largest).any(0).all()
        if not np.iscomplexobj(one):  # real, or in exactly conjugate pairs, the positive imaginary part first
            assert not right1[:, w1.imag == 0].imag.any()
            (first,) = np.nonzero(w1.imag > 0)
            np.testing.assert_array_equal(w1[first].conj(), w1[first + 1])
            np.testing.assert_array_equal(right1[:, first].conj(), right1[:, first + 1])


@pytest.mark.parametrize("dtype", quick([np.complex128], [np.float32, np.complex128]))
def test_eig_of_hard_matrices(dtype):
    a = batch(hard_general(8), dtype)
    assert_eig(*finite(a, eig(a)))


@pytest.mark.parametrize(("n", "dtype"), [(1, np.float32), (2, np.complex64), (15, np.float64)])
def test_eig(n, dtype):
    a = random(n, n, dtype=dtype)
    w, left, right = eig(a)
    assert_eig(a, w, left, right)
    expected = np.linalg.eigvals(a)
    distance = np.abs(w[:, None] - expected)
    assert distance.min(0).max() <= 1000 * np.finfo(dtype).eps * sizes(a)
    assert sorted(distance.argmin(0)) == list(range(n))


def test_eig_of_badly_scaled_matrices():
    """The small eigenvalues of a matrix in mixed units are as accurate as those in equal units."""
    a = random(8, 8)
    d = 10.0 ** np.array([0, 3, -4, 2, -1, 5, -3, 1])
    w, left, right = eig(((a / d) * d[:, None]).astype(np.float32))
    expected = np.linalg.eigvals(a)
    assert np.abs(w[:, None] - expected).min(0).max() <= 1e-5 * np.abs(expected).max()
    for m, units, v, values in ((a, d, right, w), (a.T, 1 / d, left, w.conj())):
        v = v / units[:, None]  # the vectors in equal units
        assert (np.abs(m @ v - v * values).max(0) <= 1e-4 * np.abs(v).max(0)).all()


def test_eigenvalues_only():
    a = random(3, 3)
    (w,) = eig(a, left=False, right=False)
    assert_equal_up_to_rounding(np.sort_complex(w), np.sort_complex(np.linalg.eigvals(a)))


# ----------------------------------------------------------------------------------------------------------- tracing


def test_symbolic_batch():
    (b,) = jax.export.symbolic_shape("b")
    spec = jax.ShapeDtypeStruct((b, 4, 4), np.float32)
    _, w = jax.eval_shape(lambda a: linalg_eigh.eigh(a, lower=True, subset_by_index=None), spec)
    s, *_ = jax.eval_shape(lambda a: linalg_svd.svd(a, full_matrices=True, compute_uv=True), spec)
    both = {"compute_left_eigenvectors": True, "compute_right_eigenvectors": True}
    eigenvalues, *_ = jax.eval_shape(lambda a: linalg_eig.eig(a, **both), spec)
    assert w.shape == s.shape == eigenvalues.shape == (b, 4)


def test_the_definitions_do_not_grow_with_the_size():
    def equations(n):
        spec = jax.ShapeDtypeStruct((n, n), np.float32)
        return str(jax.make_jaxpr(lambda a: linalg_svd.svd(a, full_matrices=True, compute_uv=True))(spec)).count("=")

    assert equations(100) == equations(1000)
