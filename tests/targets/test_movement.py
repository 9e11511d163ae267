"""Operators that move elements: every dtype that ONNX allows comes through unchanged, float8 and 4-bit types too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import defs

from tests.targets.one_node import FLOATS, INTEGERS, allowed, build, check, checked, hard, onnx_name, run
from tests.targets.test_elementwise import cases

# The truth overflows and meets NaN on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

I64 = np.dtype("i8")


def ints(*values: Any) -> np.ndarray:
    return np.array(values, I64)


def grid(dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Hard values, repeated to fill a shape."""
    return np.resize(hard(dtype), shape)


def scatter_nd(x: np.ndarray, index: np.ndarray, updates: np.ndarray) -> np.ndarray:
    out = x.copy()
    out[tuple(index.T)] = updates
    return out


def put_along(x: np.ndarray, index: np.ndarray, updates: np.ndarray) -> np.ndarray:
    out = x.copy()
    np.put_along_axis(out, index, updates, 1)
    return out


INDEX = np.array([[2, 0, -1], [1, 1, 0], [0, 2, 1], [2, 2, 2]])
PAIRS = np.array([[0, 1], [3, 2], [-1, 0]])

# operator: operands after x, attributes, what numpy does
MOVES: dict[str, tuple[Callable, dict[str, Any], Callable]] = {
    "Reshape": (lambda x: [ints(3, -1)], {}, lambda x, _: x.reshape(3, -1)),
    "Transpose": (lambda x: [], {"perm": [1, 0]}, lambda x: x.T),
    "Squeeze": (lambda x: [], {}, lambda x: x),
    "Unsqueeze": (lambda x: [ints(1)], {}, lambda x, _: x[:, None]),
    "Flatten": (lambda x: [], {"axis": 1}, lambda x: x),
    "Identity": (lambda x: [], {}, lambda x: x),
    "Expand": (lambda x: [ints(2, 4, 3)], {}, lambda x, _: np.broadcast_to(x, (2, 4, 3))),
    "Tile": (lambda x: [ints(2, 3)], {}, lambda x, _: np.tile(x, (2, 3))),
    "Slice": (lambda x: [ints(3), ints(-9), ints(0), ints(-2)], {}, lambda x, *_: x[3:None:-2]),
    "Concat": (lambda x: [x[::-1].copy(), x], {"axis": 1}, lambda *xs: np.concatenate(xs, 1)),
    "Gather": (lambda x: [np.array([[0, -1], [2, 1]])], {"axis": 1}, lambda x, i: np.take(x, i, 1)),
    "GatherElements": (lambda x: [INDEX], {"axis": 1}, lambda x, i: np.take_along_axis(x, i, 1)),
    "GatherND": (lambda x: [PAIRS], {}, lambda x, i: x[tuple(i.T)]),
    "ScatterND": (lambda x: [PAIRS, x[0]], {}, scatter_nd),
    "ScatterElements": (lambda x: [np.array([[1], [0], [2], [-1]]), x[:, :1]], {"axis": 1}, put_along),
    "Compress": (lambda x: [np.array([True, False, True, True])], {"axis": 0}, lambda x, c: x[c]),
    "ReverseSequence": (lambda x: [ints(2, 1, 4)], {"time_axis": 0, "batch_axis": 1},
                        lambda x, n: np.stack([np.r_[x[: n[j], j][::-1], x[n[j] :, j]] for j in range(3)], 1)),
    "Trilu": (lambda x: [np.array(-1)], {"upper": 0}, lambda x, k: np.tril(x, -1)),
    "DepthToSpace": (lambda x: [], {"blocksize": 2}, None),
    "SpaceToDepth": (lambda x: [], {"blocksize": 2}, None),
    "Pad": (lambda x: [ints(1, 0, 0, 2), x[0, 1].copy()], {}, lambda x, p, c: np.pad(x.astype(object), ((1, 0), (0, 2)),
                                                                    constant_values=c).astype(x.dtype)),
}  # fmt: skip


@pytest.mark.parametrize(("op", "dtype", "opset"), cases(MOVES))
def test_moves(op: str, dtype: np.dtype, opset: int) -> None:
    operands, attributes, truth = MOVES[op]
    if truth is None:
        x = grid(dtype, (2, 8, 4, 6))
        want = depth_to_space(x) if op == "DepthToSpace" else space_to_depth(x)
        check(op, [x], [want], attributes, opset)
        return
    x = grid(dtype, (4, 3))
    rest = operands(x)
    check(op, [x, *rest], [np.ascontiguousarray(truth(x, *rest))], attributes, opset)


