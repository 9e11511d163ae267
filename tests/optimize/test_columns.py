"""Reductions over axes with others behind them: sums by products with ones, and everything else in two steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from jax import numpy as jnp

from jax2onnx import runtime
from tests.helpers import check, quick

rng = np.random.default_rng(0)


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def floats(*shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


REDUCTIONS = [jnp.sum, jnp.mean, jnp.max, jnp.min]
CASES = [
    ((1, 14, 14, 64), (1, 2), (1, 14, 14, 64)),
    ((1, 14, 14, 64), (1, 2), ("B", 14, 14, 64)),
    ((196, 64), 0, (196, 64)),
    ((1, 196, 64), 1, (1, 196, 64)),
    ((1, 196, 64), 1, ("B", 196, 64)),
    ((4, 196, 64), 1, (4, 196, 64)),
    ((2, 3, 196, 64), 2, ("B", "C", 196, 64)),
    ((4, 6, 5, 6, 8), (0, 1, 2), (4, 6, 5, 6, 8)),
    ((2, 4, 6, 5, 6, 8), (1, 2, 3), ("B", 4, 6, 5, 6, 8)),
    ((1, 48, 14, 14), 1, (1, 48, 14, 14)),
    ((1, 48, 14, 14), 1, ("B", 48, 14, 14)),
    ((1031, 7, 3), 0, (1031, 7, 3)),
]


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("dtype", quick([np.float32], [np.float32, np.float64, np.int32, np.float16]))
@pytest.mark.parametrize(("shape", "axes", "dims"), CASES)
def test_columns(shape: tuple[int, ...], axes: Any, dims: Any, dtype: type, keepdims: bool) -> None:
    x = (9 * rng.normal(size=shape)).astype(dtype)
    tolerance = {"rtol": 5e-3, "atol": 0.2} if dtype == np.float16 else {"rtol": 1e-5, "atol": 2e-3}
    check(lambda x: [f(x, axes, keepdims=keepdims) for f in REDUCTIONS], x, dims=[dims], x64=True, **tolerance)


@pytest.mark.parametrize("shape", [(196, 64), (1, 196, 64), (4, 196, 64)])
def test_special_numbers_stay_in_their_columns(shape: tuple[int, ...]) -> None:
    x = floats(*shape)
    x[..., 7, 3], x[..., 9, 4], x[..., 9, 5], x[..., 11, 5], x[..., 6] = np.nan, np.inf, np.inf, -np.inf, -0.0
    x[..., 7] = 3e38
    check(lambda x: [f(x, -2) for f in (jnp.sum, jnp.mean)], x, rtol=1e-5, atol=1e-4)
    x[..., 8:16] = np.nan  # a whole block of columns, in which XLA finds NaN as well
    check(lambda x: [f(x[..., 16:], -2) for f in (jnp.max, jnp.min)], x)


def test_no_matrices() -> None:
    x = floats(0, 196, 64)
    check(lambda x: [f(x, 1) for f in REDUCTIONS], x)
    check(lambda x: [f(x, 1) for f in REDUCTIONS], x, dims=[("B", 196, 64)])


def test_sums_of_columns_are_products() -> None:
    mean = lambda x: jnp.mean(x, 0)  # noqa: E731
    assert operators(check(mean, floats(256, 64), atol=1e-6)) == ["MatMul", "Mul"]
    assert operators(check(lambda x: jnp.sum(x, 1, keepdims=True), floats(1, 256, 64), atol=1e-4)) == ["MatMul"]
    assert operators(check(mean, floats(16, 64), atol=1e-6)) == ["ReduceMean"]  # too little to be worth it


def test_sums_of_columns_are_more_exact() -> None:
    x = floats(4000, 64) + 100
    model = check(lambda x: jnp.sum(x, 0), x, rtol=3e-6)
    assert operators(model) == ["Expand", "MatMul"]
    (sums,) = runtime.run(model, [x])
    exact = x.sum(0, dtype=np.float64)
    plain = np.abs(np.add.accumulate(x)[-1] - exact)  # one row after the other, as the runtime's ReduceSum does
    assert np.abs(sums - exact).max() < plain.max()


def test_channels_first_means_take_no_more_nodes() -> None:
    assert operators(check(lambda x: x.mean(1, keepdims=True), floats(1, 48, 14, 14), atol=1e-6)) == ["ReduceMean"]


def test_means_of_a_batch_take_two_steps() -> None:
    model = check(lambda x: x.mean((1, 2)), floats(2, 14, 14, 64), dims=[("B", 14, 14, 64)], atol=1e-6)
    assert operators(model) == ["Reshape", "ReduceMean", "ReduceMean"]
    model = check(lambda x: x.mean((1, 2)), floats(2, 14, 14, 64), atol=1e-6)
    assert operators(model) == ["ReduceMean"]  # there are never fewer matrices


def test_extremes_of_integers_take_two_steps() -> None:
    x = rng.integers(-(2**31), 2**31, (196, 64)).astype(np.int32)
    assert operators(check(lambda x: jnp.max(x, 0), x)) == ["Reshape", "ReduceMax", "ReduceMax"]
