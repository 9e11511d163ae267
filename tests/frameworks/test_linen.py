"""Flax Linen: every layer, pairs and bound modules, mutable collections, rngs, lifted transforms, names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

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
from tests.helpers import check, check_run, check_valid, quick


def of(module: nn.Module, **kwargs: Any) -> Callable[[], tuple[nn.Module, dict[str, Any]]]:
    """A maker of a module and of the keyword arguments it is called with."""
    return lambda: (module, kwargs)


IMAGE, SEQUENCE = (2, 8, 6, 4), (2, 5, 3)
CARRY, CELL_INPUT = (2, 4), (2, 3)
MASK = np.tri(36, 6, dtype=np.float32).reshape(3, 3, 4, 6)

LAYERS = [
    layer("Dense", of(nn.Dense(4)), (2, 3)),
    layer("Dense without bias", of(nn.Dense(4, use_bias=False)), SEQUENCE),
    layer("DenseGeneral", of(nn.DenseGeneral((5, 2), axis=(-2, -1))), (2, 4, 3)),
    layer("DenseGeneral batched", of(nn.DenseGeneral(4, batch_dims=(0,))), (2, 5, 3), batched=False),
    layer("Einsum", of(nn.Einsum((2, 3, 4), "nta,hab->nthb")), SEQUENCE),
    layer("Embed", of(nn.Embed(10, 4)), integers(10, 2, 5)),
    layer("Conv 1D", of(nn.Conv(4, (3,))), SEQUENCE),
    layer("Conv", of(nn.Conv(6, (3, 3))), IMAGE),
    layer("Conv strided", of(nn.Conv(6, (3, 2), strides=2, padding="VALID", use_bias=False)), IMAGE),
    layer("Conv dilated", of(nn.Conv(6, (3, 3), kernel_dilation=2, padding=((1, 2), (0, 3)))), IMAGE),
    layer("Conv with input dilation", of(nn.Conv(6, (3, 3), input_dilation=2, padding=((1, 2), (0, 1)))), IMAGE),
    layer("Conv depthwise", of(nn.Conv(8, (3, 3), feature_group_count=4)), IMAGE),
    layer("Conv causal", of(nn.Conv(4, (3,), padding="CAUSAL")), SEQUENCE),
    layer("Conv circular", of(nn.Conv(6, (3, 3), padding="CIRCULAR")), IMAGE),
    layer("Conv masked", of(nn.Conv(6, (3, 3), mask=MASK)), IMAGE),
    layer("Conv 3D", of(nn.Conv(3, (2, 3, 2))), (2, 4, 5, 3, 2)),
    layer("Conv without batch axis", of(nn.Conv(6, (3, 3))), (5, 5, 4), batched=False),
    layer("ConvLocal", of(nn.ConvLocal(3, (3, 2))), IMAGE),
    layer("ConvLocal strided", of(nn.ConvLocal(3, (3,), strides=2, padding="VALID")), SEQUENCE),
    layer("ConvTranspose", of(nn.ConvTranspose(6, (3, 3), strides=(2, 2))), IMAGE),
    layer("ConvTranspose valid", of(nn.ConvTranspose(6, (3, 2), strides=(2, 3), padding="VALID")), IMAGE),
    layer("ConvTranspose circular", of(nn.ConvTranspose(6, (3, 3), strides=(2, 2), padding="CIRCULAR")), IMAGE),
    layer("ConvTranspose transposed", of(nn.ConvTranspose(6, (3, 3), transpose_kernel=True)), IMAGE),
    layer("BatchNorm", of(nn.BatchNorm(use_running_average=True)), IMAGE),
    layer("BatchNorm plain", of(nn.BatchNorm(True, use_scale=False, use_bias=False)), (2, 3)),
    layer("LayerNorm", of(nn.LayerNorm()), SEQUENCE),
    layer("LayerNorm two axes", of(nn.LayerNorm(reduction_axes=(-2, -1), feature_axes=(-2, -1))), IMAGE),
    layer("RMSNorm", of(nn.RMSNorm()), SEQUENCE),
    layer("GroupNorm", of(nn.GroupNorm(num_groups=2)), IMAGE),
    layer("GroupNorm by size", of(nn.GroupNorm(num_groups=None, group_size=1)), IMAGE),
    layer("InstanceNorm", of(nn.InstanceNorm()), IMAGE),
    layer("SpectralNorm", of(nn.SpectralNorm(nn.Dense(4)), update_stats=False), (2, 3)),
    layer("WeightNorm", of(nn.WeightNorm(nn.Dense(4))), (2, 3)),
    layer("PReLU", of(nn.PReLU()), (2, 3)),
    layer("Dropout", of(nn.Dropout(0.5, deterministic=True)), (2, 3)),
    layer("SelfAttention", of(nn.SelfAttention(2)), (2, 5, 4)),
    layer("MultiHeadAttention", of(nn.MultiHeadAttention(2, qkv_features=8, out_features=6)), (2, 5, 4), (2, 3, 4)),
    layer("MultiHeadDotProductAttention", of(nn.MultiHeadDotProductAttention(2)), (2, 5, 4)),
    layer("MultiHeadDotProductAttention normalized", of(nn.MultiHeadAttention(2, normalize_qk=True)), (2, 5, 16)),
    layer("MultiHeadDotProductAttention masked", of(nn.MultiHeadAttention(2), mask=np.tri(5, dtype=bool)), (2, 5, 4)),
    layer("SimpleCell", of(nn.SimpleCell(4)), CARRY, CELL_INPUT),
    layer("SimpleCell residual", of(nn.SimpleCell(4, residual=True)), CARRY, CELL_INPUT),
    layer("GRUCell", of(nn.GRUCell(4)), CARRY, CELL_INPUT),
    layer("MGUCell", of(nn.MGUCell(4)), CARRY, CELL_INPUT),
    layer("LSTMCell", of(nn.LSTMCell(4)), [normal(2, 4), normal(2, 4, seed=1)], CELL_INPUT),
    layer("OptimizedLSTMCell", of(nn.OptimizedLSTMCell(4)), [normal(2, 4), normal(2, 4, seed=1)], CELL_INPUT),
    layer("ConvLSTMCell", of(nn.ConvLSTMCell(3, (3, 3))), [normal(2, 5, 4, 3), normal(2, 5, 4, 3)], (2, 5, 4, 2)),
    layer("RNN", of(nn.RNN(nn.LSTMCell(4))), SEQUENCE),
    layer("RNN backwards", of(nn.RNN(nn.GRUCell(4), reverse=True, keep_order=True, return_carry=True)), SEQUENCE),
    layer("RNN with lengths", of(nn.RNN(nn.GRUCell(4)), seq_lengths=np.int32([3, 5])), SEQUENCE, batched=False),
    layer("RNN with its carry", of(nn.RNN(nn.GRUCell(4), return_carry=True, time_major=True)), SEQUENCE),
    layer("Bidirectional", of(nn.Bidirectional(nn.RNN(nn.LSTMCell(4)), nn.RNN(nn.LSTMCell(4)))), SEQUENCE),
    layer("Sequential", of(nn.Sequential([nn.Dense(4), nn.relu, nn.Dense(2)])), (2, 3)),
    layer("Fp8DotGeneralOp", of(nn.Dense(4, dot_general_cls=nn.Fp8DotGeneralOp)), (2, 3)),
    layer("Fp8DirectDotGeneralOp", of(nn.Dense(4, dot_general_cls=nn.Fp8DirectDotGeneralOp)), (2, 3)),
    layer("NANOOFp8DotGeneralOp", of(nn.Dense(4, dot_general_cls=nn.NANOOFp8DotGeneralOp)), (2, 3)),
]  # fmt: skip

TRAINING = [
    layer("BatchNorm", of(nn.BatchNorm(use_running_average=False)), IMAGE),
    layer("BatchNorm plain", of(nn.BatchNorm(False, use_scale=False, use_bias=False)), (2, 3)),
    layer("SpectralNorm", of(nn.SpectralNorm(nn.Dense(4)), update_stats=True), (2, 3)),
    layer("Dropout", of(nn.Dropout(0.5, broadcast_dims=(1,), deterministic=False)), (2, 5, 3)),
    layer("SelfAttention", of(nn.SelfAttention(2, dropout_rate=0.5, deterministic=False)), (2, 5, 4)),
    layer("MultiHeadAttention", of(nn.MultiHeadAttention(2, dropout_rate=0.5, broadcast_dropout=False,
          deterministic=False)), (2, 5, 4)),
    layer("RNN", of(nn.RNN(nn.GRUCell(4), split_rngs={"params": False, "dropout": True})), SEQUENCE),
]  # fmt: skip

NOT_LAYERS = {
    "RNNCellBase": "abstract",
    "Fp8DotGeneral": "Fp8DirectDotGeneralOp under its old name",
    "Fp8Einsum": "takes its weights as arguments, see test_fp8_einsum",
}


def variables_of(module: nn.Module, *inputs: Any, **kwargs: Any) -> Any:
    """Random weights for a module."""
    init = functools.partial(module.init, **kwargs)
    return fill(jax.eval_shape(init, {"params": jax.random.key(0), "dropout": jax.random.key(1)}, *inputs))


@pytest.mark.parametrize("case", quick(LAYERS[::4], LAYERS), ids=name_of)
def test_layer(case: Layer) -> None:
    module, kwargs = case.make()
    variables = variables_of(module, *case.inputs, **kwargs)
    if kwargs:
        target = functools.partial(module.apply, variables, **kwargs)
    else:
        target = (module, variables)
    reference = functools.partial(module.apply, variables, **kwargs)
    check_export(target, reference, case.inputs, batched=case.batched)


def in_training(case: Layer) -> str:
    return f"{case.name}, {'in training' if case in TRAINING else 'as above'}"


@pytest.mark.parametrize("case", quick(TRAINING[:4], [*TRAINING, *LAYERS]), ids=in_training)
def test_gradients_of_layer(case: Layer) -> None:
    """Results, new state, gradients."""
    module, kwargs = case.make()
    variables = variables_of(module, *case.inputs, **kwargs)
    params = variables.pop("params", {})

    def call(params: Any, state: Any, *inputs: Any) -> Any:
        rngs = {"dropout": jax.random.key(3)}
        return module.apply({"params": params, **state}, *inputs, **kwargs, mutable=["batch_stats"], rngs=rngs)

    check(with_gradients(call), params, variables, *case.inputs, rtol=1e-4, atol=1e-4)


def test_every_public_layer_is_here() -> None:
    assert public_classes(nn, nn.Module) == classes_in([LAYERS]) | set(NOT_LAYERS)


class Net(nn.Module):
    """A bit of everything that has a state."""

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        x = nn.Conv(4, (3, 3))(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9, name="norm")(x)
        x = nn.Dropout(0.5, deterministic=not train)(x)
        self.sow("intermediates", "features", x)
        return self.head(x.mean((1, 2)))

    def head(self, x: Any) -> Any:
        return nn.Dense(3, name="head")(x)


PICTURE = normal(2, 5, 5, 2)


def test_a_pair_and_names() -> None:
    module, variables = Net(), variables_of(Net(), PICTURE)
    exported = check_export((module, variables), functools.partial(module.apply, variables), [PICTURE])
    assert [i.name for i in exported.graph.input] == ["x"]
    assert {"params/head/kernel", "params/head/bias"} <= {i.name for i in exported.graph.initializer}
    assert exported.graph.node[-1].name == "Net/Net.head/head/Gemm"  # the scopes that Linen opens


def test_a_bound_module_and_a_method_of_one() -> None:
    class Auto(nn.Module):
        def setup(self) -> None:
            self.encoder, self.decoder = nn.Dense(2), nn.Dense(3)

        def __call__(self, x: Any) -> Any:
            return self.decode(self.encoder(x))

        def decode(self, z: Any) -> Any:
            return self.decoder(z)

    variables = variables_of(Auto(), normal(4, 3))
    bound = Auto().bind(variables)
    whole = check_export(bound, functools.partial(Auto().apply, variables), [normal(4, 3)])
    assert jax2onnx.allclose((Auto(), variables), whole, [normal(4, 3)])[0]
    exported = check_export(bound.decode, bound.decode, [normal(4, 2)])
    assert [i.name for i in exported.graph.input] == ["z"]
    assert "params/decoder/kernel" in {i.name for i in exported.graph.initializer}


def test_apply_takes_the_variables_as_weights() -> None:
    module, x = nn.Dense(3), np.ones((2, 4), np.float32)
    variables = module.init(jax.random.key(0), x)
    model = jax2onnx.to_onnx(module.apply, [("B", 4)], weights=variables, verify=True)
    assert sorted(i.name for i in model.graph.initializer) == [
        "variables/params/bias",
        "variables/params/kernel",
    ]


class _Noisy(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.BatchNorm(use_running_average=False)(nn.Dropout(0.5, deterministic=False)(x))


class _Outer(nn.Module):
    def setup(self) -> None:
        self.inner = _Noisy()

    def __call__(self, x: Any) -> Any:
        return self.inner(x)


def test_a_bound_module_draws_and_changes_what_it_is_bound_to() -> None:
    key, x = jax.random.key(3), np.random.default_rng(0).standard_normal((5, 4), np.float32)
    rngs = {"dropout": key}
    variables = _Outer().init({"params": key, **rngs}, x)

    def bound() -> Any:
        return _Outer().bind(variables, rngs=rngs, mutable=["batch_stats"])

    check_run(jax2onnx.to_onnx(bound(), [(5, 4)]), lambda x: bound()(x), x)
    check_run(jax2onnx.to_onnx(bound().inner, [(5, 4)]), lambda x: bound().inner(x), x)
    with_statistics = jax2onnx.to_onnx(bound(), [(5, 4)], {"mutable": ["batch_stats"]})
    assert len(with_statistics.graph.output) == 3


def test_training_gives_the_new_batch_statistics() -> None:
    module, variables = Net(), variables_of(Net(), PICTURE)
    key = jax.random.key(3)

    def train(variables: Any, x: Any, key: Any) -> Any:
        return module.apply(variables, x, True, rngs={"dropout": key}, mutable=["batch_stats", "intermediates"])

    exported = check(train, variables, PICTURE, key)
    names = [o.name for o in exported.graph.output]
    assert names == ["output_0", "output_1/batch_stats/norm/mean", "output_1/batch_stats/norm/var",
                     "output_1/intermediates/features/0"]  # fmt: skip


def test_a_pair_with_keyword_arguments() -> None:
    module, variables = Net(), variables_of(Net(), PICTURE)
    key = jax.random.key(3)
    kwargs = {"train": True, "rngs": {"dropout": key}, "mutable": ["batch_stats"]}
    exported = jax2onnx.to_onnx((module, variables), [PICTURE], input_params=kwargs)
    check_valid(exported)
    assert [i.name for i in exported.graph.input] == ["x", "rngs/dropout"]
    check_run(exported, lambda x, key: module.apply(variables, x, **{**kwargs, "rngs": {"dropout": key}}), PICTURE, key)


def test_dropout_draws_the_same_numbers() -> None:
    module = nn.Dropout(0.3, deterministic=False)

    def drop(key: Any, x: Any) -> Any:
        return module.apply({}, x, rngs={"dropout": key})

    check(drop, jax.random.key(5), np.ones((16, 8), np.float32), rtol=0, atol=0)


@pytest.mark.parametrize("lifted", [nn.scan, nn.vmap, nn.remat_scan], ids=["scan", "vmap", "remat_scan"])
def test_lifted_layers(lifted: Any) -> None:
    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any = None) -> Any:
            x = nn.tanh(nn.Dense(4)(x))
            return (x, None) if lifted is nn.scan else x

    class Deep(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            axes = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
            if lifted is nn.scan:
                return nn.scan(Block, **axes, length=12)()(x, None)[0]
            if lifted is nn.vmap:
                return nn.vmap(Block, **axes, in_axes=0)()(x)
            return nn.remat_scan(Block, lengths=(2, 3))()(x)

    variables = variables_of(Deep(), normal(2, 4))
    batched = lifted is not nn.vmap
    check_export((Deep(), variables), functools.partial(Deep().apply, variables), [normal(2, 4)], batched=batched)


def test_transformed_modules() -> None:
    @nn.jit
    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.remat(nn.Dense)(4)(x)

    variables = variables_of(Block(), normal(2, 4))
    check_export((Block(), variables), functools.partial(Block().apply, variables), [normal(2, 4)])


def test_decoding_with_a_cache() -> None:
    module = nn.SelfAttention(2, decode=True)
    variables = variables_of(module, normal(2, 4, 4))
    cache = jax.tree.map(jnp.zeros_like, variables["cache"])

    def decode(cache: Any, x: Any) -> Any:
        return module.apply({"params": variables["params"], "cache": cache}, x, mutable=["cache"])

    exported = jax2onnx.to_onnx(decode, [cache, (2, 1, 4)])
    check_valid(exported)
    for i in range(3):
        x = normal(2, 1, 4, seed=i)
        check_run(exported, decode, cache, x)
        cache = decode(cache, x)[1]["cache"]


def test_fp8_einsum() -> None:
    class Product(nn.Module):
        @nn.compact
        def __call__(self, x: Any, y: Any) -> Any:
            return nn.Fp8Einsum()("abc,cd->abd", x, y)

    module, x, y = Product(), normal(2, 3, 4), normal(4, 5)
    variables = variables_of(module, x, y)
    check_export((module, variables), functools.partial(module.apply, variables), [x, y], batched=False)


def test_a_module_without_weights() -> None:
    with pytest.raises(jax2onnx.InputError, match=r"Give a pair \(module, variables\)"):
        jax2onnx.to_onnx(nn.Dense(4), [(2, 3)])


def test_variables_in_metadata_boxes() -> None:
    """Partitioning names around the weights are not part of their names."""
    init = nn.with_partitioning(nn.initializers.lecun_normal(), (None, "model"))
    module = nn.Dense(4, kernel_init=init)
    variables = variables_of(module, normal(2, 3))
    exported = check_export((module, variables), functools.partial(module.apply, variables), [normal(2, 3)])
    assert {i.name for i in exported.graph.initializer} == {"params/kernel", "params/bias"}


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision(dtype: Any) -> None:
    class Half(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Dense(8, dtype=dtype, param_dtype=dtype)(x)
            x = nn.gelu(nn.LayerNorm(dtype=dtype)(x))
            x = nn.SelfAttention(2, dtype=dtype)(x)
            return nn.softmax(nn.RMSNorm(dtype=dtype)(x))

    variables = variables_of(Half(), normal(2, 5, 8).astype(dtype))
    check_export((Half(), variables), functools.partial(Half().apply, variables), [normal(2, 5, 8).astype(dtype)])
