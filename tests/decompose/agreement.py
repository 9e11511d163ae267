"""Compare a decomposition with the primitive that it defines."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive

from jax2onnx.decompose.registry import DECOMPOSITIONS


def as_list(out: Any) -> list:
    return list(out) if isinstance(out, (list, tuple)) else [out]


def evaluate(fn: Callable, *args: Any, **params: Any) -> Any:
    """`fn(*args, **params)` without an optimizing compiler's rewrites, which an ONNX runtime does not do either."""
    return _compiled(fn, _Params(params), optimized=False)(*args)


class _Params(dict):
    """Parameters that are the same if they look the same."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(str(self))

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other)


@functools.lru_cache(maxsize=16)
def _compiled(fn: Callable, params: _Params, optimized: bool) -> Callable:
    """The function as a program, which is compiled once for all arguments of the same types."""
    options = {"xla_backend_optimization_level": 0, "xla_disable_hlo_passes": "algsimp"}
    return jax.jit(lambda *xs: fn(*xs, **params), compiler_options=None if optimized else options)


def assert_agrees(primitive: Primitive, *args: Any, rtol: float = 0, atol: float = 0, **params: Any) -> None:
    """The definition, compiled without optimizations, gives what `jax.jit` of the primitive gives.

    NaN equals NaN, and without tolerances 0.0 and -0.0 are different values.
    """
    args = tuple(jax.numpy.asarray(x) for x in args)
    expected = as_list(_compiled(primitive.bind, _Params(params), optimized=True)(*args))
    actual = as_list(evaluate(DECOMPOSITIONS[primitive].fn, *args, **params))
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        assert_close(a, e, rtol, atol)


def assert_close(actual: Any, expected: Any, rtol: float = 0, atol: float = 0) -> None:
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.dtype.name in ("bfloat16", "float16"):
        actual, expected = actual.astype(np.float32), expected.astype(np.float32)
    if rtol or atol:
        np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol)
    else:
        np.testing.assert_array_equal(actual, expected)
        if np.issubdtype(actual.dtype, np.floating):
            zero = expected == 0
            np.testing.assert_array_equal(np.signbit(actual[zero]), np.signbit(expected[zero]))


# Values where floating-point functions go wrong.
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 1e-10, -1e-10, 1e10, -1e10]
