"""Maxima and minima of floats are NaN where JAX's are."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.helpers import check, check_run
from tests.targets.one_node import check as check_node

X = np.random.default_rng(0).normal(size=(3, 4, 9)).astype(np.float32)
X[0, 1, 5] = np.nan
X[1, 2] = -np.inf
X[2, 0, :2] = np.inf, -np.inf


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, jnp.bfloat16])
@pytest.mark.parametrize("axes", [(2,), (0, 2), (0, 1, 2)])
def test_reductions_keep_nan(axes, dtype):
    check(lambda x: (x.max(axes), x.min(axes, keepdims=True)), X.astype(dtype))


def test_reductions_of_an_axis_that_may_be_anything():
    model = check(lambda x: (x.max(1), x.min((0, 1))), X, dims=[("A", "B", 9)])
    check_run(model, lambda x: (x.max(1), x.min((0, 1))), X[:1, :1])
    check(lambda x: x.max(1), X, dims=[("A", "B", 9)], opset=17)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, jnp.bfloat16])
@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_reductions_of_many_keep_nan(op, dtype):
    """What NumPy says: XLA itself loses NaN here, in columns that it reduces several at a time."""
    x = np.random.default_rng(1).normal(size=(4, 1024, 8))
    both = np.where(x > 3, np.inf, np.where(x < -3, -np.inf, x))
    for special in (x, np.where(x > 3, np.nan, x), both, np.where(np.abs(x) < 2e-3, np.nan, both), x * np.inf):
        given = special.astype(dtype)
        for axis in (0, 1, 2):
            wide = given.astype(np.float64)
            want = (wide.max if op == "ReduceMax" else wide.min)(axis).astype(dtype)
            check_node(op, [given, np.asarray([axis])], [want], {"keepdims": 0})


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, jnp.bfloat16])
def test_windows_keep_nan(dtype):
    def pool(x, window=(1, 2, 3)):
        return lax.reduce_window(x, np.asarray(-np.inf, dtype), lax.max, window, (1, 1, 2), "SAME")

    check(pool, X.astype(dtype))
    check(pool, np.nan_to_num(X, posinf=1, neginf=-1).astype(dtype))
    check(lambda x: pool(x, (1, 1, 2)), X.astype(dtype))  # a whole window of -inf


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, jnp.bfloat16])
def test_pools_keep_nan(dtype):
    """The operators themselves, whoever emits them."""
    x = X[None, 0].astype(dtype)
    wide = x.astype(np.float64)
    want = wide.max(-1, keepdims=True).astype(dtype)
    check_node("GlobalMaxPool", [x], [want], {})
    pairs = np.maximum(wide[..., :-1], wide[..., 1:]).astype(dtype)
    check_node("MaxPool", [x], [pairs], {"kernel_shape": [2]})
    lows = np.full((1, 1, 4), -np.inf).astype(dtype)
    check_node("MaxPool", [lows], [lows[..., :3]], {"kernel_shape": [2]})
