"""The bit generators, to the bit, and all of jax.random in terms of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax2onnx.compat.kinds import iota_2x32_shape_p
from jax2onnx.decompose import decompose
from jax2onnx.decompose.random import iota_2x32_shape
from jax2onnx.decompose.sort import ordered_p
from jax2onnx.errors import UnsupportedError
from tests.decompose.agreement import assert_agrees
from tests.decompose.rewriting import assert_same
from tests.helpers import check, quick

STATES = [[1, 2, 3, 4], [0x12345678, 2**32 - 1, 2**32 - 2, 2**32 - 1], [2**32 - 1] * 4, [0] * 4]
SHAPES = [(), (1,), (3,), (2, 3), (3, 4), (7, 5), (1, 1), (0, 3), (5, 2, 3)]


@pytest.mark.parametrize("algorithm", list(lax.RandomAlgorithm))
@pytest.mark.parametrize("dtype", quick(["uint32"], ["uint8", "uint32"]))
@pytest.mark.parametrize("shape", quick([(), (7, 5), (0, 3)], SHAPES))
def test_rng_bit_generator(shape, dtype, algorithm):
    for state in STATES[:2]:
        key = np.array(state, np.uint32)
        assert_agrees(
            lax.rng_bit_generator_p, key, shape=shape, dtype=np.dtype(dtype), algorithm=algorithm, out_sharding=None
        )


@pytest.mark.parametrize("algorithm", list(lax.RandomAlgorithm))
@pytest.mark.parametrize("shape", quick([(3, 4)], [(), (3, 4)]))
def test_rng_bit_generator_in_64_bits(shape, algorithm):
    with jax.enable_x64(True):
        for state in STATES:
            for key in (np.array(state, np.uint32), np.array(state, np.uint32).view(np.uint64)):
                assert_agrees(
                    lax.rng_bit_generator_p,
                    key,
                    shape=shape,
                    dtype=np.dtype(np.uint64),
                    algorithm=algorithm,
                    out_sharding=None,
                )


def test_threefry():
    words = np.random.default_rng(0).integers(0, 2**32, (4, 50), np.uint32)

    def fn(key, counts):
        hashed = jax.extend.core.primitives.threefry2x32_p.bind
        return hashed(*key, *counts), hashed(key[0, 0], key[1, 0], *counts)

    check(fn, words[:2], words[2:], rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(1,), (3,), (5, 7, 4), (0, 2)])
def test_iota(shape):
    assert_agrees(iota_2x32_shape_p, shape=shape)


def test_more_elements_than_can_be_numbered():
    with pytest.raises(UnsupportedError, match="elements"):
        iota_2x32_shape(shape=(2**20, 2**20))


def same(fn, *args, rtol=0.0):
    assert_same(lambda closed: decompose(closed, core={ordered_p}), fn, *args, rtol=rtol, atol=rtol)


def slow(draw):
    return pytest.param(draw, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "draw",
    [
        lambda k: jax.random.bits(k, (5,)),
        lambda k: jax.random.uniform(k, (3, 4)),
        slow(lambda k: jax.random.uniform(k, (5,), "float16")),
        lambda k: jax.random.uniform(k, (5,), "bfloat16"),
        lambda k: jax.random.randint(k, (9,), -3, 17),
        lambda k: jax.random.randint(k, (9,), 0, 200, "uint8"),
        lambda k: jax.random.bernoulli(k, 0.3, (20,)),
        lambda k: jax.random.permutation(k, 10),
        slow(lambda k: jax.random.permutation(k, jnp.arange(12).reshape(3, 4), axis=1, independent=True)),
        slow(lambda k: jax.random.choice(k, 10, (4,), replace=False)),
        slow(lambda k: jax.random.choice(k, jnp.arange(5.0), (4,))),
        slow(lambda k: jax.random.rademacher(k, (7,))),
    ],
)
def test_draws_that_are_exact(draw):
    same(draw, jax.random.key(11))
    same(draw, jax.random.PRNGKey(12))


@pytest.mark.parametrize(
    "draw",
    [
        lambda k: jax.random.uniform(k, (3, 4), minval=-2, maxval=3),  # XLA may fuse the scaling
        lambda k: jax.random.normal(k, (50,)),
        slow(lambda k: jax.random.normal(k, (5,), "complex64")),
        slow(lambda k: jax.random.truncated_normal(k, -1, 2, (20,))),
        lambda k: jax.random.categorical(k, jnp.arange(6.0).reshape(2, 3)),
        lambda k: jax.random.exponential(k, (9,)),
        slow(lambda k: jax.random.gumbel(k, (9,))),
        slow(lambda k: jax.random.laplace(k, (9,))),
        slow(lambda k: jax.random.cauchy(k, (9,))),
        lambda k: jax.random.gamma(k, jnp.array([0.3, 1.0, 5.0])),
        slow(lambda k: jax.random.loggamma(k, 0.2, (4,))),
        slow(lambda k: jax.random.beta(k, 2.0, 3.0, (4,))),
        slow(lambda k: jax.random.dirichlet(k, jnp.array([1.0, 2.0, 3.0]), (2,))),
        lambda k: jax.random.poisson(k, 3.0, (5,)),
        slow(lambda k: jax.random.t(k, 3.0, (5,))),
        slow(lambda k: jax.random.multivariate_normal(k, jnp.zeros(2), jnp.eye(2), (3,))),
        slow(lambda k: jax.random.orthogonal(k, 3)),
        slow(lambda k: jax.random.ball(k, 3, shape=(2,))),
    ],
)
def test_draws_with_arithmetic(draw):
    same(draw, jax.random.key(11), rtol=2e-4)


@pytest.mark.parametrize(
    "impl", quick(["rbg", "philox4x32"], ["rbg", "unsafe_rbg", "philox2x32", "philox4x32", "threefry4x32"])
)
def test_other_generators(impl):
    same(lambda k: jax.random.uniform(jax.random.split(k)[1], (3, 4)), jax.random.key(1, impl=impl))
