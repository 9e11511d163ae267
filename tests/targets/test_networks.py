"""Matrix products, convolutions, pooling, normalization, recurrent and attention layers in all dtypes that ONNX allows.

The truth for half precision is the runtime's own float32 result, rounded once; for float64 it is JAX or numpy.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import onnx_ir as ir
import pytest

from jax2onnx.errors import UnsupportedError
from jax2onnx.targets import lacks
from tests.targets.one_node import (
    BF16,
    F16,
    F32,
    F64,
    FLOATS,
    HALVES,
    INTEGERS,
    allowed,
    build,
    check,
    checked,
    extreme,
    mild,
    run,
)
from tests.targets.test_elementwise import cases

# The truth overflows and meets NaN on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.matmul(a, b) if a.dtype in INTEGERS else np.matmul(a.astype(F64), b.astype(F64)).astype(a.dtype)


@pytest.mark.parametrize(("op", "dtype", "opset"), cases(["MatMul"]))
@pytest.mark.parametrize(
    "shapes", [((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((4,), (2, 4, 5)), ((3, 0), (0, 5)), ((0, 4), (4, 2))], ids=str
)
def test_matmul(op: str, dtype: np.dtype, opset: int, shapes: Any) -> None:
    a, b = (extreme(dtype, s, i) for i, s in enumerate(shapes))
    check(op, [a, b], [matmul(a, b)], {}, opset, exact=dtype in INTEGERS)


@pytest.mark.parametrize(("op", "dtype", "opset"), cases(["Gemm"]))
@pytest.mark.parametrize("transposed", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_gemm(op: str, dtype: np.dtype, opset: int, transposed: tuple[int, int]) -> None:
    a, b, c = extreme(dtype, (3, 4)), extreme(dtype, (4, 5), 1), extreme(dtype, (5,), 2)
    operands = [np.ascontiguousarray(x.T) if t else x for x, t in zip((a, b), transposed, strict=True)]
    attributes = {"transA": transposed[0], "transB": transposed[1]}
    wide = (a, b, c) if dtype in INTEGERS else tuple(x.astype(F64) for x in (a, b, c))
    check(op, [*operands, c], [(wide[0] @ wide[1] + wide[2]).astype(dtype)], attributes, opset, exact=dtype in INTEGERS)


@pytest.mark.parametrize(("op", "dtype", "opset"), cases(["Einsum"]))
def test_einsum(op: str, dtype: np.dtype, opset: int) -> None:
    a, b = extreme(dtype, (2, 3, 4)), extreme(dtype, (2, 5, 4), 1)
    wide = (a, b) if dtype in INTEGERS else (a.astype(F64), b.astype(F64))
    want = np.einsum("bik,bjk->bij", *wide).astype(dtype)
    check(op, [a, b], [want], {"equation": "bik,bjk->bij"}, opset, exact=dtype in INTEGERS)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_einsum_of_integers_that_sums_one_operand(dtype: np.dtype) -> None:
    a, b = extreme(dtype, (3, 4, 2)), extreme(dtype, (4, 5), 1)
    check("Einsum", [a, b], [np.einsum("ijm,jk->i", a, b)], {"equation": "ijm,jk->i"})


# ------------------------------------------------------------------------------------------------ convolution

CONVS: list[dict[str, Any]] = [
    {},
    {"strides": [2, 1], "pads": [1, 0, 2, 3]},
    {"dilations": [2, 3], "pads": [2, 3, 2, 3]},
    {"group": 2, "strides": [2, 2]},
    {"group": 4},
]


def conv(x: np.ndarray, w: np.ndarray, b: np.ndarray | None, attributes: dict[str, Any]) -> np.ndarray:
    """The convolution as JAX computes it, in float64."""
    n = x.ndim - 2
    pads = attributes.get("pads", [0] * 2 * n)
    with jax.enable_x64(True):
        y = jax.lax.conv_general_dilated(
            x.astype(F64),
            w.astype(F64),
            attributes.get("strides", [1] * n),
            list(zip(pads[:n], pads[n:], strict=True)),
            rhs_dilation=attributes.get("dilations"),
            feature_group_count=attributes.get("group", 1),
        )
        y = np.asarray(y)
    return (y if b is None else y + b.astype(F64).reshape(-1, *[1] * n)).astype(x.dtype)


@pytest.mark.parametrize(("op", "dtype", "opset"), cases(["Conv"]))
@pytest.mark.parametrize("attributes", CONVS, ids=str)
def test_conv(op: str, dtype: np.dtype, opset: int, attributes: dict[str, Any]) -> None:
    group = attributes.get("group", 1)
    x, w, b = mild(dtype, (2, 4, 7, 8)), mild(dtype, (8, 4 // group, 3, 2), 1), mild(dtype, (8,), 2)
    check(op, [x, w, b], [conv(x, w, b, attributes)], attributes, opset, exact=False)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_double_conv_ranks(n: int) -> None:
    x, w = mild(F64, (2, 3, *[5] * n)), mild(F64, (4, 3, *[2] * n), 1)
    check("Conv", [x, w], [conv(x, w, None, {})], {}, exact=False)
    check("Conv", [x[:0], w], [conv(x, w, None, {})[:0]], {}, exact=False)


def test_double_conv_with_symbolic_dimensions() -> None:
    from jax2onnx import runtime

    x, w, b = mild(F64, (3, 4, 7, 8)), mild(F64, (8, 2, 3, 2), 1), mild(F64, (8,), 2)
    attributes = {"group": 2, "strides": [2, 1], "pads": [1, 0, 2, 3]}
    want = conv(x, w, b, attributes)
    model = build("Conv", [x, w, b], [want], attributes, 23)
    model.graph.inputs[0].shape = ir.Shape(["n", 4, "h", "w"])
    model.graph.outputs[0].shape = ir.Shape(["n", 8, "p", "q"])
    proto = checked(model)
    np.testing.assert_allclose(runtime.run(proto, [x, w, b])[0], want, rtol=1e-12, atol=1e-12)
    small = x[:1, :, :4, :5]
    np.testing.assert_allclose(
        runtime.run(proto, [small, w, b])[0], conv(small, w, b, attributes), rtol=1e-12, atol=1e-12
    )
    assert runtime.run(proto, [x[:0], w, b])[0].shape == (0, *want.shape[1:])


TRANSPOSED: list[dict[str, Any]] = [
    {},
    {"strides": [2, 3], "pads": [1, 0, 0, 1]},
    {"strides": [3, 2], "output_padding": [2, 1], "group": 2},
    {"dilations": [2, 1], "pads": [1, 1, 1, 1]},
]


@pytest.mark.parametrize(("op", "dtype", "opset"), cases(["ConvTranspose"]))
@pytest.mark.parametrize("attributes", TRANSPOSED, ids=str)
def test_conv_transpose(op: str, dtype: np.dtype, opset: int, attributes: dict[str, Any]) -> None:
    group = attributes.get("group", 1)
    x, w, b = mild(dtype, (2, 4, 5, 6)), mild(dtype, (4, 6 // group, 3, 2), 1), mild(dtype, (6,), 2)
    sizes = [
        s * (d - 1) + dil * (k - 1) + 1 - p0 - p1 + out
        for d, k, s, dil, p0, p1, out in zip(
            x.shape[2:],
            w.shape[2:],
            attributes.get("strides", [1, 1]),
            attributes.get("dilations", [1, 1]),
            attributes.get("pads", [0] * 4)[:2],
            attributes.get("pads", [0] * 4)[2:],
            attributes.get("output_padding", [0, 0]),
            strict=True,
        )
    ]
    like = np.zeros((2, 6, *sizes), F32)
    (single,) = run(op, [v.astype(F32) for v in (x, w, b)], [like], attributes, opset)
    got = run(op, [x, w, b], [like.astype(dtype)], attributes, opset)[0]
    assert got.dtype == dtype
    tolerance = {F32: 0, F64: 2e-6, F16: 2e-3, BF16: 1.6e-2}[dtype]
    np.testing.assert_allclose(got.astype(F64), single.astype(F64), rtol=tolerance, atol=tolerance)


# ------------------------------------------------------------------------------------------------ layers, by float32

ONES = np.ones(4)
LAYERS: dict[str, tuple[list[Any], list[tuple[int, ...]], dict[str, Any]]] = {
    # operator: shapes of the float operands (or an array), shapes of the outputs, attributes
    "AveragePool": ([(2, 3, 7, 6)], [(2, 3, 4, 5)], {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 0]}),
    "MaxPool": ([(2, 3, 7, 6)], [(2, 3, 4, 5)], {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 0]}),
    "GlobalAveragePool": ([(2, 3, 4, 5)], [(2, 3, 1, 1)], {}),
    "GlobalMaxPool": ([(2, 3, 4, 5)], [(2, 3, 1, 1)], {}),
    "BatchNormalization": ([(2, 4, 3), (4,), (4,), (4,), ONES], [(2, 4, 3)], {}),
    "InstanceNormalization": ([(2, 4, 5), (4,), (4,)], [(2, 4, 5)], {}),
    "LayerNormalization": ([(2, 3, 4), (4,), (4,)], [(2, 3, 4)], {}),
    "GroupNormalization": ([(2, 4, 5), (4,), (4,)], [(2, 4, 5)], {"num_groups": 2}),
    "RMSNormalization": ([(2, 3, 4), (4,)], [(2, 3, 4)], {}),
    "LpNormalization": ([(2, 3, 4)], [(2, 3, 4)], {}),
    "LSTM": ([(5, 2, 3), (1, 16, 3), (1, 16, 4)], [(5, 1, 2, 4), (1, 2, 4), (1, 2, 4)], {"hidden_size": 4}),
    "GRU": ([(5, 2, 3), (1, 12, 3), (1, 12, 4)], [(5, 1, 2, 4), (1, 2, 4)], {"hidden_size": 4}),
    "RNN": ([(5, 2, 3), (1, 4, 3), (1, 4, 4)], [(5, 1, 2, 4), (1, 2, 4)], {"hidden_size": 4}),
    "Attention": ([(1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4)], [(1, 2, 3, 4)], {}),
    "RotaryEmbedding": ([(1, 2, 3, 4), (1, 3, 2), (1, 3, 2)], [(1, 2, 3, 4)], {}),
    "DFT": ([(2, 6, 2)], [(2, 6, 2)], {}),
    "Det": ([(3, 3)], [()], {}),
    "LRN": ([(2, 4, 3, 3)], [(2, 4, 3, 3)], {"size": 3}),
    "Swish": ([(40,)], [(40,)], {"alpha": 0.5}),
    "Gelu": ([(40,)], [(40,)], {"approximate": "tanh"}),
    "Resize": ([(1, 1, 4, 4), None, np.array([1, 1, 2, 2], F32)], [(1, 1, 8, 8)], {"mode": "linear"}),
    "GridSample": ([(1, 2, 4, 4), (1, 3, 3, 2)], [(1, 2, 3, 3)], {}),
}  # fmt: skip
IMPOSSIBLE = {("LSTM", F64), ("GRU", F64), ("RNN", F64), ("Det", F64), ("LRN", F64), ("Resize", F64)}


def has_layer(op: str, dtype: np.dtype, opset: int) -> bool:
    """Floats only, and not the early, deprecated GroupNormalization with other operands."""
    return dtype in FLOATS and not (op == "GroupNormalization" and opset < 21)


@pytest.mark.parametrize(("op", "dtype", "opset"), cases(LAYERS, only=has_layer))
def test_layer(op: str, dtype: np.dtype, opset: int) -> None:
    operands, results, attributes = LAYERS[op]
    if op == "AveragePool":
        attributes = {**attributes, "count_include_pad": opset % 2}
    if (op, opset) == ("DFT", 17):
        attributes = {"axis": 1}
    x: list[Any] = [o if o is None or isinstance(o, np.ndarray) else mild(F32, o, i) for i, o in enumerate(operands)]
    x = [v.astype(dtype) if v is not None and (op, i) != ("Resize", 2) else v for i, v in enumerate(x)]
    if (op, dtype) in IMPOSSIBLE:
        with pytest.raises(UnsupportedError, match=rf"{op}.*double"):
            checked(build(op, x, [np.zeros(r, dtype) for r in results], attributes, opset))
        return
    got = run(op, x, [np.zeros(r, dtype) for r in results], attributes, opset)
    single = [None if v is None else v.astype(F32) for v in x]
    want = run(op, single, [np.zeros(r, F32) for r in results], attributes, opset)
    tolerance = {F32: 0, F64: 2e-5, F16: 2e-3, BF16: 1.6e-2}[dtype]
    for g, w in zip(got, want, strict=True):
        assert g.dtype == dtype
        np.testing.assert_allclose(g.astype(F64), w.astype(F64), rtol=tolerance, atol=tolerance)


def test_double_pool_and_norm_are_double() -> None:
    """Not by way of float32: numpy's float64 agrees to the last digits."""
    x = mild(F64, (2, 3, 6))
    check("AveragePool", [x], [(x[..., :-1] + x[..., 1:]) / 2], {"kernel_shape": [2]}, exact=False)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 0)))
    counts = np.array([1, 2, 2, 2, 2, 2.0])
    check(
        "AveragePool",
        [x],
        [(padded[..., :-1] + padded[..., 1:]) / counts],
        {"kernel_shape": [2], "pads": [1, 0]},
        exact=False,
    )
    check("GlobalAveragePool", [x], [x.mean(-1, keepdims=True)], exact=False)
    check("GlobalMaxPool", [x], [x.max(-1, keepdims=True)])
    scale, bias = mild(F64, (3,), 1), mild(F64, (3,), 2)
    normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + np.float32(1e-5))
    check("InstanceNormalization", [x, scale, bias], [normal * scale[:, None] + bias[:, None]], exact=False)


@pytest.mark.parametrize("opset", [17, 23, 26])
def test_lacks_agrees_with_the_pass(opset: int) -> None:
    """What `lacks` calls present is left alone; what it calls lacking is rewritten."""
    for op, dtype, expected in [("Atan", F64, True), ("Sin", F64, False), ("Add", BF16, True), ("Conv", F32, False),
                                ("Max", np.dtype("i2"), True), ("ReduceSum", np.dtype("i4"), True)]:  # fmt: skip
        assert lacks("onnxruntime", op, dtype, opset) is expected, op
        assert not lacks("onnx", op, dtype, opset)
    assert allowed("Atan", opset)
    assert HALVES == [F16, BF16]
