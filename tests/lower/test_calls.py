"""Primitives that call, and sharding over one device."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.custom_derivatives import linear_call
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

import jax2onnx
from jax2onnx.errors import UnsupportedError
from tests.helpers import check

X = np.float32([[1, 2], [3, 4]])


@jax.custom_jvp
def with_jvp(x):
    return jnp.sin(x)


with_jvp.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), tangents[0] * 7))


@jax.custom_vjp
def with_vjp(x):
    return jnp.sin(x)


with_vjp.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * x * 7,))


@jax.custom_batching.custom_vmap
def with_vmap(x):
    return jnp.sin(x)


with_vmap.def_vmap(lambda axis_size, in_batched, x: (jnp.sin(x) + 0 * x, in_batched[0]))

CALLS = {
    "jit": jax.jit(jnp.sin),
    "nested jit": jax.jit(lambda x: jax.jit(jnp.sin)(x) + jax.jit(jnp.sin)(x * 2)),
    "checkpoint": jax.checkpoint(jnp.sin),
    "custom_jvp": with_jvp,
    "custom_vjp": with_vjp,
    "custom_vmap": with_vmap,
    "linear_call": lambda x: linear_call(lambda r, y: y * r, lambda r, y: y * r, jnp.full((2, 2), 3.0), x),
    "composite": lambda x: lax.composite(lambda x: jnp.sin(x), name="my.sin")(x),
    "closed over": jax.jit(lambda x: x @ X),
    "barrier": lambda x: lax.optimization_barrier(jnp.sin(x)),
    "device_put": lambda x: jax.device_put(jnp.sin(x)),
}


@pytest.mark.parametrize("name", CALLS)
def test_call(name):
    fn = CALLS[name]
    check(fn, X)
    check(lambda x: lax.scan(lambda c, _: (fn(c) * 0.1, None), x, length=40)[0], X)
    # JAX itself cannot transform all of them.
    if name not in ("barrier", "custom_vmap", "composite"):
        check(lambda x: jax.grad(lambda x: fn(x).sum())(x), X)
    if name not in ("linear_call", "composite"):
        check(jax.vmap(fn), np.stack([X, X]))


def mesh():
    return Mesh(np.asarray(jax.devices()[:1]), ("a",))


def test_shard_map_over_one_device():
    def fn(x):
        gathered = lax.all_gather(x, "a")
        tiled = lax.all_gather(x, "a", tiled=True)
        total = lax.psum(x, "a") + lax.pmax(x, "a") + lax.pmean(x, "a")
        moved = lax.ppermute(x, "a", [(0, 0)])
        exchanged = lax.all_to_all(x, "a", 0, 1, tiled=True)
        scattered = lax.psum_scatter(x, "a", tiled=True)
        return (gathered.sum(0) + tiled + total + moved + exchanged + scattered) * (1 + lax.axis_index("a"))

    spec = PartitionSpec("a")
    check(jax.shard_map(fn, mesh=mesh(), in_specs=spec, out_specs=spec), X)


def test_sharding_constraints_mean_nothing():
    check(lambda x: lax.with_sharding_constraint(x * 2, NamedSharding(mesh(), PartitionSpec("a"))) + 1, X)


def test_shard_map_over_more_devices_is_unsupported():
    spec = PartitionSpec("a")
    fn = jax.shard_map(
        lambda x: x * 2, mesh=AbstractMesh((2,), ("a",), axis_types=(AxisType.Auto,)), in_specs=spec, out_specs=spec
    )
    with pytest.raises(UnsupportedError, match="2 devices"):
        jax2onnx.to_onnx(fn, [(4,)])


def test_parameters_that_are_numpy_integers():
    one, two = np.int64(1), np.int64(2)

    def fn(x):
        padded = lax.pad(x, np.float32(0), ((one, two, 0), (0, 0, one)))
        window = lax.reduce_window(padded, np.float32(0), lax.add, (two, one), (one, two), [(one, 0), (0, one)])
        return jnp.log1p(jnp.exp(lax.slice(window, (one, 0), (two + 1, one)))), lax.log1p(padded)

    check(fn, np.arange(6, dtype=np.float32).reshape(2, 3))


def test_what_only_the_compiler_sees():
    def fn(x):
        lax.dce_sink(x * 2)
        return lax.optimization_barrier(x) + lax.stage(2.0)

    check(fn, np.float32([1, 2]))


def test_the_gradient_of_a_checkpoint_around_what_is_decomposed():
    """The body of a checkpoint is written anew, and JAX removes dead code from it after that."""

    def loss(x, y):
        return (jax.checkpoint(lambda x, y: lax.sort((x, y), num_keys=2))(x, y)[1] * jnp.arange(2.0)).sum()

    check(jax.value_and_grad(loss, (0, 1)), X, X[::-1])


def test_tangents_of_integers_are_false():
    check(lambda x: jax.jvp(lambda x: (x * x, jnp.argsort(x)), (x,), (x,)), X)
