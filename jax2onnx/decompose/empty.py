"""Arrays whose content is left open: zeros, as JAX has them on the CPU."""

from __future__ import annotations

from typing import Any

from jax import lax

from jax2onnx import compat
from jax2onnx.decompose.registry import decomposes


@decomposes(*compat.kinds.primitives("empty", "empty2"))
def empty(*, dtype: Any, shape: Any = (), **_: Any) -> Any:
    """Zeros. (`empty2` is a scalar.)"""
    return lax.full(shape, 0, dtype)
