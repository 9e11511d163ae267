"""Flax NNX: every layer, the meaning of train and eval, RNG streams, methods, transforms, names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

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


def rngs() -> nnx.Rngs:
    return nnx.Rngs(params=0, dropout=1, carry=2)


def of(make: Callable[..., nnx.Module], *args: Any, **kwargs: Any) -> Callable[[], nnx.Module]:
    """A maker of a layer, with random numbers for its weights."""
    return lambda: make(*args, **kwargs, rngs=rngs())


def rnn(cell: Callable[..., Any], **kwargs: Any) -> Callable[[], nnx.Module]:
    return lambda: nnx.RNN(cell(3, 4, rngs=rngs()), rngs=rngs(), **kwargs)


attention = functools.partial(nnx.MultiHeadAttention, decode=False)

IMAGE, SEQUENCE = (2, 8, 6, 4), (2, 5, 3)

LAYERS = [
    layer("Linear", of(nnx.Linear, 3, 4), (2, 3)),
    layer("Linear without bias", of(nnx.Linear, 3, 4, use_bias=False), (2, 5, 3)),
    layer("LinearGeneral", of(nnx.LinearGeneral, (4, 3), (5, 2), axis=(-2, -1)), (2, 4, 3)),
    layer("LinearGeneral batched", of(nnx.LinearGeneral, 3, 4, batch_axis={0: 2}), (2, 5, 3), batched=False),
    layer("Einsum", of(nnx.Einsum, "nta,hab->nthb", (2, 3, 4), (2, 4)), SEQUENCE),
    layer("LoRA", of(nnx.LoRA, 3, 2, 4), (2, 3)),
    layer("LoRA of a layer", lambda: nnx.LoRA(3, 2, 4, base_module=nnx.Linear(3, 4, rngs=rngs()), rngs=rngs()), (2, 3)),
    layer("LoRALinear", of(nnx.LoRALinear, 3, 4, lora_rank=2), (2, 3)),
    layer("Embed", of(nnx.Embed, 10, 4), integers(10, 2, 5)),
    layer("Conv 1D", of(nnx.Conv, 3, 4, (3,)), SEQUENCE),
    layer("Conv", of(nnx.Conv, 4, 6, (3, 3)), IMAGE),
    layer("Conv strided", of(nnx.Conv, 4, 6, (3, 2), strides=2, padding="VALID", use_bias=False), IMAGE),
    layer("Conv dilated", of(nnx.Conv, 4, 6, (3, 3), kernel_dilation=2, padding=((1, 2), (0, 3))), IMAGE),
    layer("Conv with input dilation", of(nnx.Conv, 4, 6, (3, 3), input_dilation=2, padding=((1, 2), (0, 1))), IMAGE),
    layer("Conv depthwise", of(nnx.Conv, 4, 8, (3, 3), feature_group_count=4), IMAGE),
    layer("Conv causal", of(nnx.Conv, 3, 4, (3,), padding="CAUSAL"), SEQUENCE),
    layer("Conv circular", of(nnx.Conv, 4, 6, (3, 3), padding="CIRCULAR"), IMAGE),
    layer("Conv reflected", of(nnx.Conv, 4, 6, (3, 3), padding="REFLECT"), IMAGE),
    layer("Conv masked", of(nnx.Conv, 4, 6, (3, 3), mask=np.tri(36, 6, dtype=np.float32).reshape(3, 3, 4, 6)), IMAGE),
    layer("Conv 3D", of(nnx.Conv, 2, 3, (2, 3, 2)), (2, 4, 5, 3, 2)),
    layer("Conv with batch axes", of(nnx.Conv, 4, 6, (3, 3)), (2, 3, 5, 5, 4)),
    layer("Conv without batch axis", of(nnx.Conv, 4, 6, (3, 3)), (5, 5, 4), batched=False),
    layer("ConvTranspose", of(nnx.ConvTranspose, 4, 6, (3, 3), strides=(2, 2)), IMAGE),
    layer("ConvTranspose valid", of(nnx.ConvTranspose, 4, 6, (3, 2), strides=(2, 3), padding="VALID"), IMAGE),
    layer("ConvTranspose circular", of(nnx.ConvTranspose, 4, 6, (3, 3), strides=(2, 2), padding="CIRCULAR"), IMAGE),
    layer("ConvTranspose transposed", of(nnx.ConvTranspose, 4, 6, (3, 3), transpose_kernel=True), IMAGE),
    layer("BatchNorm", of(nnx.BatchNorm, 4), IMAGE),
    layer("BatchNorm plain", of(nnx.BatchNorm, 3, use_scale=False, use_bias=False), (2, 3)),
    layer("BatchNorm first axis", of(nnx.BatchNorm, 8, axis=1), IMAGE),
    layer("LayerNorm", of(nnx.LayerNorm, 3), SEQUENCE),
    layer("LayerNorm two axes", of(nnx.LayerNorm, 4, reduction_axes=(-2, -1)), IMAGE),
    layer("LayerNorm slow variance", of(nnx.LayerNorm, 3, use_fast_variance=False, use_bias=False), SEQUENCE),
    layer("RMSNorm", of(nnx.RMSNorm, 3), SEQUENCE),
    layer("GroupNorm", of(nnx.GroupNorm, 4, num_groups=2), IMAGE),
    layer("GroupNorm by size", of(nnx.GroupNorm, 4, num_groups=None, group_size=1), IMAGE),
    layer("InstanceNorm", of(nnx.InstanceNorm, 4), IMAGE),
    layer("SpectralNorm", lambda: nnx.SpectralNorm(nnx.Linear(3, 4, rngs=rngs()), rngs=rngs()), (2, 3)),
    layer("WeightNorm", lambda: nnx.WeightNorm(nnx.Linear(3, 4, rngs=rngs()), rngs=rngs()), (2, 3)),
    layer("WeightNorm of Conv", lambda: nnx.WeightNorm(nnx.Conv(4, 6, (3, 3), rngs=rngs()), rngs=rngs()), IMAGE),
    layer("PReLU", lambda: nnx.PReLU(), (2, 3)),
    layer("Dropout", of(nnx.Dropout, 0.5), (2, 3)),
    layer("MultiHeadAttention", of(attention, 2, 4), (2, 5, 4)),
    layer("MultiHeadAttention to others", of(attention, 2, 4, 8, 6), (2, 5, 4), (2, 3, 4)),
    layer("MultiHeadAttention with normalized keys", of(attention, 2, 16, normalize_qk=True), (2, 5, 16)),
    layer("MultiHeadAttention with grouped keys", of(attention, 4, 8, num_kv_heads=2), (2, 5, 8)),
    layer("SimpleCell", of(nnx.SimpleCell, 3, 4), (2, 4), (2, 3)),
    layer("SimpleCell residual", of(nnx.SimpleCell, 4, 4, residual=True), (2, 4), (2, 4)),
    layer("GRUCell", of(nnx.GRUCell, 3, 4), (2, 4), (2, 3)),
    layer("LSTMCell", of(nnx.LSTMCell, 3, 4), [normal(2, 4), normal(2, 4, seed=1)], (2, 3)),
    layer("OptimizedLSTMCell", of(nnx.OptimizedLSTMCell, 3, 4), [normal(2, 4), normal(2, 4, seed=1)], (2, 3)),
    layer("RNN", rnn(nnx.LSTMCell), SEQUENCE),
    layer("RNN backwards", rnn(nnx.OptimizedLSTMCell, reverse=True, keep_order=True, return_carry=True), SEQUENCE),
    layer("RNN of GRU unrolled", rnn(nnx.GRUCell, unroll=2), SEQUENCE),
    layer("RNN time-major", rnn(nnx.SimpleCell, time_major=True), (5, 2, 3)),
    layer("Bidirectional", lambda: nnx.Bidirectional(rnn(nnx.GRUCell)(), rnn(nnx.GRUCell)(), rngs=rngs()), SEQUENCE),
    layer("Sequential", lambda: nnx.Sequential(nnx.Linear(3, 4, rngs=rngs()), nnx.relu, nnx.PReLU()), (2, 3)),
]  # fmt: skip

if "RoPE" in vars(nnx):  # since Flax 0.12.9
    LAYERS += [
        layer("RoPE", lambda: nnx.RoPE(), (2, 5, 2, 4)),
        layer("RoPE from a table", lambda: nnx.RoPE(embedding_size=4, max_seq_len=8), (2, 5, 2, 4)),
    ]

NOT_LAYERS = {
    "Dict": "a container, see test_containers",
    "List": "a container, see test_containers",
    "RNNCellBase": "abstract",
}

FUNCTIONS = [
    layer("avg_pool", lambda: lambda x: nnx.avg_pool(x, (2, 3), (2, 2), "SAME"), IMAGE),
    layer("avg_pool of insides", lambda: lambda x: nnx.avg_pool(x, (2, 3), None, "SAME", False), IMAGE),
    layer("max_pool", lambda: lambda x: nnx.max_pool(x, (2, 3), (2, 2), "SAME"), IMAGE),
    layer("min_pool", lambda: lambda x: nnx.min_pool(x, (3, 2), (1, 2)), IMAGE),
    *(
        layer(name, lambda name=name: getattr(nnx, name), (2, 3))
        for name in (
            "celu", "elu", "gelu", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh", "leaky_relu", "log_sigmoid",
            "log_softmax", "logsumexp", "relu", "relu6", "selu", "sigmoid", "silu", "soft_sign", "softmax", "softplus",
            "standardize", "swish", "tanh",
        )
    ),
    layer("glu", lambda: nnx.glu, (2, 4)),
    layer("one_hot", lambda: lambda x: nnx.one_hot(x, 7), integers(9, 2, 3)),
    layer("dot_product_attention", lambda: nnx.dot_product_attention, (2, 5, 2, 4), (2, 6, 2, 4), (2, 6, 2, 4)),
    layer("make_causal_mask", lambda: nnx.make_causal_mask, (2, 5)),
]  # fmt: skip


def made(make: Callable[..., nnx.Module], *args: Any) -> Any:
    """The module with random weights."""
    if isinstance(module := nnx.eval_shape(make, *args), nnx.WeightNorm):
        return make(*args)  # some of its weights are not part of its state in Flax 0.12.8
    graph, state = nnx.split(module)
    return nnx.merge(graph, fill(state))


def pure(module: nnx.Module) -> Callable[..., Any]:
    """The module as a function that leaves the module as it is."""
    graph, state = nnx.split(module)
    return lambda *args: nnx.merge(graph, state, copy=True)(*args)


def step(module: nnx.Module) -> tuple[Callable[..., Any], Any]:
    """A function (state, *args) -> (results, new state), and the state."""
    graph, state = nnx.split(module)

    def run(state: Any, *args: Any) -> Any:
        copy = nnx.merge(graph, state, copy=True)
        return copy(*args), nnx.to_pure_dict(nnx.state(copy, nnx.Not(nnx.RngState)))

    return run, state


@pytest.mark.parametrize("case", quick(LAYERS[::4], LAYERS), ids=name_of)
def test_layer(case: Layer) -> None:
    module = made(case.make)
    module.eval()
    check_export(module, pure(module), case.inputs, batched=case.batched)


@pytest.mark.parametrize("case", quick(FUNCTIONS[::2], FUNCTIONS), ids=name_of)
def test_function(case: Layer) -> None:
    check_export(case.make(), case.make(), case.inputs, batched=case.batched)


TRAINED = ("BatchNorm", "SpectralNorm", "Dropout", "MultiHeadAttention", "WeightNorm", "RNN")


TRAINED_CASES = [c for c in LAYERS if c.name.split()[0] in TRAINED]


@pytest.mark.parametrize(
    "case", quick([c for c in TRAINED_CASES if c.name in TRAINED[:-1]], TRAINED_CASES), ids=name_of
)
def test_layer_in_training(case: Layer) -> None:
    """Batch statistics as they are computed, dropout with the layer's own key, and the new state as an output."""
    module = made(case.make)
    module.train()
    run, state = step(module)
    check_run(jax2onnx.to_onnx(module, list(case.inputs)), pure(module), *case.inputs)
    check(lambda *args: run(state, *args), *case.inputs)


