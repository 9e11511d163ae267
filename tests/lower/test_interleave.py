"""Arrays whose elements alternate, as in associative scans."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import onnx
import pytest
from jax import lax
from jax import numpy as jnp

from tests.helpers import check

rng = np.random.default_rng(0)
x = rng.normal(size=(6, 4)).astype(np.float32)


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def padded(x: jax.Array, low: int, high: int, axis: int = 0, value: float = 0.0, interior: int = 1) -> jax.Array:
    amounts = [(0, 0, 0)] * x.ndim
    amounts[axis] = (low, high, interior)
    return lax.pad(x, jnp.asarray(value, x.dtype), amounts)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 13])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
def test_associative_scan(length: int, axis: int, dtype: str) -> None:
    shape = [2, 3, 4]
    shape[axis] = length
    array = rng.integers(-2, 3, shape).astype(dtype)
    join = jnp.logical_or if dtype == "bool" else jnp.add
    for reverse in (False, True):
        model = check(lambda a: lax.associative_scan(join, a, axis=axis, reverse=reverse), array, rtol=0, atol=0)  # noqa: B023
        assert "Pad" not in operators(model)


def test_recurrence_with_fixed_factors_has_their_powers_as_constants() -> None:
    factors = rng.uniform(0.5, 1, 4).astype(np.float32)

    def combine(left: tuple, right: tuple) -> tuple:
        return left[0] * right[0], right[0] * left[1] + right[1]

    def fn(u: jax.Array) -> jax.Array:
        return lax.associative_scan(combine, (jnp.broadcast_to(factors, u.shape), u))[1]

    model = check(fn, rng.normal(size=(16, 4)).astype(np.float32))
    assert operators(model).count("Mul") == 7  # one for each combination of what is not fixed: 3 + 4 of them
    assert "Expand" not in operators(model)


def test_gradients_of_both_halves() -> None:
    model = check(jax.grad(lambda x: jnp.sum(jnp.sin(x[::2]) * x[1::2])), x)
    assert "Pad" not in operators(model)


@pytest.mark.parametrize("axis", [0, 1])
def test_zeros_lose_their_sign(axis: int) -> None:
    """As when they are added to the zeros between the others. (As a result: ONNX Runtime takes `x + 0` for `x`.)"""
    zeros = np.full((2, 3), -0.0, np.float32)
    model = check(lambda a, b: padded(a, 0, 1, axis) + padded(b, 1, 0, axis), zeros, zeros + x[:2, :3])
    assert operators(model)[-1] == "Add"


UNLIKE: dict[str, Callable] = {
    "the same places": lambda a, b: padded(a, 0, 1) + padded(b, 0, 1),
    "the same array": lambda a, b: padded(a, 0, 1) + padded(a, 1, 0),
    "other axes": lambda a, b: padded(padded(a, 0, 1), 0, 0, 1) + padded(padded(b, 1, 0, 0), 0, 0, 1),
    "another filling": lambda a, b: padded(a, 0, 1, value=1.0) + padded(b, 1, 0),
    "minus zero": lambda a, b: padded(a, 0, 1, value=-0.0) + padded(b, 1, 0, value=-0.0),
    "more between": lambda a, b: padded(a, 0, 2, interior=2) + padded(b, 1, 1, interior=2),
    "a gap at the end": lambda a, b: padded(a, 0, 1) + padded(b[:5], 1, 2),
    "cut off": lambda a, b: padded(a, 0, -1) + padded(b, 1, -2),
    "a product": lambda a, b: padded(a, 0, 1) * padded(b, 1, 0),
    "one longer": lambda a, b: padded(a, 0, 0) + padded(b[1:], 1, 1),
    "crossed": lambda a, b: padded(a, 1, 0) + padded(b, 0, 1),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_what_looks_like_it(name: str) -> None:
    check(UNLIKE[name], x, np.flip(x).copy(), rtol=0, atol=0)
