"""Collectives over an axis of the array: what `vmap` with an `axis_name` makes of psum, pmax and pmin."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

from jax2onnx import compat
from jax2onnx.decompose.registry import decomposes

REDUCTIONS = {"psum": lax.reduce_sum, "pmax": lax.reduce_max, "pmin": lax.reduce_min}


def _has_positions(_: Any, params: dict[str, Any]) -> bool:
    return any(isinstance(axis, int) for axis in params["axes"])


def collective(reduce: Callable[..., Any], x: Any, *, axes: Sequence[Any], **_: Any) -> Any:
    """A reduction. The axes with names are those of devices, of which there is one."""
    return reduce(x, [axis for axis in axes if isinstance(axis, int)])


for name, reduce in REDUCTIONS.items():
    decomposes(*compat.kinds.primitives(name), when=_has_positions)(functools.partial(collective, reduce))
