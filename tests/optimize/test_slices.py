"""Slices move past arithmetic where that saves work, and into what they are cut from."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from jax import lax

from tests.helpers import check

X = np.float32([[0.5, -0.0, np.nan, np.inf, 3.0, -2.0], [1.0, 2.0, 0.0, -np.inf, -5.0, 7.0]])
INTS = np.int32([[7, 0, -3, 5, 2, 9], [1, 4, 0, 2, 3, 0]])


def ops(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def flux(u: Any) -> Any:
    a, b = u
    return jnp.stack([jnp.exp(a) * b, b / a + 1])


def test_the_same_of_neighbours_is_computed_once() -> None:
    found = ops(check(lambda u: flux(u[:, 1:]) - flux(u[:, :-1]), X))
    assert found["Exp"] == found["Div"] == found["Mul"] == 1 and found["Slice"] == 2


def test_rows_may_be_slices() -> None:
    def flux(u: Any) -> Any:
        a, b = u[:1], u[1:2]
        return jnp.concatenate([jnp.exp(a) * b, b / a + 1])

    found = ops(check(lambda u: flux(u[:, 1:]) - flux(u[:, :-1]), X))
    assert found["Exp"] == found["Div"] == found["Mul"] == 1 and found["Slice"] == 2 and found["Split"] == 1
    check(lambda u: flux(u[:, 1:, None])[..., 0, :] - flux(u[:, :-1, None])[..., 0, :], X)
    check(lambda u: (u[:, 1:][:1] + 1, u[:, :-1][:1] + 1, u[:1][:, 2:] + 1, u[1:][:, 2:] * 2, u[1:, 1:] * 2), X)
    check(lambda u: [jnp.squeeze(v[:1], 0) * 2 for v in (u[:, 1:], u[:, :-1], u[:, 5:])], X)


def test_a_part_of_what_is_computed_anyway() -> None:
    found = ops(check(lambda u: (jnp.exp(u), jnp.exp(u[:, 2:4]) + 1), X))
    assert found["Exp"] == 1
    found = ops(check(lambda u: (jnp.exp(u[:, 2:4]) + 1, jnp.exp(u) * 2), X))
    assert found["Exp"] == 1


def test_with_numbers_and_rows() -> None:
    row = np.float32([[2.0], [-1.0]])
    found = ops(check(lambda u, row: jnp.tanh(u[:, 1:] * row + 3) - jnp.tanh(u[:, :-1] * row + 3), X, row))
    assert found["Tanh"] == found["Mul"] == 1


def test_not_where_the_whole_is_more_work() -> None:
    found = ops(check(lambda u: jnp.exp(u[:, :1]) + jnp.exp(u[:, 1:2]), X))
    assert found["Exp"] == 2


def test_not_where_operands_are_cut_differently() -> None:
    check(lambda u, v: u[:, 1:] * v[:, :-1] + u[:, :-1] * v[:, 1:], X, X)
    check(lambda u, v: jnp.sum(u[:, 1:] * v[:, 1:5] if u.shape == v.shape else u[:, 2:] * v[:, 1:]), X, X[:, :5])


def test_not_integers_that_could_be_divided_by_zero() -> None:
    """The program divides by no zero; the whole array would."""
    safe = np.int32([[3, 1, 2, 2, 2, 0]])
    check(lambda u, v: lax.div(u[:, 1:4], v[:, 1:4]) + lax.div(u[:, :3], v[:, :3]), INTS[:1], safe)


def test_inside_a_loop() -> None:
    def fn(u: Any) -> Any:
        return lax.fori_loop(0, 40, lambda _, u: u.at[:, 1:-1].add(0.1 * (flux(u[:, 2:]) - flux(u[:, :-2]))), u)

    check(fn, np.abs(np.nan_to_num(X, posinf=2, neginf=1)) + 1, rtol=1e-5)


@pytest.mark.parametrize("value", [X, INTS, INTS % 2 == 0])
def test_a_slice_of_parts(value: Any) -> None:
    def fn(x: Any, y: Any) -> Any:
        joined = jnp.concatenate([x, y, x], 1)
        wide = jnp.broadcast_to(x[:, :1], (2, 9))
        return joined[:, 6:12], joined[:, 7:9], joined[:, 5:13], joined[:, 6:], wide[:, 2:5], x[:, 1:5][:, 1:-1]

    check(fn, value, value[::-1].copy())


@pytest.mark.parametrize("combine", ["set", "add", "multiply", "min", "max"])
@pytest.mark.parametrize("span", [slice(0, 3), slice(2, 5), slice(-2, None), slice(0, None)])
def test_a_window_at_a_known_place(combine: str, span: slice) -> None:
    def fn(x: Any, u: Any) -> Any:
        widened = jnp.zeros((2, 8), x.dtype).at[:, 1:-1].set(x)
        return getattr(widened.at[:, span], combine)(u[:, :1]), getattr(
            jnp.concatenate([x, x], 1).at[:, span], combine
        )(1)

    model = check(fn, X, 2 * X)
    assert not ops(model)["ScatterND"]


def test_halo_cells() -> None:
    def fn(x: Any) -> Any:
        padded = jnp.zeros((2, 10)).at[:, 2:-2].set(x)
        return padded.at[:, :2].set(x[:, :1]).at[:, -2:].set(x[:, -1:])

    assert ops(check(fn, X)) == {"Pad": 1}
    assert ops(check(lambda x: jnp.pad(x, ((0, 0), (3, 1)), mode="edge"), X)) == {"Pad": 1}


def test_edge_padding_of_one_side_and_what_is_not_that() -> None:
    check(lambda x: jnp.concatenate([x[:, :1], x], 1), X)
    check(lambda x: jnp.concatenate([x[:, 1:2], x, x[:, -1:]], 1), X)
    check(lambda x: jnp.concatenate([x[:, -1:], x, x[:, :1]], 1), X)
    check(lambda x: jnp.concatenate([x[:, :1], x, x], 1), X)
    check(lambda x: jnp.concatenate([x[:, :1], x[:, 1:]], 1), X)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_stack(axis: int) -> None:
    check(lambda x: jnp.stack([x, -x, x * 2], axis), X)
    check(lambda x: jnp.stack([x, -x, x * 2], axis), X[:0])
    check(lambda x: jax.vmap(lambda r: jnp.stack([r[0], r[1], r[2] + r[3]]))(x), X)


def test_a_negation_before_a_constant() -> None:
    found = ops(check(lambda x: (-x * 3.0, -x / 3.0, 2.0 / -x, -x * -0.0), X))
    assert found["Neg"] == 1


@pytest.mark.parametrize("size", [8, 64, 100])
def test_parts_of_a_weight_that_is_used_again_are_stored_once(size):
    w = jnp.asarray(np.random.default_rng(0).normal(size=(size, 2 * size)).astype(np.float32))

    def layer(x):
        left, right = jnp.split(w, 2, 1)
        return jnp.tanh(x @ left * (x @ right) + (x @ w[:, 3:4]))

    x = np.ones((2, size), np.float32)
    for fn in (lambda x: layer(layer(layer(x))), lambda x: jax.jit(layer)(jax.jit(layer)(x))):
        model = check(fn, x, rtol=1e-4, atol=1e-5)
        assert sum(np.prod(i.dims) for i in model.graph.initializer) <= (2 * size + 1) * size + 8


def test_what_is_padded_along_several_axes_and_cut_off_again() -> None:
    assert ops(check(lambda u: jnp.pad(u * 2, 1)[1:-1, 1:-1] + 1, X))["Pad"] == 0
    assert ops(check(lambda u: jnp.pad(u * 2, 1, mode="edge")[1:-1, 2:-2] + 1, X))["Pad"] == 0
    assert ops(check(lambda u: jnp.pad(u * 2, 2)[1:-2, 3:-1] + 1, X))["Pad"] == 1
    assert ops(check(lambda u: jnp.pad(u * 2, 1)[1:-1, 1:] + 1, X))["Slice"] == 0
