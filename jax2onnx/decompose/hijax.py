"""High-level primitives: what JAX records as one operation (`nonzero`, `searchsorted`) and defines in JAX itself."""

from __future__ import annotations

from typing import Any

from jax import Array

from jax2onnx import compat
from jax2onnx.decompose.registry import decomposes


@decomposes(compat.kinds.call_hi_primitive_p)
def high_level(*args: Array, _prim: Any) -> list[Array]:
    """The definition that JAX compiles in its place."""
    return compat.kinds.call_hi_primitive_p.to_lojax(*args, _prim=_prim)
