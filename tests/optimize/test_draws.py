"""Random numbers that do not depend on each other are drawn together, to the bit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from jax import lax
from jax.extend.core import primitives as P

from jax2onnx import UnsupportedError, onnx_function, to_onnx
from tests.helpers import check
from tests.lower.bodies import bodies, count

KEY = jax.random.PRNGKey(3)
ROUNDS = 20


def hashes(model: onnx.ModelProto) -> int:
    """How many hashes there are: each shifts once in each round."""
    return count(model)["BitShift"] // ROUNDS


def exactly(fn: Any, *args: Any, **options: Any) -> onnx.ModelProto:
    return check(fn, *args, rtol=0, atol=0, **options)


def test_draws_with_the_keys_of_a_split() -> None:
    def fn(key: jax.Array) -> Any:
        a, b, c, d = jax.random.split(key, 4)
        return (
            jax.random.bits(a, (3, 2)),
            jax.random.bits(b),
            jax.random.uniform(c, (5,)),
            jax.random.bits(d, (2, 1, 2)),
        )

    assert hashes(exactly(fn, KEY)) == 2


def test_draws_that_depend_on_each_other() -> None:
    def fn(key: jax.Array) -> Any:
        a, b = jax.random.split(key)
        n = jax.random.bits(a, (4,))
        c = jax.random.fold_in(b, n[0])
        return n, jax.random.bits(c, (2,)), jax.random.bits(jax.random.fold_in(key, n.sum()), (3,)), jax.random.bits(b)

    assert hashes(exactly(fn, KEY)) == 4


def test_a_batch_of_keys_and_one_key() -> None:
    def fn(keys: jax.Array, key: jax.Array) -> Any:
        return jax.vmap(lambda k: jax.random.bits(k, (3,)))(keys), jax.random.bits(key, (2, 2))

    assert hashes(exactly(fn, jax.random.split(KEY, 4), KEY)) == 1


def test_known_keys_and_others() -> None:
    def fn(key: jax.Array, n: jax.Array) -> Any:
        return jax.random.bits(key, (3,)), jax.random.fold_in(jax.random.PRNGKey(7), n), jax.random.bits(KEY, (2,))

    assert hashes(exactly(fn, KEY, np.uint32(5))) == 1


def test_operands_of_several_shapes() -> None:
    def fn(key: jax.Array, x: jax.Array) -> Any:
        a = P.threefry2x32_p.bind(key[0], key[1], x, x + 1)
        b = P.threefry2x32_p.bind(key[:, None], x[:2, None], x[2:, None], key[:, None] + 1)
        return [y + 1 for y in (*a, *b)], P.threefry2x32_p.bind(key[1], key[0], x, x)

    exactly(fn, KEY, np.arange(4, dtype=np.uint32) * np.uint32(1 << 30))


def test_one_word_of_the_keys_is_known() -> None:
    """The seed is the other one. The counters are the same for all keys, and no operands make up the whole shape."""
    exactly(
        lambda seeds: lax.map(lambda n: jax.random.bits(jax.random.key(n), (8,)), seeds), np.arange(4, dtype=np.int32)
    )


def test_keys_of_a_number_of_steps_that_only_the_run_knows() -> None:
    """All steps are hashed together; their number has no name, and two of the operands are columns."""

    def fn(key: jax.Array, n: jax.Array) -> Any:
        def step(c: Any) -> Any:
            i, key, total = c
            key, draw = jax.random.split(key)
            return i + 1, key, total + jax.random.normal(draw, (2,))

        return lax.while_loop(lambda c: c[0] < n, step, (jnp.int32(0), key, jnp.zeros(2)))

    check(fn, KEY, np.int32(3))


def test_draws_in_a_loop() -> None:
    def fn(key: jax.Array) -> Any:
        def step(c: Any) -> Any:
            key, x = c
            key, a, b = jax.random.split(key, 3)
            flip = lax.cond(x.sum() > 0.5, lambda: jax.random.uniform(a, (2,)), lambda: jax.random.uniform(b, (2,)) + 1)
            return key, x + jax.random.uniform(a, (2,)) * jax.random.uniform(b) + flip

        return lax.while_loop(lambda c: c[1].max() < 4, step, (key, jnp.zeros(2)))

    model = check(fn, KEY)
    body = next(body for op, body in bodies(model.graph) if op == "Loop")
    assert sum(node.op_type == "BitShift" for node in body.node) < 3 * ROUNDS


def test_the_numbers_of_steps_are_known() -> None:
    def fn(key: jax.Array) -> Any:
        return lax.scan(lambda c, i: (c + jax.random.bits(jax.random.fold_in(key, i)), c), jnp.uint32(0), jnp.arange(4))

    assert not {"BitwiseAnd", "Unsqueeze"} & set(count(exactly(fn, KEY)))


def test_symbolic_and_large_draws_stay_apart() -> None:
    def fn(key: jax.Array, x: jax.Array) -> Any:
        a, b = jax.random.split(key)
        return x + jax.random.bits(a, x.shape), jax.random.bits(b, (20_000,)).max(), jax.random.bits(key, (0,))

    assert hashes(exactly(fn, KEY, np.zeros(5, np.uint32), dims=[None, ("N",)])) == 3


def test_draws_in_functions() -> None:
    @onnx_function
    def noise(key: jax.Array) -> jax.Array:
        a, b = jax.random.split(key)
        return jax.random.uniform(a, (3,)) - jax.random.uniform(b, (3,))

    exactly(lambda key: noise(key) * 2, KEY)


@pytest.mark.parametrize(("limit", "expected"), [(4, 2), (3, 2), (1 << 20, 2)])
def test_random_integers(limit: int, expected: int) -> None:
    model = exactly(lambda key: jax.random.randint(key, (6,), 0, limit), KEY)
    assert hashes(model) == expected


def test_zero_times_an_integer() -> None:
    numbers = np.int32([[3, -(2**31), 0]])
    assert not count(exactly(lambda x, y: (x * 0 + y, jnp.uint32(0) * x.astype(jnp.uint32)), numbers, numbers))["Mul"]
    check(lambda x: x * 0, np.float32([np.nan, np.inf, -1, -0.0]))


def test_opsets_without_bitwise_operators() -> None:
    """Also where nothing but the hash itself needs them."""

    def fn(key: jax.Array) -> jax.Array:
        return lax.scan(lambda key, _: (jax.random.split(key)[0], None), key, length=9)[0]

    check(fn, jax.random.PRNGKey(1), opset=18)
    with pytest.raises(UnsupportedError, match="BitwiseXor, which ONNX has from opset 18 on"):
        to_onnx(fn, [jax.random.PRNGKey(1)], opset=17)
