"""Comparisons of numbers that have been made canonical, as JAX does before it searches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest

from tests.helpers import check

SPECIAL = np.float32([0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1, -1, 1.2e-38])
TABLE = np.float32([-np.inf, -2, -1, -0.0, 0.0, 0.0, 0.5, 1, 2, np.inf])


def operators(graph: onnx.GraphProto) -> list[str]:
    inner = [op for n in graph.node for a in n.attribute if a.HasField("g") for op in operators(a.g)]
    return [node.op_type for node in graph.node] + inner


def canonical(x: jax.Array) -> jax.Array:
    x = jnp.where(x == 0, 0, x)
    return jnp.where(jnp.isnan(x), jnp.nan, x)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_what_is_compared_need_not_be_canonical(dtype: type) -> None:
    x, y = (v.astype(dtype) for v in np.meshgrid(SPECIAL, SPECIAL))

    def compare(x: jax.Array, y: jax.Array) -> list[jax.Array]:
        a, b = canonical(x), canonical(y)
        return [a < b, a <= b, a > b, a >= b, a == b, jnp.isnan(a), b != b, a < y]

    model = check(compare, x, y)
    assert "Where" not in operators(model.graph)
    check(compare, x, y, dims=[("A", "B"), ("A", "B")])


def test_others_are_left_alone() -> None:
    x, y = np.meshgrid(SPECIAL, SPECIAL)

    def compare(x: jax.Array, y: jax.Array) -> list[jax.Array]:
        changed = [jnp.where(x == 0, 1, x), jnp.where(x == 1, 0, x), jnp.where(jnp.isnan(x), 0, x)]
        changed += [jnp.where(x == 0, 0, y), jnp.where(jnp.isnan(x), jnp.nan, y)]
        return [1 / canonical(x), *(a < y for a in changed), *(jnp.isnan(a) for a in changed)]

    check(compare, x, y)


@pytest.mark.parametrize("side", ["left", "right"])
def test_search(side: str) -> None:
    """A step of it is nine operators, ten where the table may have NaN."""
    values = np.concatenate([SPECIAL, np.linspace(-3, 3, 25, dtype=np.float32)])
    model = check(lambda x: jnp.searchsorted(jnp.asarray(TABLE), x, side=side), values)
    assert not {"IsNaN", "Div", "Or", "Greater"} & set(operators(model.graph))
    assert operators(model.graph).count("Where") == 2
    with_nan = np.concatenate([TABLE, np.float32([np.nan, np.nan])])
    check(lambda x: jnp.searchsorted(jnp.asarray(with_nan), x, side=side), values)
    check(lambda t, x: jnp.searchsorted(t, x, side=side), with_nan, values)
    check(lambda t, x: jnp.searchsorted(t, x, side=side), TABLE, values, dims=[None, ("M",)])
    model = check(lambda x: jnp.searchsorted(jnp.asarray(TABLE), x, side=side), values, dims=[("M",)])
    assert not {"IsNaN", "Div", "Or", "Greater"} & set(operators(model.graph))


def test_what_decides_alone() -> None:
    x = np.array([True, False])

    def decide(x: jax.Array) -> list[jax.Array]:
        known = jnp.array([True, False])
        all_true, all_false = jnp.full(2, True), jnp.full(2, False)
        return [x & all_false, x | all_true, x & all_true, x | all_false, x & known, x | known, x[:1] & all_false]

    check(decide, x)
    check(lambda x: jnp.isnan(jnp.asarray(TABLE)[x]), np.array([3, 9, -20, 20], np.int32))


def test_what_has_no_sign_is_not_below_zero() -> None:
    def choose(x: jax.Array) -> list[jax.Array]:
        z = abs(x)
        below = jnp.where(z < 0, 1, z), jnp.where(abs(z) < -0.0, 1, z), jnp.where(z < -1, 1, z)
        return [*below, jnp.where(z < 1, -1, z), jnp.where(z <= 0, -1, z)]

    model = check(choose, SPECIAL)
    assert operators(model.graph).count("Where") == 2
    assert operators(model.graph).count("Abs") == 1
    assert operators(check(choose, SPECIAL, dims=[("N",)]).graph).count("Where") == 2
    check(choose, np.array([0, -5, 7], np.int32))
    check(jax.scipy.stats.norm.cdf, SPECIAL)


def test_argmax_of_numbers_without_nan_looks_for_none() -> None:
    x = np.float32([[1, np.nan, 3, np.inf], [np.nan, 2, -1, 0]])
    model = check(lambda x: jnp.argmax(jnp.where(jnp.isnan(x), -jnp.inf, x), 1), x)
    assert [node.op_type for node in model.graph.node].count("ArgMax") == 1
    check(lambda x: jnp.argmax(jnp.where(jnp.isnan(x), jnp.nan, x), 1), x)
    check(lambda x: jnp.argmax(jnp.where(jnp.isnan(x), 0, -x), 1), x)


@pytest.mark.parametrize("integers", ["int32", "uint8", "int64"])
@pytest.mark.parametrize("floats", ["float32", "float64", "float16"])
def test_integers_beside_infinity(integers: str, floats: str) -> None:
    """Half precision has none for large ones, which become infinite there."""

    def fn(n: jax.Array) -> list[jax.Array]:
        x = n.astype(floats)
        ends = (np.asarray(sign * np.inf, floats) for sign in (1, -1))
        return [answer for y in ends for answer in (x < y, x <= y, x > y, x >= y, x == y, y < x, y >= x, x != y)]

    info = np.iinfo(integers)
    model = check(fn, np.asarray([info.min, info.max, 0, 1, 2], integers), x64=True)
    assert "Less" not in operators(model.graph) or floats == "float16"


def test_steps_without_a_limit() -> None:
    def fn(x: jax.Array, limit: float) -> jax.Array:
        goes_on = lambda c: (c[0] < limit) & (c[1].sum() < 50)  # noqa: E731
        return jax.lax.while_loop(goes_on, lambda c: (c[0] + 1, c[1] * 2), (0, x))[1]

    model = check(lambda x: fn(x, np.inf), np.float32([1, 2]))
    assert sorted(operators(model.graph)) == ["Less", "Less", "Loop", "Mul", "ReduceSum", "ReduceSum"]
    check(lambda x: fn(x, 3.0), np.float32([1, 2]))
