"""Scans of LSTM, GRU and RNN cells become one node, as each library writes them, and compute what JAX computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import keras
import numpy as np
import onnx
import pytest
from flax import nnx
from jax import lax

import jax2onnx
from tests.helpers import check, check_run, check_valid, quick

T, B, N, H = 24, 4, 3, 5
sigmoid = jax.nn.sigmoid


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32) / 2


def hurting(*shape: int, batch: int) -> np.ndarray:
    """One element of the batch is harmless, one has NaN, one infinities, one numbers whose products overflow."""
    x = np.moveaxis(normal(*shape, seed=9), batch, 0).copy()
    x[1, 3, 0], x[2, 5, :2], x[3, 7] = np.nan, [np.inf, -np.inf], 3e38
    return np.moveaxis(x, 0, batch)


def ops(graph: onnx.GraphProto, inside: bool = True) -> list[str]:
    """All operators, without those of the careful branches."""
    found = []
    for node in graph.node:
        found.append(node.op_type)
        for attribute in node.attribute:
            if inside and attribute.type == onnx.AttributeProto.GRAPH and attribute.name != "else_branch":
                found += ops(attribute.g)
    return found


# ------------------------------------------------------------------------------------------ as libraries write them


def of_nnx(cell: Any, **options: Any) -> Callable[..., Any]:
    graph, state = nnx.split(nnx.RNN(cell(N, H, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(0), **options))
    state = jax.tree.map(lambda w: normal(*w.shape, seed=w.size) if w.dtype == jnp.float32 else w, state)
    return lambda x: nnx.merge(graph, state, copy=True)(x)


def of_linen(module: Any) -> Callable[..., Any]:
    variables = jax.eval_shape(module.init, jax.random.key(0), np.zeros((B, T, N), np.float32))
    variables = jax.tree.map(lambda w: normal(*w.shape, seed=w.size), variables)
    return lambda x: module.apply(variables, x)


def of_equinox(cell: Any, states: int) -> Callable[..., Any]:
    cell = cell(N, H, key=jax.random.key(0))

    def run(x: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            state = cell(x, state)
            return state, state[0] if states == 2 else state

        return lax.scan(step, (jnp.zeros(H),) * 2 if states == 2 else jnp.zeros(H), x)

    return run


def of_haiku(make: Callable[[], Any]) -> Callable[..., Any]:
    def run(x: Any) -> Any:
        core = make()
        return hk.dynamic_unroll(core, x, core.initial_state(x.shape[1]))

    transformed = hk.without_apply_rng(hk.transform(run))
    shapes = jax.eval_shape(transformed.init, jax.random.key(0), np.zeros((T, B, N), np.float32))
    weights = jax.tree.map(lambda w: normal(*w.shape, seed=w.size), shapes)
    return lambda x: transformed.apply(weights, x)


def of_keras(layer: Any) -> Callable[..., Any]:
    model = keras.Sequential([keras.Input((T, N)), layer])
    model.set_weights([normal(*w.shape, seed=w.size) for w in model.get_weights()])
    return model


def lstm_step(state: Any, gates: Any, order: str = "ifgo") -> Any:
    h, c = state
    gate = dict(zip(order, jnp.split(gates, 4, -1), strict=True))
    c = sigmoid(gate["f"] + 1) * c + sigmoid(gate["i"]) * jnp.tanh(gate["g"])
    h = jnp.tanh(c) * sigmoid(gate["o"])
    return (h, c), h


def joined(x: Any) -> Any:
    """The input and the state side by side."""
    w, b = normal(N + H, 4 * H, seed=1), normal(4 * H, seed=2)
    step = lambda s, x: lstm_step(s, jnp.concatenate([x, s[0]], -1) @ w + b)  # noqa: E731
    return lax.scan(step, (jnp.ones((x.shape[1], H)), jnp.zeros((x.shape[1], H))), x, reverse=True)


def hoisted(x: Any) -> Any:
    """The input is projected before the loop; another order of gates; a state that is given."""
    w, u, b = normal(N, 4 * H, seed=1), normal(H, 4 * H, seed=2), normal(4 * H, seed=3)
    start = normal(1, H) + jnp.zeros((x.shape[1], H))
    return lax.scan(lambda s, p: lstm_step(s, s[0] @ u + p, "gofi"), (start, start), x @ w + b)[1]


LAYERS = {
    "nnx LSTM": ("LSTM", 0, lambda: of_nnx(nnx.LSTMCell)),
    "nnx LSTM in one product": ("LSTM", 0, lambda: of_nnx(nnx.OptimizedLSTMCell, return_carry=True)),
    "nnx GRU backwards": ("GRU", 0, lambda: of_nnx(nnx.GRUCell, reverse=True, keep_order=True)),
    "linen LSTM": ("LSTM", 0, lambda: of_linen(nn.RNN(nn.LSTMCell(H)))),
    "linen LSTM in one product": ("LSTM", 0, lambda: of_linen(nn.RNN(nn.OptimizedLSTMCell(H), return_carry=True))),
    "linen GRU": ("GRU", 0, lambda: of_linen(nn.RNN(nn.GRUCell(H)))),
    "linen minimal gated unit": ("GRU", 0, lambda: of_linen(nn.RNN(nn.MGUCell(H)))),
    "equinox LSTM": ("LSTM", 0, lambda: jax.vmap(of_equinox(eqx.nn.LSTMCell, 2))),
    "equinox GRU": ("GRU", 0, lambda: jax.vmap(of_equinox(eqx.nn.GRUCell, 1))),
    "haiku LSTM": ("LSTM", 1, lambda: of_haiku(lambda: hk.LSTM(H))),
    "haiku GRU": ("GRU", 1, lambda: of_haiku(lambda: hk.GRU(H))),
    "keras LSTM": ("LSTM", 0, lambda: of_keras(keras.layers.LSTM(H, return_sequences=True))),
    "keras GRU": ("GRU", 0, lambda: of_keras(keras.layers.GRU(H, return_sequences=True))),
    "keras GRU that resets first": ("GRU", 0, lambda: of_keras(keras.layers.GRU(H, reset_after=False))),
    "by hand, joined": ("LSTM", 1, lambda: joined),
    "by hand, hoisted": ("LSTM", 1, lambda: hoisted),
}


@pytest.mark.parametrize("name", quick(list(LAYERS)[::2], LAYERS))
def test_layer_is_one_node(name):
    op_type, batch, make = LAYERS[name]
    shape = (B, T, N) if batch == 0 else (T, B, N)
    layer = make()
    model = check(layer, normal(*shape))
    found = ops(model.graph)
    assert found.count(op_type) == 1
    assert "Scan" not in found
    check_run(model, layer, hurting(*shape, batch=batch), rtol=1e-4, atol=1e-5)


def both_ways(x: Any) -> Any:
    forward, backward = of_linen(nn.RNN(nn.GRUCell(H))), of_linen(nn.RNN(nn.LSTMCell(H), return_carry=True))
    carry, y = backward(x[:, ::-1])
    return jnp.concatenate([forward(x), y[:, ::-1]], -1), carry


@pytest.mark.parametrize("kind", ["by hand", "keras", "last state"])
def test_a_layer_over_a_reversed_array_runs_backwards(kind):
    layer = both_ways
    if kind == "keras":
        layer = of_keras(keras.layers.Bidirectional(keras.layers.GRU(H, return_sequences=True)))
    elif kind == "last state":
        layer = lambda x: of_linen(nn.RNN(nn.LSTMCell(H), return_carry=True))(x[:, ::-1])[0]  # noqa: E731
    model = check(layer, normal(B, T, N))
    found = ops(model.graph)
    assert not {"Slice", "Scan"} & set(found)
    check_run(model, layer, hurting(B, T, N, batch=0), rtol=1e-4, atol=1e-5)


def bidirectional(kind: str) -> Callable[..., Any]:
    if kind == "nnx":
        cells = (nnx.RNN(nnx.OptimizedLSTMCell(N, H, rngs=nnx.Rngs(seed))) for seed in (0, 1))
        graph, state = nnx.split(nnx.Bidirectional(*cells, rngs=nnx.Rngs(0)))
        return lambda x: nnx.merge(graph, state, copy=True)(x)
    if kind == "linen":
        return of_linen(nn.Bidirectional(nn.RNN(nn.GRUCell(H)), nn.RNN(nn.GRUCell(H))))
    if kind == "keras states":
        return of_keras(keras.layers.Bidirectional(keras.layers.LSTM(H)))
    first, second = (keras.layers.Bidirectional(keras.layers.GRU(H, return_sequences=True)) for _ in range(2))
    return of_keras(keras.Sequential([keras.Input((T, N)), first, second]))


@pytest.mark.parametrize(("kind", "nodes"), {"nnx": 4, "linen": 4, "keras states": 4, "keras stacked": 7}.items())
def test_both_directions_are_one_node(kind, nodes):
    layer = bidirectional(kind)
    x = jax.ShapeDtypeStruct((B, T, N), jnp.float32)
    standard = jax2onnx.to_onnx(layer, [x], target="onnx")
    check_valid(standard)
    assert len(standard.graph.node) == nodes
    assert {"LSTM", "GRU"} & set(ops(standard.graph))
    model = check(layer, normal(B, T, N), dims=[("B", T, N)])
    check_run(model, layer, hurting(B, T, N, batch=0), rtol=1e-4, atol=1e-5)
    for batch in (0, 1):
        check_run(model, layer, normal(batch, T, N))


@pytest.mark.parametrize("kind", ["nnx", "linen"])
def test_both_directions_for_any_length(kind):
    layer = bidirectional(kind)
    model = check(layer, normal(B, T, N), dims=[("B", "T", N)])
    assert len(model.graph.node) == 4
    for batch, length in ((1, 1), (2, 3)):
        check_run(model, layer, normal(batch, length, N))


def test_both_directions_with_first_states():
    def layer(x: Any, h: Any) -> Any:
        def run(h: Any, **options: Any) -> Any:
            def step(state: Any, x: Any) -> Any:
                i, f, g, o = gates(x, state[0])
                c = sigmoid(f) * state[1] + sigmoid(i) * jnp.tanh(g)
                h = sigmoid(o) * jnp.tanh(c)
                return (h, c), h

            return lax.scan(step, (h, h * 2), x, **options)[1]

        return jnp.concatenate([run(h), run(-h, reverse=True)], -1)

    model = check(layer, normal(T, B, N), normal(B, H))
    assert ops(model.graph).count("LSTM") == 1
    check_run(model, layer, hurting(T, B, N, batch=1), normal(B, H), rtol=1e-4, atol=1e-5)
    check_run(model, layer, normal(T, B, N), normal(B, H) * np.float32(np.nan))


def test_a_reversed_array_whose_result_is_not_reversed_stays():
    layer = of_linen(nn.RNN(nn.GRUCell(H)))
    model = check(lambda x: layer(x[:, ::-1]), normal(B, T, N))
    assert ops(model.graph).count("Slice") == 1


def test_a_plain_layer_is_the_node_and_at_most_six_more():
    layer = of_nnx(nnx.OptimizedLSTMCell)
    x = jax.ShapeDtypeStruct((B, T, N), jnp.float32)
    guarded = jax2onnx.to_onnx(layer, [x])
    assert len(ops(guarded.graph)) <= 7
    standard = jax2onnx.to_onnx(layer, [x], target="onnx")
    check_valid(standard)
    assert ops(standard.graph).count("LSTM") == 1
    assert len(standard.graph.node) <= 4


@pytest.mark.parametrize("op_type", ["LSTM", "GRU"])
def test_sizes_that_vary(op_type):
    layer = of_linen(nn.RNN(nn.LSTMCell(H) if op_type == "LSTM" else nn.GRUCell(H)))
    model = check(layer, normal(B, T, N), dims=[("B", "T", N)])
    assert ops(model.graph).count(op_type) == 1
    for shape in [(0, T, N), (1, 1, N)]:
        check_run(model, layer, normal(*shape))
    check_run(model, layer, hurting(B, T, N, batch=0))


def test_no_batch():
    layer = of_equinox(eqx.nn.LSTMCell, 2)
    model = check(layer, normal(T, N))
    assert ops(model.graph).count("LSTM") == 1


def test_simple_cell_of_one_row_is_an_rnn():
    def layer(x: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = jnp.tanh(x @ normal(N, H) + h @ normal(H, H, seed=1) + normal(H, seed=2))
            return h, h

        return lax.scan(step, jnp.zeros((x.shape[1], H)), x)

    model = check(layer, normal(T, 1, N))
    assert ops(model.graph).count("RNN") == 1
    bad = normal(T, 1, N)
    bad[5, 0, 1], bad[2, 0, 0] = np.nan, 1e30
    check_run(model, layer, bad)
    assert "RNN" not in ops(check(layer, normal(T, B, N)).graph)  # slower than the Scan


@pytest.mark.parametrize("part", [0, 1])
def test_both_directions_of_a_simple_cell(part):
    def layer(x: Any) -> Any:
        def run(seed: int, **options: Any) -> Any:
            def step(h: Any, x: Any) -> Any:
                h = jnp.tanh(x @ normal(N, H, seed=seed) + h @ normal(H, H, seed=seed + 1))
                return h, h

            return lax.scan(step, jnp.zeros((1, H)), x, **options)[part]

        return jnp.concatenate([run(0), run(5, reverse=True)], -1)

    model = check(layer, normal(T, 1, N))
    assert ops(model.graph) == ["RNN", "Reshape"]
    bad = normal(T, 1, N)
    bad[5, 0, 1] = np.nan
    check_run(model, layer, bad)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_weights_that_are_not_finite(number):
    for place in range(3):
        w, u, b = weights = normal(N, 4 * H), normal(H, 4 * H, seed=1), normal(4 * H, seed=2)
        weights[place].flat[7] = number
        start = jnp.zeros((B, H)), jnp.zeros((B, H))
        step = lambda s, x: lstm_step(s, x @ w + s[0] @ u + b)  # noqa: B023, E731
        model = check(lambda x: lax.scan(step, start, x)[1], normal(T, B, N))  # noqa: B023
        assert "LSTM" in ops(model.graph)


def test_weights_are_stored_once():
    layer = of_keras(keras.layers.LSTM(64, return_sequences=True))
    model = jax2onnx.to_onnx(layer, [jax.ShapeDtypeStruct((B, T, N), jnp.float32)])
    large = [tuple(tensor.dims) for tensor in model.graph.initializer if np.prod(tensor.dims) > 300]
    assert sorted(large) == [(1, 256, 3), (1, 256, 64), (1, 512)]


# ------------------------------------------------------------------------------------------------ near misses

W, U, V = normal(N, 4 * H), normal(H, 4 * H, seed=1), normal(H, H, seed=2)


def gates(x: Any, h: Any) -> Any:
    return jnp.split(x @ W + h @ U, 4, -1)


def no_tanh_of_the_memory(state: Any, x: Any) -> Any:
    i, f, g, o = gates(x, state[0])
    c = sigmoid(f) * state[1] + sigmoid(i) * jnp.tanh(g)
    return (sigmoid(o) * c, c), c


def subtracted(state: Any, x: Any) -> Any:
    i, f, g, o = gates(x, state[0])
    c = sigmoid(f) * state[1] - sigmoid(i) * jnp.tanh(g)
    h = sigmoid(o) * jnp.tanh(c)
    return (h, c), h


def stacked_memory(state: Any, x: Any) -> Any:
    i, f, g, o = gates(x, state[0])
    c = sigmoid(f) * state[1] + sigmoid(i) * jnp.tanh(g)
    return (sigmoid(o) * jnp.tanh(c), c), c


def peephole(state: Any, x: Any) -> Any:
    i, f, g, o = gates(x, state[0])
    c = sigmoid(f + state[1] @ V) * state[1] + sigmoid(i) * jnp.tanh(g)
    h = sigmoid(o) * jnp.tanh(c)
    return (h, c), h


def masked(state: Any, x: Any) -> Any:
    i, f, g, o = gates(x, state[0])
    c = sigmoid(f) * state[1] + sigmoid(i) * jnp.tanh(g)
    h = jnp.where(x[:, :1] > 0, sigmoid(o) * jnp.tanh(c), state[0])
    return (h, c), h


def other_weights_of_the_sum(state: Any, x: Any) -> Any:
    z, r, n, m = gates(x, state[0])
    h = sigmoid(z) * state[0] + (1 - sigmoid(r)) * jnp.tanh(n)
    return (h, state[1] + 0 * m), h


@pytest.mark.parametrize(
    "step", [no_tanh_of_the_memory, subtracted, stacked_memory, peephole, masked, other_weights_of_the_sum]
)
def test_other_cells_stay_loops(step):
    model = check(lambda x: lax.scan(step, (jnp.zeros((B, H)), jnp.zeros((B, H))), x), normal(T, B, N))
    assert "Scan" in ops(model.graph)
    assert not {"LSTM", "GRU", "RNN"} & set(ops(model.graph))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.float64])
def test_other_dtypes_stay_loops(dtype):
    def layer(x: Any) -> Any:
        step = lambda s, x: lstm_step(s, x @ W.astype(dtype) + s[0] @ U.astype(dtype))  # noqa: E731
        return lax.scan(step, (jnp.zeros((B, H), dtype),) * 2, x)[1]

    model = check(layer, normal(T, B, N).astype(dtype), rtol=2e-2 if dtype == jnp.float16 else None, atol=1e-2)
    assert "LSTM" not in ops(model.graph)


def hard(**options: Any) -> Any:
    return keras.layers.LSTM(H, recurrent_activation="hard_sigmoid", return_sequences=True, **options)


HARD = {
    "LSTM": lambda: of_keras(hard()),
    "GRU": lambda: of_keras(keras.layers.GRU(H, recurrent_activation="hard_sigmoid")),
    "GRU that resets first": lambda: of_keras(
        keras.layers.GRU(H, recurrent_activation="hard_sigmoid", reset_after=False)
    ),
    "LSTM in both directions": lambda: of_keras(keras.layers.Bidirectional(hard())),
}


@pytest.mark.parametrize("name", HARD)
def test_hard_gates(name):
    layer = HARD[name]()
    model = check(layer, 4 * normal(B, T, N))
    assert ops(model.graph).count(name.split()[0]) == 1 and "Scan" not in ops(model.graph)
    check_run(model, layer, hurting(B, T, N, batch=0), rtol=1e-4, atol=1e-5)


def test_hard_gates_of_large_states_stay_a_loop():
    def network(x: Any) -> Any:
        u = normal(300, 900)

        def step(h: Any, x: Any) -> Any:
            (a, b, c), (d, e, f) = jnp.split(x, 3, -1), jnp.split(h @ u / 8, 3, -1)
            z = jax.nn.hard_sigmoid(a + d)
            h = (1 - z) * jnp.tanh(c + jax.nn.hard_sigmoid(b + e) * f) + z * h
            return h, h

        return lax.scan(step, jnp.zeros((B, 300)), x)[1]

    assert "Scan" in ops(check(network, normal(20, B, 900)).graph)


@pytest.mark.parametrize("beta", [0.5, 0.4])
def test_hard_gate_for_the_new_state(beta):
    """(1 - z) * h + z * n, where 1 - z is a gate of the same kind only if that is symmetric."""

    def network(x: Any) -> Any:
        w, u = normal(N, 3 * H, seed=1), normal(H, 3 * H, seed=2)
        gate = lambda x: jnp.clip(0.3 * x + beta, 0, 1)  # noqa: E731

        def step(h: Any, x: Any) -> Any:
            (a, b, c), (d, e, f) = jnp.split(x @ w, 3, -1), jnp.split(h @ u, 3, -1)
            z = gate(a + d)
            h = (1 - z) * h + z * jnp.tanh(c + gate(b + e) * f)
            return h, h

        return lax.scan(step, jnp.zeros((B, H)), x)[1]

    model = check(network, 4 * normal(T, B, N))
    assert ("GRU" in ops(model.graph)) == (beta == 0.5)
