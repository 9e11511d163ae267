"""Recurrent networks whose cells or results are written in less common ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
import pytest
from jax import lax

from jax2onnx.optimize.cells import Apply, formulas
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


def gru(h: Any, x: Any, w: Any) -> Any:
    a, u = x @ w[:, : 3 * H] + BIAS[: 3 * H], h @ U[:, : 3 * H]
    z = jax.nn.sigmoid(a[:, H : 2 * H] + u[:, H : 2 * H])
    candidate = jnp.tanh(a[:, 2 * H :] + jax.nn.sigmoid(a[:, :H] + u[:, :H]) * u[:, 2 * H :])
    return z * h + (1 - z) * candidate


def stack(x: Any, between: Callable[[Any, Any], Any] = lambda h, x: h, reverse: bool = False) -> Any:
    """Three layers in one loop, of which the middle one starts with something."""

    def step(states: Any, x: Any) -> Any:
        first = cell(states[0], x @ W + states[0][0] @ U + BIAS)
        second = cell(states[1], between(first[0], x) @ U[:, ::-1] + states[1][0] @ U)
        third = gru(states[2], second[0], U)
        return (first, second, third), (third, first[0])

    zeros = jnp.zeros((x.shape[0], H))
    return lax.scan(step, ((zeros, zeros), (zeros + 0.5, zeros), zeros), x.swapaxes(0, 1), reverse=reverse)


@pytest.mark.parametrize("reverse", [False, True])
def test_layers_in_one_loop(reverse):
    model = check(lambda x: stack(x, reverse=reverse), X, dims=[("B", "T", N)], rtol=1e-4, atol=1e-5)
    kinds = [op_type.split("_")[0] for op_type in ops(model)]
    assert kinds.count("LSTM") == 2 and kinds.count("GRU") == 1 and "Scan" not in kinds
    hard = X.copy()
    hard[0, 1, 0], hard[1, 2, :2] = np.nan, [np.inf, -np.inf]
    check_run(model, lambda x: stack(x, reverse=reverse), hard, rtol=1e-4, atol=1e-5)


def test_only_the_last_layer_is_used():
    model = check(lambda x: stack(x)[1][0][-1], X, rtol=1e-4, atol=1e-5)
    assert "Scan" not in ops(model) and len(ops(model)) <= 8


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "between",
    [
        lambda h, x: jax.nn.relu(h),
        lambda h, x: h + jnp.concatenate([x, x[:, : H - N]], -1),
        lambda h, x: h[::-1],
        lambda h, x: (h - h.mean(-1, keepdims=True)) / (h.std(-1, keepdims=True) + 1),
    ],
    ids=["activation", "skip", "other-row", "norm"],
)
def test_layers_with_something_between_them(between, reverse):
    dims = [("B", "T", N)]
    model = check(lambda x: stack(x, between, reverse), X, dims=dims, rtol=1e-4, atol=1e-5)
    kinds = [op_type.split("_")[0] for op_type in ops(model)]
    assert kinds.count("LSTM") == 2 and kinds.count("GRU") == 1 and "Scan" not in kinds
    hard = X.copy()
    hard[0, 1, 0], hard[1, 2, :2] = np.nan, [np.inf, -np.inf]
    check_run(model, lambda x: stack(x, between, reverse), hard, rtol=1e-4, atol=1e-5)


HEADS = {
    "activation": lambda h: jax.nn.relu(h @ U[:, :3] + BIAS[:3]),
    "product": lambda h: h @ U[:, :3],
    "softmax": lambda h: jax.nn.softmax(h @ U[:, :3]),
    "class": lambda h: (h @ U[:, :3]).argmax(-1),
    "transposed": lambda h: h.T,
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_what_is_made_of_each_state_is_made_behind_the_network(kind, head):
    def fn(x: Any) -> Any:
        def lstm_step(state: Any, x: Any) -> Any:
            state = cell(state, jnp.tanh(x @ W[:, :N]) @ W + state[0] @ U + BIAS)
            return state, head(state[0])

        def gru_step(state: Any, x: Any) -> Any:
            state = gru(state, jnp.tanh(x @ W[:, :N]), W)
            return state, (head(state), state)

        zeros = jnp.zeros((x.shape[0], H))
        step, first = (lstm_step, (zeros, zeros)) if kind == "LSTM" else (gru_step, zeros)
        return lax.scan(step, first, x.swapaxes(0, 1))

    model = check(fn, X, dims=[("B", "T", N)], rtol=1e-4, atol=1e-5)
    assert kind in ops(model) and "Scan" not in ops(model)
    hard = X.copy()
    hard[0, 1, 0], hard[1, 2, :2] = np.nan, [np.inf, -np.inf]
    if head is not HEADS["class"]:  # of NaN
        check_run(model, fn, hard, rtol=1e-4, atol=1e-5)


def test_a_state_above_a_cell_that_is_none():
    def fn(x: Any) -> Any:
        def step(states: Any, x: Any) -> Any:
            h = gru(states[0], x, W)
            most = jnp.maximum(states[1] * 0.9, h + x[:, :1])
            return (h, most), most.sum(-1)

        zeros = jnp.zeros((x.shape[0], H))
        return lax.scan(step, (zeros, zeros), x.swapaxes(0, 1))

    model = check(fn, X, dims=[("B", "T", N)], rtol=1e-4, atol=1e-5)
    assert "GRU" in ops(model) and "Scan" in ops(model)


def test_gates_of_several_inputs_stay_a_loop():
    def fn(x: Any, y: Any) -> Any:
        def step(h: Any, xy: Any) -> Any:
            a, u = xy[0] @ W[:, :H], h @ U[:, :H]
            z = jax.nn.sigmoid(a + u)
            return z * h + (1 - z) * jnp.tanh(xy[1] @ W[:, H : 2 * H] + jax.nn.sigmoid(a) * u), z

        return lax.scan(step, jnp.zeros((x.shape[0], H)), (x.swapaxes(0, 1), y.swapaxes(0, 1)))

    assert "Scan" in ops(check(fn, X, X[::-1].copy(), rtol=1e-4, atol=1e-5))


def test_layers_that_read_what_is_above_them_stay_in_one_loop():
    def crossed(x: Any) -> Any:
        zeros = jnp.zeros((x.shape[0], H))
        step = lambda s, x: ((gru(s[0], s[1], U), gru(s[1], x, W)), s[0])  # noqa: E731
        return lax.scan(step, (zeros, zeros), x.swapaxes(0, 1))

    assert "Scan" in ops(check(crossed, X, rtol=1e-4, atol=1e-5))


def gated(a: Any, h: Any) -> Any:
    """A GRU of which the gates have the same input, and the same weights for the state."""
    b = h @ U[:, :H]
    z, n = jax.nn.sigmoid(a + b), jnp.tanh(jax.nn.sigmoid(a + b + 1) * (b + 0.5) + a)
    return (1 - z) * n + z * h


@pytest.mark.parametrize("steps", [T, "T"])
@pytest.mark.parametrize(("state", "row"), [((1, H), (N,)), ((H,), (1, N))])
def test_rows_of_a_batch_of_one_that_only_the_state_or_the_input_has(state, row, steps):
    def network(h, xs):
        def step(h, x):
            h = gated((x @ W[:, :H]).reshape(h.shape), h)
            return h, h

        return lax.scan(step, h, xs)

    xs = normal(40, *row)
    model = check(network, normal(*state), xs, dims=[None, (steps, *row)] if steps == "T" else None, rtol=1e-4)
    assert "GRU" in ops(model) and "Scan" not in ops(model)


@pytest.mark.parametrize("row", [(), (N,), (1, N), (B, N), (5, 3), (2, B, N), ("F",), (1, "F"), (B, "F")])
@pytest.mark.parametrize("state", [(H,), (1, H), (B, H)])
def test_a_layer_without_inputs_below_one_that_has_some(state, row):
    def network(h, xs):
        def step(states, x):
            below = gated(0.3, states[0])
            above = gated(below @ U[:, H : 2 * H] + x.sum(), states[1])
            return (below, above), above

        return lax.scan(step, (h, h), xs)

    xs = normal(40, *(N if size == "F" else size for size in row))
    check(network, normal(*state), xs, dims=[None, (40, *row)], rtol=1e-4, atol=1e-5)


def test_nodes_with_other_attributes_are_other_formulas():
    row = {"type": ir.TensorType(ir.DataType.FLOAT), "shape": ir.Shape([B, H])}
    x, *results = (ir.Value(name=name, **row) for name in ("x", "usual", "steep"))
    settings: list[list[ir.Attr]] = [[], [ir.AttrFloat32("alpha", 0.5)]]
    gates = [ir.Node("", "HardSigmoid", [x], a, outputs=[y]) for a, y in zip(settings, results, strict=True)]
    found = formulas(ir.Graph([x], results, nodes=gates), results)
    assert [f.function.alpha for f in found if isinstance(f, Apply)] == [0.2, 0.5]
