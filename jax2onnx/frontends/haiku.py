"""Haiku: a pair (transformed, params), or (transformed, params, state)."""

from __future__ import annotations

import functools
from typing import Any

import haiku as hk
import jax

from jax2onnx.frontends import Source
from jax2onnx.names import tree_paths


def source_of(target: Any) -> Source | None:
    """`apply` with the parameters (and the state) filled in, and no random key."""
    if not (isinstance(target, tuple) and target and isinstance(target[0], hk.Transformed | hk.TransformedWithState)):
        return None
    transformed, *filled = target
    call = functools.partial(transformed.apply, *filled, None)
    arrays = dict(zip(tree_paths("", filled[0]), jax.tree.leaves(filled[0]), strict=True))
    return Source(call, arrays)
