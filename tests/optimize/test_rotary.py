"""Rotary embeddings become one node, as they are commonly written; near misses stay plain."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import check, check_run
from tests.symbolic.sizes import check_at_sizes

B, T, H, D = 2, 6, 3, 8
X = np.random.default_rng(0).normal(size=(B, T, H, D)).astype(np.float32)
HARD = X.copy()
HARD[0, 1, 0, 2], HARD[1, 2, 1, 5], HARD[1, 3, 0, 1] = np.nan, np.inf, 3e38
ANGLES = np.outer(np.arange(T), 1 / 10000 ** (np.arange(0, D, 2) / D)).astype(np.float32)
POSITIONS = np.int32([[0, 1, 2, 3, 4, 5], [7, 7, 0, -3, 100, 1]])


def ops(model) -> list[str]:
    return [node.op_type for node in model.graph.node]


def turned(a: Any, b: Any, angles: Any) -> tuple[Any, Any]:
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return a * cos - b * sin, b * cos + a * sin


def halves(x: Any, angles: Any = ANGLES[:, None]) -> Any:
    return jnp.concatenate(turned(*jnp.split(x, 2, -1), angles), -1)


def neighbours(x: Any) -> Any:
    return jnp.stack(turned(x[..., ::2], x[..., 1::2], ANGLES[:, None]), -1).reshape(x.shape)


def whole(x: Any) -> Any:
    angles = jnp.concatenate([ANGLES, ANGLES], -1)[:, None]
    return x * jnp.cos(angles) + jnp.concatenate([-x[..., D // 2 :], x[..., : D // 2]], -1) * jnp.sin(angles)


def heads_first(x: Any) -> Any:
    return halves(x.transpose(0, 2, 1, 3), ANGLES)


def whole_with_heads_first(x: Any) -> Any:
    angles, x = jnp.concatenate([ANGLES, ANGLES], -1), x.transpose(0, 2, 1, 3)
    return x * jnp.cos(angles) + jnp.concatenate([-x[..., D // 2 :], x[..., : D // 2]], -1) * jnp.sin(angles)


def equinox(x: Any) -> Any:
    return jax.vmap(jax.vmap(eqx.nn.RotaryPositionalEmbedding(D), in_axes=1, out_axes=1))(x)


def rows_of_two(x: Any) -> Any:
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    return jnp.stack(turned(pairs[..., 0], pairs[..., 1], ANGLES[:, None]), -1).reshape(x.shape)


def complex_numbers(x: Any) -> Any:
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    z = jax.lax.complex(pairs[..., 0], pairs[..., 1]) * jnp.exp(1j * ANGLES)[:, None]
    return jnp.stack([z.real, z.imag], -1).reshape(x.shape)


def every_two(x: Any, angles: Any = ANGLES, times: Any = jnp.repeat) -> Any:
    cos, sin = (times(f(angles), 2, -1)[:, None] for f in (jnp.cos, jnp.sin))
    return x * cos + jnp.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape) * sin


def tiled(x: Any, angles: Any = ANGLES) -> Any:
    cos, sin = (jnp.tile(f(angles), 2)[:, None] for f in (jnp.cos, jnp.sin))
    return x * cos + jnp.concatenate([-x[..., D // 2 :], x[..., : D // 2]], -1) * sin


@pytest.mark.parametrize("fn", [every_two, tiled])
def test_angles_that_are_repeated_in_the_model(fn):
    def rotate(x: Any) -> Any:
        return fn(x, jnp.arange(x.shape[1])[:, None] * ANGLES[1])

    model = check(rotate, X, dims=[("B", "T", H, D)], rtol=1e-5, atol=1e-6)
    assert ops(model).count("RotaryEmbedding") == 1 and not {"Tile", "Sub", "Add"} & set(ops(model))
    check_run(model, rotate, X[:, :1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: every_two(x, times=lambda a, n, axis: jnp.tile(a, n)),  # angles of halves for neighbours
        lambda x: every_two(x[..., ::-1]),
        lambda x: tiled(x, ANGLES * np.float32([1, 1, 1, 2])) + tiled(x, jnp.sin(x[0, :, 0, :4])),
        lambda x: jnp.stack(turned(*(x.reshape(B, T, H, 2, 4)[..., i, :] for i in (0, 1)), ANGLES[:, None]), -1),
        lambda x: jnp.stack(turned(*(x.reshape(B, T, H, 4, 2)[..., i] for i in (1, 0)), ANGLES[:, None]), -1),
    ],
)
def test_pairs_that_do_not_fit_compute_the_same(fn):
    check(fn, X, rtol=1e-5, atol=1e-6)


FORMS = [
    halves,
    neighbours,
    whole,
    heads_first,
    whole_with_heads_first,
    equinox,
    rows_of_two,
    complex_numbers,
    every_two,
    tiled,
]


@pytest.mark.parametrize("fn", FORMS)
def test_one_node(fn):
    model = check(fn, X)
    found = ops(model)
    assert found.count("RotaryEmbedding") == 1
    assert set(found) <= {"RotaryEmbedding", "Reshape", "Transpose"}
    check_run(model, fn, HARD)


def one_heads_first(x: Any) -> Any:
    return halves(x.transpose(1, 0, 2), ANGLES)


ONE = [halves, neighbours, whole, one_heads_first, rows_of_two, complex_numbers, every_two, tiled]


@pytest.mark.parametrize("fn", ONE)
def test_one_sequence(fn):
    model = check(fn, X[0])
    assert ops(model).count("RotaryEmbedding") == 1 and len(ops(model)) <= 4
    check_run(model, fn, HARD[0])
    check_run(model, fn, HARD[1])


def test_one_sequence_of_any_length():
    def fn(x: Any) -> Any:
        angles = jnp.arange(x.shape[0])[:, None] / 100 ** (jnp.arange(D // 2) / D)
        return halves(x, angles[:, None]), halves(x.transpose(1, 0, 2), angles), halves(x[:, 0], angles)

    model = check_at_sizes(fn, ("T", H, D), empty="T", atol=1e-5)
    assert ops(model).count("RotaryEmbedding") == 2


@pytest.mark.parametrize("shape", [(B, T, H * D), (B, T, 1, H, D), (B, 2, T // 2, H, D)])
def test_neighbours_that_are_joined_otherwise(shape):
    """Heads that share keys are grouped at once, or all heads joined."""
    model = check(lambda x: neighbours(x).reshape(shape), X, rtol=1e-5, atol=1e-6)
    assert ops(model).count("RotaryEmbedding") == 1 and not {"Sub", "Add"} & set(ops(model))


def test_positions_that_are_given():
    def fn(x: Any, positions: Any) -> Any:
        frequencies = (1 / 10000 ** (np.arange(0, D, 2) / D)).astype(np.float32)
        return halves(x, positions[..., None, None] * frequencies)

    model = check(fn, X, POSITIONS)
    assert ops(model).count("RotaryEmbedding") == 1
    assert "Concat" not in ops(model)


def reflected(x: Any) -> Any:
    a, b = jnp.split(x, 2, -1)
    cos, sin = jnp.cos(ANGLES[:, None]), jnp.sin(ANGLES[:, None])
    return jnp.concatenate([a * cos - b * sin, a * cos + b * sin], -1)


def other_way(x: Any) -> Any:
    a, b = jnp.split(x, 2, -1)
    cos, sin = jnp.cos(ANGLES[:, None]), jnp.sin(ANGLES[:, None])
    return jnp.concatenate([a * cos + b * sin, b * cos - a * sin], -1)


def swapped(x: Any) -> Any:
    return jnp.concatenate(turned(*jnp.split(x, 2, -1)[::-1], ANGLES[:, None]), -1)


def other_halves(x: Any) -> Any:
    angles = jnp.concatenate([ANGLES, ANGLES + 1], -1)[:, None]
    return x * jnp.cos(angles) + jnp.concatenate([-x[..., D // 2 :], x[..., : D // 2]], -1) * jnp.sin(angles)


def mixed(x: Any) -> Any:
    return jnp.concatenate(turned(x[..., ::2], x[..., 1::2], ANGLES[:, None]), -1)


@pytest.mark.parametrize("shape", [(2, 1), (1, 2), (2,)])
def test_two_numbers_side_by_side(shape):
    """They are no rows of pairs."""
    check(lambda a, b: jnp.stack([a, b]).reshape(shape), np.float32(1.5), np.float32(-2))
    check(lambda a, b: jnp.stack(turned(a, b, np.float32(0.5))).reshape(shape), np.float32(1.5), np.float32(-2))


@pytest.mark.parametrize("fn", [reflected, other_way, swapped, other_halves, mixed])
def test_near_misses(fn):
    assert "RotaryEmbedding" not in ops(check(fn, X))


def test_batches_of_any_size_and_older_opsets():
    model = check(halves, X, dims=[("B", T, H, D)])
    assert ops(model).count("RotaryEmbedding") == 1
    check_run(model, halves, HARD)
    check_run(model, halves, X[:0])
    assert "RotaryEmbedding" not in ops(check(halves, X, opset=22))


def angles_of(x: Any) -> Any:
    return jnp.arange(x.shape[1])[:, None] / 100 ** (jnp.arange(D // 2) / D)


def any_halves(x: Any) -> Any:
    return halves(x, angles_of(x)[:, None])


def any_whole(x: Any) -> Any:
    angles = angles_of(x)
    cos, sin = (g(jnp.concatenate([angles, angles], -1))[None, :, None] for g in (jnp.cos, jnp.sin))
    return x * cos + jnp.concatenate([-x[..., D // 2 :], x[..., : D // 2]], -1) * sin


def any_neighbours(x: Any) -> Any:
    heads_first = x.transpose(0, 2, 1, 3)
    pair = turned(heads_first[..., ::2], heads_first[..., 1::2], angles_of(x))
    return jnp.stack(pair, -1).reshape(heads_first.shape)


@pytest.mark.parametrize("fn", [any_halves, any_whole, any_neighbours])
def test_sequences_of_any_length(fn):
    model = check_at_sizes(fn, ("B", "T", H, D), empty="B T", atol=1e-5)
    assert ops(model).count("RotaryEmbedding") == 1 and "Slice" not in ops(model)


WIDE = np.random.default_rng(3).normal(size=(B, T, H, D + 5)).astype(np.float32)
WIDE_HARD = WIDE.copy()
WIDE_HARD[0, 1, 0, 2], WIDE_HARD[1, 2, 1, D + 1], WIDE_HARD[1, 3, 0, D + 2] = np.nan, np.inf, np.nan


def beside(x: Any, rotate: Any) -> Any:
    return jnp.concatenate([rotate(x[..., :D]), x[..., D:]], -1)


FIRST_COLUMNS = {
    "halves": lambda x: beside(x, halves),
    "neighbours": lambda x: beside(x, neighbours),
    "whole": lambda x: beside(x, whole),
    "heads-first": lambda x: beside(x.transpose(0, 2, 1, 3), lambda x: halves(x, ANGLES)),
    "slices": lambda x: beside(x, lambda x: jnp.concatenate(turned(x[..., :4], x[..., 4:], ANGLES[:, None]), -1)),
    "split": lambda x: jnp.concatenate([halves(jnp.split(x, [D], -1)[0]), jnp.split(x, [D], -1)[1]], -1),
}


@pytest.mark.parametrize("dims", [None, [("B", T, H, D + 5)]])
@pytest.mark.parametrize("fn", FIRST_COLUMNS.values(), ids=FIRST_COLUMNS)
def test_first_columns_of_each_head(fn, dims):
    model = check(fn, WIDE, dims=dims, rtol=1e-5, atol=1e-5)
    assert ops(model).count("RotaryEmbedding") == 1 and not {"Concat", "Slice", "Split"} & set(ops(model)[-3:])
    check_run(model, fn, WIDE_HARD, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: jnp.concatenate([x[..., :5], halves(x[..., 5:])], -1),
        lambda x: jnp.concatenate([halves(x[..., 5:]), x[..., :5]], -1),
        lambda x: jnp.concatenate([halves(x[..., :D]), -x[..., D:]], -1),
        lambda x: jnp.concatenate([halves(x[..., :D]), x[..., D - 1 :]], -1),
        lambda x: jnp.concatenate([halves(x[..., :D]), x[::-1, ..., D:]], -1),
    ],
    ids=["last", "other-order", "changed", "overlap", "other-array"],
)
def test_other_columns_are_put_beside_it(fn):
    assert "Concat" in ops(check(fn, WIDE, rtol=1e-5, atol=1e-5))


@pytest.mark.parametrize(("cos", "sin"), [(0.5, 0.25), (ANGLES[0, 0], ANGLES[1, :1]), (1.5, X[0, 0, 0])])
@pytest.mark.parametrize("fn", [whole, neighbours], ids=["halves", "neighbours"])
def test_one_angle_for_all(fn, cos, sin):
    def crossed(x):
        if fn is whole:
            return jnp.concatenate([-x[..., D // 2 :], x[..., : D // 2]], -1)
        return jnp.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)

    check(lambda x: x * cos + crossed(x) * sin, X, rtol=1e-5)
    check(lambda x, c, s: x * c + crossed(x) * s, X, np.float32(cos), np.float32(sin), rtol=1e-5)


@pytest.mark.parametrize("shape", [(D // 2,), (1, D // 2), (1, 1, D // 2)])
@pytest.mark.parametrize(("length", "count"), [(1, H), (H, 1), (1, 1)])
def test_one_position_in_batches_of_any_size(length, count, shape):
    x, angles = X[:, :length, :count], ANGLES[1].reshape(shape)
    model = check(halves, x, angles, dims=[("B", length, count, D), None], rtol=1e-5, atol=1e-5)
    check_run(model, halves, x[:0], angles, rtol=1e-5, atol=1e-5)
