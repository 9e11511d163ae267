"""Typed PRNG keys as their data: exactly the same numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax2onnx.decompose.keys import eliminate_keys
from tests.decompose.rewriting import assert_same

IMPLS = ["threefry2x32", "rbg", "unsafe_rbg"]


def same(fn, *args):
    return assert_same(eliminate_keys, fn, *args)


@pytest.fixture
def keys():
    return jax.random.split(jax.random.key(0), (3, 5))


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize(
    "fn",
    [
        lambda k: jax.random.split(k),
        lambda k: jax.random.split(k, (2, 3)),
        lambda k: jax.random.fold_in(k, 7),
        lambda k: jax.random.bits(k, (3, 5)),
        lambda k: jax.random.bits(k, (7,), "uint8"),
        lambda k: jax.random.bits(k, (), "uint16"),
        lambda k: jax.random.clone(k),
        lambda k: jax.random.key_data(k),
        lambda k: jax.random.wrap_key_data(jax.random.key_data(k) + 1, impl=jax.random.key_impl(k)),
        lambda k: jax.random.bits(k, (4,)),
    ],
)
def test_what_draws_from_a_key(fn, impl):
    same(fn, jax.random.key(3, impl=impl))


@pytest.mark.parametrize("impl", IMPLS)
def test_seed(impl):
    same(lambda seed: jax.random.key(seed, impl=impl), 12345)


@pytest.mark.parametrize("impl", IMPLS)
def test_many_keys_at_once(impl):
    keys = jax.random.split(jax.random.key(0, impl=impl), 4)
    same(jax.vmap(lambda k: jax.random.bits(jax.random.fold_in(k, 2), (3,))), keys)
    same(jax.vmap(lambda k, i: jax.random.fold_in(k, i)), keys, jnp.arange(4))


@pytest.mark.parametrize("partitionable", [False, True])
def test_both_threefry_streams(partitionable):
    with jax.threefry_partitionable(partitionable):
        closed = jax.make_jaxpr(lambda k: jax.random.bits(jax.random.split(k)[0], (5,)))(jax.random.key(1))
        expected = jax.random.bits(jax.random.split(jax.random.key(1))[0], (5,))
    new = eliminate_keys(closed)  # the stream was chosen when the program was traced
    np.testing.assert_array_equal(
        jax.core.eval_jaxpr(new.jaxpr, new.consts, jax.random.key_data(jax.random.key(1)))[0], expected
    )


@pytest.mark.parametrize(
    "fn",
    [
        lambda ks: ks[1],
        lambda ks: ks[:, 2],
        lambda ks: ks[1:, ::2],
        lambda ks: ks[::-1],
        lambda ks: ks.reshape(-1),
        lambda ks: ks.reshape(5, 1, 3),
        lambda ks: ks.T,
        lambda ks: ks[None, :, None],
        lambda ks: jnp.broadcast_to(ks, (2, 3, 5)),
        lambda ks: jnp.concatenate([ks, ks], 1),
        lambda ks: jnp.stack([ks, ks[::-1]], 1),
        lambda ks: jnp.where(jnp.arange(5) > 2, ks[0], ks[1]),
        lambda ks: ks[jnp.array([2, 0, 2])],
        lambda ks: ks.at[1].set(ks[0]),
        lambda ks: lax.dynamic_index_in_dim(ks, jnp.argmax(jax.random.bits(ks[0, 0], (3,))), 0),
        lambda ks: (ks == ks[0], ks != ks[:, :1]),
        lambda ks: jnp.roll(ks, 1, axis=1),
        lambda ks: ks[:0],
        lambda ks: jnp.repeat(ks, 2, axis=0),
    ],
)
def test_what_moves_keys_about(fn, keys):
    same(fn, keys)


def test_common_moves_need_no_transposes(keys):
    closed = same(lambda ks: jnp.concatenate([ks[0], ks[1].reshape(5)[None, 0]]), keys)
    assert not any(eqn.primitive.name == "transpose" for eqn in closed.eqns)


def test_control_flow(keys):
    key = keys[0, 0]
    same(lambda k: lax.scan(lambda c, _: (jax.random.split(c)[0], jax.random.bits(c)), k, None, 3), key)
    same(lambda ks: lax.scan(lambda c, k: (c + 1, jax.random.bits(k[1])), 0, ks), keys)
    same(lambda k: lax.while_loop(lambda s: s[1] < 3, lambda s: (jax.random.fold_in(s[0], 1), s[1] + 1), (k, 0)), key)
    same(lambda k, p: lax.cond(p, lambda k: jax.random.fold_in(k, 1), lambda k: k, k), key, True)
    same(lambda k: jax.jit(lambda k: jax.random.split(k, 3))(k), key)
    same(lambda k: jax.checkpoint(lambda k: jax.random.bits(k))(k), key)
    same(lambda k: lax.map(lambda k: jax.random.bits(k, (2,)), k), keys[0])


def test_constant_keys():
    key = jax.random.key(5)
    same(lambda: jax.random.bits(key, (2,)))
    same(lambda x: x ^ jax.random.bits(key, (2,)), np.ones(2, np.uint32))
    same(lambda i: jax.random.split(key, 4)[i], 2)


def test_a_program_without_keys_stays_the_same_object():
    closed = jax.make_jaxpr(lambda x: lax.scan(lambda c, y: (c + y, c), 0.0, x))(np.ones(3, np.float32))
    assert eliminate_keys(closed) is closed


def test_symbolic_shapes():
    (n,) = jax.export.symbolic_shape("n")
    spec = jax.ShapeDtypeStruct((n,), jax.random.key(0).dtype)
    closed = eliminate_keys(jax.make_jaxpr(jax.vmap(lambda k: jax.random.bits(k, (3,))))(spec))
    assert [v.aval.shape for v in closed.jaxpr.invars] == [(n, 2)]
    assert [v.aval.shape for v in closed.jaxpr.outvars] == [(n, 3)]
