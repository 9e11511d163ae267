"""One window at a known place: what is around it stays exactly as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from jax import lax
from jax import numpy as jnp

from jax2onnx import runtime
from tests.helpers import check

rng = np.random.default_rng(0)
INSIDE = np.s_[1:-1, 2:]
DTYPES = [np.float32, np.float16, np.int32, np.uint8, np.int64]


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def array(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Of floats, every fifth is special."""
    x = rng.normal(size=shape) * 9
    if np.dtype(dtype).kind == "f":
        x.reshape(-1)[::5] = np.resize([np.nan, np.inf, -np.inf, -0.0, 0.0], x.reshape(-1)[::5].shape)
    return np.abs(x).astype(dtype) if dtype == np.uint8 else x.astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "max", "min"])
def test_blocks_are_padded_with_what_changes_nothing(name: str, dtype: Any) -> None:
    x, u = array((20, 20), dtype), array((18, 18), dtype)
    update = lambda x, u: getattr(x.at[INSIDE], name)(u)  # noqa: E731
    model = check(update, x, u)
    assert ("ScatterND" in operators(model)) == (dtype == np.int64 and name in ("max", "min"))
    if np.dtype(dtype).kind == "f":
        (got,) = runtime.run(model, [x, u])
        got[INSIDE] = x[INSIDE]
        np.testing.assert_array_equal(np.signbit(got), np.signbit(x))
    for filling in (-0.0, 3):  # of which the window is no part, but the numbers next to it
        check(lambda u: getattr(jnp.full((20, 20), filling, dtype).at[INSIDE], name)(u), u)  # noqa: B023


def test_adding_to_a_block_takes_two_nodes() -> None:
    """Also in a loop, where each node counts; few rows are written as they are."""
    x = array((40, 40), np.float32)
    assert operators(check(lambda x: x.at[INSIDE].add(x[1:-1, :-2]), x)) == ["Slice", "Pad", "Add"]
    assert operators(check(lambda x: jnp.zeros((40, 40)).at[INSIDE].add(x[1:-1, :-2]), x)) == ["Slice", "Add", "Pad"]
    assert operators(check(lambda x: x.at[3:9].multiply(x[:6]), x)) == ["Slice", "ScatterND"]
    true = check(lambda x: x.at[INSIDE].max(~x[INSIDE]), x > 0)
    assert operators(true) == ["Slice", "Not", "Pad", "Or"]


def test_symbolic_sizes() -> None:
    x, u = array((7, 30), np.float32), array((7, 28), np.float32)
    check(lambda x, u: x.at[:, 1:-1].add(u), x, u, dims=[("B", 30), ("B", 28)])


def test_large_windows_in_arrays_of_symbolic_sizes() -> None:
    """How large the array is only decides about speed: it is no question for JAX."""
    x, u = array((4000,), np.float32), array((3000,), np.float32)
    limits = {"dims": [("N",), None], "constraints": ["N >= 3100"]}
    check(lambda x, u: x.at[100:3100].add(u), x, u, **limits)
    check(lambda x, u: lax.dynamic_update_slice(x, u, (x.argmax(),)), x, u, **limits)
