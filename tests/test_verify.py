"""Verification finds every kind of difference, says where it is, and tries sizes that keep to the constraints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from jax2onnx import sampling, to_onnx
from jax2onnx.errors import InputError, VerificationError
from jax2onnx.specs import input_specs
from jax2onnx.verify import allclose, difference, verify


def one_node(
    op: str, inputs: dict[str, list[Any]], output: list[Any], dtype: int = TensorProto.FLOAT, **attributes: Any
) -> onnx.ModelProto:
    """A model made by hand: these tests must not depend on the converter."""
    graph = helper.make_graph(
        [helper.make_node(op, list(inputs), ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info(name, dtype, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", dtype, output)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


ADD = one_node("Add", {"a": ["B", "T"], "b": ["T"]}, ["B", "T"])


def test_a_right_model_at_several_sizes() -> None:
    report = verify(lambda a, b: a + b, input_specs([("B", "T"), ("T",)]), ADD)
    assert report == (
        "ONNX Runtime gives what JAX gives at B=2, T=3; B=1, T=1; B=5, T=4 (largest absolute difference 0)."
    )


def test_a_wrong_value_is_located() -> None:
    def fn(a: jax.Array, b: jax.Array) -> jax.Array:
        return (a + b).at[1, 2].add(0.25)

    with pytest.raises(VerificationError) as info:
        verify(fn, input_specs([(2, 3), (3,)]), ADD)
    found = re.fullmatch(
        r"Output 0 \(y\) differs in 1 of 6 values, most at \(1, 2\): (\S+) instead of (\S+) "
        r"\(absolute difference 0.25, relative \S+\)\.",
        str(info.value),
    )
    assert found is not None, info.value
    assert float(found[2]) - float(found[1]) == pytest.approx(0.25)


def test_a_model_that_is_wrong_at_one_size_only() -> None:
    with pytest.raises(VerificationError, match=r", with B=5, T=4\.$"):
        verify(lambda a, b: a + b + (a.shape[0] > 2), input_specs([("B", "T"), ("T",)]), ADD)


def test_wrong_dtype_shape_and_number_of_outputs() -> None:
    specs = input_specs([("B", "T"), ("T",)])
    with pytest.raises(VerificationError, match="has dtype float32 instead of int32"):
        verify(lambda a, b: (a + b).astype(jnp.int32), specs, ADD)
    with pytest.raises(VerificationError, match=r"has shape \(2, 3\) instead of \(3, 2\), with B=2, T=3"):
        verify(lambda a, b: (a + b).T, specs, ADD)
    with pytest.raises(VerificationError, match="The model has 1 outputs, the function 2"):
        verify(lambda a, b: (a + b, a), specs, ADD)
    with pytest.raises(InputError, match=r"The model has 2 inputs \(a, b\), the function 1"):
        verify(lambda a: a, input_specs([(2, 3)]), ADD)


def test_a_model_that_does_not_load_or_run() -> None:
    with pytest.raises(VerificationError, match="does not load the model"):
        verify(lambda a: a, input_specs([(2,)]), one_node("NoSuchOperator", {"a": [2]}, [2]))
    with pytest.raises(VerificationError, match="fails to run the model"):
        verify(lambda a, b: a + b[:3], input_specs([(2, 3), (4,)]), ADD)


@pytest.mark.parametrize(
    ("got", "want", "message"),
    [
        (np.float32([1, np.nan]), np.float32([1, np.nan]), None),
        (np.float32([1, np.inf]), np.float32([1, np.inf]), None),
        (np.float32([]), np.float32([]), None),
        (np.float32(1), np.float32(1.0001), None),
        (np.float32([1, np.nan]), np.float32([1, 2]), r"most at \(1,\): nan instead of 2.0$"),
        (np.float32([1, 2]), np.float32([1, np.nan]), r"2.0 instead of nan$"),
        (np.float32([5, -np.inf]), np.float32([1, np.inf]), r"most at \(1,\): -inf instead of inf$"),
        (np.float32([1, 3e38]), np.float32([1, np.inf]), r"3.0\S+ instead of inf$"),
        (np.float32(1), np.float32(2), r"1 of 1 values, most at \(\): 1.0 instead of 2.0 \(absolute difference 1, re"),
        (np.float32([1, 2]), np.float32([0, 0]), r"2.0 instead of 0.0 \(absolute difference 2\)$"),
        (np.int8([1, -128]), np.int8([1, 127]), r"-128 instead of 127 \(absolute difference 255, relative 2.01\)"),
        (np.uint64([2**64 - 1]), np.uint64([2**64 - 2]), r"18446744073709551614 \(absolute difference 1, "),
        (np.array([True, False]), np.array([True, True]), "False instead of True"),
        (np.array(1, ml_dtypes.bfloat16), np.array(4, ml_dtypes.bfloat16), "1.0 instead of 4.0"),
        (np.float32([1]), np.float64([1]), "has dtype float32 instead of float64"),
        (np.float32([[1]]), np.float32([1]), r"has shape \(1, 1\) instead of \(1,\)"),
    ],
)
def test_difference(got: np.ndarray, want: np.ndarray, message: str | None) -> None:
    found = difference(np.asarray(got), np.asarray(want), 1e-3, 1e-5)
    if message is None:
        assert found is None
    else:
        assert found is not None
        assert re.search(message, found), found


def test_allclose(tmp_path: Path) -> None:
    path = tmp_path / "add.onnx"
    onnx.save(ADD, path)
    a, b = np.ones((2, 3), np.float32), np.arange(3, dtype=np.float32)
    assert allclose(lambda a, b: a + b, path, [a, b]) == (
        True,
        "All outputs agree (largest absolute difference 0).",
    )
    assert allclose(lambda a, b: a + b, str(path), [("B", 3), "f32[3]"])[0]
    same, message = allclose(lambda a, b: a - b, path, [a, b])
    assert not same
    assert "differs in 4 of 6 values, most at (0, 1): 2.0 instead of 0.0" in message
    assert allclose(lambda a, b: a + b + 1e-3, path, [a, b], atol=1e-2)[0]
    assert not allclose(lambda a, b: a + b + 1e-3, path, [a, b], rtol=0)[0]


def test_it_is_said_where_no_number_was_compared(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """All models of which all results are NaN agree."""
    path = tmp_path / "add.onnx"
    onnx.save(ADD, path)
    numbers, infinities = np.float32([[1, np.inf]]), np.full((1, 2), np.inf, np.float32)
    assert "finite" not in allclose(lambda a, b: a + b, path, [numbers, numbers[0]])[1]
    same, message = allclose(lambda a, b: a + b, path, [infinities, numbers[0]])
    assert same and "But of 'y' there was no finite number" in message
    logs = to_onnx(lambda x: (jnp.log(-1 - x * x), x > 0, x[:0]), [(3,)])
    assert "But of 'output_0' there" in verify(
        lambda x: (jnp.sqrt(-1 - x * x), x > 0, x[:0]), input_specs([(3,)]), logs
    )
    assert "no finite number" in caplog.text


def test_allclose_drops_no_arrays(tmp_path: Path) -> None:
    path = tmp_path / "mul.onnx"
    onnx.save(one_node("Neg", {"x": [3]}, [3]), path)
    with pytest.raises(InputError, match=r"The model has 1 inputs \(x\), the function 2"):
        allclose(lambda x, y: -x, path, [(3,), (3,)])


def test_allclose_uses_the_given_values(tmp_path: Path) -> None:
    path = tmp_path / "add.onnx"
    onnx.save(ADD, path)
    seen: list[np.ndarray] = []

    def fn(args: dict[str, jax.Array], b: jax.Array) -> jax.Array:
        jax.debug.callback(lambda x: seen.append(np.asarray(x)), args["a"])
        return args["a"] + b

    a = np.float32([[7.5, -2.0, np.nan]])
    assert allclose(fn, path, [{"a": a}, (3,)])[0]
    np.testing.assert_array_equal(seen[0], a)


def test_allclose_with_double_precision(tmp_path: Path) -> None:
    path = tmp_path / "add.onnx"
    onnx.save(one_node("Add", {"a": [3], "b": [3]}, [3], TensorProto.DOUBLE), path)
    assert allclose(lambda a, b: a + b, path, [(3,), (3,)], enable_double_precision=True)[0]
    strict = {"rtol": 0.0, "atol": 1e-13, "enable_double_precision": True}
    assert not allclose(lambda a, b: a + b + 1e-12, path, [(3,), (3,)], **strict)[0]
    assert not jax.config.jax_enable_x64


def test_keyword_arguments(tmp_path: Path) -> None:
    path = tmp_path / "mul.onnx"
    onnx.save(one_node("Mul", {"x": [3], "scale": []}, [3]), path)

    def fn(x: jax.Array, scale: float, negate: bool = False) -> jax.Array:
        return -x * scale if negate else x * scale  # negate must be known

    assert allclose(fn, path, [(3,)], {"scale": 2.5})[0]
    assert allclose(fn, path, [(3,)], {"scale": 2.5, "negate": False})[0]
    assert not allclose(fn, path, [(3,)], {"scale": 2.5, "negate": True})[0]


def test_layouts(tmp_path: Path) -> None:
    path = tmp_path / "nchw.onnx"
    onnx.save(one_node("GlobalAveragePool", {"x": [2, 3, 4, 5]}, [2, 3, 1, 1]), path)

    def fn(x: jax.Array) -> jax.Array:
        assert x.shape == (2, 4, 5, 3)
        return x.mean((1, 2), keepdims=True)

    for chosen, named in (([0], [0]), (["x"], ["y"])):
        assert allclose(fn, path, [(2, 4, 5, 3)], inputs_as_nchw=chosen, outputs_as_nchw=named)[0]
    same, message = allclose(fn, path, [(2, 4, 5, 3)], inputs_as_nchw=[0])
    assert not same
    assert "has shape (2, 3, 1, 1) instead of (2, 1, 1, 3)" in message
    with pytest.raises(InputError, match="inputs_as_nchw has 'z', but the inputs are x"):
        allclose(fn, path, [(2, 4, 5, 3)], inputs_as_nchw=["z"])


@pytest.mark.parametrize(
    "constraints",
    [
        [],
        ["A >= 2"],
        ["A % 8 == 0", "B <= 4"],
        ["A >= 1000", "B >= A + 1"],
        ["A == 2*B"],
        ["A + B <= 3"],
        ["A >= 5", "A <= 5"],
        ["A % 48 == 0", "A >= 96"],
    ],
)
def test_sizes_keep_to_the_constraints(constraints: list[str]) -> None:
    specs = input_specs([("A", "B"), ("2*B",)], constraints=constraints)
    found = sampling.sample_sizes(specs)
    assert 1 <= len(found) <= 3
    for sizes in found:
        for constraint in constraints:
            assert eval(constraint, {}, sizes), (constraint, sizes)
        first, second = sampling.with_sizes(specs, sizes)
        assert second.shape == (2 * sizes["B"],)
        assert first.shape == (sizes["A"], sizes["B"])
    assert found == sampling.sample_sizes(specs)


def test_sizes_that_cannot_be_found() -> None:
    with pytest.raises(InputError, match="Found no sizes of N"):
        sampling.sample_sizes(input_specs([("N",)], constraints=["N*N >= 10", "N*N <= 15"]))


def test_arrays_are_repeatable_and_of_the_right_type() -> None:
    texts = [
        "f32[2,3]",
        "bf16[4]",
        "i8[100]",
        "u4[50]",
        "i2[50]",
        "bool[9]",
        "c64[2]",
        "key<rbg>[3]",
        "f32[0]",
        "f16[]",
    ]
    specs = input_specs(texts)
    for spec, one, two in zip(specs, sampling.sample_arrays(specs), sampling.sample_arrays(specs), strict=True):
        assert one.shape == spec.shape
        assert one.dtype == spec.dtype
        if not jax.dtypes.issubdtype(spec.dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(one, two)
        if jnp.issubdtype(spec.dtype, np.integer):
            assert np.all((one >= 0) & (one <= 9))


@pytest.mark.parametrize(
    ("fn", "inputs"),
    [
        (lambda z: z * (1 + 2j), ["c64[B]"]),
        (lambda key: jax.random.bits(key, (3,)), ["key<fry>[]"]),
        (lambda: jnp.arange(3.0), []),
        (lambda x: x * 2 + 1, ["bf16[B,3]"]),
        (lambda x, y: x * y, ["i32[3]", 2.5]),
        (lambda tree: {"a": tree["x"] + 1, "b": (tree["y"], tree["x"])}, [{"x": ("B",), "y": "i32[B]"}]),
        (jnp.sin, ["f64[B]"]),
    ],
    ids=["complex", "key", "no inputs", "bfloat16", "Python number", "pytree", "float64"],
)
def test_exports_can_be_verified_whatever_goes_in(fn: Any, inputs: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="jax2onnx"):
        to_onnx(fn, inputs, verify=True)
    assert "ONNX Runtime gives what JAX gives" in caplog.text
    assert not jax.config.jax_enable_x64


def test_verification_within_an_export_uses_its_layouts_and_parameters() -> None:
    def fn(x: jax.Array, scale: float) -> jax.Array:
        return x * jnp.arange(3.0) * scale

    model = to_onnx(fn, [(1, 4, 5, 3)], {"scale": 2.0}, inputs_as_nchw=[0], outputs_as_nchw=[0], verify=True)
    assert [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == [1, 3, 4, 5]