def depth_to_space(x: np.ndarray) -> np.ndarray:
    n, c, h, w = x.shape
    return x.reshape(n, 2, 2, c // 4, h, w).transpose(0, 3, 4, 1, 5, 2).reshape(n, c // 4, h * 2, w * 2)


def space_to_depth(x: np.ndarray) -> np.ndarray:
    n, c, h, w = x.shape
    return x.reshape(n, c, h // 2, 2, w // 2, 2).transpose(0, 3, 5, 1, 2, 4).reshape(n, c * 4, h // 2, w // 2)


@pytest.mark.parametrize(("op", "dtype", "opset"), cases(["Pad"]))
@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_pad_modes(op: str, dtype: np.dtype, opset: int, mode: str) -> None:
    if mode == "wrap" and opset < 19:
        mode = "edge"
    x = grid(dtype, (7,))
    padded = np.pad(np.arange(7), (2, 3), mode=mode)
    check(op, [x, ints(2, 3)], [x[padded]], {"mode": mode}, opset)


@pytest.mark.parametrize(("op", "dtype", "opset"), cases(["Split"]))
def test_split(op: str, dtype: np.dtype, opset: int) -> None:
    x = grid(dtype, (6, 2))
    check(op, [x, ints(1, 0, 5)], [x[:1], x[1:1], x[1:]], {"axis": 0}, opset)


@pytest.mark.parametrize(("op", "dtype", "opset"), cases(["NonZero"]))
def test_non_zero(op: str, dtype: np.dtype, opset: int) -> None:
    x = grid(dtype, (5, 7))
    check(op, [x], [np.array(np.nonzero(x.astype(bool)), I64)], {}, opset)


@pytest.mark.parametrize(("op", "dtype", "opset"), cases(["Shape", "Size"]))
def test_shape(op: str, dtype: np.dtype, opset: int) -> None:
    x = grid(dtype, (5, 7))
    check(op, [x], [ints(5, 7) if op == "Shape" else np.array(35)], {}, opset)


@pytest.mark.parametrize(("op", "dtype", "opset"), cases(["OneHot"], operand=2))
def test_one_hot(op: str, dtype: np.dtype, opset: int) -> None:
    values = hard(dtype)[-2:]
    want = np.where(np.arange(4) == np.array([1, 3, 2])[:, None], values[1], values[0])
    for index in (np.dtype("i4"), I64, np.dtype("u1")):
        check(op, [np.array([1, 3, 2], index), ints(4), values], [want.astype(dtype)], {}, opset)


@pytest.mark.parametrize(("op", "dtype", "opset"), cases(["EyeLike"]))
@pytest.mark.parametrize("to", [*FLOATS, *INTEGERS, np.dtype(bool)], ids=str)
def test_eye_like(op: str, dtype: np.dtype, opset: int, to: np.dtype) -> None:
    x = grid(dtype, (3, 4))
    check(op, [x], [np.eye(3, 4, 1).astype(to)], {"dtype": int(ir.DataType.from_numpy(to)), "k": 1}, opset)


@pytest.mark.parametrize("dtype", allowed("Cast", 23), ids=str)
def test_constant_of_shape(dtype: np.dtype) -> None:
    schema = defs.get_schema("ConstantOfShape", 23)
    if onnx_name(dtype) not in schema.outputs[0].types:
        with pytest.raises(onnx.checker.ValidationError):
            checked(
                build("ConstantOfShape", [ints(2)], [np.zeros(2, dtype)], {"value": ir.tensor(np.ones(1, dtype))}, 23)
            )
        return
    value = hard(dtype)[-2:-1]
    check("ConstantOfShape", [ints(2, 3)], [np.resize(value, (2, 3))], {"value": ir.tensor(value)}, 23)


SAME_WIDTH = [(a, b) for a in [*FLOATS, *INTEGERS] for b in [*FLOATS, *INTEGERS] if a.itemsize == b.itemsize]


@pytest.mark.parametrize(("source", "to"), SAME_WIDTH, ids=str)
def test_bit_cast(source: np.dtype, to: np.dtype) -> None:
    x = hard(source)
    got = run("BitCast", [x], [x.view(to)], {"to": int(ir.DataType.from_numpy(to))}, 26)[0]
    assert got.tobytes() == x.tobytes()


ALL_CASTS = [(a, b) for a in allowed("Cast", 23) for b in allowed("Cast", 23)]


@pytest.mark.parametrize(("source", "to"), ALL_CASTS, ids=lambda d: d.name)
def test_cast_loads(source: np.dtype, to: np.dtype) -> None:
    """Every pair of dtypes has a Cast, right at least where the value exists in both."""
    x = np.array([0, 1, 1, 0], source)
    check("Cast", [x], [np.array([0, 1, 1, 0]).astype(to)], {"to": int(ir.DataType.from_numpy(to))}, 23)
