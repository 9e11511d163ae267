"""Code that depends on the platform: a model is computed as on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from jax2onnx import compat
from jax2onnx.decompose.registry import decomposes
from jax2onnx.errors import UnsupportedError

Platforms = Sequence[tuple[str, ...] | None]
"""For each choice the platforms it is for; None for the default."""


def _choice(platforms: Platforms) -> int:
    for i, names in enumerate(platforms):
        if names is None or "cpu" in names:
            return i
    raise UnsupportedError(f"The program has no code for the CPU here, just for {platforms}.")


@decomposes(*compat.kinds.primitives("platform_index"))
def platform_index(*, platforms: Platforms) -> Any:
    """The number of the choice."""
    return np.int32(_choice(platforms))


@decomposes(lax.cond_p, when=lambda avals, params: params.get("branches_platforms") is not None)
def platform_dependent(
    index: Any, *operands: Any, branches: Sequence[ClosedJaxpr], branches_platforms: Platforms, **_: Any
) -> Any:
    """Only the chosen branch: the others may be full of primitives of another platform."""
    return jaxpr_as_fun(branches[_choice(branches_platforms)])(*operands)
