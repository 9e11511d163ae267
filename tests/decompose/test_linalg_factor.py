"""Cholesky, LU, QR, the condensed forms and products of reflectors, against LAPACK as JAX calls it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax2onnx import compat
from jax2onnx.decompose import linalg_factor, linalg_qr
from tests.decompose.linalg_cases import (
    INEXACT,
    adjoint,
    assert_equal_up_to_rounding,
    assert_unitary,
    definition,
    hard_general,
    random,
)
from tests.helpers import check

pytestmark = pytest.mark.usefixtures("x64")

(GEQRF,), (GEQP3,) = compat.kinds.primitives("geqrf"), compat.kinds.primitives("geqp3")
# Compiling is what takes time: each shape with one dtype.
SHAPES = list(zip([(1, 1), (5, 9), (7, 7), (2, 3, 6, 4)], INEXACT, strict=True))
SQUARE_SHAPES = list(zip([(1, 1), (2, 2), (6, 6), (2, 3, 5, 5)], INEXACT, strict=True))


def assert_like_lapack(primitive, *operands, **params):
    expected = primitive.bind(*map(jnp.asarray, operands), **params)
    expected = expected if primitive.multiple_results else [expected]
    for a, e in zip(definition(primitive, *operands, **params), expected, strict=True):
        if jnp.issubdtype(e.dtype, jnp.integer):
            np.testing.assert_array_equal(a, e)
        else:
            assert_equal_up_to_rounding(a, e)


@pytest.mark.parametrize(("shape", "dtype"), SQUARE_SHAPES)
def test_cholesky(shape, dtype):
    a = random(*shape, dtype=dtype)
    # The upper triangle is not read, and stays in the result.
    assert_like_lapack(lax.linalg.cholesky_p, a @ adjoint(a) + np.eye(shape[-1], dtype=dtype) + np.triu(a, 1))


def test_cholesky_of_what_is_not_positive_definite():
    good = np.diag([2.0, 3.0, 4.0])
    bad = np.stack([good, np.diag([1.0, -1.0, 1.0]), np.diag([1.0, 0.0, 1.0]), np.ones((3, 3)), good * np.nan, good])
    actual = definition(lax.linalg.cholesky_p, bad)[0]
    np.testing.assert_allclose(actual, lax.linalg.cholesky_p.bind(bad), rtol=1e-15)


@pytest.mark.parametrize("n", [1, 3, 5, 20])
def test_cholesky_of_what_has_a_nan(n):
    """Only what is computed with it is NaN."""
    a = random(n, n)
    for place in {(0, 0), (n - 1, 0), (n - 1, n // 2), (n - 1, n - 1)}:
        bad = a @ a.T + np.eye(n)
        bad[place] = np.nan
        check(jnp.linalg.cholesky, bad)


def test_cholesky_update():
    r, w = np.triu(random(6, 6)), random(6, seed=1)
    for vector in (w, np.zeros(6), w * (np.arange(6) > 2)):
        assert_like_lapack(lax.linalg.cholesky_update_p, r, vector)


@pytest.mark.parametrize(("shape", "dtype"), SHAPES)
def test_lu(shape, dtype):
    assert_like_lapack(lax.linalg.lu_p, random(*shape, dtype=dtype))


def test_lu_with_ties_and_zeros():
    small_integers = np.random.default_rng(0).integers(-1, 2, (20, 5, 4)).astype(np.float64)
    assert_like_lapack(lax.linalg.lu_p, small_integers)
    assert_like_lapack(lax.linalg.lu_p, np.zeros((3, 3)))


def test_pivots_to_permutation():
    pivots = np.array([[2, 1, 3], [0, 1, 2], [4, 4, 4]], np.int32)
    for size in (5, 7):
        assert_like_lapack(lax.linalg.lu_pivots_to_permutation_p, pivots, permutation_size=size)


def test_symmetric_product():
    a, c = random(2, 3, 4), random(2, 3, 3)
    assert_like_lapack(lax.linalg.symmetric_product_p, a, c, alpha=2.0, beta=0.5)


@pytest.mark.parametrize(("shape", "dtype"), SHAPES)
def test_qr(shape, dtype):
    assert_like_lapack(GEQRF, random(*shape, dtype=dtype))


@pytest.mark.parametrize(("shape", "dtype"), SHAPES)
def test_pivoted_qr(shape, dtype):
    a = random(*shape, dtype=dtype)
    assert_like_lapack(lax.linalg.qr_p, a, pivoting=True, full_matrices=True, use_magma=None)


def test_pivoted_qr_with_fixed_columns():
    assert_like_lapack(GEQP3, random(5, 6), np.array([0, 0, 1, 0, 1, 0], np.int32), use_magma=None)


def test_qr_of_hard_matrices():
    a = np.stack(list(hard_general(8).values())).astype(np.float32)
    for pivoting in (False, True):
        q, r, *order = definition(lax.linalg.qr_p, a, pivoting=pivoting, full_matrices=False, use_magma=None)
        assert_unitary(q)
        assert not np.tril(r, -1).any()
        for i, matrix in enumerate(a):
            assert_equal_up_to_rounding(q[i] @ r[i], matrix[:, order[0][i]] if pivoting else matrix)


def test_qr_of_columns_of_different_scale():
    scales = np.array([1e30, 1e-30, 1.0, 1e-35], np.float32)
    q, r = definition(lax.linalg.qr_p, random(6, 4, dtype=np.float32) * scales, pivoting=False, full_matrices=False)
    q1, r1 = definition(lax.linalg.qr_p, random(6, 4, dtype=np.float32), pivoting=False, full_matrices=False)
    assert_equal_up_to_rounding(q, q1)
    assert_equal_up_to_rounding(r / scales, r1)


@pytest.mark.parametrize("shape", [(0, 0), (3, 0), (0, 3), (2, 0, 3)])
def test_empty(shape):
    a = np.zeros(shape)
    assert_like_lapack(lax.linalg.lu_p, a)
    assert_like_lapack(lax.linalg.qr_p, a, pivoting=True, full_matrices=True, use_magma=None)


def test_empty_square():
    assert definition(lax.linalg.cholesky_p, np.zeros((3, 0, 0)))[0].shape == (3, 0, 0)
    assert definition(lax.linalg.cholesky_p, np.zeros((0, 3, 3)))[0].shape == (0, 3, 3)
    assert definition(lax.linalg.lu_p, np.zeros((0, 3, 3)))[1].shape == (0, 3)


def test_products_of_reflectors():
    a, taus = map(np.asarray, GEQRF.bind(random(2, 40, 20, dtype=np.complex128)))
    assert_like_lapack(lax.linalg.householder_product_p, a, taus[:, :7])
    for left, transpose in ((True, False), (False, True)):
        c = random(2, *((40, 3) if left else (3, 40)), dtype=np.complex128)
        assert_like_lapack(lax.linalg.ormqr_p, a, taus, c, left=left, transpose=transpose)


def test_products_of_no_reflectors():
    a = random(4, 3)
    assert_like_lapack(lax.linalg.householder_product_p, a, np.zeros(0))
    np.testing.assert_array_equal(definition(lax.linalg.householder_product_p, a, np.zeros(3))[0], np.eye(4, 3))


@pytest.mark.parametrize(("shape", "dtype"), SQUARE_SHAPES)
def test_condensed_forms(shape, dtype):
    a = random(*shape, dtype=dtype)
    assert_like_lapack(lax.linalg.hessenberg_p, a)
    for lower in (True, False):
        assert_like_lapack(lax.linalg.tridiagonal_p, a + adjoint(a), lower=lower)


def test_hessenberg_of_hard_matrices():
    a = np.stack(list(hard_general(6).values()))
    h, taus = definition(lax.linalg.hessenberg_p, a)
    q = np.zeros_like(a)
    q[:, 0, 0] = 1
    q[:, 1:, 1:] = lax.linalg.householder_product(h[:, 1:, :-1], taus)
    h = np.triu(h, -1)
    assert_unitary(q)
    for i, matrix in enumerate(a):
        assert_equal_up_to_rounding(q[i] @ h[i] @ q[i].T, matrix)


def test_symbolic_batch():
    (b,) = jax.export.symbolic_shape("b")
    spec = jax.ShapeDtypeStruct((b, 4, 4), np.float32)
    assert jax.eval_shape(linalg_factor.cholesky, spec).shape == (b, 4, 4)
    assert [x.shape for x in jax.eval_shape(linalg_factor.lu, spec)] == [(b, 4, 4), (b, 4), (b, 4)]
    q, _ = jax.eval_shape(lambda a: linalg_qr.qr(a, pivoting=False, full_matrices=False), spec)
    assert q.shape == (b, 4, 4)


@pytest.mark.parametrize("shape", [(40, 3, 3), (2, 5, 3), (2, 3, 5)])
def test_lu_of_many_takes_no_products_of_matrices(shape: tuple[int, ...]) -> None:
    """Each would be a MatMul of its own in ONNX Runtime."""
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    x[0, 0] = 0
    x[1, :, 1] = x[1, :, 0]
    for dims in (None, [("B", *shape[1:])]):
        model = check(lax.linalg.lu, x, dims=dims, rtol=1e-5, atol=1e-5)
        bodies = [a.g for node in model.graph.node for a in node.attribute if a.HasField("g")]
        assert not [n for graph in (model.graph, *bodies) for n in graph.node if n.op_type == "MatMul"]
