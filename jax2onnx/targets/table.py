"""Which operators a runtime can run with which dtypes: the measured table, and the questions one asks of it.

The table lists, for each operator and each version of it, the type variables of its operands and results, and the
kernels of the runtime as products of dtype sets, one per type variable::

    "OneHot": {"11": ["T1 T2 T3 > T3", {"T1": "i64", "T2": "i64", "T3": "f32 i32 i64"}, ...]}

(The schemas of `onnx` say the same of the variables, but to load all of them takes longer than a small export.)

`scripts/measure_kernels.py` writes it by asking the runtime. What kernels *do* (with empty arrays, NaN, division by
zero) no table shows; FACTS.md does.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import onnx_ir as ir
from onnx import defs

Types = Mapping[str, ir.DataType]
"""The dtype of each type variable of an operator."""

Kernel = dict[str, frozenset[ir.DataType]]

Variables = Sequence[str | None]

TABLES = {"onnxruntime": "onnxruntime_cpu.json"}

STANDARD = "onnx"
"""The target whose table is the schemas of the operators: which dtypes they allow."""


# Kernels that load but fail or compute something else (FACTS.md), by operator (with its mode) and dtype.
_HALVES, _FLOATS, _ORDER, _SUMS = "f16 bf16", "f16 bf16 f32 f64", "i64", "i32 i64"
WRONG = {
    target: {op: frozenset(map(ir.DataType.from_short_name, names.split())) for op, names in rows.items()}
    for target, rows in {
        "onnxruntime": {
            **dict.fromkeys(["Clip", "Max", "Min"], _ORDER),
            "Div": "i32 i64",  # 1 / x times y becomes y / x
            **dict.fromkeys(["ReduceMax", "ReduceMin"], f"{_ORDER} {_FLOATS}"),  # they ignore NaN
            **dict.fromkeys(["GlobalMaxPool", "MaxPool"], _FLOATS),  # so do these
            **dict.fromkeys(["ReduceL1", "ReduceProd", "ReduceSum", "ReduceSumSquare"], _SUMS),
            "Sign": "i64 f16 bf16",
            "Mod:1": "i64 u64",
            "MatMul": "u32 u64",
            "Cast:0": "f8e4m3fn f8e5m2 f8e8m0",  # without saturation
            "Einsum": "i32 i64",
            "InstanceNormalization": "f32",  # kills the process if there is nothing to normalize (empty.py)
            **dict.fromkeys(["GRU", "LSTM"], "f32 f64"),  # f32 loses NaN (recurrent.py)
            **dict.fromkeys([f"{op}:{r}" for op in ("ScatterElements", "ScatterND") for r in ("add", "mul")], _HALVES),
            **dict.fromkeys(
                [f"{op}:{r}" for op in ("ScatterElements", "ScatterND") for r in ("max", "min")], f"{_HALVES} b8"
            ),
        }
    }.items()
}


@functools.cache
def operators(target: str) -> dict[str, dict[str, list[Any]]]:
    """operator -> version -> signature and kernels as they are written in the table of a target."""
    return json.loads(resources.files(__package__).joinpath(TABLES[target]).read_text())["ops"]


@functools.cache
def kernels(target: str, op: str) -> dict[int, list[Kernel]] | None:
    """version -> kernels of an operator; None if it is not listed. Read when asked for: a model has few of them."""
    versions = operators(target).get(op)
    if versions is None:
        return None
    return {int(version): [_kernel(written) for written in row[1:]] for version, row in versions.items()}


def _kernel(written: dict[str, str]) -> Kernel:
    return {variable: frozenset(map(ir.DataType.from_short_name, names.split())) for variable, names in written.items()}


def supports(target: str, op: str, opset: int, types: Types, mode: str = "") -> bool:
    """Whether the runtime has a right kernel for `op` of that opset with these dtypes (yes, if it is not listed)."""
    wrong = WRONG.get(target, {}).get(f"{op}:{mode}" if mode else op, frozenset())
    return wrong.isdisjoint(types.values()) and has_kernel(target, op, opset, types)


def has_kernel(target: str, op: str, opset: int, types: Types) -> bool:
    """Whether the runtime has a kernel for `op`, right or wrong."""
    if target == STANDARD:
        allowed = standard(op, opset)
        return all(types[v] in allowed[v] for v in types if v in allowed)
    versions = kernels(target, op)
    if versions is None:
        return True
    version = max((v for v in versions if v <= opset), default=None)
    if version is None:
        return False
    return any(all(types[v] in kernel[v] for v in types if v in kernel) for kernel in versions[version])


@functools.cache
def standard(op: str, opset: int) -> Kernel:
    """The dtypes that the standard allows for each type variable of an operator that this opset has."""
    known = {f"tensor({dtype.name.lower()})": dtype for dtype in ir.DataType}
    constraints = defs.get_schema(op, opset).type_constraints
    return {
        c.type_param_str: frozenset(known[text] for text in c.allowed_type_strs if text in known) for c in constraints
    }


@functools.cache
def variables(target: str, op: str, opset: int, n_inputs: int, n_outputs: int) -> tuple[Variables, Variables] | None:
    """The type variable of each input and output of a node: None where the dtype is fixed or free for each alone.

    The whole is None for an operator that this opset does not have.
    """
    sides = _signature(target, op, opset)
    if sides is None:
        return None
    inputs, outputs = sides
    return _for_each(inputs, n_inputs), _for_each(outputs, n_outputs)


def _signature(target: str, op: str, opset: int) -> tuple[Variables, Variables] | None:
    versions = operators(target).get(op, {}) if target in TABLES else {}
    version = max((v for v in map(int, versions) if v <= opset), default=None)
    if version is not None:
        inputs, _, outputs = versions[str(version)][0].partition(">")
        return [None if v == "-" else v for v in inputs.split()], [None if v == "-" else v for v in outputs.split()]
    if not defs.has(op, opset):
        return None
    schema = defs.get_schema(op, opset)
    names = {c.type_param_str for c in schema.type_constraints}

    def of(formals: Sequence[defs.OpSchema.FormalParameter]) -> Variables:
        return [f.type_str if f.type_str in names else None for f in formals]

    return of(schema.inputs), of(schema.outputs)


def _for_each(formals: Variables, count: int) -> Variables:
    """Of an operator with any number of operands, the last formal one stands for them all."""
    return [*formals, *[formals[-1]] * (count - len(formals))][:count] if formals else []
