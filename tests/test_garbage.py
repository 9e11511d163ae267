"""Garbage collection is paused while a model is made, and only then."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2onnx import to_onnx


@pytest.fixture(params=[True, False])
def enabled(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether the user collects garbage."""
    if not request.param:
        gc.disable()
    yield request.param
    gc.enable()


def test_stays_as_the_user_has_it(enabled: bool) -> None:
    to_onnx(jnp.sin, [(2,)])
    assert gc.isenabled() == enabled


def test_stays_as_the_user_has_it_after_an_error(enabled: bool) -> None:
    def fn(x: jnp.ndarray) -> jnp.ndarray:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        to_onnx(fn, [(2,)])
    assert gc.isenabled() == enabled


def test_stays_as_the_user_has_it_after_an_export_within_an_export(enabled: bool) -> None:
    def fn(x: jnp.ndarray) -> jnp.ndarray:
        to_onnx(jnp.cos, [(3,)])
        return jnp.sin(x)

    to_onnx(fn, [(2,)])
    assert gc.isenabled() == enabled


def test_is_paused_while_the_function_is_traced_but_not_while_its_weights_are_read(enabled: bool) -> None:
    seen = []

    def fn(w: jnp.ndarray, x: jnp.ndarray) -> jnp.ndarray:
        seen.append(gc.isenabled())
        return x @ w

    def load(name: str) -> np.ndarray:
        seen.append(gc.isenabled())
        return np.ones((64, 64), np.float32)

    weights = jax.ShapeDtypeStruct((64, 64), np.float32)
    to_onnx(fn, [(2, 64)], weights=weights, load_weight=load)
    assert seen[0] is False
    assert set(seen[1:]) == {enabled}
