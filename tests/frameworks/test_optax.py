"""optax: whole training steps, that is forward, backward, update, and the new state out; an MPC planner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

import jax2onnx
from tests.frameworks.layers import normal
from tests.helpers import check, quick

PARAMS = {"hidden": {"w": normal(3, 4), "b": normal(4)}, "out": {"w": normal(4, 2), "b": normal(2)}}
X, Y = normal(5, 3, seed=2), normal(5, 2, seed=3)

OPTIMIZERS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "sgd": lambda: optax.sgd(0.1),
    "momentum": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: optax.adam(1e-2),
    "adamw": lambda: optax.adamw(1e-2),
    "adamax": lambda: optax.adamax(1e-2),
    "nadam": lambda: optax.nadam(1e-2),
    "radam": lambda: optax.radam(1e-2),
    "adabelief": lambda: optax.adabelief(1e-2),
    "adagrad": lambda: optax.adagrad(1e-2),
    "adadelta": lambda: optax.adadelta(1e-1),
    "adafactor": lambda: optax.adafactor(1e-2),
    "amsgrad": lambda: optax.amsgrad(1e-2),
    "rmsprop": lambda: optax.rmsprop(1e-2, centered=True),
    "lamb": lambda: optax.lamb(1e-2),
    "lars": lambda: optax.lars(1e-2),
    "lion": lambda: optax.lion(1e-3),
    "novograd": lambda: optax.novograd(1e-2),
    "fromage": lambda: optax.fromage(1e-2),
    "yogi": lambda: optax.yogi(1e-2),
    "sm3": lambda: optax.sm3(1e-2),
    "rprop": lambda: optax.rprop(1e-2),
    "adan": lambda: optax.adan(1e-2),
    "adamaxw": lambda: optax.adamaxw(1e-2),
    "nadamw": lambda: optax.nadamw(1e-2),
    "sign_sgd": lambda: optax.sign_sgd(1e-2),
    "signum": lambda: optax.signum(1e-2),
    "optimistic_gradient_descent": lambda: optax.optimistic_gradient_descent(1e-2),
    "optimistic_adam_v2": lambda: optax.optimistic_adam_v2(1e-2),
    "polyak_sgd": lambda: optax.polyak_sgd(),
    "noisy_sgd": lambda: optax.noisy_sgd(1e-2, key=jax.random.key(4)),
    "schedule": lambda: optax.adam(optax.warmup_cosine_decay_schedule(0.0, 1e-2, 5, 20)),
    "clipping": lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.add_decayed_weights(1e-2), optax.sgd(0.1)),
    "multi-step": lambda: optax.MultiSteps(optax.adam(1e-2), every_k_schedule=2).gradient_transformation(),
    "masked": lambda: optax.masked(optax.adam(1e-2), {"hidden": True, "out": False}),
    "finite": lambda: optax.apply_if_finite(optax.sgd(0.1), 3),
    "hyperparameters": lambda: optax.inject_hyperparams(optax.adam)(optax.exponential_decay(1e-2, 3, 0.5)),
    "partition": lambda: optax.partition({"a": optax.adam(1e-2), "b": optax.sgd(0.1)}, {"hidden": "a", "out": "b"}),
    "noise": lambda: optax.chain(optax.add_noise(0.1, 0.5, jax.random.key(0)), optax.sgd(0.1)),
    "adaptive clipping": lambda: optax.chain(optax.zero_nans(), optax.adaptive_grad_clip(0.01), optax.sgd(0.1)),
    "averages": lambda: optax.chain(optax.centralize(), optax.scale_by_trust_ratio(), optax.sgd(0.1), optax.ema(0.9)),
    "plateau": lambda: optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(patience=1)),
    "schedule-free": lambda: optax.contrib.schedule_free_adamw(1e-2),
    "mechanize": lambda: optax.contrib.mechanize(optax.adam(1e-2)),
    "real and imaginary": lambda: optax.contrib.split_real_and_imaginary(optax.adam(1e-2)),
    **{
        name: lambda name=name: getattr(optax.contrib, name)(1e-2)
        for name in ("acprop", "ademamix", "adopt", "cocob", "dadapt_adamw", "madgrad", "muon", "prodigy")
    },
}

ELSEWHERE = {"lbfgs": "see test_line_search", "optimistic_adam": "optimistic_adam_v2 with other names"}


def test_every_public_optimizer_has_a_row() -> None:
    home = optax.adam.__module__
    public = {name for name, value in vars(optax).items() if getattr(value, "__module__", None) == home}
    assert {"adam", "lbfgs"} <= public
    assert public <= OPTIMIZERS.keys() | ELSEWHERE.keys()


def loss(params: Any, x: Any, y: Any) -> Any:
    hidden = jax.nn.gelu(x @ params["hidden"]["w"] + params["hidden"]["b"])
    return optax.squared_error(hidden @ params["out"]["w"] + params["out"]["b"], y).mean()


@pytest.mark.parametrize("name", quick(["adamw"], OPTIMIZERS))
def test_training_step(name: str) -> None:
    optimizer = optax.with_extra_args_support(OPTIMIZERS[name]())

    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x, y)
        updates, state = optimizer.update(grads, state, params, value=value)
        return optax.apply_updates(params, updates), state, value

    state = optimizer.init(PARAMS)
    for _ in range(2):  # the second state is not all zeros
        exported = check(step, PARAMS, state, X, Y, rtol=1e-4, atol=1e-5)
        _, state, _ = step(PARAMS, state, X, Y)
    assert exported.graph.input[0].name == "params/hidden/b"
    assert exported.graph.output[0].name == "output_0/hidden/b"


def test_training_with_the_exported_model() -> None:
    """Steps in ONNX Runtime lead where steps in JAX lead."""
    optimizer = optax.adam(0.05)

    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x, y)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, value

    params = own_params = PARAMS
    state = own_state = optimizer.init(PARAMS)
    run = jax2onnx.load(jax2onnx.to_onnx(step, [params, state, X, Y]))
    jitted, losses = jax.jit(step), []
    for _ in range(20):
        params, state, value = jitted(params, state, X, Y)
        own_params, leaves, own_value = run(own_params, own_state, X, Y)
        own_state = jax.tree.unflatten(jax.tree.structure(own_state), jax.tree.leaves(leaves))
        losses.append(float(own_value))
        np.testing.assert_allclose(own_value, value, rtol=1e-3)
    assert losses[-1] < losses[0] / 2


LOSSES = {
    "softmax_cross_entropy": lambda x, y: optax.softmax_cross_entropy(x, jax.nn.softmax(y)),
    "with integer labels": lambda x, y: optax.softmax_cross_entropy_with_integer_labels(x, y.argmax(-1)),
    "sigmoid": lambda x, y: optax.sigmoid_binary_cross_entropy(x, jax.nn.sigmoid(y)),
    "huber": lambda x, y: optax.huber_loss(x, y),
    "log_cosh": lambda x, y: optax.log_cosh(x, y),
    "cosine": lambda x, y: optax.cosine_distance(x, y, epsilon=1e-6),
    "hinge": lambda x, y: optax.hinge_loss(x, jnp.sign(y)),
    "ctc": lambda x, y: optax.ctc_loss(x[None], jnp.zeros((1, 5)), jnp.int32([[1, 0]]), jnp.zeros((1, 2))),
}


@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradient(name: str) -> None:
    check(jax.value_and_grad(lambda x, y: LOSSES[name](x, y).sum()), normal(5, 2), Y, rtol=1e-4, atol=1e-5)


def test_line_search() -> None:
    """L-BFGS: a while loop inside the optimizer."""
    optimizer = optax.lbfgs(memory_size=3)
    params = normal(4)

    def cost(p: Any) -> Any:
        return jnp.sum((p[1:] - p[:-1] ** 2) ** 2) + jnp.sum((1 - p) ** 2)

    def step(params: Any, state: Any) -> Any:
        value, grads = optax.value_and_grad_from_state(cost)(params, state=state)
        updates, state = optimizer.update(grads, state, params, value=value, grad=grads, value_fn=cost)
        return optax.apply_updates(params, updates), value

    check(step, params, optimizer.init(params), rtol=1e-4, atol=1e-5)


def test_planner() -> None:
    """Model predictive control: each plan is optimized by Adam in a scan, over a rollout that is a scan too."""
    optimizer = optax.adam(0.1)

    def rollout(state: Any, actions: Any) -> Any:
        def move(state: Any, action: Any) -> Any:
            position, speed = state
            speed = 0.9 * speed + 0.1 * jnp.tanh(action)
            return (position + speed, speed), position**2 + 0.01 * action**2

        return jax.lax.scan(move, state, actions)[1].sum()

    def plan(position: Any, speed: Any) -> Any:
        def improve(carry: Any, _: Any) -> Any:
            actions, state = carry
            cost, grads = jax.value_and_grad(lambda a: rollout((position, speed), a))(actions)
            updates, state = optimizer.update(grads, state)
            return (optax.apply_updates(actions, updates), state), cost

        actions = jnp.zeros(6)
        (actions, _), costs = jax.lax.scan(improve, (actions, optimizer.init(actions)), length=15)
        return {"action": actions[0], "plan": actions, "costs": costs}

    exported = check(plan, np.float32(1.0), np.float32(-0.5), rtol=1e-4, atol=1e-5)
    assert [o.name for o in exported.graph.output] == ["action", "costs", "plan"]
