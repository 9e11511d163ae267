"""Haiku: (transformed, params) or (transformed, params, state)."""

from __future__ import annotations

import inspect
from typing import Any

import haiku as hk
import jax

from jax2onnx.errors import InputError
from jax2onnx.frontends import Source
from jax2onnx.paths import tree_paths


def source_of(target: Any) -> Source | None:
    """`apply` with the parameters (and the state) filled in, without a random key unless `rng=` is given."""
    if isinstance(target, hk.Transformed | hk.TransformedWithState):
        raise InputError("A Haiku function has no weights. Give (transformed, params) or (transformed, params, state).")
    if not (isinstance(target, tuple) and target and isinstance(target[0], hk.Transformed | hk.TransformedWithState)):
        return None
    transformed, *filled = target
    wanted = ("params", "state") if isinstance(transformed, hk.TransformedWithState) else ("params",)
    if len(filled) != len(wanted):
        raise InputError(f"Give a tuple (transformed, {', '.join(wanted)}), not {len(target)} things.")

    parameters = list(inspect.signature(transformed.apply).parameters.values())[len(filled) :]
    has_rng = bool(parameters) and parameters[0].name == "rng"  # not so after hk.without_apply_rng

    def call(*args: Any, **kwargs: Any) -> Any:
        key = (kwargs.pop("rng", None),) if has_rng else ()
        return transformed.apply(*filled, *key, *args, **kwargs)

    if has_rng:
        rng = parameters[0].replace(kind=inspect.Parameter.KEYWORD_ONLY, default=None)
        star = [p for p in parameters if p.kind is inspect.Parameter.VAR_KEYWORD]
        parameters = [*(p for p in parameters[1:] if p not in star), rng, *star]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    arrays = dict(zip(tree_paths("", filled[0]), jax.tree.leaves(filled[0]), strict=True))
    return Source(call, arrays)
