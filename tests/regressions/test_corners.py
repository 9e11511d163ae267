"""Small programs at the corners of JAX: dtypes, special values and shapes that are seldom tried."""

from __future__ import annotations

from collections.abc import Callable

import jax
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.experimental.custom_partitioning import custom_partitioning

from tests.helpers import check

FAR = np.array([-(2**32), -(2**63), 2**63 - 1, -1, 7, 2**32 + 1, 3])
SPECIAL = [0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan]
PLANE = np.array([complex(a, b) for a in SPECIAL for b in SPECIAL], np.complex64)
SIGNS = np.array([-3, 0, 5], np.int32)


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint16", "int64", "float32"])
def test_where_of_integers_is_no_activation(dtype: str) -> None:
    values = SIGNS.astype(dtype)
    fn = lambda v: [jnp.where(v > 0, v, -v), jnp.where(v >= 0, v, 3 * v), jnp.maximum(v, 0)]  # noqa: E731
    check(fn, values, x64=True, rtol=0, atol=0)


@pytest.mark.parametrize("spec", ["i,j->ij", "i,i->i", "bi,bj->bij", ",ij->ij"])
def test_products_of_conditions_without_a_sum(spec: str) -> None:
    flags = [
        np.array([True, False, True, False])[: 2 ** len(s)].reshape((2,) * len(s))
        for s in spec[:-3].split("-")[0].split(",")
    ]
    check(lambda a, b: jnp.einsum(spec, a, b), *flags)


@pytest.mark.parametrize("dtype", ["uint64", "int64", "int32"])
def test_an_exponent_is_converted_to_the_dtype_of_the_base(dtype: str) -> None:
    check(lambda a: 2.5**a, np.array([0, 3, 40], dtype), x64=True, rtol=1e-14)
    base = np.float32([-1, 1.5, -1])
    check(lax.pow, base, np.array([2**24 + 1, 3, 2**24], dtype), x64=True, rtol=1e-6)
    check(lax.pow, base.astype(ml_dtypes.bfloat16), np.array([257, 2, 255], dtype), x64=True, rtol=0)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logarithm_of_softmax_of_special_values(special: float, dtype: type) -> None:
    check(jax.nn.log_softmax, np.array([[1, special, 3], [1, 2, 3]], dtype), x64=True)
    check(lambda x: jax.nn.log_softmax(x, 0), np.array([[1, special, 3], [1, 2, 3]], dtype), x64=True)


def test_indices_that_do_not_fit_into_32_bits() -> None:
    x = np.arange(5, dtype=np.float32)
    modes = [lambda i, m=m: jnp.asarray(x).at[i].get(mode=m) for m in ("clip", "fill")]
    more = [
        lambda i: jnp.take(x, i),
        lambda i: jnp.zeros(5).at[i].add(1),
        lambda i: jnp.asarray(x).at[i].set(9.0),
        lambda i: jnp.bincount(i, length=5),
        lambda i: jnp.asarray(x)[i],
    ]
    for fn in (*modes, *more):
        check(fn, FAR, x64=True, rtol=0, atol=0)
    check(lambda i: jnp.take(x, i), np.uint32([2**32 - 1, 2**31, 3]), rtol=0, atol=0)


def test_an_activation_with_rounded_constants_is_another_function() -> None:
    x = np.linspace(-3, 3, 13)
    for root in (float(np.float32(np.sqrt(2))), 1.41421356, np.sqrt(2)):
        check(lambda a: a * 0.5 * (1 + lax.erf(a / root)), x, x64=True, rtol=1e-12, atol=1e-15)  # noqa: B023
    factor = float(np.float32(np.sqrt(2 / np.pi)))
    tanh = lambda a: 0.5 * a * (1 + jnp.tanh(factor * (a + 0.044715 * a**3)))  # noqa: E731
    check(tanh, x, x64=True, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_floats_of_8_bits(dtype: str) -> None:
    values = np.array([[1.5, -2, 0.25], [3, -0.0, 1]], np.float32).astype(dtype)
    fn = lambda x: [jnp.max(x), jnp.min(x, 1), x.astype(bool)]  # noqa: E731
    check(fn, values, rtol=0, atol=0)


def test_keys_are_compared_with_one_key() -> None:
    for fn in (lambda k: k == k[0], lambda k: k[1] != k, lambda k: jax.vmap(lambda q: q == k[1])(k)):
        check(lambda seed, fn=fn: fn(jax.random.split(jax.random.key(seed), 3)), np.int32(0))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_halves_are_rounded_away_from_zero_with_their_sign(dtype: type) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.49999997, -0.4, 2.5, -2.5, -0.0, 0.0, 0.5, -0.5], dtype)
    fn = lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO)  # noqa: E731
    check(lambda x: [fn(x), 1 / fn(x)], x, x64=True, rtol=0, atol=0)


