"""Weights: their names, as an argument, read when written; and models that take and give pytrees."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2onnx import InputError, VerificationError, load, to_onnx

PARAMS = {
    "dense": {
        "kernel": np.random.default_rng(0).normal(size=(100, 30)).astype(np.float32),
        "bias": np.zeros(30, np.float32),
    }
}


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def apply(params, x):
    return {"y": x @ params["dense"]["kernel"] + params["dense"]["bias"], "parts": (x, [x + 1])}


def initializers(model) -> set[str]:
    return {i.name for i in model.graph.initializer}


def find(name: str) -> np.ndarray:
    return functools.reduce(lambda tree, key: tree[key], name.split("/")[1:], PARAMS)


X = np.ones((2, 100), np.float32)


@pytest.mark.parametrize(
    "fn", [functools.partial(apply, PARAMS), lambda x: apply(PARAMS, x)], ids=["partial", "global"]
)
def test_names_of_closed_over_weights(fn):
    assert {n.split("/", 1)[1] for n in initializers(to_onnx(fn, [("B", 100)])) if "/" in n} == {
        "dense/kernel",
        "dense/bias",
    }


def test_weights_are_initializers():
    model = to_onnx(apply, [("B", 100)], weights=PARAMS, verify=True)
    assert {"params/dense/kernel", "params/dense/bias"} <= initializers(model)
    assert [i.name for i in model.graph.input] == ["x"]
    got = load(model)(X)
    want = apply(PARAMS, X)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, want)


@pytest.mark.parametrize("scale", [2.0, 3, jnp.asarray(2.0)])
@pytest.mark.parametrize("spec", ["bf16[3]", "i8[3]", "f32[3]"])
def test_a_weight_that_is_a_number_is_weakly_typed(scale, spec):
    to_onnx(lambda w, x: x * w["scale"], [spec], weights={"scale": scale}, verify=True)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.complex128])
def test_weights_of_64_bits_are_what_jax_makes_of_them(dtype, wide):
    weights = {"big": np.arange(300).astype(dtype) * dtype(3), "small": np.asarray([1, 2, 3], dtype)}
    fn = lambda w, x: (x * w["big"], w["small"] + 1)  # noqa: E731
    model = to_onnx(fn, [(300,)], weights=weights, enable_double_precision=wide, verify=True)
    assert model.graph.output[1].type.tensor_type.elem_type in ((11, 7) if wide else (1, 6))


def test_abstract_weights_of_64_bits_are_read_as_such():
    content = np.linspace(0, 1, 300)
    weights = {"w": jax.ShapeDtypeStruct((300,), np.float64), "b": content}
    fn = lambda w, x: x * w["w"] + w["b"]  # noqa: E731
    model = to_onnx(fn, [(300,)], weights=weights, load_weight=lambda name: content, verify=True)
    assert [i.data_type for i in model.graph.initializer] == [11, 11]


def test_weights_as_inputs():
    model = to_onnx(apply, [("B", 100)], weights=PARAMS, weights_as_inputs=True, verify=True)
    assert [i.name for i in model.graph.input] == ["params/dense/bias", "params/dense/kernel", "x"]
    np.testing.assert_allclose(load(model)(PARAMS, X)["y"], apply(PARAMS, X)["y"], rtol=1e-5, atol=1e-5)


def test_weights_that_are_inputs_are_verified_with_their_own_values(caplog):
    weights = {"w": np.float32(0), "x": jax.ShapeDtypeStruct((3,), np.float32)}  # one of them has no values
    with caplog.at_level("INFO", "jax2onnx"):
        to_onnx(lambda p, x: jnp.exp(x * p["w"]) / 3, [("B",)], weights=weights, weights_as_inputs=True, verify=True)
    assert "(largest absolute difference 0)" in caplog.text  # of exp(0) / 3


def test_weights_may_be_none_at_all():
    model = to_onnx(lambda weights, x: x * 2, [("B",)], weights={}, verify=True)
    np.testing.assert_array_equal(load(model)(np.ones(3, np.float32)), np.full(3, 2, np.float32))


def test_weights_are_read_when_the_model_is_written(tmp_path):
    read = []

    def loader(name):
        read.append(name)
        return find(name)

    specs = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), PARAMS)
    path = to_onnx(
        apply, [("B", 100)], weights=specs, load_weight=loader, return_mode="file", output_path=tmp_path / "m.onnx"
    )
    assert sorted(read) == ["params/dense/bias", "params/dense/kernel"]
    np.testing.assert_allclose(load(path)(X)["y"], apply(PARAMS, X)["y"], rtol=1e-5, atol=1e-5)
    to_onnx(apply, [("B", 100)], weights=specs, load_weight=find, verify=True)
    contents = iter([PARAMS["dense"]["bias"], PARAMS["dense"]["kernel"], np.ones(30), np.ones((100, 30))])
    with pytest.raises(VerificationError):
        to_onnx(apply, [("B", 100)], weights=specs, load_weight=lambda _: next(contents), verify=True)


def test_abstract_weights_need_a_loader():
    specs = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), PARAMS)
    with pytest.raises(InputError, match="load_weight"):
        to_onnx(apply, [("B", 100)], weights=specs)


def test_weights_with_one_path_cannot_be_read():
    spec = jax.ShapeDtypeStruct((300,), np.float32)
    with pytest.raises(InputError, match="Several weights have the path 'w/a/b'"):
        to_onnx(lambda w, x: x, [(3,)], weights={"a/b": spec, "a": {"b": spec}}, load_weight=lambda name: 0)


def test_wrong_arguments_of_a_loaded_model():
    model = load(to_onnx(lambda batch: batch["a"] + 1, [{"a": (2,)}]))
    np.testing.assert_array_equal(model({"a": np.zeros(2, np.float32)}), np.ones(2))
    with pytest.raises(InputError, match="expected the keys"):
        model({"b": np.zeros(2, np.float32)})


def test_an_array_and_its_transposed_view_are_one_weight():
    """`table.T` of a NumPy array is another array for JAX, but no other weight."""
    table, square = normal(200, 30), normal(80, 80)

    def tied(i, x):
        return jnp.take(table, i, 0) @ table.T, x @ square, x @ square.T, jnp.asarray(table[:3]), square.T[::2] @ x[0]

    i, x = np.int32([3, 7, 199]), normal(2, 80)
    model = to_onnx(tied, ["i32[B]", x])
    assert [i.name for i in model.graph.initializer if np.prod(i.dims) >= 6000] == ["table", "square"]
    for got, want in zip(load(model)(i, x), tied(i, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        (np.int32, np.int64([1, 2**32])),
        (np.uint8, np.int8([1, -1])),
        (jnp.int4, np.int8([1, -9])),
        (np.float16, np.int32([1, 100_000])),
        (np.float16, np.float32([1, 1e5])),
        (np.float32, np.float64([1, -1e300])),
        (jnp.float8_e4m3fn, np.float32([1, 1e4])),
    ],
)
def test_values_that_a_weight_cannot_hold_are_not_read(dtype, stored):
    weight = jax.ShapeDtypeStruct((2,), dtype)
    with pytest.raises(InputError, match=r"The weight 'w' was read as .*, with values that .* cannot hold"):
        to_onnx(lambda w, x: w, [()], weights=weight, load_weight=lambda name: stored)
    kept = to_onnx(lambda w, x: w, [()], weights=weight, load_weight=lambda name: stored[:1].repeat(2))
    np.testing.assert_array_equal(load(kept)(1.0), np.ones(2, dtype))
