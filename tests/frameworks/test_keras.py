"""Keras 3 on the JAX backend: `model.export(path, format="onnx")` end to end, and every layer compared with itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import onnx
import pytest
from keras import layers

import jax2onnx
from jax2onnx import runtime
from tests.compare import assert_same
from tests.frameworks.layers import (
    Layer,
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
from tests.helpers import check, check_valid, quick


def export(model: Any, inputs: Any, path: Path, **options: Any) -> onnx.ModelProto:
    """Call the model, as Keras demands, and export it: to a file of the very name that Keras was told."""
    jax.eval_shape(model, inputs)
    assign(model)
    model.export(path / "exported", format="onnx", verbose=False, **options)
    assert [file.name for file in path.iterdir()] == ["exported"]
    exported = onnx.load(path / "exported")
    check_valid(exported)
    return exported


def agree(exported: onnx.ModelProto, model: Any, inputs: Any, **tolerances: Any) -> None:
    """The exported model computes what `model` does in inference mode."""
    want = jax.tree.leaves(jax.jit(lambda x: model(x, training=False))(inputs))
    assert_same(runtime.run(exported, keras.tree.flatten(inputs)), want, **tolerances)


def names(exported: onnx.ModelProto) -> list[str]:
    return [i.name for i in exported.graph.input]


def shape_of(value: onnx.ValueInfoProto) -> list[Any]:
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]


def assign(module: Any) -> None:
    """Give the float weights of a layer random numbers, which its initializers (zeros, ones) do not."""
    floats = [v for v in module.variables if v.dtype == "float32"]
    specs = [jax.ShapeDtypeStruct(tuple(v.shape), np.float32) for v in floats]
    for variable, value in zip(floats, fill(specs), strict=True):
        variable.assign(value)


def new(kind: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A layer that starts with zeros, which is quicker: `assign` gives it other numbers anyway."""
    initializers = [name for name in inspect.signature(kind).parameters if name.endswith("_initializer")]
    return kind(*args, **dict.fromkeys(initializers, "zeros") | kwargs)


pytestmark = pytest.mark.filterwarnings("ignore:`build.*was called on layer 'calling:UserWarning")


def sequential() -> Any:
    hidden = new(layers.Dense, 8, "relu")
    return keras.Sequential(
        [keras.Input((6,), name="x"), hidden, layers.BatchNormalization(), layers.Dropout(0.5), new(layers.Dense, 2)]
    )


def test_sequential(tmp_path: Path) -> None:
    model = sequential()
    exported = export(model, normal(2, 6), tmp_path)
    assert names(exported) == ["x"]
    assert shape_of(exported.graph.input[0]) == ["batch", 6]
    for batch in (1, 5, 0):
        agree(exported, model, normal(batch, 6))


def test_functional_with_two_inputs_and_outputs(tmp_path: Path) -> None:
    image, size = keras.Input((8, 6, 3), name="image"), keras.Input((2,), name="size")
    x = new(layers.Conv2D, 4, 3, padding="same", activation="gelu")(image)
    x = layers.Concatenate()([layers.GlobalAveragePooling2D()(x), size])
    model = keras.Model([image, size], {"label": new(layers.Dense, 5, "softmax")(x), "score": new(layers.Dense, 1)(x)})
    exported = export(model, [normal(2, 8, 6, 3), normal(2, 2)], tmp_path)
    assert names(exported) == ["image", "size"]
    agree(exported, model, [normal(3, 8, 6, 3), normal(3, 2)])


