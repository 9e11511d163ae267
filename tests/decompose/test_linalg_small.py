"""Matrices of a few rows: factorised and solved without a loop, one or many at a time."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from jax import lax

from jax2onnx.decompose import linalg_small
from jax2onnx.graphs import all_nodes
from tests.decompose.linalg_cases import assert_equal_up_to_rounding, definition, random
from tests.helpers import check, check_run

pytestmark = pytest.mark.usefixtures("x64")


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in all_nodes(ir.from_proto(model).graph)]


def positive(*shape: int) -> np.ndarray:
    a = random(*shape)
    return a @ np.swapaxes(a, -1, -2) + np.eye(shape[-1])


@pytest.mark.parametrize("shape", [(m, n) for m in range(1, 5) for n in range(1, 5)], ids=str)
def test_lu_of_all_small_shapes(shape: tuple[int, int]) -> None:
    integers = np.random.default_rng(0).integers(-2, 3, (30, *shape)).astype(np.float64)  # ties, zeros, singular ones
    for a in (integers, random(*shape)):
        for found, wanted in zip(definition(lax.linalg.lu_p, a), lax.linalg.lu_p.bind(jnp.asarray(a)), strict=True):
            assert_equal_up_to_rounding(found, wanted)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((1, 1), np.float64),
        ((2, 2), np.float32),
        ((4, 4), np.float64),
        ((7, 3, 3), np.float32),
        ((2, 3, 4, 4), np.float64),
    ],
)
def test_solving_and_inverting(shape: tuple[int, ...], dtype: Any) -> None:
    a, b = random(*shape).astype(dtype), random(*shape[:-1], 2).astype(dtype)
    model = check(lambda a, b: (jnp.linalg.solve(a, b), jnp.linalg.inv(a), jnp.linalg.slogdet(a)), a, b, rtol=1e-3)
    assert "Scan" not in operators(model) and "Loop" not in operators(model)


def test_cholesky_and_what_is_not_positive_definite() -> None:
    good = positive(3, 3)
    bad = np.stack([good, np.diag([1.0, -1.0, 1.0]), np.ones((3, 3)), good * np.nan])
    model = check(lambda a: jnp.linalg.cholesky(a, symmetrize_input=False), bad)
    assert "Scan" not in operators(model)
    for n in (1, 2, 4):
        a = positive(n, n)
        check(jnp.linalg.cholesky, a)
        check(lambda a: jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(a), jnp.ones(a.shape[0])), a)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize("unit", [True, False])
def test_triangular_systems(lower: bool, trans: int, unit: bool) -> None:
    def solve(a: Any, b: Any) -> Any:
        return jax.scipy.linalg.solve_triangular(a, b, trans=trans, lower=lower, unit_diagonal=unit)

    a, b = random(3, 3), random(3, 2)
    check(solve, a, b)
    check(jax.vmap(solve), random(5, 3, 3), random(5, 3, 2))
    check(lambda a, b: lax.linalg.triangular_solve(a, b, lower=lower, transpose_a=bool(trans)), a, random(4, 3))
    a[1, 1] = 0  # what that makes infinite is infinite
    check(solve, a, b)


def test_singular_matrices_and_infinities() -> None:
    for a in (
        [[0.0, 1.0], [0.0, 2.0]],
        [[0.0, 0.0], [0.0, 0.0]],
        [[np.inf, 1.0], [1.0, 2.0]],
        [[1.0, np.inf], [2.0, 3.0]],
    ):
        check(jnp.linalg.inv, np.array(a))
    nan = np.array([[1.0, 2.0], [np.nan, 3.0]])
    check(jnp.linalg.inv, nan)
    check(jnp.linalg.solve, np.stack([nan, np.eye(2)]), np.ones((2, 2, 1)))


def test_batches_of_any_size() -> None:
    model = check(jnp.linalg.inv, positive(5, 3, 3), dims=[("B", 3, 3)])
    for size in (1, 8):
        check_run(model, jnp.linalg.inv, positive(size, 3, 3))


def test_a_filter_has_one_loop() -> None:
    def fn(ys: Any) -> Any:
        def step(carry: Any, y: Any) -> Any:
            x, p = carry
            p = p + 0.1 * jnp.eye(2)
            gain = p @ jnp.linalg.inv(p + jnp.eye(2))
            x = x + gain @ (y - x)
            return (x, p - gain @ p), x

        return lax.scan(step, (jnp.zeros(2), jnp.eye(2)), ys)[1]

    found = operators(check(fn, random(20, 2)))
    assert found.count("Scan") == 1 and len(found) < 50


def test_larger_ones_are_left_to_loops() -> None:
    assert not linalg_small.is_small(jnp.ones((5, 5))) and not linalg_small.is_small(jnp.ones((2, 2), complex))
    assert not linalg_small.is_small(jnp.ones((0, 2)))
