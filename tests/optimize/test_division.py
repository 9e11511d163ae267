"""Quotients and terms, bit for bit as in JAX, and factors of matrix products in double precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from tests.helpers import check, check_run

RNG = np.random.default_rng(0)
DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
SHAPES = [(), (1,), (30,), (20, 1), (1, 30), (1, 1), (20, 30), (5, 20, 30), (5, 1, 30)]
EXACT = {"rtol": 0, "atol": 0}


def array(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.uniform(0.1, 10, shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "divisor", [(), (1,), (30,), (20, 1), (1, 30), (1, 1), (20, 30), (5, 20, 30), (5, 1, 30)], ids=str
)
def test_quotients_have_the_bits_of_jax(divisor: tuple[int, ...], dtype: Any) -> None:
    x, y = array(20, 30, dtype=dtype), array(*divisor, dtype=dtype)
    check(lambda x, y: x / y, x, y, **EXACT)
    check(lambda x: x / y, x, **EXACT)
    check(lambda y: x / y, y, **EXACT)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: x[:, None] / y,
        lambda x, y: x[:1] / y[0],
        lambda x, y: (x[:, None] / y[0])[3],
        lambda x, y: x.reshape(1, 20) / x[0],
        lambda x, y: jnp.full(20, x[0]) / jnp.full(20, y[1]),
        lambda x, y: x.max() / y[0],
        lambda x, y: jax.lax.map(lambda row: row / x[0], jnp.stack([x, x + 1])),
    ],
)
def test_so_do_quotients_with_other_operands_repeated(fn: Callable[..., Any], dtype: Any) -> None:
    check(fn, array(20, dtype=dtype), array(30, dtype=dtype), **EXACT)


def test_what_is_rounded_behind_a_quotient() -> None:
    def quantized(x: jax.Array) -> jax.Array:
        scale = jnp.abs(x).max(-1, keepdims=True) / 127.5
        return jnp.round(x / scale).astype(jnp.int8)

    model = check(quantized, RNG.normal(size=(8, 64)).astype(np.float32))
    for _ in range(20):
        check_run(model, quantized, RNG.normal(size=(8, 64)).astype(np.float32))
    check(lambda i: jnp.floor(i / 3), np.arange(-500, 500, dtype=np.int32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_condition_over_nothing(dtype: Any) -> None:
    masks = np.array([[0, 0, 0], [1, 0, 1], [1, 1, 1]], bool)
    wide = dtype == np.float64
    numbers = np.array([0.0, -0.0, np.nan, np.inf, 2.0], dtype)
    check(lambda m: m / m.sum(-1, keepdims=True), masks, x64=wide)
    check(lambda m: m.astype(dtype) / m.astype(dtype).sum(), masks[:1], x64=wide)
    for number in numbers:
        check(lambda m, s: m.astype(dtype) / s, masks, number, x64=wide)
        check(lambda m, s=number: m.astype(dtype) / s, masks, x64=wide)
        check(lambda m, s: (m < m).astype(dtype) / s, masks.astype(np.int32), number, x64=wide)  # of course not


SCALED: dict[str, Callable[..., Any]] = {
    "divided": lambda a, b: a @ b / 3.0,
    "multiplied": lambda a, b: 0.1 * (a @ b),
    "before": lambda a, b: (a / 3.0) @ b,
    "before, transposed": lambda a, b: (a * 0.1) @ (0.7 * b.T).T,
    "behind, transposed": lambda a, b: jnp.einsum("ij,jk->ki", a, b) / np.sqrt(6),
    "both": lambda a, b: 0.3 * ((a / 7) @ b) + 0.7,
    "batches": lambda a, b: jnp.einsum("nij,njk->nik", jnp.stack([a, a]), jnp.stack([b, -b])) / 7,
    "vectors": lambda a, b: (a[0] @ b[:, 0]) / 3,
    "one number": lambda a, b: (a[:1] @ b[:, :1]) / 3,
    "in a loop": lambda a, b: jax.lax.fori_loop(0, 3, lambda i, x: 0.1 * (x @ b @ b.T), a),
}


@pytest.mark.parametrize("name", SCALED)
def test_factors_of_products_in_double_precision(name: str) -> None:
    a, b = array(5, 6, dtype=np.float64), array(6, 4, dtype=np.float64)
    check(SCALED[name], a, b, rtol=1e-15)


def test_such_factors_with_sizes_that_are_known_only_when_the_model_runs() -> None:
    a, b = array(5, 6, dtype=np.float64), array(6, 4, dtype=np.float64)
    check(lambda a, b: a @ b / 3.0, a, b, dims=[("N", "K"), ("K", "M")], rtol=1e-15)


def test_operands_that_may_be_exchanged_make_no_other_node() -> None:
    x, y = np.float32([1, np.nan, -0.0, 3]), np.float32([2, 1, 0.0, np.inf])
    model = check(lambda x, y: ((x + y) * jnp.sin(y + x), (x - y) ** 2 + jnp.cos((y - x) ** 2)), x, y)
    found = [node.op_type for node in model.graph.node]
    assert found.count("Add") == 2 and found.count("Sub") == 1


def test_zero_is_nothing_to_add() -> None:
    x = np.float32([-0.0, 0.0, 1, np.nan])
    for fn in (lambda x: 1 / (x + 0.0), lambda x: 1 / (0.0 + x), lambda x: 1 / sum([x])):
        assert [node.op_type for node in check(fn, x).graph.node] == ["Div"]
    check(lambda x: x + 0.0, np.float32(2))
    check(lambda x: jnp.zeros((2, 4)) + x, x)


@pytest.mark.parametrize("batch", [2, "B"])
def test_counts_of_convolutions_are_divided_behind_them(batch):
    """What is whole is not just below that: sums of whole numbers are exact, and not those of their thirds."""
    kernel = np.ones((1, 1, 3, 3), np.float32)
    each = np.float32([3, 7, 49]).reshape(3, 1, 1)
    pixels = np.random.default_rng(0).integers(0, 2, (2, 1, 12, 12)).astype(np.float32)
    pixels[:, :, :6] = 1

    def fn(x):
        count = lax.conv(x, kernel, (1, 1), "SAME")
        columns = lax.conv(x, kernel * each[..., None], (1, 1), "SAME")
        return [jnp.floor(count / 3), count * np.float32(1 / 9) >= 1, jnp.floor(columns / each + 1), columns / 4]

    model = check(fn, pixels, dims=[(batch, 1, 12, 12)], rtol=0, atol=0)
    assert [node.op_type for node in model.graph.node].count("Mul") == 3
