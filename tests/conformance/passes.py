"""The optimizer changes no number: a case is exported with and without it, and both are compared with JAX."""

from __future__ import annotations

import time
from collections.abc import Callable

import jax.numpy as jnp
import ml_dtypes
import numpy as np

import jax2onnx
from jax2onnx import compat, optimize, runtime
from tests.conformance import cases
from tests.conformance.judge import Result
from tests.conformance.open_results import OPEN_RESULTS, case_difference

ROUNDING = 16
"""Other orders of additions, and kernels for whole formulas, round differently: by so many units in the last place."""


def judge_passes(name: str, enter: Callable[[str], None] = lambda stage: None, *, seed: int = 0) -> Result:
    """Run the case `name` optimized and not: "wrong" if the optimized model is further from JAX."""
    harness = cases.load()[name]
    start = time.perf_counter()

    def result(verdict: str, reason: str = "") -> Result:
        return Result(name, harness.group_name, verdict, reason, time.perf_counter() - start)

    enter("reference")
    args = cases.arguments(harness, seed)
    x64 = cases.has_64_bits(harness, args)
    want = cases.expected(harness, args, x64)

    def outputs() -> list[np.ndarray]:
        with compat.evaluation.x64(x64):
            model = jax2onnx.to_onnx(harness.dyn_fun, args, enable_double_precision=x64)
        return runtime.run(model, [runtime.at_boundary(x) for x in args])

    try:
        enter("optimized")
        optimized = outputs()
    except jax2onnx.UnsupportedError as error:
        return result("convert", str(error))
    problem = case_difference(harness, args, optimized, want)
    enter("plain")
    try:
        with optimize.switched_off():
            plain = outputs()
    except jax2onnx.UnsupportedError:  # the runtime needs something to be a constant, and the optimizer makes it one
        return result("wrong", problem) if problem else result("ok")
    if problem and not case_difference(harness, args, plain, want):
        return result("wrong", f"only if optimized, {problem}")
    if any(open_result.applies(harness) for open_result in OPEN_RESULTS):
        return result("ok")
    for i, (a, b, w) in enumerate(zip(optimized, plain, map(runtime.at_boundary, want), strict=True)):
        near, nearer = distance(a, w), distance(b, w)
        if near > max(2 * nearer, ROUNDING):
            return result(
                "wrong", f"output {i}: optimized {near:.3g} units in the last place from JAX, else {nearer:.3g}"
            )
    return result("ok")


def distance(got: np.ndarray, want: np.ndarray) -> float:
    """The largest difference, in units of the last place of the largest number."""
    if got.size == 0 or not jnp.issubdtype(want.dtype, jnp.inexact):
        return 0.0 if np.array_equal(got, want) else np.inf
    info = ml_dtypes.finfo(want.dtype)
    got, want = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True) or not np.isfinite(got[finite]).all():
        return np.inf
    if not finite.any():
        return 0.0
    largest = max(float(np.abs(want[finite]).max()), float(info.tiny))
    return float(np.abs(got[finite] - want[finite]).max()) / (float(info.eps) * largest)
