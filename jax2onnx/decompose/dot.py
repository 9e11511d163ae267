"""Matrix products of groups of rows, of scaled blocks, and those whose result is of another kind than the operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from jax2onnx import compat
from jax2onnx.decompose.registry import decomposes

for _primitive, _definition in compat.definitions.product_definitions().items():
    decomposes(_primitive)(_definition)


def _changes_kind(avals: Sequence[Any], params: Any) -> bool:
    """Is the result of floats an integer, or the result of reals complex?"""
    preferred = params["preferred_element_type"]
    if preferred is None:
        return False
    given = [aval.dtype for aval in avals]
    if jnp.issubdtype(preferred, np.integer):
        return any(jnp.issubdtype(dtype, np.inexact) for dtype in given)
    is_complex = [jnp.issubdtype(dtype, np.complexfloating) for dtype in given]
    return jnp.issubdtype(preferred, np.complexfloating) and not any(is_complex)


@decomposes(lax.dot_general_p, when=_changes_kind)
def dot_general(a: jax.Array, b: jax.Array, *, preferred_element_type: Any, **params: Any) -> jax.Array:
    """The sum is converted, not its terms: the product in the dtype of the operands, or of the parts of the result."""
    to_integer = jnp.issubdtype(preferred_element_type, np.integer)
    dtype = jnp.result_type(a, b) if to_integer else np.zeros((), preferred_element_type).real.dtype
    product = lax.dot_general_p.bind(a, b, preferred_element_type=dtype, **params)
    return lax.convert_element_type(product, preferred_element_type)
