"""Equinox: every layer alone and under vmap, state, inference mode, filtered transforms, static fields, checks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax2onnx
from tests.frameworks.layers import (
    Layer,
    check_export,
    classes_in,
    fill,
    integers,
    layer,
    name_of,
    normal,
    public_classes,
    with_gradients,
)
from tests.helpers import check, check_run, quick

nn = eqx.nn


def of(make: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], Any]:
    """A maker of a layer whose weights are random numbers."""
    return lambda: make(*args, **kwargs, key=jax.random.key(0))


def plain(make: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], Any]:
    """A maker of a layer that needs no key."""
    return lambda: make(*args, **kwargs)


LINE, IMAGE, VOLUME = (2, 3, 9), (2, 3, 8, 6), (2, 3, 4, 5, 6)

# The first axis of the inputs is the batch, which the layers do not know of.
LAYERS = [
    layer("Linear", of(nn.Linear, 3, 4), (2, 3)),
    layer("Linear to a scalar", of(nn.Linear, 3, "scalar", use_bias=False), (2, 3)),
    layer("Identity", plain(nn.Identity), (2, 3)),
    layer("Lambda", plain(nn.Lambda, jnp.tanh), (2, 3)),
    layer("MLP", of(nn.MLP, 3, 2, 4, 2), (2, 3)),
    layer("MLP of scalars", of(nn.MLP, "scalar", "scalar", 4, 1, final_activation=jnp.tanh), (2,)),
    layer("Sequential", of(lambda key: nn.Sequential([nn.Linear(3, 4, key=key), nn.Lambda(jax.nn.relu)])), (2, 3)),
    layer("Embedding", of(nn.Embedding, 10, 4), integers(10, 2)),
    layer("Conv", of(nn.Conv, 2, 3, 4, (3, 2), padding=((1, 2), (0, 1))), IMAGE),
    layer("Conv1d", of(nn.Conv1d, 3, 4, 3, padding=1), LINE),
    layer("Conv1d reflected", of(nn.Conv1d, 3, 4, 3, padding=2, padding_mode="REFLECT"), LINE),
    layer("Conv2d", of(nn.Conv2d, 3, 4, 3), IMAGE),
    layer("Conv2d strided", of(nn.Conv2d, 3, 4, 3, stride=2, dilation=2, padding="SAME", use_bias=False), IMAGE),
    layer("Conv2d grouped", of(nn.Conv2d, 3, 6, 3, groups=3), IMAGE),
    layer("Conv2d circular", of(nn.Conv2d, 3, 4, 3, padding="SAME", padding_mode="CIRCULAR"), IMAGE),
    layer("Conv2d replicated", of(nn.Conv2d, 3, 4, 3, padding=1, padding_mode="REPLICATE"), IMAGE),
    layer("Conv3d", of(nn.Conv3d, 3, 2, 2), VOLUME),
    layer("ConvTranspose", of(nn.ConvTranspose, 2, 3, 4, (3, 2), stride=2), IMAGE),
    layer("ConvTranspose1d", of(nn.ConvTranspose1d, 3, 4, 3, stride=2, padding=1, output_padding=1), LINE),
    layer("ConvTranspose2d", of(nn.ConvTranspose2d, 3, 4, 3, stride=2, dilation=2), IMAGE),
    layer("ConvTranspose2d grouped", of(nn.ConvTranspose2d, 3, 6, 3, groups=3, padding="SAME"), IMAGE),
    layer("ConvTranspose2d circular", of(nn.ConvTranspose2d, 3, 4, 3, padding="SAME", padding_mode="CIRCULAR"), IMAGE),
    layer("ConvTranspose3d", of(nn.ConvTranspose3d, 3, 2, 2, stride=2), VOLUME),
    layer("Pool", plain(nn.Pool, 0.0, jax.lax.add, 2, (2, 3), stride=2), IMAGE),
    layer("AvgPool1d", plain(nn.AvgPool1d, 3, 2, padding=1), LINE),
    layer("AvgPool2d", plain(nn.AvgPool2d, (2, 3), 2, use_ceil=True), IMAGE),
    layer("AvgPool3d", plain(nn.AvgPool3d, 2, 1), VOLUME),
    layer("MaxPool1d", plain(nn.MaxPool1d, 3, 2, padding=1), LINE),
    layer("MaxPool2d", plain(nn.MaxPool2d, (2, 3), 2, use_ceil=True), IMAGE),
    layer("MaxPool3d", plain(nn.MaxPool3d, 2, 1), VOLUME),
    layer("AdaptivePool", plain(nn.AdaptivePool, (3, 4), 2, jnp.min), IMAGE),
    layer("AdaptiveAvgPool1d", plain(nn.AdaptiveAvgPool1d, 4), LINE),
    layer("AdaptiveAvgPool2d", plain(nn.AdaptiveAvgPool2d, (3, 4)), IMAGE),
    layer("AdaptiveAvgPool3d", plain(nn.AdaptiveAvgPool3d, 2), VOLUME),
    layer("AdaptiveMaxPool1d", plain(nn.AdaptiveMaxPool1d, 4), LINE),
    layer("AdaptiveMaxPool2d", plain(nn.AdaptiveMaxPool2d, (3, 4)), IMAGE),
    layer("AdaptiveMaxPool3d", plain(nn.AdaptiveMaxPool3d, 2), VOLUME),
    layer("LayerNorm", plain(nn.LayerNorm, (3, 9)), LINE),
    layer("LayerNorm plain", plain(nn.LayerNorm, (3, 9), use_weight=False, use_bias=False), LINE),
    layer("RMSNorm", plain(nn.RMSNorm, 3), (2, 3)),
    layer("GroupNorm", plain(nn.GroupNorm, 3, 6), (2, 6, 5)),
    layer("GroupNorm plain", plain(nn.GroupNorm, 2, channelwise_affine=False), (2, 6, 5)),
    layer("WeightNorm", of(lambda key: nn.WeightNorm(nn.Linear(3, 4, key=key))), (2, 3)),
    layer("WeightNorm as a whole", of(lambda key: nn.WeightNorm(nn.Conv2d(3, 4, 3, key=key), axis=None)), IMAGE),
    layer("PReLU", plain(nn.PReLU), (2, 3)),
    layer("PReLU by channel", plain(nn.PReLU, np.float32([0.1, 0.2, 0.3])), (2, 3)),
    layer("Dropout", plain(nn.Dropout, 0.5, inference=True), (2, 3)),
    layer("MultiheadAttention", of(nn.MultiheadAttention, 2, 4), (2, 5, 4), (2, 3, 4), (2, 3, 4)),
    layer("MultiheadAttention of sizes", of(nn.MultiheadAttention, 2, 4, 3, 5, 7, 6, 8, use_query_bias=True,
          use_key_bias=True, use_value_bias=True, use_output_bias=True), (2, 5, 4), (2, 3, 3), (2, 3, 5)),
    layer("RotaryPositionalEmbedding", plain(nn.RotaryPositionalEmbedding, 4), (2, 5, 4)),
    layer("GRUCell", of(nn.GRUCell, 3, 4), (2, 3), (2, 4)),
    layer("LSTMCell", of(nn.LSTMCell, 3, 4), (2, 3), [normal(2, 4), normal(2, 4, seed=1)]),
]  # fmt: skip

STATEFUL = [
    layer("BatchNorm", plain(nn.BatchNorm, 3, "batch", mode="batch"), IMAGE),
    layer("BatchNorm ema", plain(nn.BatchNorm, 3, "batch", mode="ema", channelwise_affine=False), IMAGE),
    layer("SpectralNorm", of(lambda key: nn.SpectralNorm(nn.Linear(3, 4, key=key), "weight", key=key)), (2, 3)),
]

NOT_LAYERS = {
    "Shared": "shares parts of another layer, see test_shared_layers",
    "StateIndex": "a key into the state, see test_state",
    "StatefulLayer": "abstract",
}


def made(make: Callable[[], Any]) -> Any:
    """A module with random weights."""
    return fill(eqx.filter_eval_shape(make))


@pytest.mark.parametrize("case", quick(LAYERS[::4], LAYERS), ids=name_of)
def test_layer(case: Layer) -> None:
    module = made(case.make)
    one = jax.tree.map(lambda x: x[0], list(case.inputs))
    check_export(module, module, one, batched=False)
    check_export(jax.vmap(module), jax.vmap(module), case.inputs)


@pytest.mark.parametrize("case", quick([c for c in LAYERS if c.name in ("MLP", "LayerNorm")], LAYERS), ids=name_of)
def test_gradients_of_layer(case: Layer) -> None:
    params, static = eqx.partition(made(case.make), eqx.is_inexact_array)
    leaves, tree = jax.tree.flatten(params)

    def call(leaves: Any, *inputs: Any) -> Any:
        return jax.vmap(eqx.combine(jax.tree.unflatten(tree, leaves), static))(*inputs)

    check(with_gradients(call), leaves, *case.inputs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("inference", [True, False], ids=["inference", "training"])
@pytest.mark.parametrize("case", quick(STATEFUL[:1], STATEFUL), ids=name_of)
def test_stateful_layer(case: Layer, inference: bool) -> None:
    module, state = nn.make_with_state(case.make)()
    module = nn.inference_mode(module, inference)

    def call(x: Any, state: Any) -> Any:
        return jax.vmap(module, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)

    (x,) = case.inputs
    check(call, x, state)
    # (JAX cannot trace the mean over a mapped axis of unknown size.)
    batched = inference or not case.name.startswith("BatchNorm")
    check_export(lambda x: call(x, state)[0], lambda x: call(x, state)[0], [x], batched=batched)


def test_every_public_layer_is_here() -> None:
    assert public_classes(nn, eqx.Module) == classes_in([LAYERS, STATEFUL]) | set(NOT_LAYERS)


class Net(eqx.Module):
    """A module with static fields, a function, a list, a dict and something that is no array."""

    layers: list[Any]
    extra: dict[str, Any]
    activation: Callable[[Any], Any]
    scale: float = eqx.field(static=True)
    name: str

    def __init__(self, key: Any) -> None:
        keys = jax.random.split(key, 3)
        self.layers = [nn.Linear(3, 4, key=keys[0]), nn.Dropout(0.5), nn.Linear(4, 2, key=keys[1])]
        self.extra = {"bias": jax.random.normal(keys[2], (2,))}
        self.activation, self.scale, self.name = jax.nn.gelu, 2.0, "net"

    def __call__(self, x: Any, key: Any = None) -> Any:
        first, drop, last = self.layers
        return last(drop(self.activation(first(x)), key=key)) * self.scale + self.extra["bias"]


def net() -> Net:
    return made(lambda: Net(jax.random.key(0)))


def test_names_and_static_fields() -> None:
    model = nn.inference_mode(net())
    exported = check_export(model, model, [normal(3)], batched=False)
    assert [i.name for i in exported.graph.input] == ["x"]
    names = {i.name for i in exported.graph.initializer}
    assert {"layers/0/weight", "layers/0/bias", "layers/2/weight", "extra/bias"} <= names


@pytest.mark.parametrize(
    "wrap",
    [eqx.filter_jit, lambda m: eqx.filter_jit(lambda x: m(x)), eqx.filter_checkpoint, eqx.filter_closure_convert],
    ids=["filter_jit", "filter_jit of a lambda", "filter_checkpoint", "filter_closure_convert"],
)
def test_a_transformed_module(wrap: Callable[..., Any]) -> None:
    model = nn.inference_mode(net())
    wrapped = wrap(model, normal(3)) if wrap is eqx.filter_closure_convert else wrap(model)
    check_export(wrapped, model, [normal(3)], batched=False)


def test_filter_vmap_and_a_method() -> None:
    model = nn.inference_mode(net())
    check_export(eqx.filter_vmap(model), jax.vmap(model), [normal(4, 3)])
    exported = check_export(model.__call__, model, [normal(3)], batched=False)
    assert "layers/0/weight" in {i.name for i in exported.graph.initializer}


def test_an_ensemble_of_modules() -> None:
    ensemble = eqx.filter_vmap(lambda key: nn.MLP(3, 2, 4, 1, key=key))(jax.random.split(jax.random.key(0), 3))

    def evaluate(x: Any) -> Any:
        return eqx.filter_vmap(lambda m, x: m(x), in_axes=(eqx.if_array(0), None))(ensemble, x)

    check_export(evaluate, evaluate, [normal(3)], batched=False)


def test_dropout_with_the_key_as_input() -> None:
    """Bit for bit, as no arithmetic of the layers is rounded differently here."""
    check(lambda x, key: nn.Dropout(0.4)(x, key=key), np.ones((8, 4), np.float32), jax.random.key(3), rtol=0, atol=0)
    model = net()
    check(lambda x, key: model(x, key), normal(3), jax.random.key(1))


def test_inference_mode_is_respected_and_the_module_unchanged() -> None:
    model = net()
    before = jax.tree.leaves(model)
    with pytest.raises(RuntimeError, match="Dropout requires a key"):
        jax2onnx.to_onnx(model, [(3,)])
    jax2onnx.to_onnx(nn.inference_mode(model), [(3,)])
    assert all(a is b for a, b in zip(before, jax.tree.leaves(model), strict=True))
    assert model.layers[1].inference is False


def test_state() -> None:
    """A counter: the state goes in and out, and can be fed back."""

    class Counter(eqx.Module):
        index: nn.StateIndex

        def __init__(self) -> None:
            self.index = nn.StateIndex(jnp.int32(5))

        def __call__(self, x: Any, state: nn.State) -> Any:
            count = state.get(self.index) + 1
            return x * count, state.set(self.index, count)

    counter, state = nn.make_with_state(Counter)()
    exported = check(counter, np.float32(2), state)
    for _ in range(3):
        check_run(exported, counter, np.float32(2), state)
        _, state = counter(np.float32(2), state)


def test_shared_layers() -> None:
    class Tied(eqx.Module):
        shared: nn.Shared

        def __init__(self, key: Any) -> None:
            pair = nn.Embedding(600, 8, key=key), nn.Linear(8, 600, use_bias=False, key=key)
            self.shared = nn.Shared(pair, where=lambda pair: pair[1].weight, get=lambda pair: pair[0].weight)

        def __call__(self, token: Any) -> Any:
            embed, head = self.shared()
            return head(embed(token))

    model = Tied(jax.random.key(0))
    exported = check_export(jax.vmap(model), jax.vmap(model), [integers(600, 2)])
    assert [i.dims for i in exported.graph.initializer if len(i.dims) == 2] == [[600, 8]]  # stored once


def test_checks_are_left_out_with_one_warning() -> None:
    def checked(x: Any) -> Any:
        x = eqx.error_if(x, x < 0, "negative")
        return jnp.sqrt(eqx.error_if(x, x > 100, "large"))

    x = np.float32([1, 4])
    with pytest.warns(UserWarning, match="run-time checks") as caught:
        exported = jax2onnx.to_onnx(checked, [(2,)])
    assert len(caught) == 1
    assert [node.op_type for node in exported.graph.node] == ["Sqrt"]
    check_run(exported, checked, x)


@pytest.mark.parametrize("kind", ["lax", "checkpointed", "bounded"])
def test_internal_loops(kind: str) -> None:
    """The loops that diffrax and optimistix are made of, also differentiated."""

    def loop(x: Any) -> Any:
        def body(carry: Any) -> Any:
            i, x = carry
            return i + 1, jnp.sin(x) * 1.1

        bound = {"max_steps": 8}
        options = bound if kind != "lax" else {}
        return eqx.internal.while_loop(lambda c: c[0] < 5, body, (0, x), kind=kind, **options)[1]

    check(loop, normal(3))
    if kind != "lax":
        check(jax.grad(lambda x: loop(x).sum()), normal(3))


def test_internal_scan_with_buffers() -> None:
    def loop(x: Any) -> Any:
        def body(carry: Any, y: Any) -> Any:
            return carry + y, carry * y

        return eqx.internal.scan(body, x[0], x, kind="checkpointed", checkpoints=3)

    check(loop, normal(6, 2))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision(dtype: Any) -> None:
    def make() -> Any:
        keys = jax.random.split(jax.random.key(0), 3)
        return nn.Sequential(
            [
                nn.Linear(8, 8, dtype=dtype, key=keys[0]),
                nn.LayerNorm(8, dtype=dtype),
                nn.Lambda(jax.nn.gelu),
                nn.Linear(8, 4, dtype=dtype, key=keys[1]),
            ]
        )

    model = jax.vmap(made(make))
    check_export(model, model, [normal(2, 8).astype(dtype)])


class Final(eqx.Module, strict=True):
    """A class that nothing may be derived from."""

    linear: nn.Linear

    def __call__(self, x: Any) -> Any:
        return self.linear(x)


class Block(eqx.Module):
    first: nn.Linear
    rest: dict[str, Any]
    scale: float = eqx.field(static=True, default=0.5)

    def __call__(self, x: Any) -> Any:
        return self.rest["final"](jnp.tanh(self.first(x))) * self.scale


class Tower(eqx.Module):
    blocks: list[Block]

    def __call__(self, x: Any) -> Any:
        for block in self.blocks:
            x = x + block(x)
        return x


def tower() -> Tower:
    key = jax.random.key(0)
    return Tower([Block(nn.Linear(3, 3, key=key), {"final": Final(nn.Linear(3, 3, key=key))}) for _ in range(3)])


@pytest.mark.parametrize("wrap", [jax.vmap, lambda m: jax.vmap(lambda x: m(x)), lambda m: lambda x: jax.vmap(m)(x)])
def test_modules_of_your_own_are_named_and_become_functions(wrap: Callable[[Any], Any]) -> None:
    module = tower()
    before = jax.tree.structure(module)
    model = wrap(module)
    exported = check_export(model, model, [normal(2, 3)])
    assert all(node.name.startswith(("blocks_", "Add")) for node in exported.graph.node if node.op_type != "Identity")
    exported = jax2onnx.to_onnx(model, [("B", 3)], functions="modules")
    assert [node.op_type for node in exported.graph.node if node.op_type != "Add"] == ["blocks"] * 3
    check_run(exported, model, normal(4, 3))
    assert jax.tree.structure(module) == before
    assert type(module.blocks[0]) is Block


GLOBAL = tower()
BATCH = normal(2, 3)

WRAPPED = {
    "filter_jit": lambda m: eqx.filter_jit(jax.vmap(m)),
    "filter_vmap": eqx.filter_vmap,
    "filter_jit of filter_vmap": lambda m: eqx.filter_jit(eqx.filter_vmap(m)),
    "filter_jit of a lambda": lambda m: eqx.filter_jit(lambda x: jax.vmap(m)(x)),
    "filter_jit in a lambda": lambda m: lambda x: jax.vmap(eqx.filter_jit(m))(x),
    "vmap of filter_jit": lambda m: jax.vmap(eqx.filter_jit(m)),
    "jit": lambda m: jax.jit(jax.vmap(m)),
    "a global variable": lambda _: lambda x: jax.vmap(lambda row: GLOBAL(row))(x),
    "filter_checkpoint": lambda m: jax.vmap(eqx.filter_checkpoint(m)),
    "a method": lambda m: jax.vmap(m.__call__),
    "a partial function": lambda m: functools.partial(jax.vmap(lambda m, x: m(x), in_axes=(None, 0)), m),
    "a partial function of Equinox": lambda m: jax.vmap(eqx.Partial(m)),
}


@pytest.mark.filterwarnings(r"ignore:[\s\S]*JAX-transformed callable as an attribute")
@pytest.mark.parametrize("name", quick(["filter_jit", "filter_jit of a lambda", "a global variable"], WRAPPED))
def test_a_wrapped_module_is_named_and_becomes_functions(name: str) -> None:
    module = tower()
    model = WRAPPED[name](module)
    exported = jax2onnx.to_onnx(model, [("B", 3)], functions="modules")
    at_top = [node.op_type for node in exported.graph.node]
    if name == "a partial function":
        assert at_top == ["m"]  # the name of the argument
    else:
        assert [op for op in at_top if op != "Add"] == ["blocks"] * 3
    plain = jax2onnx.to_onnx(model, [("B", 3)])
    assert all("blocks_" in node.name or node.op_type == "Add" for node in plain.graph.node)
    assert any(i.name.endswith("blocks/0/first/weight") for i in plain.graph.initializer)
    for export in (exported, plain):
        check_run(export, jax.vmap(module), BATCH)


def test_several_modules_of_a_closure_have_the_names_of_their_variables() -> None:
    encoder, decoder = tower(), tower()
    exported = jax2onnx.to_onnx(eqx.filter_jit(lambda x: decoder(encoder(x))), [(3,)], functions="modules")
    assert [node.op_type for node in exported.graph.node] == ["encoder", "decoder"]
    check_run(exported, lambda x: decoder(encoder(x)), BATCH[0])