@pytest.mark.parametrize("case", quick([c for c in LAYERS if c.name in ("BatchNorm", "LoRA")], LAYERS), ids=name_of)
def test_gradients_of_layer(case: Layer) -> None:
    """In training: results, new state, gradients."""
    module = made(case.make)
    module.train()
    graph, params, rest = nnx.split(module, nnx.Param, ...)
    leaves, tree = jax.tree.flatten(params)

    def call(leaves: Any, *args: Any) -> Any:
        copy = nnx.merge(graph, jax.tree.unflatten(tree, leaves), rest, copy=True)
        return copy(*args), nnx.to_pure_dict(nnx.state(copy, nnx.Not(nnx.Any(nnx.Param, nnx.RngState))))

    check(with_gradients(call), leaves, *case.inputs, rtol=1e-4, atol=1e-4)


def test_every_public_layer_is_here() -> None:
    assert public_classes(nnx, nnx.Module) == classes_in([LAYERS]) | set(NOT_LAYERS)


class Net(nnx.Module):
    """A bit of everything that has a state."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(2, 4, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.heads = nnx.List([nnx.Linear(4, 3, rngs=rngs) for _ in range(2)])
        self.named = nnx.Dict(out=nnx.Linear(6, 2, rngs=rngs))

    def features(self, x: Any, *, scale: float = 1.0) -> Any:
        return self.drop(self.norm(self.conv(x))).mean((1, 2)) * scale

    def __call__(self, x: Any) -> Any:
        features = self.features(x)
        return self.named["out"](jnp.concatenate([head(features) for head in self.heads], axis=-1))


def net() -> Net:
    return made(Net, rngs())


PICTURE = normal(2, 5, 5, 2)


def state_of(module: nnx.Module) -> list[np.ndarray]:
    leaves = jax.tree.leaves(nnx.to_pure_dict(nnx.state(module)))
    return [
        np.asarray(jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)
        for leaf in leaves
    ]


def test_containers_and_names() -> None:
    model = net()
    model.eval()
    exported = check_export(model, pure(model), [PICTURE], normalization_mode="auto")
    names = {i.name for i in exported.graph.initializer}
    assert {"heads/0/kernel", "heads/1/bias", "named/out/kernel"} <= names
    assert exported.graph.input[0].name == "x"


@pytest.mark.parametrize("training", [True, False])
def test_an_export_leaves_the_module_as_it_was(training: bool) -> None:
    model = net()
    model.train() if training else model.eval()
    before, objects = state_of(model), [id(v) for v in jax.tree.leaves(nnx.split(model)[1])]
    want = pure(model)(PICTURE)
    check_run(jax2onnx.to_onnx(model, [PICTURE]), lambda x: want, PICTURE)
    assert objects == [id(v) for v in jax.tree.leaves(nnx.split(model)[1])]
    for old, new in zip(before, state_of(model), strict=True):
        np.testing.assert_array_equal(old, new)
    assert model.drop.deterministic is not training
    np.testing.assert_array_equal(model(PICTURE), want)  # the next call draws the numbers that it would have drawn


def test_dropout_draws_the_numbers_that_the_next_call_would() -> None:
    model = nnx.Dropout(0.5, rngs=rngs())
    x = np.ones((4, 8), np.float32)
    model(x)  # the stream is no longer at its start
    exported = jax2onnx.load(jax2onnx.to_onnx(model, [x]))
    first, second = exported(x), exported(x)
    np.testing.assert_array_equal(first, second)  # a model has no state
    np.testing.assert_array_equal(first, model(x))


def test_a_method_with_a_keyword() -> None:
    model = net()
    model.eval()
    graph, state = nnx.split(model)
    exported = jax2onnx.to_onnx(model.features, [PICTURE], input_params={"scale": 2.0})
    assert [i.name for i in exported.graph.input] == ["x", "scale"]
    check_run(exported, lambda x, s: nnx.merge(graph, state).features(x, scale=s), PICTURE, np.float32(3))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda model: nnx.jit(model),
        lambda model: lambda x: model(x),
        lambda model: nnx.jit(lambda x: model(x)),
        lambda model: nnx.remat(lambda m, x: m(x)).__get__(model),
        lambda model: nnx.vmap(lambda x: model(x[None])[0]),
    ],
    ids=["jit", "lambda", "jit of a lambda", "remat", "vmap"],
)
def test_a_transformed_module(wrap: Callable[[nnx.Module], Any]) -> None:
    model = net()
    model.eval()
    exported = check_export(wrap(model), pure(model), [PICTURE])
    assert any(i.name.endswith("heads/0/kernel") for i in exported.graph.initializer)


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "lambda": lambda m: lambda x: m(x),
    "jit": nnx.jit,
    "jit of a lambda": lambda m: nnx.jit(lambda x: m(x)),
    "jit of JAX": lambda m: jax.jit(lambda x: m(x)),
    "a list": lambda m: functools.partial(lambda ms, x: ms[0](x), [m]),
}


@pytest.mark.parametrize("name", quick(["lambda", "jit"], HOLDERS))
def test_a_function_that_holds_on_to_a_module_in_training(name: str) -> None:
    """It draws and computes what the module would, whose state stays as it is; the modules inside become functions."""
    model = net()
    model.train()
    before, want = state_of(model), pure(model)(PICTURE)
    exported = jax2onnx.to_onnx(HOLDERS[name](model), [PICTURE], functions="modules")
    for old, new in zip(before, state_of(model), strict=True):
        np.testing.assert_array_equal(old, new)
    check_run(exported, lambda x: want, PICTURE)
    assert jax2onnx.allclose(HOLDERS[name](model), exported, [PICTURE])[0]
    inner = {node.op_type for graph in (exported.graph, *exported.functions) for node in graph.node}
    assert {"conv", "norm", "drop"} <= inner


def test_modules_and_streams_that_a_function_holds_on_to_are_copied_together() -> None:
    model, rngs = net(), nnx.Rngs(dropout=5)
    model.eval()
    conv, head = model.conv, nnx.Linear(4, 3, rngs=nnx.Rngs(3))
    count = rngs.dropout.count[...]

    def call(x: Any) -> Any:
        conv.bias[...] = conv.bias[...] + 1  # of the model, too
        return head(model.conv(x)), jax.random.normal(rngs.dropout(), (3,)), model.norm(conv(x))

    bias = conv.bias[...]
    exported = jax2onnx.to_onnx(call, [PICTURE], functions="modules")
    assert conv.bias[...] is bias and rngs.dropout.count[...] is count
    assert {"head", "conv"} <= {node.op_type for node in exported.graph.node}
    want = call(PICTURE)
    check_run(exported, lambda x: want, PICTURE)


def test_layers_in_a_scan() -> None:
    @nnx.split_rngs(splits=16)
    @nnx.vmap(in_axes=0)
    def block(rngs: nnx.Rngs) -> nnx.Linear:
        return nnx.Linear(4, 4, rngs=rngs)

    class Deep(nnx.Module):
        def __init__(self) -> None:
            self.blocks = block(rngs())

        def __call__(self, x: Any) -> Any:
            @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
            def forward(x: Any, layer: nnx.Linear) -> Any:
                return nnx.tanh(layer(x))

            return forward(x, self.blocks)

    model = made(Deep)
    exported = check_export(model, pure(model), [normal(2, 4)])
    assert {"blocks/kernel", "blocks/bias"} <= {i.name for i in exported.graph.initializer}


def test_decoding_with_a_cache() -> None:
    """The cache goes in and out; a step at a time gives what the whole sequence gives."""
    model = nnx.MultiHeadAttention(2, 4, decode=True, rngs=rngs())
    model.init_cache((2, 5, 4))
    graph, cache, rest = nnx.split(model, nnx.Cache, ...)

    def decode(cache: Any, x: Any) -> Any:
        copy = nnx.merge(graph, cache, rest, copy=True)
        return copy(x), nnx.state(copy, nnx.Cache)

    def as_dicts(cache: Any, x: Any) -> Any:
        y, new = decode(nnx.from_flat_state(nnx.to_flat_state(cache)), x)
        return y, nnx.to_pure_dict(new)

    exported = jax2onnx.to_onnx(as_dicts, [cache, (2, 1, 4)])
    assert [i.name for i in exported.graph.input] == [
        "cache/cache_index",
        "cache/cached_key",
        "cache/cached_value",
        "x",
    ]
    for i in range(3):
        x = normal(2, 1, 4, seed=i)
        check_run(exported, as_dicts, cache, x)
        _, cache = decode(cache, x)


def test_a_training_step_with_an_optimizer() -> None:
    import optax

    model = nnx.Sequential(nnx.Linear(3, 4, rngs=rngs()), nnx.relu, nnx.Linear(4, 1, rngs=rngs()))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)
    graph, state = nnx.split((model, optimizer))

    def train(state: Any, x: Any, y: Any) -> Any:
        model, optimizer = nnx.merge(graph, state, copy=True)
        loss, grads = nnx.value_and_grad(lambda m: jnp.mean((m(x) - y) ** 2))(model)
        optimizer.update(model, grads)
        return loss, nnx.to_pure_dict(nnx.state((model, optimizer)))

    check(train, state, normal(5, 3), normal(5, 1), rtol=1e-4)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision(dtype: Any) -> None:
    def make() -> nnx.Module:
        return nnx.Sequential(
            nnx.Linear(8, 8, dtype=dtype, param_dtype=dtype, rngs=rngs()),
            nnx.LayerNorm(8, dtype=dtype, rngs=rngs()),
            nnx.gelu,
            nnx.Conv(8, 4, (3,), dtype=dtype, rngs=rngs()),
            nnx.softmax,
        )

    model = made(make)
    check_export(model, pure(model), [normal(2, 5, 8).astype(dtype)])


def test_attention_in_bfloat16() -> None:
    """(JAX has no float16 products that add up in float32 on CPUs.)"""
    model = made(lambda: nnx.MultiHeadAttention(2, 8, dtype=jnp.bfloat16, decode=False, rngs=rngs()))
    check_export(model, pure(model), [normal(2, 5, 8).astype(jnp.bfloat16)])
