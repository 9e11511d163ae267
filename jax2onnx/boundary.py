"""The form that JAX values have at a model's boundary.

Complex numbers are pairs of reals, keys are their data, tangents of integers (float0, which carry nothing) are False.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def at_boundary(x: Any) -> np.ndarray:
    """The array that stands for the JAX value `x` among a model's inputs or outputs."""
    x = x if isinstance(x, np.ndarray) else jax.numpy.asarray(x)
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    array = np.asarray(x)
    if array.dtype == jax.dtypes.float0:
        array = np.zeros(array.shape, bool)
    return np.stack([array.real, array.imag], axis=-1) if array.dtype.kind == "c" else array
