"""Flax Linen: a pair (module, variables), a bound module, or a method of one."""

from __future__ import annotations

import inspect
from typing import Any

import jax
from flax import linen

from jax2onnx.errors import InputError
from jax2onnx.frontends import Source
from jax2onnx.paths import tree_paths


def source_of(target: Any) -> Source | None:
    """`apply` with the variables filled in, called like the module; `rngs`, `mutable`, ... are keyword arguments."""
    method, bound = None, {}
    if isinstance(target, tuple) and len(target) == 2 and isinstance(target[0], linen.Module):
        module, variables = target
    else:
        if inspect.ismethod(target):
            if isinstance(target.__self__, linen.Module) and target.__func__ in (linen.Module.apply, linen.Module.init):
                return None  # which take the variables as an argument
            target, method = target.__self__, target.__func__
        if not isinstance(target, linen.Module):
            return None
        if target.scope is None:
            name = type(target).__name__
            raise InputError(f"The Linen module {name} has no weights. Give a pair (module, variables).")
        bound = {"rngs": dict(target.scope.rngs) or None, "mutable": target.scope.mutable}
        module, variables = target.unbind()

    def call(*args: Any, **kwargs: Any) -> Any:
        result = module.apply(variables, *args, **{"method": method, **bound} | kwargs)
        # A bound module keeps what it changes to itself.
        return result if kwargs.get("mutable") or not bound.get("mutable") else result[0]

    call.__signature__ = _signature(module, method)  # type: ignore[attr-defined]
    call.__name__ = type(module).__name__
    arrays = dict(zip(tree_paths("", variables), jax.tree.leaves(variables), strict=True))
    return Source(call, arrays)


def _signature(module: linen.Module, method: Any) -> inspect.Signature:
    """That of the module's call, or of another method, with any keywords."""
    own = inspect.signature(method or type(module).__call__)
    _, *parameters = (p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD)
    return own.replace(parameters=[*parameters, inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)])
