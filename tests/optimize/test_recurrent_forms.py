"""Recurrent networks whose cells or results are written in less common ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.helpers import check, check_run

B, T, N, H = 3, 5, 4, 6


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32) / 2


W, U, BIAS, X = normal(N, 4 * H, seed=1), normal(H, 4 * H, seed=2), normal(4 * H, seed=3), normal(B, T, N)


def ops(model) -> list[str]:
    return [node.op_type for node in model.graph.node]


def by_hand(z: Any) -> Any:
    return 1 / (1 + jnp.exp(-z))


def cell(state: Any, z: Any, sigmoid: Callable[[Any], Any] = jax.nn.sigmoid) -> Any:
    i, f, g, o = jnp.split(z, 4, -1)
    memory = sigmoid(f) * state[1] + sigmoid(i) * jnp.tanh(g)
    return sigmoid(o) * jnp.tanh(memory), memory


def network(x: Any, sigmoid: Callable[[Any], Any] = jax.nn.sigmoid, reverse: bool = False) -> Any:
    def step(state: Any, x: Any) -> Any:
        z = x @ W + state[0] @ U + BIAS
        return cell(state, z, sigmoid), cell(state, z, sigmoid)[0]

    zeros = jnp.zeros((x.shape[0], H))
    return lax.scan(step, (zeros, zeros), x.swapaxes(0, 1), reverse=reverse)[1].swapaxes(0, 1)


@pytest.mark.parametrize("dims", [None, [("B", "T", N)]])
def test_last_step_is_the_last_state(dims):
    model = check(lambda x: network(x)[:, -1], X, dims=dims, rtol=1e-4, atol=1e-5)
    assert len(ops(model)) == 3 and not {"Gather", "Reshape"} & set(ops(model)[:2])
    if dims:
        check_run(model, lambda x: network(x)[:, -1], X[:, :1], rtol=1e-4, atol=1e-5)
        backwards = check(lambda x: network(x, reverse=True)[:, 0], X, dims=dims, rtol=1e-4, atol=1e-5)
        assert len(ops(backwards)) == 3


def test_other_steps_are_not_the_last_state():
    square = normal(T, T, N)  # as many steps as rows
    for reverse in (False, True):

        def fn(x: Any, reverse: bool = reverse) -> Any:
            y = network(x, reverse=reverse)
            return y[:, 0], y[:, -1], y[:, -2], y[0], y[-1], y[:, :, -1]

        check(fn, square, rtol=1e-4, atol=1e-5)


def test_state_that_is_computed_twice():
    """Once as the state and once as the result: a body cannot have one value for both."""
    assert ops(check(network, X, rtol=1e-4, atol=1e-5)) in (
        ["Transpose", "LSTM", "Transpose", "Reshape"],
        ["Transpose", "LSTM", "Transpose", "Squeeze"],
    )


def test_sigmoid_by_hand_in_a_cell():
    model = check(lambda x: network(x, by_hand), X, rtol=1e-4, atol=1e-5)
    assert "LSTM" in ops(model) and "Scan" not in ops(model)


def test_matrix_times_vector():
    def one(x: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            z = W.T @ x + U.T @ state[0] + BIAS
            return cell(state, z), cell(state, z)[0]

        return lax.scan(step, (jnp.zeros(H), jnp.zeros(H)), x)[1]

    model = check(jax.vmap(one), X, dims=[("B", "T", N)], rtol=1e-4, atol=1e-5)
    assert "LSTM" in ops(model) and "Scan" not in ops(model)


def test_result_that_is_nearly_the_state():
    def fn(x: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            z = x @ W + state[0] @ U
            return cell(state, z), cell(state, z + BIAS)[0]

        zeros = jnp.zeros((x.shape[0], H))
        return lax.scan(step, (zeros, zeros), x.swapaxes(0, 1))[1]

    assert "Scan" in ops(check(fn, X, rtol=1e-4, atol=1e-5))
