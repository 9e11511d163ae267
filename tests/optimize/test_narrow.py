"""Of what is only partly used, only that part is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from jax import lax

from tests.helpers import check, check_run

RNG = np.random.default_rng(0)
D = 64


def array(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


X = array(2, 40, D)
TOKENS = array(5, 16, D)
W, V, B, C = array(D, 3 * D) / 8, array(3 * D, D) / 8, array(3 * D), array(D)
POSITIONS = array(1, 16, D)
MIXING = array(40, 40)


def largest(model: onnx.ModelProto, op_type: str) -> int:
    """How many elements the largest result of an operator has."""
    inferred = onnx.shape_inference.infer_shapes(model)
    shapes = {v.name: v.type.tensor_type.shape for v in [*inferred.graph.value_info, *inferred.graph.output]}
    sizes = [shapes[n.output[0]] for n in model.graph.node if n.op_type == op_type]
    return max((int(np.prod([d.dim_value for d in shape.dim])) for shape in sizes), default=0)


def norm(x: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-6) * C + 1


def block(x: jax.Array) -> jax.Array:
    return x + jax.nn.gelu(norm(x) @ W + B) @ V + C


PARTS: dict[str, Callable[[Any], Any]] = {
    "first": lambda x: x[:, 0],
    "last": lambda x: x[:, -1],
    "first as a range": lambda x: x[:, :1],
    "a few": lambda x: x[:, 3:7],
    "the end": lambda x: x[:, -2:],
    "one of the batch": lambda x: x[1],
    "two axes": lambda x: x[4:, 5:8],
    "three axes": lambda x: x[:1, 5:8, :4],
    "features": lambda x: x[..., :5],
    "backwards": lambda x: x[:, 9:3:-2],
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_a_block(name: str) -> None:
    """Two layers, positions that are added, and a head."""
    part = PARTS[name]
    model = check(lambda x: jax.nn.softmax(part(norm(block(block(x + POSITIONS))))), TOKENS, rtol=1e-5, atol=1e-5)
    if name not in ("features", "backwards"):
        assert largest(model, "Gelu") <= TOKENS.size * 3 // 4


def test_only_one_position_is_computed() -> None:
    model = check(lambda x: norm(block(block(x)))[:, 0], X, rtol=1e-5, atol=1e-5)
    assert largest(model, "Gelu") == 2 * 3 * D and largest(model, "LayerNormalization") == 2 * D
    assert sum(node.op_type == "Gather" for node in model.graph.node) == 1


@pytest.mark.parametrize("at", [0, -1, 5])
def test_unknown_length(at: int) -> None:
    fn = lambda x: norm(block(x))[:, at]  # noqa: E731
    model = check(fn, X, dims=[("B", "T", D)], rtol=1e-5, atol=1e-5)
    check_run(model, fn, X[:1, :6], rtol=1e-5, atol=1e-5)


def test_what_else_is_used_is_computed() -> None:
    model = check(lambda x: ((y := block(x))[:, 0], y.sum(1)), X, rtol=1e-5, atol=1e-4)
    assert largest(model, "Gelu") == X.size * 3
    check(lambda x: ((y := block(x))[:, 0], y), X, rtol=1e-5, atol=1e-5)
    check(lambda x: ((y := block(x))[:, :30].sum(1), y[:, 20:]), X, rtol=1e-5, atol=1e-4)


MOVES: dict[str, Callable[[Any], Any]] = {
    "transpose": lambda x: jnp.sin(x).transpose(2, 0, 1)[3:9],
    "one of a transpose": lambda x: jnp.sin(x).transpose(2, 0, 1)[:, 1],
    "reshape of later axes": lambda x: jnp.sin(x).reshape(2, 40, 8, 8)[:, 4],
    "reshape of this axis": lambda x: jnp.sin(x).reshape(2, 20, 2, D)[:, 4],
    "reshape, a range": lambda x: jnp.sin(x).reshape(2, 40, 8, 8)[:, 4:6],
    "concat": lambda x: jnp.concatenate([jnp.sin(x), jnp.cos(x)], 2)[:, 4:6],
    "one of a concat": lambda x: jnp.concatenate([jnp.sin(x), jnp.cos(x)], 2)[:, 4],
    "one of a concat, behind": lambda x: jnp.concatenate([jnp.sin(x), jnp.cos(x)], 0)[:, 4],
    "along a concat": lambda x: jnp.concatenate([jnp.sin(x), jnp.cos(x)], 1)[:, 4:6],
    "softmax": lambda x: jax.nn.softmax(x, -1)[:, 2],
    "softmax over the axis": lambda x: jax.nn.softmax(x, 1)[:, 2],
    "softmax of a column": lambda x: jax.nn.softmax(x, -1)[..., 2],
    "the same for all": lambda x: (jnp.sin(x) * x.sum(1, keepdims=True))[:, 7],
    "where": lambda x: jnp.where(x > 0, x, C)[:, 2],
    "clip": lambda x: jnp.clip(x * 2, -1, 1)[:, 2:4],
    "of rows": lambda x: (x[0] @ W)[3],
    "some rows": lambda x: (x[0] @ W)[3:5],
    "a vector": lambda x: (x[0, 0] @ jnp.tile(W, (1, 30)))[3:5],
    "of a product with a vector": lambda x: (jnp.tile(x[0], (200, 1)) @ C)[3:5],
    "of a product of two": lambda x: (x @ x.transpose(0, 2, 1))[:, 3:5],
    "columns": lambda x: (x @ W)[..., 10:20],
    "two of the columns": lambda x: ((y := x @ W)[..., 10:20], y[..., 100:103]),
    "all of the columns": lambda x: jnp.split(x @ W, 3, -1),
    "of a product from the left": lambda x: jnp.einsum("ts,bsd->btd", MIXING, x)[:, :3],
    "columns of that": lambda x: jnp.einsum("ts,bsd->btd", MIXING, x)[..., 2:9],
}


@pytest.mark.parametrize("name", MOVES)
def test_moves(name: str) -> None:
    check(MOVES[name], X, rtol=1e-5, atol=1e-4)


ZEROS: dict[str, Callable[[Any], Any]] = {
    "concat": lambda x: jnp.concatenate([x[..., :9], jnp.zeros((2, 40, D - 9), x.dtype)], -1) @ W,
    "before and behind": lambda x: jnp.pad(x[..., :9], ((0, 0), (0, 0), (5, D - 14))) @ W,
    "of other axes, too": lambda x: jnp.pad(x[..., :9], ((0, 1), (2, 0), (5, D - 14))) @ W,
    "of other axes only": lambda x: jnp.pad(x, ((0, 1), (2, 0), (0, 0))) @ W,
    "set": lambda x: jnp.zeros((2, 50, D), x.dtype).at[:, 3:43, 10:20].set(x[..., :10]) @ W,
    "transposed": lambda x: jnp.einsum("btd,ts->bsd", jnp.pad(x, ((0, 0), (0, D - 40), (0, 0))), W),
    "in parts": lambda x: (
        jnp.concatenate([jnp.pad(x[..., :9], ((0, 0), (0, 0), (0, 7))), jnp.zeros((2, 40, 16)), x[..., 32:]], -1) @ W
    ),
    "used elsewhere": lambda x: ((y := jnp.pad(x[..., :9], ((0, 0), (0, 0), (5, D - 14)))) @ W, y),
    "not zero": lambda x: jnp.pad(x[..., :9], ((0, 0), (0, 0), (5, D - 14)), constant_values=2) @ W,
    "zero times infinity": lambda x: jnp.pad(x[..., :9], ((0, 0), (0, 0), (5, D - 14))) @ np.where(W > 0.3, np.inf, W),
}


@pytest.mark.parametrize("name", ZEROS)
def test_zeros(name: str) -> None:
    """They are not multiplied, unless that makes a NaN."""
    check(ZEROS[name], X, rtol=1e-5, atol=1e-4)
    check(ZEROS[name], np.where(X > 2, np.inf, X), rtol=1e-5, atol=1e-4)


def test_a_spectral_layer_computes_the_frequencies_it_keeps() -> None:
    kernel = array(5, D, D, 2) / 8

    def fn(x: jax.Array) -> jax.Array:
        half = jnp.einsum("bmc,mcd->bmd", jnp.fft.rfft(x, axis=1)[:, :5], lax.complex(kernel[..., 0], kernel[..., 1]))
        return jnp.fft.irfft(jnp.pad(half, ((0, 0), (0, 16), (0, 0))), n=40, axis=1)

    model = check(fn, X, rtol=1e-5, atol=1e-5)
    assert max(np.prod(t.dims) for t in model.graph.initializer) == kernel.size // 2
    assert not {node.op_type for node in model.graph.node} & {"Pad", "Expand"}
