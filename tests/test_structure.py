"""What `load` takes and gives has the structure that the function has."""

from __future__ import annotations

import collections
import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jax2onnx import InputError, load, to_onnx


class State(NamedTuple):
    velocity: Any
    count: Any
    angle: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Cell:
    weight: Any
    bias: Any


X = np.float32([1, 2, 3])
TREES = {
    "named tuple": State(X, X[:1], (X[1:], {"z": X, "a": X[:2]})),
    "dataclass": Cell(X, State(X[:2], X, X[1:])),
    "ordered": collections.OrderedDict(z=X, a=X[:2]),
    "dictionary": {"z": [X, X[:2]], "a": (X[1:],)},
    "nothing": (None, [], X),
    "numbers": {10: X, 9: {}, 2: X[:2], 0: {(2, "a"): X[1:], (10, "b"): X}},
}


@pytest.mark.parametrize("name", TREES)
def test_leaves_are_in_the_same_order(name: str) -> None:
    def fn(tree: Any) -> Any:
        return jax.tree.map(lambda x: x * 2, tree)

    tree = TREES[name]
    model = load(to_onnx(fn, [tree]))
    got = model(tree)
    want = fn(jax.tree.map(jnp.asarray, tree))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(a, b)
    again = model(got)  # what it gives it also takes
    assert jax.tree.structure(again) == jax.tree.structure(got)
    for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(got), strict=True):
        np.testing.assert_array_equal(a, 2 * b)


def test_keys_that_are_numbers() -> None:
    got = load(to_onnx(lambda x: {2: x[0], 10: x[7]}, [{0: X, 7: X[:1]}]))({7: X[:1], 0: X})
    assert list(got) == [2, 10] and got[10] == X[:1]


def test_a_named_tuple_has_its_fields() -> None:
    got = load(to_onnx(lambda x: State(x, x.sum(), -x), [X]))(X)
    assert type(got).__name__ == "State" and got._fields == State._fields
    assert got.count == 6 and got[2][0] == -1


def test_the_state_of_an_optimizer() -> None:
    optimizer = optax.chain(optax.clip(1.0), optax.adamw(1e-2))
    weights = {"w": X, "b": X[:1]}
    state = optimizer.init(weights)

    def step(weights: Any, state: Any) -> Any:
        gradients = jax.grad(lambda p: ((p["w"] * p["b"]) ** 2).sum())(weights)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state

    model = load(to_onnx(step, [weights, state]))
    got: Any = (weights, state)
    want: Any = (weights, state)
    for _ in range(3):
        got, want = model(*got), jax.jit(step)(*want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_other_fields_are_refused() -> None:
    model = load(to_onnx(lambda s: s.count, [State(X, X, X)]))
    with pytest.raises(InputError, match="expected the keys"):
        model(Cell(X, X))


@pytest.mark.parametrize("content", [None, b"", b"no model"])
def test_what_is_no_model_is_not_loaded(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "m.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"ONNX Runtime does not load the model: .*"):
        load(path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.ones((2, 3)), r"does not take x: float64\[2, 3\]. The model takes x: tensor\(float\)\['B', 3\]"),
        (np.ones((2, 4), np.float32), r"does not take x: float32\[2, 4\]"),
        (np.ones(3, np.float32), r"does not take x: float32\[3\]"),
        ("hello", "The argument x is 'hello'; it is an array or a number"),
        (None, "The argument x is None"),
    ],
)
def test_what_a_model_does_not_take(given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(to_onnx(lambda x: x + 1, [("B", 3)]))(given)


def test_a_named_tuple_with_names_that_python_made() -> None:
    kind = collections.namedtuple("kind", ["a", "def"], rename=True)  # type: ignore[misc]
    result = load(to_onnx(lambda x: kind(x, x + 1), [(3,)]))(np.ones(3, np.float32))
    np.testing.assert_array_equal(result._1, [2, 2, 2])


def test_nothing_is_given_where_the_function_was_given_nothing() -> None:
    model = load(to_onnx(lambda x, mask: x if mask is None else x * mask, [(3,), None]))
    x = np.ones(3, np.float32)
    np.testing.assert_array_equal(model(x, None), x)
    with pytest.raises(InputError, match="expected None, got a ndarray"):
        model(x, x)
