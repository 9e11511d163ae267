"""`random="noise"`: what a program draws becomes an input of the model, and its keys go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy import stats

import jax2onnx
from jax2onnx import runtime
from tests.compare import assert_same
from tests.frameworks.layers import normal
from tests.frameworks.test_policies import ACTIONS, OBSERVATIONS, distribution, parameters, sample
from tests.helpers import check_valid

KEY = jax.random.key(0)


def export(fn: Callable[..., Any], inputs: list[Any], **options: Any) -> Any:
    model = jax2onnx.to_onnx(fn, inputs, random="noise", **options)
    check_valid(model)
    return model


def inputs_of(model: Any) -> dict[str, list[Any]]:
    return {
        i.name: [d.dim_param or d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input
    }  # fmt: skip


def test_a_stochastic_policy_for_any_number_of_environments() -> None:
    params = parameters()
    model = export(sample, [("envs", OBSERVATIONS), KEY], weights=params, verify=True)
    assert inputs_of(model) == {"observation": ["envs", OBSERVATIONS], "noise/normal_0": ["envs", ACTIONS]}
    x, noise = normal(4, OBSERVATIONS), normal(4, ACTIONS, seed=5)
    location, scale = distribution(params, x)
    got = jax2onnx.load(model)(x, {"normal_0": noise})
    np.testing.assert_allclose(got["action"], jnp.tanh(location + scale * noise), rtol=1e-5, atol=1e-6)


def uniforms(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).random(shape, np.float32)


# What is drawn, as a function of the noise.
DISTRIBUTIONS: dict[str, tuple[Callable[[Any], Any], str, Callable[[Any], Any]]] = {
    "normal": (lambda k: jax.random.normal(k, (50,)), "normal", lambda z: z),
    "normal in a box": (lambda k: 2 + 3 * jax.random.normal(k, (50,)), "normal", lambda z: 2 + 3 * z),
    "uniform": (lambda k: jax.random.uniform(k, (50,), minval=-1, maxval=2), "uniform", lambda u: 3 * u - 1),
    "bernoulli": (lambda k: jax.random.bernoulli(k, 0.3, (50,)), "uniform", lambda u: u < 0.3),
    "exponential": (lambda k: jax.random.exponential(k, (50,)), "uniform", lambda u: -np.log1p(-u)),
    "truncated normal": (
        lambda k: jax.random.truncated_normal(k, -1, 2, (50,)),
        "uniform",
        lambda u: stats.norm.ppf(stats.norm.cdf(-1) + u * (stats.norm.cdf(2) - stats.norm.cdf(-1))).astype(np.float32),
    ),
    "bits": (lambda k: jax.random.bits(k, (50,)), "bits", lambda b: b),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distribution(name: str) -> None:
    draw, kind, want = DISTRIBUTIONS[name]
    model = export(draw, [KEY])
    assert inputs_of(model) == {f"noise/{kind}_0": [50]}
    makers = {"normal": normal, "uniform": uniforms, "bits": lambda n: np.arange(n, dtype=np.uint32)}
    noise = makers[kind](50)
    assert_same(runtime.run(model, [noise]), [np.asarray(want(noise))], rtol=1e-4, atol=1e-6)


def test_a_categorical_choice_has_the_right_frequencies() -> None:
    """A key that came as integers goes, too; each row draws for itself."""
    logits = np.log(np.float32([0.5, 0.2, 0.3]))
    model = export(lambda key: jax.random.categorical(key, jnp.tile(logits, (4000, 1))), [jax.random.PRNGKey(0)])
    assert list(inputs_of(model)) == ["noise/uniform_0"]
    (choice,) = runtime.run(model, [uniforms(4000, 3)])
    np.testing.assert_allclose(np.bincount(choice) / 4000, [0.5, 0.2, 0.3], atol=0.03)


def test_draws_in_a_scan_under_vmap_and_in_branches() -> None:
    """A scan's noise has an axis for the steps; the key that goes round with it is gone."""

    def walk(x: Any, key: Any) -> Any:
        def step(carry: Any, dt: Any) -> Any:
            x, key = carry
            key, one, two = jax.random.split(key, 3)
            jump = lambda: jax.random.uniform(two, x.shape)  # noqa: E731
            x = x + dt * jax.random.normal(one, x.shape) + jax.lax.cond(x.sum() > 0, jump, lambda: jnp.zeros(x.shape))
            return (x, key), x

        (x, _), path = jax.lax.scan(step, (x, key), jnp.arange(1.0, 4.0))
        return path

    batched = jax.vmap(walk)
    model = export(batched, [normal(2, 5), jax.random.split(KEY, 2)])
    assert inputs_of(model) == {"x": [2, 5], "noise/normal_0": [3, 2, 5], "noise/uniform_1": [3, 2, 5]}
    x, z, u = normal(2, 5), normal(3, 2, 5, seed=1), uniforms(3, 2, 5)
    want = []
    for t in range(3):
        x = x + (t + 1) * z[t] + np.where(x.sum(1, keepdims=True) > 0, u[t], 0)
        want.append(x)
    assert_same(runtime.run(model, [normal(2, 5), z, u]), [np.stack(want, 1)], rtol=1e-5, atol=1e-5)