class Pair(keras.Model):
    """A subclassed model that calls its layers in a loop, and takes its inputs in any structure."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [new(layers.Dense, 4, "tanh") for _ in range(3)]
        self.norm = layers.LayerNormalization()

    def call(self, inputs: Any, training: bool = False) -> Any:
        a, b = inputs.values() if isinstance(inputs, dict) else inputs
        for block in self.blocks:
            a = self.norm(a + block(a) * b)
        return a


@pytest.mark.parametrize("kind", ["dict", "tuple", "list"])
def test_subclassed_with_structured_inputs(kind: str, tmp_path: Path) -> None:
    def inputs(batch: int) -> Any:
        a, b = normal(batch, 4), normal(batch, 1, seed=1)
        return {"dict": {"a": a, "b": b}, "tuple": (a, b), "list": [a, b]}[kind]

    model = Pair()
    model(inputs(2))
    exported = export(model, inputs(2), tmp_path)
    assert len(exported.graph.input) == 2
    agree(exported, model, inputs(3))


def test_dynamic_height_and_width(tmp_path: Path) -> None:
    model = keras.Sequential(
        [
            keras.Input((None, None, 3)),
            new(layers.Conv2D, 4, 3, strides=2, padding="same", activation="relu"),
            new(layers.SeparableConv2D, 6, 3, padding="same"),
            layers.MaxPooling2D(2, padding="same"),
            layers.UpSampling2D(2),
            layers.GlobalMaxPooling2D(),
            new(layers.Dense, 2),
        ]
    )
    exported = export(model, normal(1, 8, 8, 3), tmp_path)
    assert shape_of(exported.graph.input[0]) == ["batch", "dim_0_1", "dim_0_2", 3]
    for shape in [(1, 16, 16, 3), (2, 9, 21, 3)]:
        agree(exported, model, normal(*shape))


def test_sizes_that_are_halved_and_doubled(tmp_path: Path) -> None:
    image = keras.Input((None, None, 3))
    half = new(layers.Conv2D, 8, 3, padding="same", activation="relu")(layers.MaxPooling2D(2)(image))
    ups = [layers.UpSampling2D(2, interpolation="bilinear")(half), new(layers.Conv2DTranspose, 4, 3, 2, "same")(half)]
    model = keras.Model(image, new(layers.Conv2D, 1, 1)(layers.concatenate(ups)))
    with pytest.raises(jax2onnx.InputError, match="assuming"):  # half of 1 is 0
        export(model, normal(1, 8, 8, 3), tmp_path)
    with jax2onnx.assuming("dim_0_1 >= 2", "dim_0_2 >= 2"):
        exported = export(model, normal(1, 8, 8, 3), tmp_path)
    for shape in [(1, 2, 3, 3), (2, 7, 10, 3)]:
        agree(exported, model, normal(*shape))


def test_bidirectional_lstm_of_any_length(tmp_path: Path) -> None:
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            new(layers.Embedding, 20, 6),
            layers.Bidirectional(new(layers.LSTM, 5, return_sequences=True)),
            layers.Bidirectional(new(layers.GRU, 4), merge_mode="sum"),
            new(layers.Dense, 3),
        ]
    )
    exported = export(model, integers(20, 2, 4), tmp_path)
    for shape in [(2, 7), (5, 1)]:
        agree(exported, model, integers(20, *shape))


def test_opset_17(tmp_path: Path) -> None:
    model = sequential()
    exported = export(model, normal(2, 6), tmp_path, opset_version=17)
    assert [i.version for i in exported.opset_import if not i.domain] == [17]
    agree(exported, model, normal(3, 6))


def test_an_input_signature(tmp_path: Path) -> None:
    model = sequential()
    exported = export(model, normal(2, 6), tmp_path, input_signature=[keras.InputSpec("float32", (3, 6), name="rows")])
    assert names(exported) == ["rows"]
    assert shape_of(exported.graph.input[0]) == [3, 6]
    agree(exported, model, normal(3, 6))


def test_weights_have_the_paths_that_keras_gives_them() -> None:
    model = keras.Sequential(
        [keras.Input((6,)), new(layers.Dense, 4, name="first"), layers.PReLU(name="second")], name="net"
    )
    assign(model)
    exported = jax2onnx.to_onnx(model, [("B", 6)])
    assert {i.name for i in exported.graph.initializer} == {"net/first/kernel", "net/first/bias", "net/second/alpha"}
    agree(exported, model, normal(3, 6))


def test_training_mode_leaves_the_model_as_it_is() -> None:
    """Batch statistics are those of the batch, dropout drops what the seed says, and nothing is written."""
    dropout = layers.Dropout(0.5, seed=3)
    last = layers.SpectralNormalization(new(layers.Dense, 4))
    model = keras.Sequential([keras.Input((6,)), layers.BatchNormalization(), dropout, last])
    assign(model)
    before, library = [np.asarray(v) for v in model.variables], identities(keras, layers, keras.ops, keras.random)
    x = normal(5, 6)
    exported = jax2onnx.to_onnx(model, [x], {"training": True})
    assert identities(keras, layers, keras.ops, keras.random) == library
    want, _ = model.stateless_call(model.trainable_variables, model.non_trainable_variables, x, training=True)
    assert_same(runtime.run(exported, [x]), [want])
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)


class Calling(keras.Layer):
    """A layer that is called in a way of its own: with a mask, with states, ..."""

    def __init__(self, inner: Any, how: Callable[..., Any]) -> None:
        super().__init__()
        self.inner, self.how = inner, how

    def call(self, *inputs: Any) -> Any:
        return self.how(self.inner, *inputs)


def affine(params: Any, inputs: Any) -> Any:
    """A function for `JaxLayer`."""
    return inputs @ params["w"] + params["b"]


def low_rank(dense: Any) -> Any:
    dense.build((None, 3))
    dense.enable_lora(2)
    return dense


def masked(make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return Calling(new(make, *args, **kwargs), lambda rnn, x, mask: rnn(x, mask=mask))


def causal(attention: Any) -> Any:
    return Calling(attention, lambda attention, q, v: attention(q, v, use_causal_mask=True))


def cell(cell: Any) -> Any:
    return Calling(cell, lambda cell, x, *states: cell(x, list(states)))


def of(kind: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], Any]:
    return lambda: new(kind, *args, **kwargs)


def built(case: Layer) -> Any:
    """The layer of a row, with weights."""
    module = case.make()
    module(*keras.tree.map_structure(lambda x: keras.KerasTensor(x.shape, x.dtype.name), case.inputs))
    assign(module)
    return module


KINDS = ["Average", "Max"]
MERGES = ["Add", "Average", "Concatenate", "Maximum", "Minimum", "Multiply", "Subtract"]

IMAGE, LINE, VOLUME = (2, 8, 6, 3), (2, 7, 3), (2, 4, 5, 6, 2)
MASK = np.bool_([[1, 1, 1, 0], [1, 0, 0, 0]])
BYTES = integers(256, *IMAGE).astype(np.float32)
clahe = layers.ContrastLimitedAdaptiveHistogramEqualization
QUERY, KEYS = (2, 3, 8), (2, 4, 8)

LAYERS = [
    layer("Dense", of(layers.Dense, 4, "gelu"), (2, 3)),
    layer("Dense low rank", of(lambda: low_rank(new(layers.Dense, 4))), (2, 3)),
    layer("EinsumDense", of(layers.EinsumDense, "abc,cd->abd", (None, 5), bias_axes="d"), (2, 4, 3)),
    layer("Embedding", of(layers.Embedding, 10, 4, mask_zero=True), integers(10, 2, 5)),
    layer("ReversibleEmbedding", of(layers.ReversibleEmbedding, 10, 4), integers(10, 2, 5)),
    layer("Identity", of(layers.Identity), (2, 3)),
    layer("Lambda", of(layers.Lambda, lambda x: x * keras.ops.sigmoid(x)), (2, 3)),
    layer("Masking", of(layers.Masking, 0.0), np.float32([[[0, 0], [1, 0]], [[2, 3], [0, 0]]])),
    layer("Activation", of(layers.Activation, "mish"), (2, 3)),
    layer("ELU", of(layers.ELU, 0.5), (2, 3)),
    layer("LeakyReLU", of(layers.LeakyReLU), (2, 3)),
    layer("PReLU", of(layers.PReLU, shared_axes=[1]), (2, 5, 3)),
    layer("ReLU", of(layers.ReLU, 6.0, 0.1, 0.2), (2, 3)),
    layer("Softmax", of(layers.Softmax, axis=1), (2, 5, 3)),
    layer("Softmax masked", of(layers.Softmax), (2, 4), MASK),
    layer("AdditiveAttention", of(layers.AdditiveAttention), [normal(*QUERY), normal(*KEYS, seed=1)]),
    layer("Attention", of(layers.Attention, use_scale=True), [normal(*QUERY), normal(*KEYS, seed=1)]),
    layer("Attention by concatenation", of(layers.Attention, score_mode="concat"), [normal(*QUERY), normal(*KEYS)]),
    layer("MultiHeadAttention", of(layers.MultiHeadAttention, 2, 4), QUERY, KEYS),
    layer("MultiHeadAttention causal", of(lambda: causal(new(layers.MultiHeadAttention, 2, 4))), QUERY, QUERY),
    layer("GroupQueryAttention", of(layers.GroupQueryAttention, 4, 4, 2), QUERY, KEYS),
    layer("Conv1D", of(layers.Conv1D, 4, 3, padding="causal", dilation_rate=2), LINE),
    layer("Conv2D", of(layers.Conv2D, 4, (3, 2), strides=2, padding="same"), IMAGE),
    layer("Conv2D grouped", of(layers.Conv2D, 6, 3, groups=3, use_bias=False), IMAGE),
    layer("Conv2D channels first", of(layers.Conv2D, 4, 3, data_format="channels_first"), IMAGE),
    layer("Conv3D", of(layers.Conv3D, 3, 2), VOLUME),
    layer("Conv1DTranspose", of(layers.Conv1DTranspose, 4, 3, strides=2, padding="same"), LINE),
    layer("Conv2DTranspose", of(layers.Conv2DTranspose, 4, 3, strides=2, output_padding=1), IMAGE),
    layer("Conv2DTranspose dilated", of(layers.Conv2DTranspose, 4, 3, dilation_rate=2, padding="same"), IMAGE),
    layer("Conv3DTranspose", of(layers.Conv3DTranspose, 3, 2, strides=2), VOLUME),
    layer("DepthwiseConv1D", of(layers.DepthwiseConv1D, 3, depth_multiplier=2), LINE),
    layer("DepthwiseConv2D", of(layers.DepthwiseConv2D, 3, strides=2, padding="same"), IMAGE),
    layer("SeparableConv1D", of(layers.SeparableConv1D, 4, 3), LINE),
    layer("SeparableConv2D", of(layers.SeparableConv2D, 4, 3, depth_multiplier=2), IMAGE),
    *(layer(name, of(getattr(layers, name)), [normal(2, 3), normal(2, 3, seed=1)]) for name in MERGES),
    layer("Dot", of(layers.Dot, axes=(2, 1), normalize=True), [normal(2, 3, 4), normal(2, 4, 5)]),
    layer("BatchNormalization", of(layers.BatchNormalization), IMAGE),
    layer("GroupNormalization", of(layers.GroupNormalization, 2), (2, 5, 4)),
    layer("LayerNormalization", of(layers.LayerNormalization, axis=[1, 2]), (2, 5, 4)),
    layer("RMSNormalization", of(layers.RMSNormalization), (2, 5, 4)),
    layer("SpectralNormalization", of(lambda: layers.SpectralNormalization(new(layers.Dense, 4))), (2, 3)),
    layer("UnitNormalization", of(layers.UnitNormalization, axis=1), (2, 5, 4)),
    layer("Normalization", of(layers.Normalization, mean=[1.0, 2, 3], variance=[4.0, 5, 6]), (2, 3)),
    layer("Rescaling", of(layers.Rescaling, [0.5, 1, 2], offset=-1.0), IMAGE),
    *(layer(f"Adaptive{p}Pooling1D", of(getattr(layers, f"Adaptive{p}Pooling1D"), 3), LINE) for p in KINDS),
    *(layer(f"Adaptive{p}Pooling2D", of(getattr(layers, f"Adaptive{p}Pooling2D"), (3, 4)), IMAGE) for p in KINDS),
    *(layer(f"Adaptive{p}Pooling3D", of(getattr(layers, f"Adaptive{p}Pooling3D"), 2), VOLUME) for p in KINDS),
    *(layer(f"{p}Pooling1D", of(getattr(layers, f"{p}Pooling1D"), 3, 2, padding="same"), LINE) for p in KINDS),
    *(layer(f"{p}Pooling2D", of(getattr(layers, f"{p}Pooling2D"), (3, 2), padding="same"), IMAGE) for p in KINDS),
    *(layer(f"{p}Pooling3D", of(getattr(layers, f"{p}Pooling3D"), 2, strides=1), VOLUME) for p in KINDS),
    *(layer(f"Global{p}Pooling1D", of(getattr(layers, f"Global{p}Pooling1D")), LINE) for p in KINDS),
    *(layer(f"Global{p}Pooling2D", of(getattr(layers, f"Global{p}Pooling2D"), keepdims=True), IMAGE) for p in KINDS),
    *(layer(f"Global{p}Pooling3D", of(getattr(layers, f"Global{p}Pooling3D")), VOLUME) for p in KINDS),
    layer("Cropping1D", of(layers.Cropping1D, (1, 2)), LINE),
    layer("Cropping2D", of(layers.Cropping2D, ((1, 0), (2, 1))), IMAGE),
    layer("Cropping3D", of(layers.Cropping3D, 1), VOLUME),
    layer("ZeroPadding1D", of(layers.ZeroPadding1D, (1, 2)), LINE),
    layer("ZeroPadding2D", of(layers.ZeroPadding2D, ((1, 0), (2, 1))), IMAGE),
    layer("ZeroPadding3D", of(layers.ZeroPadding3D), VOLUME),
    layer("UpSampling1D", of(layers.UpSampling1D, 3), LINE),
    layer("UpSampling2D", of(layers.UpSampling2D, (2, 3)), IMAGE),
    layer("UpSampling2D bilinear", of(layers.UpSampling2D, 2, interpolation="bilinear"), IMAGE),
    layer("UpSampling2D bicubic", of(layers.UpSampling2D, 2, interpolation="bicubic"), IMAGE),
    layer("UpSampling3D", of(layers.UpSampling3D), VOLUME),
    layer("Flatten", of(layers.Flatten), IMAGE),
    layer("Permute", of(layers.Permute, (3, 1, 2)), IMAGE),
    layer("RepeatVector", of(layers.RepeatVector, 4), (2, 3)),
    layer("Reshape", of(layers.Reshape, (-1, 4)), IMAGE),
    layer("Dropout", of(layers.Dropout, 0.5), (2, 3)),
    layer("AlphaDropout", of(layers.AlphaDropout, 0.5), (2, 3)),
    layer("GaussianDropout", of(layers.GaussianDropout, 0.5), (2, 3)),
    layer("GaussianNoise", of(layers.GaussianNoise, 0.5), (2, 3)),
    layer("SpatialDropout1D", of(layers.SpatialDropout1D, 0.5), LINE),
    layer("SpatialDropout2D", of(layers.SpatialDropout2D, 0.5), IMAGE),
    layer("SpatialDropout3D", of(layers.SpatialDropout3D, 0.5), VOLUME),
    layer("ActivityRegularization", of(layers.ActivityRegularization, 0.1), (2, 3)),
    layer("SimpleRNN", of(layers.SimpleRNN, 4, return_state=True), LINE),
    layer("GRU", of(layers.GRU, 4, return_sequences=True, reset_after=False), LINE),
    layer("GRU masked", of(masked, layers.GRU, 4, return_sequences=True), (2, 4, 3), MASK),
    layer("LSTM", of(layers.LSTM, 4, return_sequences=True, return_state=True, go_backwards=True), LINE),
    layer("LSTM masked", of(masked, layers.LSTM, 4), (2, 4, 3), MASK),
    layer("LSTM unrolled", of(layers.LSTM, 4, unroll=True), LINE),
    layer("SimpleRNNCell", of(lambda: cell(new(layers.SimpleRNNCell, 4))), (2, 3), (2, 4)),
    layer("GRUCell", of(lambda: cell(new(layers.GRUCell, 4))), (2, 3), (2, 4)),
    layer("LSTMCell", of(lambda: cell(new(layers.LSTMCell, 4))), (2, 3), (2, 4), (2, 4)),
    layer("RNN", of(lambda: layers.RNN(new(layers.GRUCell, 4))), LINE),
    layer("StackedRNNCells", of(lambda: layers.RNN([new(layers.GRUCell, 4), new(layers.LSTMCell, 3)])), LINE),
    layer("Bidirectional", of(lambda: layers.Bidirectional(new(layers.LSTM, 4, return_sequences=True))), LINE),
    layer("TimeDistributed", of(lambda: layers.TimeDistributed(new(layers.Conv1D, 4, 3))), (2, 3, 7, 2)),
    layer("ConvLSTM1D", of(layers.ConvLSTM1D, 4, 3), (2, 3, 7, 2)),
    layer("ConvLSTM2D", of(layers.ConvLSTM2D, 2, 3, padding="same", return_sequences=True), (2, 3, 4, 5, 2)),
    layer("ConvLSTM3D", of(layers.ConvLSTM3D, 2, 2), (2, 2, 3, 4, 3, 2)),
    layer("CategoryEncoding", of(layers.CategoryEncoding, 6, "multi_hot"), integers(6, 2, 3)),
    layer("Discretization", of(layers.Discretization, [-0.5, 0.0, 1.0]), (2, 5)),
    layer("Resizing", of(layers.Resizing, 5, 9), IMAGE),
    layer("Resizing nearest", of(layers.Resizing, 5, 9, interpolation="nearest"), IMAGE),
    layer("CenterCrop", of(layers.CenterCrop, 4, 3), IMAGE),
    layer(
        "MelSpectrogram", of(layers.MelSpectrogram, 32, 16, sampling_rate=800, num_mel_bins=8, max_freq=400), (2, 96)
    ),
    layer("STFTSpectrogram", of(layers.STFTSpectrogram, frame_length=16, frame_step=8, fft_length=16), (2, 64, 1)),
    layer("Pipeline", of(lambda: layers.Pipeline([layers.Rescaling(0.5), layers.CenterCrop(4, 3)])), IMAGE),
    layer("Solarization", of(layers.Solarization, 0.1, 0.5, (0, 1)), np.abs(normal(*IMAGE)) % 1),
    layer("AutoContrast", of(layers.AutoContrast, (0, 1)), np.abs(normal(*IMAGE)) % 1),
    layer("Equalization", of(layers.Equalization, (0, 255), bins=6), BYTES),
    layer("JaxLayer", of(lambda: layers.JaxLayer(affine, params={"w": normal(3, 4), "b": normal(4)})), (2, 3)),
    layer("ContrastLimitedAdaptiveHistogramEqualization", of(clahe, (0, 255), tile_grid_size=(2, 2)), BYTES),
    layer("MaxNumBoundingBoxes", of(layers.MaxNumBoundingBoxes, 2), IMAGE),
]


@pytest.mark.parametrize("case", quick(LAYERS[::4], LAYERS), ids=name_of)
def test_layer(case: Layer) -> None:
    """Exported for any batch size, in inference mode."""
    module = built(case)
    check(stateless(module), *case.inputs, dims=keras.tree.map_structure(any_batch, list(case.inputs)))


TRAINED_QUICKLY = ["BatchNormalization", "Dropout", "SpectralNormalization", "MultiHeadAttention"]


@pytest.mark.parametrize("case", quick([c for c in LAYERS if c.name in TRAINED_QUICKLY], LAYERS), ids=name_of)
def test_layer_in_training(case: Layer) -> None:
    """A step: all variables in, batch statistics and seeds among them; results, new variables and gradients out."""
    module = built(case)
    training = {"training": True} if "training" in inspect.signature(module.call).parameters else {}

    def call(trainable: Any, others: Any, *inputs: Any) -> Any:
        return module.stateless_call(trainable, others, *inputs, **training)

    variables = [[v.value for v in some] for some in (module.trainable_variables, module.non_trainable_variables)]
    check(with_gradients(call), *variables, *case.inputs, rtol=1e-4, atol=1e-4)


def stateless(module: Any) -> Callable[..., Any]:
    """The layer as a function: some draw a seed also in inference, which must not end in the layer."""

    def call(*inputs: Any) -> Any:
        with keras.StatelessScope():
            return module(*inputs)

    return call


def any_batch(x: Any) -> Any:
    return ("B", *x.shape[1:])


# Random in training, and one of these in inference: nothing, or a deterministic crop.
AUGMENTATIONS = {
    "RandomBrightness": (0.5,), "RandomContrast": (0.5,), "RandomCrop": (4, 3), "RandomFlip": (),
    "RandomRotation": (0.5,), "RandomTranslation": (0.5, 0.5), "RandomZoom": (0.5,), "RandomShear": (0.1, 0.1),
    "RandomColorDegeneration": (0.5,), "RandomColorJitter": (), "RandomElasticTransform": (), "RandomErasing": (),
    "RandomGaussianBlur": (), "RandomGrayscale": (), "RandomHue": (0.5,), "RandomInvert": (), "RandomPerspective": (),
    "RandomPosterization": (4,), "RandomSaturation": (0.5,), "RandomSharpness": (0.5,), "AugMix": ((0, 1),),
    "RandAugment": ((0, 1),), "CutMix": (), "MixUp": (),
}  # fmt: skip


def test_augmentation_in_inference() -> None:
    modules = {name: getattr(layers, name)(*args) for name, args in AUGMENTATIONS.items()}
    call = stateless(lambda x: {name: module(x, training=False) for name, module in modules.items()})
    check(call, np.abs(normal(*IMAGE)) % 1)


NOT_TRACEABLE = {
    "RandomCrop": "slices by numbers that it draws: JAX cannot trace it",
    "RandomElasticTransform": "asks for the value of what it draws: JAX cannot trace it",
    "AugMix": "chooses with Python's random numbers, anew each time that it is traced",
    "RandAugment": "chooses with Python's random numbers, anew each time that it is traced",
}


@pytest.mark.parametrize(
    "name", quick(["RandomFlip", "RandomContrast"], [name for name in AUGMENTATIONS if name not in NOT_TRACEABLE])
)
def test_augmentation_in_training(name: str) -> None:
    """The seed goes in and out, and the same numbers are drawn."""
    module = getattr(layers, name)(*AUGMENTATIONS[name], seed=3)
    module.build(IMAGE)
    seeds = module.non_trainable_variables

    def call(values: Any, inputs: Any) -> Any:
        with keras.StatelessScope(zip(seeds, values, strict=True)) as scope:
            outputs = module(inputs, training=True)
        return outputs, [scope.get_current_value(seed) for seed in seeds]

    image = np.abs(normal(*IMAGE)) % 1
    mixed = {"images": image, "labels": np.eye(2, dtype=np.float32)}
    inputs = mixed if name in ("CutMix", "MixUp") else image
    check(call, [seed.value for seed in seeds], inputs, rtol=1e-4, atol=1e-4)


# What needs TensorFlow or PyTorch, and what is only there to be derived from.
LEFT_OUT = {"TFSMLayer", "TorchModuleWrapper", "FlaxLayer", "InputLayer", "Wrapper", "Layer"}
LEFT_OUT |= {"Hashing", "HashedCrossing", "IntegerLookup", "StringLookup", "TextVectorization"}


def test_every_public_layer_has_a_row() -> None:
    rows = classes_in([LAYERS]) | set(AUGMENTATIONS) | LEFT_OUT
    tested = {getattr(layers, name) for name in rows}  # some have several names
    assert {name for name in public_classes(layers, keras.Layer) if getattr(layers, name) not in tested} == set()
