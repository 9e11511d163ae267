"""Triangular, tridiagonal and custom linear systems."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core.primitives import linear_solve_p

from jax2onnx.decompose import linalg_solve, linalg_triangular
from tests.decompose.agreement import evaluate
from tests.decompose.linalg_cases import INEXACT, assert_equal_up_to_rounding, definition, random
from tests.helpers import check

pytestmark = pytest.mark.usefixtures("x64")

OPTIONS = ("left_side", "lower", "transpose_a", "conjugate_a", "unit_diagonal")


def solve(a, b, **params):
    options = dict.fromkeys(OPTIONS, False) | params
    actual = definition(lax.linalg.triangular_solve_p, a, b, **options)[0]
    return actual, np.asarray(lax.linalg.triangular_solve_p.bind(jnp.asarray(a), jnp.asarray(b), **options))


def test_every_form():
    """All at once, because compiling is what takes time."""
    a, b = random(5, 5, dtype=np.complex128) / 5 + np.eye(5), random(5, 5, dtype=np.complex128)
    forms = [dict(zip(OPTIONS, values, strict=True)) for values in itertools.product([False, True], repeat=5)]
    ours = evaluate(lambda a, b: [linalg_triangular.triangular_solve(a, b, **form) for form in forms], a, b)
    lapack = jax.jit(lambda a, b: [lax.linalg.triangular_solve_p.bind(a, b, **form) for form in forms])(a, b)
    for actual, expected in zip(ours, lapack, strict=True):
        assert_equal_up_to_rounding(actual, expected)


@pytest.mark.parametrize(("n", "dtype"), list(zip([1, 16, 17, 70], INEXACT, strict=True)))
def test_sizes(n, dtype):
    a, b = random(2, n, n, dtype=dtype) / n + 2 * np.eye(n, dtype=dtype), random(2, n, 3, dtype=dtype)
    assert_equal_up_to_rounding(*solve(a, b, left_side=True, lower=True, unit_diagonal=n == 16))


def test_ill_conditioned():
    x = np.linspace(0, 1, 100)
    a = np.linalg.cholesky(np.exp(-50 * (x[:, None] - x) ** 2) + 1e-6 * np.eye(100))
    b = random(100, 2)
    x, _ = solve(a, b, left_side=True, lower=True)
    # The error of elimination: a small change of each entry of a.
    assert (np.abs(a @ x - b) <= 10 * np.finfo(np.float64).eps * (np.abs(a) @ np.abs(x))).all()


def test_singular_and_nan():
    a = np.eye(4) + np.tril(np.ones((4, 4)))
    a[1, 1], a[3, 2] = 0, np.nan
    b = np.stack([np.ones(4), np.zeros(4), -np.ones(4)], 1)
    np.testing.assert_array_equal(*solve(a, b, left_side=True, lower=True))


@pytest.mark.parametrize(("n", "width"), [(0, 2), (3, 0), (40, 0)])
def test_empty(n, width):
    assert solve(np.zeros((n, n)), np.zeros((n, width)), left_side=True)[0].shape == (n, width)


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
def test_half_precision(dtype):
    a, b = jnp.asarray(random(4, 4) / 4 + np.eye(4)).astype(dtype), jnp.asarray(random(4, 2)).astype(dtype)
    params = dict.fromkeys(OPTIONS, False) | {"left_side": True, "lower": True}
    try:
        expected = lax.linalg.triangular_solve_p.bind(a, b, **params)
    except (NotImplementedError, ValueError, TypeError):
        pytest.skip("this JAX has it for float32 and float64 only")
    actual = definition(lax.linalg.triangular_solve_p, a, b, **params)[0]
    tolerance = 4 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(np.float32(actual), np.float32(expected), rtol=tolerance, atol=tolerance)


def tridiagonal(n, dtype):
    dl, d, du = random(3, 4, n, dtype=dtype)
    dl[:, 0] = du[:, -1] = 0
    return dl, d, du


@pytest.mark.parametrize("perturb_singular", [False, True])
@pytest.mark.parametrize(("n", "dtype"), [(1, np.float32), (10, np.complex128)])
def test_tridiagonal(n, dtype, perturb_singular):
    operands = [*tridiagonal(n, dtype), random(4, n, 2, dtype=dtype)]
    actual = definition(lax.linalg.tridiagonal_solve_p, *operands, perturb_singular=perturb_singular)[0]
    expected = lax.linalg.tridiagonal_solve_p.bind(*operands, perturb_singular=perturb_singular)
    assert_equal_up_to_rounding(actual, expected)


def test_singular_tridiagonal():
    ones, zero = np.ones(4), np.zeros(4)
    edge = np.array([0.0, 1, 1, 1])
    systems = [(zero, zero, zero), (edge, zero, edge[::-1]), (edge, ones, edge[::-1]), (zero, edge, zero)]
    dl, d, du = map(np.stack, zip(*systems, strict=True))
    b = np.broadcast_to(np.arange(1.0, 5)[:, None], (4, 4, 1))
    for perturb_singular in (False, True):
        actual = definition(lax.linalg.tridiagonal_solve_p, dl, d, du, b, perturb_singular=perturb_singular)[0]
        expected = lax.linalg.tridiagonal_solve_p.bind(dl, d, du, b, perturb_singular=perturb_singular)
        np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_custom_linear_solve():
    a, b = random(3, 3) + 4 * np.eye(3), random(3)

    def solve_with(a, b):
        inverse = 1 / jnp.diag(a)
        return lax.custom_linear_solve(lambda x: a @ x, b, lambda _, y: inverse * y, lambda _, y: y)

    *_, equation = jax.make_jaxpr(solve_with)(a, b).eqns
    assert equation.primitive is linear_solve_p
    length = equation.params["const_lengths"]
    operands = [a] * length.matvec + [a] * length.vecmat + [1 / np.diag(a)] * length.solve + [b]
    (x,) = linalg_solve.custom_linear_solve(*operands, **equation.params)
    np.testing.assert_allclose(x, b / np.diag(a), rtol=1e-12)


@pytest.mark.parametrize("shape", [(300, 4, 1), (2, 5, 7), (6, 3), (1, 1, 1)])
def test_small_systems_take_no_products_of_matrices(shape: tuple[int, ...]) -> None:
    """Of many, each would be a MatMul of its own in ONNX Runtime."""
    rng = np.random.default_rng(0)
    b = rng.normal(size=shape).astype(np.float32)
    a = (rng.normal(size=(*shape[:-1], shape[-2])) / 4 + 2 * np.eye(shape[-2])).astype(np.float32)
    for lower in (True, False):
        model = check(lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=lower), a, b, rtol=1e-5, atol=1e-6)  # noqa: B023
        bodies = [attribute.g for node in model.graph.node for attribute in node.attribute if attribute.HasField("g")]
        assert not [n for graph in (model.graph, *bodies) for n in graph.node if n.op_type in ("MatMul", "Gemm")]
