"""Axes of size 1 that are added, moved, reduced and removed again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from jax import lax
from jax import numpy as jnp

from tests.helpers import check, check_run

EXACT = {"rtol": 0, "atol": 0}
RNG = np.random.default_rng(0)


def counted(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


@pytest.mark.parametrize("reduce", [jnp.sum, jnp.max, jnp.min, jnp.prod, jnp.mean])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int8, np.uint64])
def test_single_elements_are_not_reduced(reduce: Any, dtype: Any) -> None:
    x = np.array([3, 200, 7, 0, 1, 1]).astype(dtype)
    if x.dtype.kind not in "iu":
        x[:4] = -0.0, np.nan, np.inf, -np.inf
    model = check(lambda x: reduce(x.reshape(1, 3, 1, 2), (0, 2)), x, **({} if reduce is jnp.prod else EXACT))
    assert not [op for op in counted(model) if op.startswith("Reduce")]
    check(lambda x: reduce(x.reshape(6, 1), 1, keepdims=True), x, dims=[("N",)])
    check(lambda x: reduce(x[:0].reshape(0, 1), 1), x)


def test_what_is_reduced_and_has_single_elements_too() -> None:
    x = RNG.normal(size=(5, 1, 7)).astype(np.float32)
    x[1, 0, 2] = np.nan
    model = check(lambda x: (x.sum((1, 2), keepdims=True) * 2, x.max((0, 1))), x, dims=[("B", 1, "N")])
    check_run(model, lambda x: (x.sum((1, 2), keepdims=True) * 2, x.max((0, 1))), x[:1, :, :1])


@pytest.mark.parametrize("dims", [None, [("B", "N", 4)]])
def test_reduced_axes_are_not_kept_and_removed(dims: Any) -> None:
    def fn(x: Any) -> Any:
        y = jnp.exp(x)
        return (
            y.sum((0, 1), keepdims=True).reshape(4),
            jnp.squeeze(y.max(1, keepdims=True), 1),
            y.mean(2, keepdims=True),
        )

    model = check(fn, RNG.normal(size=(3, 5, 4)).astype(np.float32), dims=dims)
    assert not {"Reshape", "Squeeze", "Unsqueeze"} & {*counted(model)}


def test_only_reduced_axes_are_dropped() -> None:
    x = RNG.normal(size=(1, 4, 4)).astype(np.float32)
    check(lambda x: (x.sum(1, keepdims=True).reshape(4), x.sum(1, keepdims=True).reshape(2, 2)), x)
    check(lambda x: [(s := x.sum(2, keepdims=True)), s.reshape(1, 4)], x)


def test_axes_that_several_transposes_move_and_that_go_then() -> None:
    """As those that vmap adds in the gradient of attention of any size."""

    def fn(x: Any) -> Any:
        x = lax.expand_dims(jnp.sin(x), (0,))
        return x.transpose(1, 3, 4, 0, 2).squeeze(3) @ x.transpose(1, 3, 0, 2, 4).squeeze(2)

    model = check(fn, RNG.normal(size=(2, 3, 4, 5)).astype(np.float32), dims=[("B", "T", 4, 5)], rtol=1e-5, atol=1e-5)
    assert counted(model) == {"Sin": 1, "Transpose": 2, "MatMul": 1}


@pytest.mark.parametrize("added", [2, 3])
@pytest.mark.parametrize("dims", [None, [("B", 3, 8, 9)]])
@pytest.mark.parametrize("pads", [(0, 0), (1, 2)])
def test_pools_have_no_axis_that_is_added_for_them(added: int, dims: Any, pads: tuple[int, int]) -> None:
    """As those of Equinox under vmap."""
    x = RNG.normal(size=(2, 3, 8, 9)).astype(np.float32)
    x[1, 2, 3, 4] = np.nan
    window, padding = [1, 1, 3, 2], [(0, 0), (0, 0), pads, (0, 1)]
    window.insert(added, 1)
    padding.insert(added, (0, 0))

    def pool(x: Any, start: float, combine: Any) -> Any:
        x = lax.expand_dims(jnp.abs(x), (added,))
        return lax.reduce_window(x, start, combine, window, window, padding).squeeze(added)

    largest = check(lambda x: pool(x, -np.inf, lax.max), x, dims=dims, **EXACT)
    mean = check(lambda x: pool(x, 0.0, lax.add) / 6, x, dims=dims)
    assert counted(largest) == {"Abs": 1, "MaxPool": 1} and counted(mean) == {"Abs": 1, "AveragePool": 1}


@pytest.mark.parametrize("change", [{"strides": 2}, {"padding": (1, 0)}, {"size": 2}])
def test_pools_keep_an_axis_along_which_they_do_something(change: dict[str, Any]) -> None:
    x = RNG.normal(size=(2, 3, 8 * change.get("size", 1), 9)).astype(np.float32)

    def pool(x: Any) -> Any:
        x = x.reshape(2, 3, change.get("size", 1), 8, 9)
        strides, padding = (1, 1, change.get("strides", 1), 2, 2), [(0, 0)] * 5
        padding[2] = change.get("padding", (0, 0))
        y = lax.reduce_window(x, -np.inf, lax.max, (1, 1, 1, 2, 2), strides, padding)
        return y.reshape(2, 3, -1, *y.shape[4:])

    check(pool, x, **EXACT)