def test_keys_that_are_still_needed_stay() -> None:
    def act(x: Any, key: Any) -> Any:
        key, sub = jax.random.split(key)
        return x + jax.random.normal(sub, x.shape), key

    model = export(act, [(3,), KEY])
    assert list(inputs_of(model)) == ["x", "key", "noise/normal_0"]
    got = runtime.run(model, [normal(3), np.asarray(jax.random.key_data(KEY)), normal(3, seed=1)])
    assert_same(got, [normal(3) + normal(3, seed=1), jax.random.key_data(jax.random.split(KEY)[0])])


def test_dropout_of_a_module() -> None:
    """Keys that are hidden in a module are replaced, too, and its streams are as they were."""
    linear, dropout = nnx.Linear(3, 4, rngs=nnx.Rngs(0)), nnx.Dropout(0.25, rngs=nnx.Rngs(1))
    count = int(dropout.rngs.count[...])
    exported = export(nnx.Sequential(linear, dropout), [("B", 3)])
    assert list(inputs_of(exported).values()) == [["B", 3], ["B", 4]]
    assert int(dropout.rngs.count[...]) == count
    x, u = normal(2, 3), uniforms(2, 4)
    assert_same(runtime.run(exported, [x, u]), [jnp.where(u < 0.75, linear(x) / 0.75, 0)])


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda k: jax.random.gamma(k, 2.0, (3,)), "random_gamma"),
        (lambda k: jax.random.poisson(k, 2.0, (3,)), "inside of `while`"),
        (lambda k: jax.lax.while_loop(lambda x: x < 1, lambda x: x + jax.random.uniform(k), 0.0), "inside of `while`"),
    ],
)
def test_draws_without_end(draw: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(jax2onnx.UnsupportedError, match=message) as caught:
        export(draw, [KEY])
    assert "test_noise.py" in str(caught.value)


@pytest.mark.parametrize(
    "fn",
    [
        lambda bits: bits.astype(jnp.float32) - 1.0,
        lambda bits: jax.lax.bitcast_convert_type(bits | 1, jnp.float32) - 1.0,
        lambda bits: jax.lax.bitcast_convert_type((bits >> 12) | 0x3F800000, jnp.float32) - 1.0,
        lambda bits: (bits >> 31).astype(jnp.float32) - 1.0,
    ],
)
def test_floats_that_are_made_of_bits_otherwise_are_not_uniform(fn: Callable[[Any], Any]) -> None:
    model = export(lambda key: fn(jax.random.bits(key, (3,))), [KEY])
    assert inputs_of(model) == {"noise/bits_0": [3]}
    bits = np.uint32([0, 12345, 2**31 + 3])
    assert_same(jax2onnx.load(model)({"bits_0": bits}), fn(jnp.asarray(bits)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_uniform_floats_of_each_size(dtype: str) -> None:
    model = export(lambda key: jax.random.uniform(key, (3,), dtype), [KEY])
    assert inputs_of(model) == {"noise/uniform_0": [3]}


def test_weights_that_are_only_keys() -> None:
    model = export(lambda w, x: x + jax.random.normal(w["key"], (3,)), [(3,)], weights={"key": KEY}, verify=True)
    assert inputs_of(model) == {"x": [3], "noise/normal_0": [3]}


def test_arguments_with_the_names_of_what_is_added() -> None:
    model = export(lambda noise, keywords, key: noise * keywords + jax.random.normal(key, (3,)), [(3,), (3,), KEY])
    assert inputs_of(model) == {"noise": [3], "keywords": [3], "noise_/normal_0": [3]}


def test_wrong_usage() -> None:
    with pytest.raises(jax2onnx.InputError, match="draws no random numbers"):
        export(jnp.sin, [(3,)])
    with pytest.raises(jax2onnx.InputError, match='None or "noise"'):
        jax2onnx.to_onnx(jnp.sin, [(3,)], random="yes")


def dropped(x: Any, key: Any) -> Any:
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x * x, 0)


def computed_again(x: Any, key: Any) -> Any:
    one, two = jax.random.split(key)
    return dropped(jnp.sin(jax.checkpoint(dropped)(x, one)), two).sum()


def drawn_in_each_step(x: Any, key: Any) -> Any:
    def step(x: Any, i: Any) -> Any:
        return x + jax.random.normal(jax.random.fold_in(key, i), x.shape), jax.random.normal(key, x.shape[1:]).sum()

    return jax.lax.scan(step, x, jnp.arange(4))


AGAIN: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "the same": (lambda x, k: jax.random.normal(k, (3,)) - jax.random.normal(k, (3,)), ["normal_0"]),
    "of other shapes": (lambda x, k: jax.random.normal(k, (3,)) - jax.random.normal(k, (1,)), ["normal_0", "normal_1"]),
    "of halves": (
        lambda x, k: sum(jax.random.uniform(jax.random.split(k)[i], (3,)) for i in (0, 1, 0)),
        ["uniform_0", "uniform_1"],
    ),
    "for gradients": (jax.grad(computed_again), ["uniform_0", "uniform_1"]),
    "in branches": (
        lambda x, k: jax.lax.cond(x[0] > 0, lambda: jax.random.normal(k), lambda: -jax.random.normal(k)),
        ["normal_0"],
    ),
    "in a loop and outside": (
        lambda x, k: (
            jax.lax.scan(lambda c, k: (c + jax.random.normal(k, (3,)), None), x, k[None].repeat(2))[0]
            + jax.random.normal(k, (2, 3)).sum(0)
        ),
        ["normal_0", "normal_1"],
    ),
}


@pytest.mark.parametrize("name", AGAIN)
def test_equal_keys_draw_the_same(name: str) -> None:
    fn, noise = AGAIN[name]
    model = export(fn, [(3,), KEY], verify=True)
    assert [i for i in inputs_of(model) if i.startswith("noise/")] == [f"noise/{n}" for n in noise]


def test_what_is_computed_again_is_computed_from_the_same() -> None:
    def computed_once(x: Any, key: Any) -> Any:
        one, two = jax.random.split(key)
        return dropped(jnp.sin(dropped(x, one)), two).sum()

    plain, again = (export(jax.grad(f), [(3,), KEY]) for f in (computed_once, computed_again))
    x, *noise = np.float32([0.5, -2, 1]), np.float32([0.1, 0.7, 0.2]), np.float32([0.3, 0.1, 0.6])
    results = [jax2onnx.load(m)(x, dict(zip(("uniform_0", "uniform_1"), noise, strict=True))) for m in (plain, again)]
    np.testing.assert_allclose(results[0], results[1], rtol=1e-6)
    assert results[0][0] != 0


def test_steps_that_draw_from_one_key() -> None:
    with pytest.raises(
        jax2onnx.UnsupportedError, match=r"each step of a loop draws from the same key, at .*test_noise\.py"
    ):
        export(drawn_in_each_step, [(3,), KEY])
