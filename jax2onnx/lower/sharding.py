"""Sharding over the one device that a model runs on: collectives over axes of size 1 do nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from jax2onnx import compat
from jax2onnx.errors import UnsupportedError
from jax2onnx.lower.context import Builder, Val
from jax2onnx.lower.registry import lowers


@lowers(*compat.kinds.primitives("shard_map"))
def shard_map(g: Builder, *args: Val, mesh: Any, **params: Any) -> list[Val]:
    """The function itself, if there is just one shard."""
    if mesh.size != 1:
        raise UnsupportedError(
            f"shard_map over {mesh.size} devices, at {compat.sources.source_line(g.eqn)}: a model runs on one device."
        )
    return g.session.lower_closed(g, compat.programs.callee(params), args)


@lowers(
    *compat.kinds.primitives(
        *("psum", "psum_invariant", "pmax", "pmin", "ppermute", "pbroadcast", "all_gather", "all_gather_invariant"),
        *("all_gather_reduced", "all_to_all", "reduce_scatter", "unreduced_psum", "unreduced_reduce_scatter"),
        *("preduced", "reduced_vary_cast", "vary_unreduced_cast", "reshard", "relayout", "layout_constraint"),
        *("device_put", "with_memory_space_constraint"),
    )
)
def among_one(g: Builder, *xs: Val, **_: Any) -> list[Val]:
    """What is exchanged between devices, or put on one. Some of these add or remove an axis for the devices."""
    return [g.reshape(x, aval.shape) for x, aval in zip(xs, g.avals_out, strict=True)]


@lowers(*compat.kinds.primitives("axis_index"))
def axis_index(g: Builder, **_: Any) -> Val:
    """The number of this device."""
    return g.const(np.asarray(0, g.avals_out[0].dtype))
