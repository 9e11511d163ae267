"""Flax Linen: a pair (module, variables), or a bound module."""

from __future__ import annotations

import functools
from typing import Any

from flax import linen

from jax2onnx.frontends import Source
from jax2onnx.names import tree_paths


def source_of(target: Any) -> Source | None:
    """What to call, with the variables by their paths."""
    if isinstance(target, tuple) and len(target) == 2 and isinstance(target[0], linen.Module):
        module, variables = target
    elif isinstance(target, linen.Module) and target.scope is not None:
        module, variables = target.unbind()
    else:
        return None
    import jax

    arrays = dict(zip(tree_paths("", variables), jax.tree.leaves(variables), strict=True))
    return Source(functools.partial(module.apply, variables), arrays)
