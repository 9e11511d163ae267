"""Numbers that are combined with arrays that have axes of size 1 at their end."""

from __future__ import annotations

import jax
import numpy as np
import onnx
import pytest
from jax import lax
from jax import numpy as jnp

from tests.helpers import check

X = np.random.default_rng(0).uniform(0.5, 2, (40, 10, 3)).astype(np.float32)


def short_operands(model: onnx.ModelProto) -> list[str]:
    """The nodes of a model with an operand of one number that has too few axes."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    shapes = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in (*inferred.value_info, *inferred.input, *inferred.output)
    }
    shapes |= {i.name: list(i.dims) for i in model.graph.initializer}
    found = []
    for node in model.graph.node:
        shape = shapes.get(node.output[0], [])
        if shape[-1:] == [1] and np.prod(shape) > 300 and node.op_type in ("Add", "Mul", "Div", "Sub", "Max", "Where"):
            found += [node.name for name in node.input if np.prod(shapes[name]) == 1 and len(shapes[name]) < 2]
    return found


@pytest.mark.parametrize("axes", [-1, (1, 2)])
def test_known_and_unknown_numbers(axes: int | tuple[int, ...]) -> None:
    def fn(x: jax.Array, scale: jax.Array) -> list[jax.Array]:
        x = jnp.tile(x, (10, 1, 1))
        norm = jnp.sqrt(jnp.sum(x * x, axes, keepdims=True) + 1e-6)
        share = norm / jnp.sum(norm)
        return [x / norm, share * scale, jnp.where(norm > 2, norm, 0.5), jnp.maximum(norm, scale), norm**1.5 - 1]

    model = check(fn, X, np.float32(1.25))
    assert not short_operands(model)


def test_in_bodies_and_with_unknown_sizes() -> None:
    def fn(x: jax.Array) -> jax.Array:
        step = lambda x, _: (x / (jnp.linalg.norm(x, axis=-1, keepdims=True) + 0.5), None)  # noqa: E731
        return lax.scan(step, x, length=40)[0]

    check(fn, X)
    check(fn, X, dims=[("B", "N", 3)])


def test_small_arrays_keep_plain_numbers() -> None:
    model = check(lambda x: jnp.sum(x, -1, keepdims=True) + 0.5, X[:2, :2])
    assert [list(i.dims) for i in model.graph.initializer if i.data_type == onnx.TensorProto.FLOAT] == [[]]


def test_other_runtimes_get_plain_numbers() -> None:
    model = check(lambda x: jnp.sum(x, -1, keepdims=True) + 0.5, X, target="onnx")
    assert [list(i.dims) for i in model.graph.initializer if i.data_type == onnx.TensorProto.FLOAT] == [[]]
