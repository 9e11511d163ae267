"""Linear systems with a solver of the user's own."""

from __future__ import annotations

from typing import Any

from jax import Array
from jax.extend.core import jaxpr_as_fun
from jax.extend.core.primitives import linear_solve_p

from jax2onnx import compat
from jax2onnx.decompose.registry import decomposes


@decomposes(linear_solve_p)
def custom_linear_solve(*operands: Array, const_lengths: Any, jaxprs: Any) -> list[Array]:
    """A call of `solve`. Operands: the constants of matvec, vecmat, solve and transpose_solve, then the right side."""
    before = const_lengths.matvec + const_lengths.vecmat
    constants = operands[before : before + const_lengths.solve]
    return jaxpr_as_fun(compat.programs.closed_jaxpr(jaxprs.solve))(*constants, *operands[sum(const_lengths) :])
