"""Reductions and Softmax along axes that are not the last ones."""

from __future__ import annotations

import jax
import numpy as np
import onnx
import pytest
from jax import numpy as jnp

from tests.helpers import check

rng = np.random.default_rng(0)


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


REDUCTIONS = [jnp.sum, jnp.mean, jnp.max, jnp.min]


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((3000, 3), 0),
        ((40, 300, 4), (0, 1)),
        ((3000, 3, 2), 0),
        ((9000, 1), 0),
        ((30, 300, 1), 1),
        ((30, 300, 1, 1), 1),
        ((30, 300, 1), (0, 1)),
        ((3000, 40), 0),
        ((30, 300, 4), 1),
        ((30, 300, 4), (0, 2)),
        ((30, 1, 300, 1), (0, 2)),
    ],
)
def test_columns(shape: tuple[int, ...], axes: int | tuple[int, ...], keepdims: bool) -> None:
    finite = rng.normal(size=shape).astype(np.float32)
    for reduce in REDUCTIONS:
        special = finite.copy()
        special[5] = np.inf
        if reduce in (jnp.sum, jnp.mean):  # of so many numbers, XLA takes the largest that is not NaN
            special[..., -1] = np.nan
        fn = lambda x: reduce(x, axes, keepdims=keepdims)  # noqa: B023, E731
        check(fn, finite, rtol=1e-5, atol=3e-4)
        check(fn, special, dims=[("B", *shape[1:])], rtol=1e-5, atol=3e-4)


def test_few_columns_are_rows_first() -> None:
    model = check(lambda x: jnp.sum(x, 0), rng.normal(size=(3000, 8)).astype(np.float32), rtol=1e-5, atol=3e-4)
    assert operators(model) == ["Transpose", "ReduceSum"]
    model = check(lambda x: jnp.sum(x, 0), rng.normal(size=(30, 8)).astype(np.float32), rtol=1e-5)
    assert operators(model) == ["ReduceSum"]
    model = check(lambda x: jnp.sum(x, 1), rng.normal(size=(30, 300, 1)).astype(np.float32), rtol=1e-5, atol=1e-5)
    assert "Transpose" not in operators(model)


@pytest.mark.parametrize("dtype", [np.int32, np.float16, np.float64])
def test_other_types(dtype: type) -> None:
    x = rng.integers(-3, 4, (3000, 3)).astype(dtype)
    check(lambda x: [jnp.sum(x, 0), jnp.max(x, 0), jnp.min(x, 0)], x, x64=True, rtol=1e-3)


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_softmax(axis: int) -> None:
    x = rng.normal(size=(6, 12, 20, 8)).astype(np.float32)
    model = check(lambda x: [jax.nn.softmax(x, axis), jax.nn.log_softmax(2 * x, axis)], x)
    axes = [a.i for n in model.graph.node if "Softmax" in n.op_type for a in n.attribute if a.name == "axis"]
    assert axes == [2 if axis == 2 else -1] * 2
    x[1, 2, 3] = [np.nan, np.inf, -np.inf, 1, 2, 3, 4, 5]
    check(lambda x: jax.nn.softmax(x, axis), x)
    small = check(lambda x: jax.nn.softmax(x, axis), x[:, :3, :3])
    assert operators(small) == ["Softmax"]


def test_one_of_few_columns() -> None:
    points = rng.normal(size=(20, 150, 3)).astype(np.float32)
    model = check(lambda p: p[..., 1], points, rtol=0, atol=0)
    assert operators(model) == ["Transpose", "Gather"]
    assert "Transpose" not in operators(check(lambda p: p[..., 0], points[0], rtol=0, atol=0))
    check(lambda p: p[..., 1], points, dims=[("B", "N", 3)], rtol=0, atol=0)


def test_several_of_few_columns_are_parts() -> None:
    """Also if they are made rows before they are taken; then they are stacked as they are."""
    points = rng.normal(size=(20, 150, 3)).astype(np.float32)
    model = check(lambda p: p[..., 0] * p[..., 2] - p[..., -2], points, rtol=1e-6, atol=1e-6)
    assert "Gather" not in operators(model)
    assert operators(model).count("Split") == 1
    turned = lambda p: jnp.stack([p[..., 1] * p[..., 2], -p[..., 0]], -1)  # noqa: E731
    for fn in (turned, lambda p: (lambda x, y, z: jnp.stack([y * z, -x], -1))(*jnp.moveaxis(p, -1, 0))):
        model = check(fn, points, rtol=0, atol=0)
        assert operators(model) == ["Split", "Mul", "Neg", "Concat"]
        check(fn, points, dims=[("B", "N", 3)], rtol=0, atol=0)
    rows = lambda p: (jnp.moveaxis(p, -1, 0)[1], jnp.moveaxis(p, -1, 0).sum(1), p[..., 2])  # noqa: E731
    check(rows, points, rtol=1e-5, atol=1e-4)
    check(lambda p: (p[..., 1], jnp.split(p, 3, -1)[2], p[..., -1]), points.astype(np.int8))


@pytest.mark.parametrize(
    ("rows", "index"),
    [
        ((300,), (50,)),
        ((300,), (5, 10)),
        ((20, 30), (4, 5)),
        ((3,), (4000,)),
        ((2, 2), (40, 60)),
        ((1,), (9000,)),
        ((300,), ()),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.int8, bool])
def test_known_columns(rows: tuple[int, ...], index: tuple[int, ...], dtype: type) -> None:
    known = rng.integers(-7, 7, index)
    x = rng.integers(0, 2, (*rows, 7)).astype(dtype)
    check(lambda x: x[..., known], x)
    check(lambda x: x[..., known], x, dims=[("B", *rows[1:], 7)])


def test_known_columns_are_rows_first() -> None:
    known = np.arange(60).reshape(6, 10)[::-1] % 20
    x = rng.normal(size=(300, 20)).astype(np.float32)
    model = check(lambda x: x[:, known], x)
    assert operators(model) == ["Transpose", "Gather", "Transpose"]
    many = np.tile(known, 100)
    model = check(lambda x: x[:, many], x, dims=[("B", 20)])
    assert operators(model) == ["Transpose", "Gather", "Transpose"]
    model = check(lambda x: x[:, known], x[:10])  # too few to pay for it
    assert operators(model) == ["Gather"]
    model = check(lambda x: x[:, many], x[:3])  # a column of three is no more than its elements
    assert operators(model) == ["Expand", "GatherElements", "Reshape"]
