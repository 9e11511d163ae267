"""Conditions that became numbers are conditions again, and choices by the first condition that holds are plain."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import check

X = np.float32([[-np.inf, -3, -1, -0.0, 0.0, 1], [2, 2.5, 3, 7, np.inf, np.nan]])


def ops(model) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("dims", [None, [("R", 6)]])
@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x: jnp.select([x > 0], [x], 1.0), ["Greater", "Where"]),
        (lambda x: jnp.select([x > 3, x < -1], [3.0, -1.0], x), ["Clip"]),
        (lambda x: jnp.select([x > 3, x > 2, x > 1], [1, 2, 3], 9), ["Greater", "Where"] * 3),
        (
            lambda x: jnp.select([x > 3, x > 2, x > 1, x == 0], [x, 2.0, x, 3.0]),
            ["Greater", "Where"] * 3 + ["Equal", "Where"],
        ),
    ],
)
def test_first_condition_that_holds(fn, expected, dims):
    assert sorted(ops(check(fn, X, dims=dims))) == sorted(expected)


def test_other_choices_by_place():
    """The place is used otherwise, or the first condition may hold."""

    def place(x, first):
        return jnp.argmax(jnp.stack([first, x > 1, x > 2]), axis=0)

    check(lambda x: jnp.where(place(x, x > 5) < 1, x, 0), X)
    check(lambda x: (jnp.where((k := place(x, x != x)) < 1, x, 7), k), X)
    check(lambda x: jnp.where((k := place(x, jnp.zeros(x.shape, bool))) < 2, jnp.where(k < 1, x, 7), k * x), X[:, :-2])
    check(lambda x: jnp.where(place(x, jnp.zeros(x.shape, bool)) < 7, x, 3), X)


def test_choices_of_numbers_that_are_compared():
    def fn(x):
        low = jnp.where(x > 1, 5.0, -2.0)
        return jnp.where(low == 5, x, 9), jnp.where(low < 0, x, 9), jnp.where(low != -2, x, 9)

    assert set(ops(check(fn, X))) <= {"Greater", "Where", "Identity"}
    check(lambda x: jnp.where(jnp.where(x > 1, np.nan, 1.0) == np.nan, x, 9), X)
    check(lambda x: jnp.where(jnp.where(x > 1, np.nan, 1.0) < 2, x, 9), X)


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "bfloat16"])
def test_conditions_as_numbers(dtype):
    def fn(x):
        mask = (x > 1).astype(dtype)
        return jnp.where(mask, x, 9), jnp.where(mask == 0, 9, x), jnp.where(mask > 0, x, 9), jnp.where(mask < 1, 9, x)

    assert set(ops(check(fn, X))) <= {"Greater", "Where", "Identity"}
    odd = check(lambda x: jnp.where((x > 1).astype(dtype) == 2, x, 9) + jnp.where((x > 1).astype(dtype) >= 0, x, 9), X)
    assert odd.graph.node


@pytest.mark.parametrize("compare", [jnp.equal, jnp.less, jnp.greater_equal])
def test_conditions_on_what_is_repeated(compare):
    """Numbers that are repeated for each row, and compared in layers that repeat: once, and a choice repeats them."""
    numbers = np.float32([0, 1, np.nan, -0.0, 2, np.inf])

    def fn(x):
        mask = jnp.broadcast_to(numbers, x.shape)
        for _ in range(6):
            x = jnp.where(compare(mask, 1.0), jnp.sin(x @ np.eye(6, dtype=np.float32)), -1.0)
        return x

    model = check(fn, np.float32(np.arange(12).reshape(2, 6)), dims=[("R", 6)], rtol=1e-5, atol=1e-5)
    assert not {"Expand", "Equal", "Less", "GreaterOrEqual"} & set(ops(model))
    check(lambda x: compare(jnp.broadcast_to(x[:, None], (6, 3)), 1.0), numbers)


@pytest.mark.parametrize("reduce", [jnp.any, jnp.all])
@pytest.mark.parametrize("axis", [None, 0, 1, (0, 1)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_whether_any_condition_holds(reduce, axis, keepdims):
    def fn(x):
        return reduce(x > 0, axis=axis, keepdims=keepdims)

    for x in (X, np.abs(X) + 1, -X, np.float32([[1], [-1], [2]]), np.full((1, 1), -1, np.float32)):
        model = check(fn, x)
        assert "Cast" not in ops(model)
    check(fn, X, opset=18)
    check(fn, np.tile(X, (100, 50)))
    check(fn, X, dims=[("R", "C")])
    check(fn, X[:0])
    check(fn, X[:, :0], dims=[(2, "C")])
