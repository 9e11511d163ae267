"""Models of one node, legalized and run, and arrays that hurt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx import defs

from jax2onnx import runtime
from jax2onnx.naming import assign_names
from jax2onnx.targets import legalize
from tests.compare import assert_same

BF16 = np.dtype(ml_dtypes.bfloat16)
F16, F32, F64 = np.dtype("f2"), np.dtype("f4"), np.dtype("f8")
FLOATS = [F32, F64, F16, BF16]
HALVES = [F16, BF16]
SIGNED = [np.dtype(f"int{n}") for n in (8, 16, 32, 64)]
UNSIGNED = [np.dtype(f"uint{n}") for n in (8, 16, 32, 64)]
INTEGERS = SIGNED + UNSIGNED
BOOL = np.dtype(bool)
NARROW = [
    np.dtype(getattr(ml_dtypes, n)) for n in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
]
TINY = [np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.uint4)]
ALL = [*FLOATS, *INTEGERS, BOOL, *NARROW, *TINY]

# The axes became an operand (targets get what the lowering stage emits for the opset).
AXES_OPERAND_SINCE = {
    f"Reduce{what}": 18 for what in ("Max", "Min", "Prod", "Mean", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
}


def allowed(op: str, opset: int, operand: int = 0) -> list[np.dtype]:
    """The dtypes that the ONNX standard allows for an operand of `op`."""
    if not defs.has(op, opset):
        return []
    schema = defs.get_schema(op, opset)
    formals = schema.inputs or schema.outputs
    formal = formals[min(operand, len(formals) - 1)]
    return [d for d in ALL if onnx_name(d) in formal.types]


def onnx_name(dtype: np.dtype) -> str:
    """The dtype as the standard writes it."""
    return f"tensor({ir.DataType.from_numpy(dtype).name.lower()})"


def value(name: str, array: np.ndarray) -> ir.Value:
    """A value with the type and shape of `array`."""
    return ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(ir.DataType.from_numpy(array.dtype)))


def build(
    op: str, inputs: Sequence[np.ndarray | None], outputs: Sequence[np.ndarray], attributes: dict[str, Any], opset: int
) -> ir.Model:
    """A model of one node. Its operands are model inputs; the axes of a reduction are always known, so a constant."""
    attributes = dict(attributes)
    inputs = list(inputs)
    if opset < AXES_OPERAND_SINCE.get(op, 0):
        attributes["axes"] = inputs.pop().tolist()
    operands = [None if x is None else value(f"x{i}", x) for i, x in enumerate(inputs)]
    axes = operands[1:] if op.startswith("Reduce") else []
    for constant in axes:
        constant.const_value = ir.tensor(inputs[1])
    results = [value(f"y{i}", y) for i, y in enumerate(outputs)]
    node = ir.Node("", op, operands, ir.convenience.convert_attributes(attributes), outputs=results, name=op)
    given = [o for o in operands if o is not None and o not in axes]
    graph = ir.Graph(given, results, nodes=[node], initializers=axes, opset_imports={"": opset}, name="g")
    return ir.Model(graph, ir_version=10 if opset < 25 else 13)


def checked(model: ir.Model) -> onnx.ModelProto:
    """The legalized model as a proto, valid to the letter."""
    legalize(model, "onnxruntime")
    assign_names(model)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
    return proto


def run(
    op: str, inputs: Sequence[np.ndarray | None], outputs: Sequence[np.ndarray], attributes: dict[str, Any], opset: int
) -> list[np.ndarray]:
    """The outputs of one node in ONNX Runtime, after legalization. `outputs` say the dtypes and shapes to declare."""
    proto = checked(build(op, inputs, outputs, attributes, opset))
    used = len(proto.graph.input)
    return runtime.run(proto, [x for x in inputs if x is not None][:used])


def check(
    op: str,
    inputs: Sequence[np.ndarray | None],
    want: Sequence[np.ndarray],
    attributes: dict[str, Any] | None = None,
    opset: int = 23,
    exact: bool = True,
) -> None:
    """The node gives `want`: bit for bit (NaN is NaN), or within a few units in the last place."""
    got = run(op, inputs, want, attributes or {}, opset)
    if exact:
        assert_same(got, want, rtol=0.0, atol=0.0)
    else:
        assert_same(got, want)


# ---------------------------------------------------------------------------------------------------------- arrays


def hard(dtype: np.dtype, nan: bool = True) -> np.ndarray:
    """A vector of the values where implementations go wrong."""
    if dtype == BOOL:
        return np.array([True, False, True])
    if dtype in INTEGERS or dtype in TINY:
        info = ml_dtypes.iinfo(dtype)
        low, high = int(info.min), int(info.max)
        values = {low, high, 0, 1, 2, 3, 5, high - 1, low + 1, high // 2, high // 3, *((-1, -2, -7) if low < 0 else ())}
        if high > 2**53:
            values |= {2**53 + 1, 2**31, 2**32 + 1}
        return np.array(sorted(values), dtype)
    info = ml_dtypes.finfo(dtype)
    values = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1.5,
        -2.25,
        3.0,
        0.0625,
        float(info.max),
        float(info.min),
        float(info.smallest_normal),
    ]
    if dtype in FLOATS:
        values += [float(info.smallest_subnormal), 0.1, -7.3, 100.7, np.inf, -np.inf]
    with np.errstate(all="ignore"):
        return np.array([*values, *([np.nan] if nan else [])], np.float64).astype(dtype)


def mild(dtype: np.dtype, shape: Sequence[int], seed: int = 0) -> np.ndarray:
    """Random values, small enough that sums do not overflow."""
    rng = np.random.default_rng(seed)
    if dtype == BOOL:
        return rng.random(shape) < 0.5
    if dtype in INTEGERS or dtype in TINY:
        info = ml_dtypes.iinfo(dtype)
        return rng.integers(max(int(info.min), -9), min(int(info.max), 9), shape).astype(dtype)
    return rng.normal(size=shape).astype(dtype)


def extreme(dtype: np.dtype, shape: Sequence[int], seed: int = 0) -> np.ndarray:
    """Random values from the whole range of an integer dtype, whose sums and products wrap; mild floats."""
    if dtype not in INTEGERS:
        return mild(dtype, shape, seed)
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max, shape, dtype, endpoint=True)


def pairs(dtype: np.dtype, nan: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays that broadcast to all pairs of hard values."""
    values = hard(dtype, nan)
    return values[:, None], values[None, :]
