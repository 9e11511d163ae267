"""Provenance: which line of the program, and which primitive, each node comes from."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import onnx
import pytest

from jax2onnx import InputError, to_onnx

VARIABLE = "JAX2ONNX_ENABLE_STACKTRACE_METADATA"
SOURCE, PRIMITIVE, STACK = (f"pkg.jax2onnx.{key}" for key in ("source", "primitive", "stack"))


def program(x: Any, key: Any) -> Any:
    """A decomposed primitive, random numbers, and library code, in a loop and outside."""

    def step(carry: Any, i: Any) -> Any:
        noise = jax.random.normal(jax.random.fold_in(key, i), (3,))
        return jnp.linalg.inv(carry + jnp.eye(3)), noise

    x, noise = jax.lax.scan(step, x, jnp.arange(4))
    return nn.softmax(x), noise


INPUTS = [(3, 3), jax.random.key(0)]
FIRST = inspect.getsourcelines(program)[1]
LINES = {f"{__file__}:{n}" for n in range(FIRST, FIRST + len(inspect.getsourcelines(program)[0]))}


def nodes_of(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    graphs: list[Any] = [model.graph, *model.functions]
    while graphs:
        for node in graphs.pop().node:
            yield node
            graphs += [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]


def notes(model: onnx.ModelProto) -> list[dict[str, str]]:
    return [{p.key: p.value for p in node.metadata_props} for node in nodes_of(model)]


def test_nothing_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert not any(notes(to_onnx(program, INPUTS)))


def test_each_node_has_its_line_and_primitive(monkeypatch: pytest.MonkeyPatch) -> None:
    model = to_onnx(program, INPUTS, provenance="source")
    found = notes(model)
    assert {frozenset(note) for note in found} == {frozenset({SOURCE, PRIMITIVE})}
    assert {note[SOURCE] for note in found} <= LINES
    assert len({note[SOURCE] for note in found}) > 3
    assert {"scan", "mul", "argmax"} <= {note[PRIMITIVE] for note in found}
    monkeypatch.setenv(VARIABLE, "1")
    assert to_onnx(program, INPUTS).SerializeToString() == model.SerializeToString()


def test_the_second_level_is_the_whole_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    model = to_onnx(program, INPUTS, provenance="stack")
    for note in notes(model):
        assert {SOURCE, PRIMITIVE, STACK} == set(note)
        assert note[SOURCE] in note[STACK]
    assert any("(program.<locals>.step)" in note[STACK] and "(program)" in note[STACK] for note in notes(model))
    monkeypatch.setenv(VARIABLE, "2")
    assert to_onnx(program, INPUTS).SerializeToString() == model.SerializeToString()


def test_what_jax_has_cached_for_another_program_does_not_count() -> None:
    def other(key: Any) -> Any:
        return jax.random.uniform(jax.random.fold_in(key, 3), (7,))  # the functions inside are traced here first

    def mine(key: Any) -> Any:
        return jax.random.uniform(jax.random.fold_in(key, 3), (7,))

    first, second = ({n[SOURCE] for n in notes(to_onnx(f, [INPUTS[1]], provenance="source"))} for f in (other, mine))
    assert first == {f"{__file__}:{other.__code__.co_firstlineno + 1}"}
    assert second == {f"{__file__}:{mine.__code__.co_firstlineno + 1}"}


def test_in_functions() -> None:
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.relu(nn.Dense(3)(x))

    variables = Net().init(jax.random.key(0), jnp.ones((1, 3)))
    model = to_onnx((Net(), variables), [("B", 3)], functions="modules", provenance="source")
    assert model.functions
    assert all(note[SOURCE].startswith(f"{__file__}:") for note in notes(model))


def test_wrong_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match='"source" or "stack"'):
        to_onnx(program, INPUTS, provenance="line")
    monkeypatch.setenv(VARIABLE, "yes")
    with pytest.raises(InputError, match="0, 1 or 2"):
        to_onnx(program, INPUTS)
