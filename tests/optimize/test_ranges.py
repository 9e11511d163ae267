"""Floats that were clipped become integers, and indices, without further care; others do not."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from jax2onnx import to_onnx
from jax2onnx.optimize import ranges
from tests.helpers import calls, check

X = np.float32([-0.0, 0.5, -0.7, 29.99, 30, 31, 1e9, -3e9, 3e38, 1e-40, np.inf, -np.inf, np.nan, 7])
TABLE = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)


def ops(model) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize(
    ("place", "is_careful"),
    [
        (lambda x: jnp.clip(jnp.floor(x), 0, 30), False),
        (lambda x: jnp.floor(jnp.clip(x, 0.5, 31.9)), False),
        (lambda x: jnp.where(jnp.isnan(x), 3.0, jnp.minimum(jnp.maximum(x, 2), 30))[::2], False),
        (lambda x: jnp.clip(jnp.clip(x, 0, 20), 5, 30), False),
        (lambda x: jnp.clip(jnp.round(x), -3, 30), False),  # which counts from the end
        (lambda x: jnp.maximum(jnp.round(x), 0), True),
        (lambda x: jnp.clip(x, -3e9, 3e9), True),
        (lambda x: jnp.floor(x), True),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_places(place, is_careful, dtype):
    model = check(lambda table, x: table[place(x).astype(jnp.int32)], TABLE, X.astype(dtype), rtol=0, atol=0)
    limits = [2**31 - 1 in onnx.numpy_helper.to_array(i).astype(np.float64) for i in model.graph.initializer]
    assert any(limits) == is_careful
    if not is_careful:
        assert ops(model).count("Cast") == 1 and "Less" not in ops(model)


def test_places_that_may_be_outside():
    check(lambda table, x: table[jnp.clip(x, 0, 40).astype(jnp.int32)], TABLE, X, rtol=0, atol=0)
    check(lambda table, x: table[jnp.clip(x, -99, 31).astype(jnp.int32)], TABLE, X, rtol=0, atol=0)


def test_what_is_clipped_again():
    """Only a Clip to wider limits is gone, not where it might have made 0.0 of -0.0."""
    model = check(lambda x: jnp.sin(jnp.clip(jnp.clip(x, 0.5, 2), 0.1, 2)), X, rtol=1e-6, atol=1e-38)
    assert ops(model) == ["Clip", "Sin"]
    model = check(lambda x: jnp.sin(jnp.clip(jnp.clip(x, 0.0, 2), 0.0, 2.5)), X, rtol=1e-6, atol=1e-38)
    assert ops(model) == ["Clip", "Clip", "Sin"]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.uint32])
def test_other_integers(dtype):
    check(lambda x: [jnp.clip(x, *ends).astype(dtype) for ends in ((0, 127), (0, 128), (-1, 4e9), (5, 1e19))], X)


def test_ranges_of_chains_take_few_steps():
    """Each Clip looks at those before it, which is mostly in vain."""
    model = ir.from_proto(to_onnx(lambda x: jnp.clip(x, 0, 1), [(3,)]))
    (clip,) = model.graph
    low, high, value = clip.inputs[1], clip.inputs[2], clip.outputs[0]
    for _ in range(ranges.MAX_DEPTH):
        clip = ir.Node("", "Clip", [value, low, high], outputs=[ir.Value(shape=value.shape, type=value.type)])
        value = clip.outputs[0]
    assert ranges.range_of(value) == ranges.Range(0, 1)
    assert calls(lambda: ranges.range_of(value)) < 70 * ranges.MAX_DEPTH
