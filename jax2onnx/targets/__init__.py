"""The legalize stage: a valid ONNX model becomes one that a given runtime loads and runs, with the same results.

    legalize(model, "onnxruntime")                     # in place; for "onnx", with dtypes that the standard allows
    lacks("onnxruntime", "Atan", "float64", opset=23)  # True: no kernel, so do not fuse into it

What the runtime can do is a table (`onnxruntime_cpu.json`, measured by scripts/measure_kernels.py); in what other dtype
an operator computes the same is data (`carriers.py`); what needs other operators is written out (`double.py`,
`windows.py`, `integers.py`), and so is what the standard has no operator for (`sign_bit.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from jax2onnx.errors import InputError
from jax2onnx.targets import (  # noqa: F401  (some register what they write out)
    double,
    empty,
    float8,
    integers,
    nan,
    recurrent,
    reductions,
    sign_bit,
    table,
    windows,
)
from jax2onnx.targets.rewrite import Legalizer
from jax2onnx.targets.scalars import give_scalars_axes
from jax2onnx.targets.turned import cast_before_transposes

__all__ = ["TARGETS", "check_target", "lacks", "legalize"]

TARGETS = (table.STANDARD, *table.TABLES)


def legalize(model: ir.Model, target: str) -> None:
    """Rewrite, in place, every node that `target` has no kernel for.

    All values of the model must have a dtype and shape, in the bodies of its nodes and in its functions too.

    Raises:
        UnsupportedError: if no exact equivalent is known; it names the operator and the dtypes.
    """
    check_target(target)
    sign_bit.write_out(model, target)
    roots: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    functions: dict[Any, ir.Function] = {}
    for root in roots:
        Legalizer(target, model, root, functions).run()
    if target == table.STANDARD:
        return
    cast_before_transposes(model)
    give_scalars_axes(model)


def lacks(target: str, op: str, dtype: ir.DataType | np.dtype | str, opset: int) -> bool:
    """Whether `target` has no kernel of its own for `op` with `dtype` (as its first type variable)."""
    check_target(target)
    bound = table.variables(target, op, opset, 1, 1)
    if bound is None:
        return True
    variable = next((v for group in bound for v in group if v is not None), None)
    if not isinstance(dtype, ir.DataType):
        dtype = ir.DataType.from_numpy(np.dtype(dtype))
    return variable is not None and not table.supports(target, op, opset, {variable: dtype})


def check_target(target: str) -> None:
    """Raise an InputError for a target that does not exist."""
    if target not in TARGETS:
        raise InputError(f"Unknown target {target!r}: it is one of {', '.join(TARGETS)}.")
