"""Recurrent networks that leave out the steps that a mask says become one node, and compute what JAX computes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax import lax

from tests.helpers import check, check_run, quick
from tests.optimize.test_recurrent import B, H, N, T, lstm_step, normal, ops

sigmoid = jax.nn.sigmoid


def masks(seed: int = 0) -> np.ndarray:
    """Some steps of the first row count, all of the second, none of the third, those before an end of the last."""
    mask = np.random.default_rng(seed).random((T, B)) < 0.6
    mask[:, 1], mask[:, 2], mask[:, 3] = True, False, np.arange(T) < 7
    return mask


def inputs() -> list[np.ndarray]:
    """Harmless ones; some with what is not finite where it does not count; and where it does."""
    x, mask = normal(T, B, N, seed=5), masks()
    hidden = np.where(mask[..., None], x, np.float32(np.nan))
    seen = x.copy()
    seen[3, 1, 0], seen[6, 3, :2], seen[9, 2] = np.nan, [np.inf, -np.inf], 3e38
    return [x, hidden, seen]


def lstm(x: Any, s: Any) -> Any:
    w, u = normal(N, 4 * H, seed=1), normal(H, 4 * H, seed=2)
    return lstm_step(s, x @ w + s[0] @ u)[0]


def gru(x: Any, s: Any) -> Any:
    w, u = normal(N, 3 * H, seed=1), normal(H, 3 * H, seed=2)
    (a, b, c), (d, e, f) = jnp.split(x @ w, 3, -1), jnp.split(s[0] @ u, 3, -1)
    z = sigmoid(a + d)
    return ((1 - z) * jnp.tanh(c + sigmoid(b + e) * f) + z * s[0],)


def network(cell: Any, states: int, first: float = 0.0, reverse: bool = False, result: str = "state") -> Any:
    def run(x: Any, mask: Any) -> Any:
        def step(s: Any, xm: Any) -> Any:
            x, counts = xm
            counts = counts[..., None]
            new = cell(x, s)
            s = tuple(jnp.where(counts, a, b) for a, b in zip(new, s, strict=True))
            return s, jnp.where(counts, new[0], -2.0) if result == "number" else s[0]

        shape = (*x.shape[1:-1], H)
        start = tuple(jnp.full(shape, first * (i + 1)) for i in range(states))
        return lax.scan(step, start, (x, mask), reverse=reverse)

    return run


@pytest.mark.parametrize("reverse", quick([False], [False, True]))
@pytest.mark.parametrize("result", ["state", "number"])
@pytest.mark.parametrize("first", quick([0.5], [0.0, 0.5]))
@pytest.mark.parametrize(("op_type", "cell", "states"), [("LSTM", lstm, 2), ("GRU", gru, 1)])
def test_network_with_a_mask_is_one_node(op_type, cell, states, first, result, reverse):
    fn = network(cell, states, first, reverse, result)
    model = check(fn, inputs()[0], masks())
    assert op_type in ops(model.graph) and "Scan" not in ops(model.graph)
    for x in inputs()[1:]:
        check_run(model, fn, x, masks())
    check_run(model, fn, inputs()[0], ~masks())


@pytest.mark.parametrize("reverse", [False, True])
def test_sizes_that_vary(reverse):
    fn = network(lstm, 2, 0.5, reverse)
    model = check(fn, inputs()[0], masks(), dims=[("T", "B", N), ("T", "B")])
    assert "LSTM" in ops(model.graph) and "Scan" not in ops(model.graph)
    check_run(model, fn, inputs()[2][:10], masks()[:10])
    check_run(model, fn, inputs()[1][:1, :1], masks()[:1, :1])
    check_run(model, fn, inputs()[1][:3, :0], masks()[:3, :0])


def test_no_batch():
    fn = network(gru, 1, 0.5)
    model = check(fn, inputs()[0][:, 0], masks()[:, 0])
    assert "GRU" in ops(model.graph) and "Scan" not in ops(model.graph)
    check_run(model, fn, inputs()[0][:, 0], masks()[:, 2])


@pytest.mark.parametrize(
    "options",
    [{"return_sequences": True}, {}, {"return_state": True, "zero_output_for_mask": True, "return_sequences": True}],
    ids=["sequences", "last", "states"],
)
@pytest.mark.parametrize("kind", quick([keras.layers.LSTM], [keras.layers.LSTM, keras.layers.GRU]))
def test_layer_of_keras_with_a_mask(kind, options):
    layer = kind(H, **options)
    layer.build((B, T, N))
    layer.set_weights([normal(*w.shape, seed=w.size) for w in layer.get_weights()])
    x = np.swapaxes(inputs()[0], 0, 1)
    model = check(lambda x, mask: layer(x, mask=mask), x, masks().T)
    assert kind.__name__ in ops(model.graph) and "Scan" not in ops(model.graph)


@pytest.mark.parametrize("kind", ["other mask", "swapped", "result"])
def test_what_does_more_than_leave_out_steps_stays_a_loop(kind):
    def run(x: Any, mask: Any) -> Any:
        def step(s: Any, xm: Any) -> Any:
            x, counts = xm[0], xm[1][:, None]
            h, c = lstm(x, s)
            first = jnp.where(counts, h, s[0])
            if kind == "other mask":
                return (first, jnp.where(x[:, :1] > 0, c, s[1])), first
            if kind == "swapped":
                return (first, jnp.where(counts, s[1], c)), first
            return (first, jnp.where(counts, c, s[1])), h  # also at steps that do not count

        return lax.scan(step, (jnp.zeros((B, H)), jnp.zeros((B, H))), (x, mask))

    model = check(run, inputs()[0], masks())
    assert "Scan" in ops(model.graph)
