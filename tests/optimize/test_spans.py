"""Arithmetic with operands that are repeated along, or just outside, a short axis."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import check, check_run

RNG = np.random.default_rng(0)


def array(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    x = RNG.normal(size=shape) * 10
    x.flat[:: max(1, x.size // 5)] = np.nan if np.issubdtype(dtype, np.floating) else 0
    return x.astype(dtype)


POINTS, OTHERS = array(60, 3), array(50, 3)

REPEATED: dict[str, tuple[Callable[..., Any], list[np.ndarray], str]] = {
    "pairs": (lambda p, q: p[:, None] - q, [POINTS, OTHERS], "Expand"),
    "pairs the other way": (lambda p, q: p - q[:, None], [POINTS, OTHERS], "Expand"),
    "a number for each coordinate": (lambda x, s: x * s, [array(30, 50, 3), array(3)], "Expand"),
    "known ones": (lambda x: x / np.array([2.0, 3.0, 7.0], np.float32), [array(30, 50, 3)], "Expand"),
    "several axes": (lambda p, q: p[:, None, None] + q, [POINTS, array(5, 20, 2, 3)[:, :, 0]], "Expand"),
    "in the middle": (lambda x, y: x[:, None] * y[:, :, None], [array(9, 20, 30, 3)[:, 0], array(9, 20, 3)], "Expand"),
    "a condition": (
        lambda c, x, y: jnp.where(c, x[:, None], y[:, None]),
        [array(20, 3) > 0, array(100, 3), array(100, 3)],
        "Expand",
    ),
    "a number for each point": (lambda x, s: x / s[:, None], [array(2000, 3), array(2000)], "Concat"),
    "a condition for each point": (
        lambda c, x: jnp.where(c[:, None], x, 0.0),
        [array(2000) > 0, array(2000, 4)],
        "Concat",
    ),
    "a condition that is chosen, too": (
        lambda c, x: jnp.where(c[:, None], x > 0, c[:, None]),
        [array(2000) > 0, array(2000, 4)],
        "Concat",
    ),
    "an operand that is used twice": (
        lambda x, s: jax.lax.clamp(s[:, None] * x, s[:, None] * jnp.ones(3), s[:, None] * x),
        [array(2000, 3), array(2000)],
        "Concat",
    ),
    "integers": (lambda x, y: x[:, None] % y, [array(60, 5, dtype=np.int32), array(50, 5, dtype=np.int32)], "Expand"),
    "bits": (
        lambda x, y: x[:, None] ^ y,
        [array(60, 4, dtype=np.int32).view(np.uint32), array(50, 4, dtype=np.int32).view(np.uint32)],
        "Expand",
    ),
    "both": (lambda x, y, z: x[:, None] * y * z, [POINTS, OTHERS, array(60, 50, 1)], "Concat"),
    "joined with others": (
        lambda x, y: jnp.concatenate([jnp.broadcast_to(x[:, :, None], (*x.shape, 3)), y], 1),
        [array(40, 40), array(40, 20, 3)],
        "Concat",
    ),
}


@pytest.mark.parametrize("name", REPEATED)
def test_is_repeated_before_anything_is_computed(name: str) -> None:
    fn, args, op_type = REPEATED[name]
    model = check(fn, *args)
    assert op_type in {n.op_type for n in model.graph.node}


@pytest.mark.parametrize("name", REPEATED)
def test_is_the_same_in_a_loop(name: str) -> None:
    fn, args, _ = REPEATED[name]
    check(lambda *args: jax.lax.map(lambda step: fn(*step), args), *(np.stack([a, a[::-1]]) for a in args))


def test_sizes_that_are_known_only_when_the_model_runs() -> None:
    model = check(lambda p, q: p[:, None] - q, POINTS, OTHERS, dims=[("N", 3), ("M", 3)])
    assert "Expand" in {n.op_type for n in model.graph.node}
    for n, m in itertools.product([0, 1, 7], [0, 1, 5]):
        check_run(model, lambda p, q: p[:, None] - q, array(n, 3), array(m, 3))


def test_it_is_the_spans_that_count() -> None:
    corner = np.array([True, False, True])
    for points, op_types in ((1000, ["Sub", "Expand", "Where"]), (100, ["Sub", "Where"])):
        model = check(lambda w: jnp.where(corner, w, 1 - w), array(points, 3))
        assert sorted(n.op_type for n in model.graph.node) == sorted(op_types)


def test_a_number_for_each_of_some_points() -> None:
    def fn(x: jax.Array, s: jax.Array) -> jax.Array:
        return x * s[..., None] + jnp.arange(3.0)

    model = check(fn, array(4, 50, 3), array(4, 50), dims=[("B", "N", 3), ("B", "N")])
    assert {"Concat", "Expand"} <= {n.op_type for n in model.graph.node}
    for shape in ((0, 3), (3, 0), (1, 1), (1, 9)):
        check_run(model, fn, array(*shape, 3), array(*shape))


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (lambda p, q: p[:, None] - q, [array(6, 3), array(5, 3)]),
        (lambda p, q: p[:, None] - q, [array(60, 64), array(50, 64)]),
        (lambda x, s: x * s, [array(200, 64), array(64)]),
        (lambda x, s: x * s[:, None], [array(200, 64), array(200)]),
        (lambda x: x * 2, [array(2000, 3)]),
        (lambda x, y: x * y, [array(2000, 3), array(2000, 3)]),
        (lambda x, y: x * y, [array(2000, 1), array(2000, 1)]),
    ],
)
def test_nothing_is_repeated_where_that_saves_nothing(fn: Callable[..., Any], args: list[np.ndarray]) -> None:
    model = check(fn, *args)
    assert {"Expand", "Concat"}.isdisjoint(n.op_type for n in model.graph.node)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("shape", "axis"), [((2000, 8, 2), 1), ((50, 40, 3, 5), 2), ((2000, 2, 1, 4), -3)])
def test_sums_of_few_for_many(shape: tuple[int, ...], axis: int, dtype: Any) -> None:
    x = array(*shape, dtype=dtype)
    model = check(lambda x: (x.sum(axis), x.sum(axis, keepdims=True)), x, rtol=1e-6)
    assert "ReduceSum" not in {n.op_type for n in model.graph.node}
    check(lambda x: x.sum(axis), x[:50], dims=[("N", *shape[1:])], rtol=1e-6)
    check(lambda x: x.sum(axis), np.full_like(x, -0.0), rtol=0, atol=0)


@pytest.mark.parametrize(("shape", "axis"), [((100, 8, 2), 1), ((2000, 9, 2), 1), ((2000, 8, 64), 1), ((2000, 8), 1)])
def test_other_sums(shape: tuple[int, ...], axis: int) -> None:
    model = check(lambda x: x.sum(axis), array(*shape), rtol=1e-5)
    assert "Sum" not in {n.op_type for n in model.graph.node}


@pytest.mark.parametrize("batch", [2, "B"])
def test_colours_are_normalized_where_the_convolution_has_them(batch):
    """With the channels first, nothing has to be repeated."""
    mean, deviation = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
    kernel = RNG.normal(size=(3, 3, 3, 4)).astype(np.float32)

    def fn(x):
        x = (x / 255 - mean) / deviation
        return jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    model = check(fn, array(2, 40, 30, 3), dims=[(batch, 40, 30, 3)], rtol=1e-4, atol=1e-4)
    assert [node.op_type for node in model.graph.node] == ["Mul", "Transpose", "Sub", "Mul", "Conv", "Transpose"]
