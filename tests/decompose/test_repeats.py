"""Repeated layers are converted once: the model is the same as if each of them had been converted by itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import jax2onnx
from jax2onnx.decompose import repeats
from jax2onnx.decompose.repeats import repeated_p, share_repeats
from jax2onnx.lower import repeats as copying
from tests.helpers import check, check_run, quick

LAYERS, WIDTH = 12, 6
MIDDLE = LAYERS // 2
"""The layer that others are compared with."""


def weights(seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 3, rng.normal(size=WIDTH).astype(np.float32))
        for _ in range(LAYERS)
    ]


def layer(x: jax.Array, w: Any, b: Any, slope: float = 0.1) -> jax.Array:
    """About twenty equations."""
    mean = x.mean(-1, keepdims=True)
    y = (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-3) * b
    y = jax.nn.gelu(y @ w) + b
    return x + jnp.where(y > 0, y, slope * y)


def plain(x):
    for w, b in weights():
        x = layer(x, w, b)
    return x


def under_jit(x):
    return jax.jit(lambda x: plain(x) * 2)(x) + 1


def in_scopes(x):
    for i, (w, b) in enumerate(weights()):
        with jax.named_scope(f"layer_{i}"), jax.named_scope("inner"):
            x = layer(x, w, b)
    return x


def with_shared_weights(x):
    (w, b), (w2, _) = weights()[:2]
    for i in range(LAYERS):
        x = layer(x, w if i % 3 else w2, b)
    return x


def with_all_results(x):
    seen = []
    for w, b in weights():
        x = layer(x, w, b)
        seen.append(x)
    return seen


def with_one_inner_result(x):
    kept = x
    for i, (w, b) in enumerate(weights()):
        y = jnp.tanh(x @ w)
        kept = y if i == 4 else kept
        x = layer(x + y, w, b)
    return x, kept


def with_an_inner_result_of_the_only_one_with_other_numbers(x):
    (w, b), (w2, b2) = weights()[:2]
    kept = []
    for i in range(LAYERS):
        position = (0.5 if i == MIDDLE else 0.25) * lax.iota(jnp.float32, WIDTH)
        y = jnp.tanh(x @ (w2 if i == MIDDLE else w) + jnp.sin(position))
        kept += [y] if i == MIDDLE else []
        x = layer(x + y, w, b2 if i == MIDDLE else b)
    return x, kept


def with_long_skips(x):
    before = [x, x]
    for w, b in weights():
        before.append(layer(before[-1] + jnp.sin(before[-2]), w, b))
    return before[-1]


def with_a_crossing(x):
    """Two streams that change places now and then."""
    a, b = x, 2 * x
    for i, (w, bias) in enumerate(weights()):
        a, b = layer(a, w, bias), layer(b * jnp.cos(a), w, bias)
        if i % 5 == 0:
            a, b = b, a
    return a, b


def with_one_layer_that_reads_twice(x):
    values = [x, x + 1]
    for i, (w, b) in enumerate(weights()):
        other = values[-1] if i == 6 else values[-2]
        values.append(layer(values[-1] * 0.5 + other, w, b))
    return values[-1]


def with_zeros_of_both_signs(x):
    for i, (w, b) in enumerate(weights()):
        x = layer(x, w, b)
        x = x + jnp.copysign(0.01, jnp.where(x > 9, x, -0.0 if i % 4 == 0 else 0.0))
    return x


def with_one_other_number(x):
    for i, (w, b) in enumerate(weights()):
        x = layer(x, w, b, slope=0.2 if i == 5 else 0.1)
    return x


def with_other_axes(x):
    for i, (w, b) in enumerate(weights()):
        x = layer(x, w, b)
        x = x - x.max(axis=i % 2 == 0, keepdims=True)
    return x


def with_loops(x):
    for w, b in weights():
        x = layer(x, w, b)
        x = lax.fori_loop(0, 3, lambda _, v: jnp.sin(v) * jnp.abs(b), x)  # noqa: B023
    return x


def with_composites(x):
    for w, b in weights():
        x = jnp.log1p(jnp.abs(layer(x, w, b))) * b + jnp.expm1(-jnp.abs(x))
    return x


def with_weights_computed(x):
    for w, b in weights():
        w = jnp.asarray(w)
        x = layer(x, (w / jnp.linalg.norm(w)).T, jnp.exp(jnp.asarray(b) * 0.1))
    return x


def with_sorting(x):
    for w, b in weights():
        x = jnp.sort(layer(x, w, b), axis=0)[::-1] + lax.top_k(x, WIDTH)[0]
    return x


def with_random_numbers(x):
    key = jax.random.key(3)
    for w, b in weights():
        key, own = jax.random.split(key)
        x = layer(x, w, b) * jax.random.bernoulli(own, 0.7, x.shape)
    return x


def with_positions(x):
    for w, b in weights():
        position = lax.iota(jnp.float32, WIDTH)
        x = layer(x, w, b * jnp.cos(position)) + jnp.where(position > 2, b, position)
    return x


def with_indices(x):
    for w, b in weights():
        order = jnp.asarray([3, -1, 0, 5, 2, 4])  # an array of its own for each layer
        x = layer(x[:, order], w, b) + jnp.take(b, order % 5, mode="fill")
    return x


def with_the_same_computed_again(x):
    w, b = map(jnp.asarray, weights()[0])
    for _ in range(LAYERS):
        x = layer(x, w * 2, jnp.exp(b))
    return x


def with_means_over_the_batch(x):
    for w, b in weights():
        x = layer(x - x.mean(0), w, b)
    return x


def with_masks_and_weights_in_other_shapes(x):
    for w, b in weights():
        mask = jnp.tril(jnp.ones((WIDTH, WIDTH), bool)) & jnp.ones((1, WIDTH), bool)
        x = layer(x[None], jnp.where(mask, w, 0), b)[0] + b.reshape(1, WIDTH) * jnp.squeeze(b[None], 0)
    return x


def of_short_layers(x):
    """Of four equations each."""
    for i in range(61):
        w, b = weights()[i % LAYERS]
        x = jnp.tanh(x @ w + b)
    return x


def with_calls_that_do_nothing(x):
    same = jax.jit(lambda x: x)
    for w, b in weights():
        x = layer(x, w, b)
        for _ in range(5):
            x = same(x)
    return x


def with_steps_unrolled(x):
    """A recurrent network, each of whose steps reads a row of its own."""
    (wi, bi), (wh, bh) = weights()[:2]
    h, seen = jnp.zeros(WIDTH), []
    for i in range(20):
        r, z = jax.nn.sigmoid(x[i % 4] @ wi + h @ wh), jax.nn.sigmoid(h * bh + bi)
        h = (1 - z) * jnp.tanh(x[i % 4] + r * h) + z * h
        seen.append(h)
    return jnp.stack(seen)


PROGRAMS: list[Callable[..., Any]] = [
    with_steps_unrolled,
    with_calls_that_do_nothing,
    of_short_layers,
    plain,
    under_jit,
    in_scopes,
    with_shared_weights,
    with_all_results,
    with_one_inner_result,
    with_an_inner_result_of_the_only_one_with_other_numbers,
    with_long_skips,
    with_a_crossing,
    with_one_layer_that_reads_twice,
    with_zeros_of_both_signs,
    with_one_other_number,
    with_other_axes,
    with_loops,
    with_composites,
    with_weights_computed,
    with_sorting,
    with_random_numbers,
    with_positions,
    with_indices,
    with_the_same_computed_again,
    with_means_over_the_batch,
    with_masks_and_weights_in_other_shapes,
]


def nodes(model: Any) -> list[Any]:
    return sorted((n.name, n.op_type, [a.SerializeToString() for a in n.attribute]) for n in model.graph.node)


QUICK = [
    in_scopes,
    with_indices,
    with_shared_weights,
    with_one_inner_result,
    with_an_inner_result_of_the_only_one_with_other_numbers,
    with_a_crossing,
    with_zeros_of_both_signs,
    with_masks_and_weights_in_other_shapes,
    of_short_layers,
    with_calls_that_do_nothing,
]


@pytest.mark.parametrize("program", quick(QUICK, PROGRAMS), ids=lambda p: p.__name__)
def test_programs(program, monkeypatch):
    x = np.random.default_rng(1).normal(size=(4, WIDTH)).astype(np.float32)
    shared = check(program, x, rtol=2e-4, atol=2e-5)
    monkeypatch.setattr(repeats, "MIN_EQUATIONS", 10**9)
    alone = jax2onnx.to_onnx(program, [x])
    assert nodes(shared) == nodes(alone)


@pytest.mark.parametrize("program", quick([with_the_same_computed_again], PROGRAMS), ids=lambda p: p.__name__)
def test_nodes_that_cannot_be_copied(program, monkeypatch):
    monkeypatch.setattr(copying, "_template", lambda *_: None)
    x = np.random.default_rng(1).normal(size=(4, WIDTH)).astype(np.float32)
    check(program, x, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    "program",
    quick([with_means_over_the_batch], [plain, with_long_skips, with_weights_computed, with_means_over_the_batch]),
    ids=lambda p: p.__name__,
)
def test_symbolic_sizes(program, monkeypatch):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4, WIDTH)).astype(np.float32)
    shared = check(program, x, dims=[("B", WIDTH)], rtol=2e-4, atol=2e-5)
    for size in (1, 7):
        check_run(shared, program, rng.normal(size=(size, WIDTH)).astype(np.float32), rtol=2e-4, atol=2e-5)
    monkeypatch.setattr(repeats, "MIN_EQUATIONS", 10**9)
    assert nodes(shared) == nodes(jax2onnx.to_onnx(program, [("B", WIDTH)]))


def copies(fn: Callable[..., Any]) -> list[Any]:
    shared = share_repeats(jax.make_jaxpr(fn)(np.ones((4, WIDTH), np.float32)))
    return [eqn for eqn in shared.jaxpr.eqns if eqn.primitive is repeated_p]


def test_every_layer_is_a_copy_of_one_body():
    found = copies(plain)
    assert len(found) == LAYERS
    assert len({id(eqn.params["body"]) for eqn in found}) == 1
    assert all(len(eqn.outvars) == 1 for eqn in found)  # cut where a layer ends


def test_several_short_layers_are_one_copy():
    found = copies(of_short_layers)
    assert len({id(eqn.params["body"]) for eqn in found}) == 1
    assert {len(eqn.params["equations"]) for eqn in found} == {12}
    assert len(found) == 61 // 3


def test_unrolled_steps_are_copies_whatever_they_read():
    assert len(copies(with_steps_unrolled)) >= 18


def test_known_values_of_all_layers_are_made_once():
    closed = jax.make_jaxpr(with_masks_and_weights_in_other_shapes)(np.ones((4, WIDTH), np.float32))
    shared = share_repeats(closed).jaxpr.eqns
    primitives = [eqn.primitive for eqn in shared]
    assert primitives.count(repeated_p) == LAYERS
    assert primitives.count(lax.and_p) == 1
    assert primitives.count(lax.broadcast_in_dim_p) == LAYERS + 2  # one to compute with, two of the mask


def test_what_differs_is_no_copy():
    assert len(copies(with_one_other_number)) < LAYERS
    assert len({id(eqn.params["body"]) for eqn in copies(with_one_other_number)}) <= 2


def test_a_small_program_stays_as_it_is():
    closed = jax.make_jaxpr(lambda x: layer(layer(x, *weights()[0]), *weights()[1]))(np.ones((4, WIDTH), np.float32))
    assert share_repeats(closed) is closed


def test_other_numbers_tell_at_once_that_a_formula_does_not_repeat(monkeypatch):
    closed = jax.make_jaxpr(lambda x: functools.reduce(lambda y, i: (y + i) * (0.5 + i), range(200), x))(1.0)
    monkeypatch.setattr(repeats.Signatures, "of_equation", None)  # which takes longer
    assert share_repeats(closed) is closed


def test_scopes_are_those_of_each_copy():
    model = jax2onnx.to_onnx(in_scopes, [(4, WIDTH)])
    assert {node.name.split("/")[0] for node in model.graph.node} == {f"layer_{i}" for i in range(LAYERS)}
