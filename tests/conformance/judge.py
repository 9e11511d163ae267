"""One case from export to verdict."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnx

import jax2onnx
from jax2onnx import compat, opsets, runtime
from tests.conformance import cases
from tests.conformance.open_results import case_difference
from tests.helpers import check_valid

# What each verdict means, from best to worst.
VERDICTS = {
    "ok": "dtypes, shapes and values are those of `jax.jit`",
    "static": "JAX itself cannot export it with a symbolic leading axis",
    "convert": "not supported, and the export says so",
    "error": "the export fails with anything but `UnsupportedError`",
    "check": "the model is not valid ONNX, or declares a wrong type",
    "load": "ONNX Runtime does not load the model",
    "run": "ONNX Runtime does not run the model",
    "wrong": "the model computes something else than JAX",
    "timeout": "the case took too long",
    "crash": "the process died",
}

# In which stage an exception means which verdict. In "reference" and "compare" it is a fault of this program.
STAGES = {"reference": "error", "export": "error", "check": "check", "load": "load", "run": "run", "compare": "error"}

MAX_REASON = 2000


@dataclass(frozen=True)
class Result:
    """What became of a case."""

    name: str
    group: str
    verdict: str
    reason: str = ""
    seconds: float = 0.0
    export_seconds: float = 0.0


def judge(
    name: str,
    enter: Callable[[str], None] = lambda stage: None,
    *,
    seed: int = 0,
    cache: bool = True,
    dynamic: bool = False,
    symbolic: bool = False,
    opset: int = opsets.DEFAULT,
    keep: Callable[[str, onnx.ModelProto], None] = lambda name, model: None,
    print_tracebacks: bool = False,
) -> Result:
    """Run the case `name`, if `symbolic` with symbolic leading axes.

    Calls `enter` with the name of each stage, and `keep` with the exported model.
    """
    harness = cases.with_dynamic_arrays(cases.load()[name]) if dynamic else cases.load()[name]
    start = time.perf_counter()
    stage = "reference"
    export_seconds = 0.0

    def result(verdict: str, reason: str = "") -> Result:
        return Result(
            name, harness.group_name, verdict, reason[:MAX_REASON], time.perf_counter() - start, export_seconds
        )

    try:
        enter(stage)
        args = cases.arguments(harness, seed)
        x64 = cases.has_64_bits(harness, args)
        inputs: list[Any] | None = args
        if symbolic:
            with compat.evaluation.x64(x64):
                inputs = cases.with_symbolic_axes(harness, args)
        if inputs is None:
            return result("static")
        want = cases.expected(harness, args, x64, cache)

        enter(stage := "export")
        export_start = time.perf_counter()
        with compat.evaluation.x64(x64):
            model = jax2onnx.to_onnx(
                harness.dyn_fun, inputs, enable_double_precision=x64, return_mode="proto", opset=opset
            )
        export_seconds = time.perf_counter() - export_start
        assert isinstance(model, onnx.ModelProto)
        keep(name, model)

        enter(stage := "check")
        check_valid(model)

        enter(stage := "load")
        session = runtime.session(model)

        enter(stage := "run")
        got = runtime.run(session, [runtime.at_boundary(x) for x in args])

        enter(stage := "compare")
        message = case_difference(harness, args, got, want)
        return result("wrong", message) if message else result("ok")
    except jax2onnx.UnsupportedError as error:
        return result("convert" if stage == "export" else STAGES[stage], str(error))
    except Exception as error:  # whatever goes wrong in a case is that case's verdict
        if print_tracebacks:
            traceback.print_exc()
        return result(STAGES[stage], _describe(error, stage))


def _describe(error: Exception, stage: str) -> str:
    """The error's message; for one raised while exporting also where in this package."""
    text = f"{type(error).__name__}: {error}".strip()
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/jax2onnx/" in frame.filename]
    if stage == "export" and frames:
        file, line, function, _ = frames[-1]
        text += f" [{file.rpartition('/jax2onnx/')[2]}:{line} in {function}]"
    return text
