"""The incomplete gamma and beta functions: the definitions that JAX itself has for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import Array

from jax2onnx import compat
from jax2onnx.decompose.registry import decomposes
from jax2onnx.decompose.special_elementary import at_least_float32


def _with_dtype(definition: Callable[..., Array]) -> Callable[..., Array]:
    def fn(*args: Array, **_: Any) -> Array:
        return definition(*args, dtype=args[0].dtype)

    return fn


for _primitive, _definition in compat.definitions.special_definitions().items():
    decomposes(_primitive)(at_least_float32(_with_dtype(_definition)))
