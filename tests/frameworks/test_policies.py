"""Reinforcement learning: an actor as Brax trains it, and stochastic policies with the key as an input, bit for bit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import jax2onnx
from tests.frameworks.layers import fill, normal
from tests.helpers import check, check_run

OBSERVATIONS, ACTIONS = 6, 3


class Actor(nn.Module):
    """What PPO networks are: a few layers that give the location and the scale of a squashed normal distribution."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for i, width in enumerate([16, 16]):
            x = nn.swish(nn.Dense(width, name=f"hidden_{i}")(x))
        return nn.Dense(2 * ACTIONS, name="hidden_2")(x)


def parameters() -> Any:
    """Statistics of the observations, and weights: what Brax stores."""
    stats = {"mean": normal(OBSERVATIONS), "std": np.abs(normal(OBSERVATIONS, seed=1)) + 0.1, "count": np.float32(100)}
    return stats, fill(jax.eval_shape(Actor().init, jax.random.key(0), normal(1, OBSERVATIONS)))


def distribution(params: Any, observation: Any) -> tuple[Any, Any]:
    stats, weights = params
    x = jnp.clip((observation - stats["mean"]) / stats["std"], -5, 5)
    location, scale = jnp.split(Actor().apply(weights, x), 2, axis=-1)
    return location, jax.nn.softplus(scale) + 0.001


def mode(params: Any, observation: Any) -> Any:
    return jnp.tanh(distribution(params, observation)[0])


def sample(params: Any, observation: Any, key: Any) -> dict[str, Any]:
    location, scale = distribution(params, observation)
    raw = location + scale * jax.random.normal(key, location.shape)
    density = -0.5 * ((raw - location) / scale) ** 2 - jnp.log(scale) - 0.5 * jnp.log(2 * jnp.pi)
    squashed = 2 * (jnp.log(2.0) - raw - jax.nn.softplus(-2 * raw))
    return {"action": jnp.tanh(raw), "log_prob": jnp.sum(density - squashed, -1)}


def test_a_deterministic_actor_for_any_number_of_environments() -> None:
    params = parameters()
    exported = jax2onnx.to_onnx(mode, [("envs", OBSERVATIONS)], weights=params)
    assert [i.name for i in exported.graph.input] == ["observation"]
    names = {i.name for i in exported.graph.initializer}
    assert {"params/0/mean", "params/0/std", "params/1/params/hidden_0/kernel"} <= names
    for envs in (1, 4, 0):
        check_run(exported, lambda x: mode(params, x), 3 * normal(envs, OBSERVATIONS))


def test_a_stochastic_actor() -> None:
    params = parameters()
    exported = jax2onnx.to_onnx(sample, [(4, OBSERVATIONS), jax.random.key(0)], weights=params)
    assert [i.name for i in exported.graph.input] == ["observation", "key"]
    for seed in range(3):
        args = normal(4, OBSERVATIONS, seed=seed), jax.random.key(seed)
        check_run(exported, lambda *args: sample(params, *args), *args, rtol=1e-4, atol=1e-5)


def test_weights_left_as_inputs() -> None:
    params = parameters()
    exported = jax2onnx.to_onnx(mode, [(4, OBSERVATIONS)], weights=params, weights_as_inputs=True)
    check_run(exported, mode, params, normal(4, OBSERVATIONS))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_draws_are_the_same_bit_for_bit(impl: str) -> None:
    """What a policy and its environment draw: subkeys, actions, uniform numbers."""

    def act(key: Any, logits: Any) -> Any:
        key, first, second, third = jax.random.split(key, 4)
        return {
            "key": key,
            "action": jax.random.categorical(first, logits),
            "explore": jax.random.bernoulli(second, 0.3, (4,)),
            "uniform": jax.random.uniform(third, (4,)),
            "bits": jax.random.bits(jax.random.fold_in(third, 7), (3,)),
            "order": jax.random.permutation(second, 6),
        }

    check(act, jax.random.key(11, impl=impl), normal(4, 5), rtol=0, atol=0)


def test_a_key_as_plain_integers() -> None:
    check(lambda key: jax.random.uniform(key, (3,)), jax.random.PRNGKey(3), rtol=0, atol=0)


def test_a_rollout() -> None:
    """A policy and a small physics engine, together in a scan."""
    params = parameters()

    def rollout(key: Any, position: Any, speed: Any) -> Any:
        def step(carry: Any, key: Any) -> Any:
            position, speed = carry
            force = sample(params, jnp.concatenate([position, speed]), key)["action"]
            speed = 0.95 * speed + 0.05 * force
            position = jnp.clip(position + 0.05 * speed, -1, 1)
            return (position, speed), -jnp.sum(position**2)

        (position, speed), rewards = jax.lax.scan(step, (position, speed), jax.random.split(key, 10))
        return position, rewards.sum()

    check(rollout, jax.random.key(1), normal(3), normal(3, seed=1), rtol=1e-4, atol=1e-5)
