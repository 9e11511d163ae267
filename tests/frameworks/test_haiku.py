"""Haiku: every module, transform with and without state, keys, names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import haiku as hk
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
    identities,
    integers,
    layer,
    name_of,
    normal,
    public_classes,
    with_gradients,
)
from tests.helpers import check, check_run, check_valid, quick


def of(make: Callable[..., Any], *args: Any, call: Any = dict, **kwargs: Any) -> Callable[[], Any]:
    """A maker of a function that makes the module and calls it, with the keywords that `call` gives."""
    return lambda: lambda *inputs: make(*args, **kwargs)(*inputs, **call())


def running() -> dict[str, Any]:
    """Batch statistics exist after a first call in training."""
    return {"is_training": hk.running_init()}


def not_updating() -> dict[str, Any]:
    return {"update_stats": hk.running_init()}


def core(make: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], Any]:
    """A maker of a function that unrolls a recurrent core over the first axis."""

    def unroll(xs: Any) -> Any:
        rnn = make(*args, **kwargs)
        return hk.dynamic_unroll(rnn, xs, rnn.initial_state(xs.shape[1]))

    return lambda: unroll


LINE, IMAGE, VOLUME, SEQUENCE = (2, 9, 3), (2, 8, 6, 4), (2, 4, 5, 6, 2), (5, 2, 3)

LAYERS = [
    layer("Linear", of(hk.Linear, 4), (2, 3)),
    layer("Linear without bias", of(hk.Linear, 4, with_bias=False), (2, 5, 3)),
    layer("Bias", of(hk.Bias, bias_dims=[-1]), (2, 5, 3)),
    layer("Flatten", of(hk.Flatten), IMAGE),
    layer("Reshape", of(hk.Reshape, (4, -1)), IMAGE),
    layer("Sequential", of(lambda: hk.Sequential([hk.Linear(4), jax.nn.relu, hk.Linear(2)])), (2, 3)),
    layer("Embed", of(hk.Embed, 10, 4), integers(10, 2, 5)),
    layer("Embed by one-hot", of(hk.Embed, 10, 4, lookup_style="ONE_HOT"), integers(10, 2, 5)),
    layer("ConvND", of(hk.ConvND, 2, 3, 3, stride=2), IMAGE),
    layer("Conv1D", of(hk.Conv1D, 4, 3), LINE),
    layer("Conv1D causal", of(hk.Conv1D, 4, 3, rate=2, padding=hk.pad.causal), LINE),
    layer("Conv2D", of(hk.Conv2D, 6, 3), IMAGE),
    layer("Conv2D channels first", of(hk.Conv2D, 6, 3, data_format="NCHW", padding="VALID"), IMAGE),
    layer("Conv2D grouped", of(hk.Conv2D, 6, (3, 2), feature_group_count=2, rate=2, with_bias=False), IMAGE),
    layer("Conv3D", of(hk.Conv3D, 3, 2), VOLUME),
    layer("ConvNDTranspose", of(hk.ConvNDTranspose, 2, 3, 3, stride=2), IMAGE),
    layer("Conv1DTranspose", of(hk.Conv1DTranspose, 4, 3, stride=2), LINE),
    layer("Conv2DTranspose", of(hk.Conv2DTranspose, 6, 3, stride=2, padding="VALID"), IMAGE),
    layer("Conv3DTranspose", of(hk.Conv3DTranspose, 3, 2), VOLUME),
    layer("DepthwiseConv1D", of(hk.DepthwiseConv1D, 2, 3), LINE),
    layer("DepthwiseConv2D", of(hk.DepthwiseConv2D, 2, 3, stride=2), IMAGE),
    layer("DepthwiseConv3D", of(hk.DepthwiseConv3D, 2, 2), VOLUME),
    layer("SeparableDepthwiseConv2D", of(hk.SeparableDepthwiseConv2D, 2, (3, 3)), IMAGE),
    layer("AvgPool", of(hk.AvgPool, (2, 3, 1), (2, 2, 1), "SAME"), IMAGE),
    layer("MaxPool", of(hk.MaxPool, (2, 3, 1), (2, 2, 1), "VALID"), IMAGE),
    layer("BatchNorm", of(hk.BatchNorm, True, True, 0.9, call=running), IMAGE),
    layer("LayerNorm", of(hk.LayerNorm, -1, True, True), LINE),
    layer("LayerNorm of two axes", of(hk.LayerNorm, (-2, -1), False, False), LINE),
    layer("RMSNorm", of(hk.RMSNorm, -1), LINE),
    layer("GroupNorm", of(hk.GroupNorm, 2), IMAGE),
    layer("InstanceNorm", of(hk.InstanceNorm, True, True), IMAGE),
    layer("SpectralNorm", of(hk.SpectralNorm, call=not_updating), (3, 4), batched=False),
    layer("ExponentialMovingAverage", of(hk.ExponentialMovingAverage, 0.9), (2, 3), batched=False),
    layer("MultiHeadAttention", of(hk.MultiHeadAttention, 2, 4, w_init=hk.initializers.RandomNormal(), model_size=6),
          (2, 5, 4), (2, 3, 4), (2, 3, 4)),
    layer("VanillaRNN", core(hk.VanillaRNN, 4), SEQUENCE, batched=False),
    layer("LSTM", core(hk.LSTM, 4), SEQUENCE, batched=False),
    layer("GRU", core(hk.GRU, 4), SEQUENCE, batched=False),
    layer("IdentityCore", core(hk.IdentityCore), SEQUENCE, batched=False),
    layer("DeepRNN", core(lambda: hk.DeepRNN([hk.LSTM(4), jnp.tanh, hk.GRU(3)])), SEQUENCE, batched=False),
    layer("ResetCore", of(lambda: lambda x, reset: hk.dynamic_unroll(
        core_ := hk.ResetCore(hk.GRU(4)), (x, reset), core_.initial_state(2))),
        SEQUENCE, np.bool_([[0, 1], [0, 0], [1, 0], [0, 0], [1, 1]]), batched=False),
    layer("Conv1DLSTM", core(hk.Conv1DLSTM, (4,), 3, 2), (3, 2, 4, 2), batched=False),
    layer("Conv2DLSTM", core(hk.Conv2DLSTM, (4, 3), 3, 2), (3, 2, 4, 3, 2), batched=False),
    layer("Conv3DLSTM", core(hk.Conv3DLSTM, (2, 3, 2), 2, 2), (3, 2, 2, 3, 2, 2), batched=False),
    layer("MLP", of(hk.nets.MLP, [4, 2], activation=jnp.tanh, activate_final=True), (2, 3)),
    layer("ResNet", of(hk.nets.ResNet, (1, 1, 1, 1), 8, resnet_v2=True, channels_per_group=(4, 4, 8, 8),
          call=running), (1, 32, 32, 3), batched=False),
    layer("VectorQuantizer", of(lambda: lambda x: hk.nets.VectorQuantizer(3, 5, 0.25)(x, False)), (2, 4, 3)),
    layer("VectorQuantizerEMA", of(lambda: lambda x: hk.nets.VectorQuantizerEMA(3, 5, 0.25, 0.9)(x, False)), (2, 4, 3)),
]  # fmt: skip

TRAINING = [
    layer("BatchNorm", of(hk.BatchNorm, True, True, 0.9, call=lambda: {"is_training": True}), IMAGE),
    layer("SpectralNorm", of(hk.SpectralNorm, call=lambda: {"update_stats": True}), (3, 4)),
    layer("VectorQuantizer", of(lambda: lambda x: hk.nets.VectorQuantizer(3, 5, 0.25)(x, True)), (2, 4, 3)),
    layer("VectorQuantizerEMA", of(lambda: lambda x: hk.nets.VectorQuantizerEMA(3, 5, 0.25, 0.9)(x, True)), (2, 4, 3)),
    layer("MLP", of(hk.nets.MLP, [4, 2], call=lambda: {"dropout_rate": 0.5, "rng": hk.next_rng_key()}), (2, 3)),
]  # fmt: skip

NOT_LAYERS = {
    "RNNCore": "abstract",
    "EMAParamsTree": "of parameters, see test_trees_of_parameters",
    "SNParamsTree": "of parameters, see test_trees_of_parameters",
    "MobileNetV1": "too large for a quick test: convolutions and batch norms, as above",
    **dict.fromkeys(
        ["ResNet18", "ResNet34", "ResNet50", "ResNet101", "ResNet152", "ResNet200"], "ResNet with the numbers filled in"
    ),
}


def filled(transformed: Any, *inputs: Any) -> tuple[Any, ...]:
    """Random parameters, and the state, of a function."""
    found = fill(jax.eval_shape(transformed.init, jax.random.key(0), *inputs))
    return found if isinstance(transformed, hk.TransformedWithState) else (found,)


@pytest.mark.parametrize("case", quick(LAYERS[::4], LAYERS), ids=name_of)
def test_layer(case: Layer) -> None:
    transformed = hk.transform_with_state(case.make())
    params, state = filled(transformed, *case.inputs)

    def reference(*inputs: Any) -> Any:
        return transformed.apply(params, state, None, *inputs)

    check_export((transformed, params, state), reference, case.inputs, batched=case.batched)


def in_training(case: Layer) -> str:
    return f"{case.name}, {'in training' if case in TRAINING else 'as above'}"


@pytest.mark.parametrize("case", quick(TRAINING[:4], [*TRAINING, *LAYERS]), ids=in_training)
def test_gradients_of_layer(case: Layer) -> None:
    """Results, new state, gradients."""
    transformed = hk.transform_with_state(case.make())
    params, state = filled(transformed, *case.inputs)

    def call(params: Any, state: Any, *inputs: Any) -> Any:
        return transformed.apply(params, state, jax.random.key(2), *inputs)

    check(with_gradients(call), params, state, *case.inputs, rtol=1e-4, atol=1e-4)


def test_every_public_layer_is_here() -> None:
    public = public_classes(hk, hk.Module) | public_classes(hk.nets, hk.Module)
    assert public == classes_in([LAYERS]) | set(NOT_LAYERS)


def network(x: Any, is_training: bool = False) -> Any:
    x = hk.Conv2D(4, 3, name="conv")(x)
    x = hk.BatchNorm(True, True, 0.9, name="norm")(x, is_training or hk.running_init())
    if is_training:
        x = hk.dropout(hk.next_rng_key(), 0.5, x)
    return {"logits": hk.Linear(3, name="head")(x.mean((1, 2)))}


PICTURE = normal(2, 5, 5, 2)


def test_names_and_nothing_changes() -> None:
    transformed = hk.transform_with_state(network)
    before = identities(hk, hk.nets, hk.initializers)
    exported = jax2onnx.to_onnx((transformed, *filled(transformed, PICTURE)), [PICTURE])
    assert identities(hk, hk.nets, hk.initializers) == before
    check_valid(exported)
    assert [i.name for i in exported.graph.input] == ["x"]
    assert exported.graph.output[0].name == "output_0/logits"
    assert {"head/w", "head/b"} <= {i.name for i in exported.graph.initializer}


def test_training_with_state_and_key() -> None:
    """The new state is an output; the key is an input, and draws the same numbers."""
    transformed = hk.transform_with_state(network)
    params, state = filled(transformed, PICTURE)

    def train(params: Any, state: Any, key: Any, x: Any) -> Any:
        return transformed.apply(params, state, key, x, is_training=True)

    check(train, params, state, jax.random.key(3), PICTURE)
    exported = jax2onnx.to_onnx(
        (transformed, params, state), [PICTURE], input_params={"rng": jax.random.key(3), "is_training": True}
    )
    assert [i.name for i in exported.graph.input] == ["x", "rng"]
    check_run(exported, lambda x, key: train(params, state, key, x), PICTURE, jax.random.key(5))


@pytest.mark.parametrize("with_rng", [True, False])
def test_transform_without_state(with_rng: bool) -> None:
    transformed = hk.transform(lambda x: jax.nn.relu(hk.nets.MLP([4, 2])(x)))
    if not with_rng:
        transformed = hk.without_apply_rng(transformed)
    (params,) = filled(transformed, normal(2, 3))
    rng = (None,) if with_rng else ()
    reference = lambda x: transformed.apply(params, *rng, x)  # noqa: E731
    exported = check_export((transformed, params), reference, [normal(2, 3)])
    assert {i.name for i in exported.graph.initializer} == {
        "mlp/~/linear_0/w", "mlp/~/linear_0/b", "mlp/~/linear_1/w", "mlp/~/linear_1/b"
    }  # fmt: skip


def test_trees_of_parameters() -> None:
    tree = {"dense": {"w": normal(3, 4)}}

    def averages(params: Any) -> Any:
        return hk.EMAParamsTree(0.9)(params), hk.SNParamsTree()(params)

    transformed = hk.transform_with_state(averages)
    _, state = fill(jax.eval_shape(transformed.init, jax.random.key(0), tree))
    check(lambda state, tree: transformed.apply({}, state, None, tree), state, tree)


def test_lifted_control_flow() -> None:
    def deep(x: Any) -> Any:
        x = hk.layer_stack(12)(lambda x: jnp.tanh(hk.Linear(4)(x)))(x)
        x = hk.remat(hk.Linear(4))(x)
        return hk.vmap(hk.Linear(2), split_rng=False)(x)

    transformed = hk.transform(deep)
    (params,) = filled(transformed, normal(2, 4))
    check_export((transformed, params), lambda x: transformed.apply(params, None, x), [normal(2, 4)])


def test_a_function_without_weights() -> None:
    transformed = hk.transform(lambda x: hk.Linear(3)(x))
    with pytest.raises(jax2onnx.InputError, match="transformed, params"):
        jax2onnx.to_onnx(transformed, [(2, 3)])
    with pytest.raises(jax2onnx.InputError, match="transformed, params, state"):
        jax2onnx.to_onnx((hk.transform_with_state(network), {}), [PICTURE])