def test_complex_quotients_by_zero_and_infinity() -> None:
    is_plain = np.isfinite(PLANE) & (PLANE != 0)
    a, b = (v.ravel() for v in np.meshgrid(PLANE, PLANE[~is_plain]))
    check(lax.div, a, b)
    check(lax.div, *(v.ravel() for v in np.meshgrid(PLANE[np.isfinite(PLANE)], PLANE[is_plain])))


@pytest.mark.parametrize("exponent", [1.0, 2.0, 3.0, -1.0])
def test_complex_powers_that_are_products(exponent: float) -> None:
    finite = np.array([-1 + 1000j, 3 - 4j, 0.5 + 2j, -7 - 1e-3j], np.complex64)
    for power in (exponent, np.int32(exponent), np.complex64(exponent)):
        check(lambda z: z**power, finite, rtol=2e-7, atol=0)  # noqa: B023


def test_a_function_with_a_partitioning_of_its_own() -> None:
    @custom_partitioning
    def doubled(x: jax.Array) -> jax.Array:
        return jnp.sin(x) * 2

    doubled.def_partition(partition=lambda *_: None, sharding_rule="i -> i")
    check(lambda x: doubled(x) + 1, np.float32([1, 2]))


NIBBLES = np.array([[1, -8, 7], [0, 3, -2], [5, -1, 4]], np.int8)


@pytest.mark.parametrize("dtype", [jnp.int4, jnp.uint4], ids=lambda d: d.__name__)
def test_integers_of_4_bits_pass_through_bodies(dtype: type) -> None:
    q = jnp.asarray(NIBBLES & 7 if dtype == jnp.uint4 else NIBBLES).astype(dtype)

    def branches(x: jax.Array) -> jax.Array:
        return lax.cond(x[0] > 0, lambda q: q, lambda q: q.T, q).astype(jnp.float32)

    def layers(x: jax.Array) -> tuple:
        return lax.scan(lambda h, row: (h + row.astype(jnp.float32), row), x, q)

    def carried(x: jax.Array) -> jax.Array:
        def body(carry: tuple) -> tuple:
            h, values = carry
            return h + values[0].astype(jnp.float32), values[::-1]

        h, values = lax.while_loop(lambda carry: carry[0].sum() < 30, body, (x, q))
        return h + values[1].astype(jnp.float32)

    for x in np.float32([[1, 2, 3], [-1, 2, 3]]):
        check(branches, x)
        check(lambda x: jax.tree.map(lambda y: y.astype(jnp.float32), layers(x)), x)  # NumPy has no 4-bit outputs
        check(carried, x)


@pytest.mark.parametrize("shift", [lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic])
def test_shifts_of_4_bits(shift: Callable) -> None:
    check(lambda x: shift(x.astype(jnp.int4), jnp.int4(1)).astype(jnp.int32), NIBBLES)


def test_choices_between_conditions_are_logic() -> None:
    c, a = np.array([True, True, False, False]), np.array([True, False, True, False])
    cases: list[Callable] = [
        lambda c, a: jnp.where(c, c, a),
        lambda c, a: jnp.where(c, a, c),
        lambda c, a: jnp.where(c, True, a),
        lambda c, a: jnp.where(c, False, a),
        lambda c, a: jnp.where(c, a, True),
        lambda c, a: jnp.where(c, a, False),
        lambda c, a: jnp.where(c, True, False),
        lambda c, a: jnp.where(c, False, True),
        lambda c, a: jnp.where(c[0], c[0], a),
        lambda c, a: jnp.where(c[:, None], a, c[:, None]),
    ]
    for fn in cases:
        model = check(fn, c, a)
        assert not {"Where", "Cast"} & {node.op_type for node in model.graph.node}
    others: list[Callable] = [
        lambda c, a: jnp.where(c, jnp.full(4, True), True),
        lambda c, a: jnp.where(c, False, jnp.zeros(4, bool)),
        lambda c, a: jnp.where(c[0], jnp.full((3, 4), True), a),
    ]
    for fn in others:
        check(fn, c, a)
