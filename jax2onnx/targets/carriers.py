"""Which dtype can stand in for another, so that an operator computes the same result.

A node whose dtype has no kernel is computed in a *carrier*: its operands are cast to it, its results are cast back.
What a carrier must preserve depends on what the operator does with its elements:

- it *moves* them (Concat, Gather, Where): any dtype that keeps different elements different;
- it computes *modulo* a power of two (Add, MatMul, ReduceSum of integers): any integer type as wide or wider, since
  casts between integers wrap;
- else it uses their *value* (Max, Div, Exp): a dtype that contains all values. Half-precision floats are computed in
  float32 and rounded after each node, which is where JAX rounds.

uint64 has no larger integer type. What only needs its *order* (ReduceMax, TopK) is computed in int64 with the top bit
flipped, which keeps the order.
"""

from __future__ import annotations

import onnx_ir as ir

_NAMES = {t.short_name(): t for t in ir.DataType if t}


def _dtypes(names: str) -> list[ir.DataType]:
    return [_NAMES[n] for n in names.split()]


def _words(text: str) -> set[str]:
    return set(text.split())


def _table(rows: dict[str, str]) -> dict[ir.DataType, list[ir.DataType]]:
    return {_NAMES[name]: _dtypes(carriers) for name, carriers in rows.items()}


# The dtypes that contain all values of a dtype, the best to compute in first.
CONTAINED_IN = _table(
    {
        "b8": "u8 i32 i64 f32",
        "i8": "i32 i64 i16 f32 f64",
        "i16": "i32 i64 f32 f64",
        "i32": "i64 f64",
        "u8": "i32 u32 i64 u16 f32 f64",
        "u16": "i32 u32 i64 f32 f64",
        "u32": "i64 u64 f64",
        "i4": "i8 i32",
        "u4": "u8 i32",
        "i2": "i8 i32",
        "u2": "u8 i32",
        "f32": "f64",
        "f16": "f32 f64",
        "bf16": "f32 f64",
        "f8e4m3fn": "f32",
        "f8e4m3fnuz": "f32",
        "f8e5m2": "f32",
        "f8e5m2fnuz": "f32",
        "f8e8m0": "f32",
        "f4e2m1": "f32",
    }
)
# The integer types as wide or wider: casting there and back, and + - * in between, agree modulo 2^width.
WRAPS_IN = _table(
    {
        "i8": "i32 i64 u32 u64",
        "i16": "i32 i64 u32 u64",
        "i32": "i64 u32 u64",
        "i64": "u64",
        "u8": "i32 u32 i64 u64",
        "u16": "i32 u32 i64 u64",
        "u32": "i32 i64 u64",
        "u64": "i64",
    }
)

# Operators are followed by the value of the attribute in MODE, where what they do depends on it.
MODE = {
    "ScatterElements": "reduction",
    "ScatterND": "reduction",
    "BitShift": "direction",
    "Cast": "saturate",
    "Mod": "fmod",
    "Resize": "mode",
}
MODE_DEFAULT = {"reduction": "none", "mode": "nearest", "fmod": "0"}

MOVES = _words("""
    CenterCropPad Compress Concat DepthToSpace Equal Expand EyeLike Flatten Gather GatherElements GatherND Identity Pad
    Reshape Resize:nearest ReverseSequence ScatterElements:none ScatterND:none Size Slice SpaceToDepth Split Squeeze
    TensorScatter Tile Transpose Trilu Unsqueeze Where
""")
WRAPS = _words("""
    Add BitShift:LEFT BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CumProd CumSum MatMul Mul Neg ScatterElements:add
    ScatterElements:mul ScatterND:add ScatterND:mul Sub Sum
""")
ORDERS = _words("""
    ArgMax ArgMin Clip Greater GreaterOrEqual Less LessOrEqual Max Min ReduceMax ReduceMin ScatterElements:max
    ScatterElements:min ScatterND:max ScatterND:min TopK
""")
# Their results are operands, unchanged or up to the sign, or whole numbers no larger: nothing is left to round.
SELECTS = MOVES | ORDERS | {"MaxPool", "GlobalMaxPool"}
SELECTS_FLOATS = {"Abs", "Ceil", "Floor", "Neg", "Round", "Sign"}

FLOATS = set(_dtypes("f32 f64 f16 bf16 f8e4m3fn f8e4m3fnuz f8e5m2 f8e5m2fnuz f8e8m0 f4e2m1"))
UINT64 = ir.DataType.UINT64
INT64 = ir.DataType.INT64


def carriers(operation: str, dtype: ir.DataType) -> list[ir.DataType]:
    """The dtypes that `operation` (an operator, with its mode) may be computed in instead of `dtype`, best first."""
    if operation == "NonZero":
        return [ir.DataType.BOOL]
    values = CONTAINED_IN.get(dtype, [])
    if operation in WRAPS:
        return WRAPS_IN.get(dtype, values)
    if operation in MOVES:
        return [*values, *WRAPS_IN.get(dtype, [])]
    return values


def is_exact(operation: str, dtype: ir.DataType) -> bool:
    """Whether the results of `operation` in a carrier are elements of `dtype` already, before they are cast back."""
    return operation in SELECTS or (operation in SELECTS_FLOATS and dtype in FLOATS)
