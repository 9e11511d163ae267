"""What is callable here, which arrays are its weights, and what are they called.

A front end looks at the object that is exported. It returns a `Source`: a plain function to trace, and the names of the
arrays inside it. No library is imported that the caller has not imported, and nothing of any library is changed.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from types import CodeType
from typing import Any, NamedTuple

import jax
import numpy as np

from jax2onnx.paths import tree_paths


class Source(NamedTuple):
    """A function that JAX can trace, and its arrays by name."""

    fn: Callable[..., Any]
    arrays: Mapping[str, Any]


def source_of(target: Any) -> Source:
    """Make what the caller gave into something that can be traced."""
    for library in ("flax.nnx", "flax.linen", "haiku", "keras", "equinox"):
        if library in sys.modules:
            found = import_module(f"jax2onnx.frontends.{library.split('.')[-1]}").source_of(target)
            if found is not None:
                return found
    return Source(target, dict(arrays_inside(target)))


def arrays_inside(target: Any) -> Iterator[tuple[str, Any]]:
    """The arrays that a callable holds on to: as a pytree, as a bound or partial argument, or in its closure."""
    if isinstance(target, functools.partial):
        names = parameter_names(target.func, len(target.args))
        yield from _named(dict(zip(names, target.args, strict=True)) | dict(target.keywords))
        yield from arrays_inside(target.func)
        return
    yield from _named(held_by(target))
    yield from _named_tree("", target)
    owner = getattr(target, "__self__", None)
    if owner is not None:
        yield from _named_tree("", owner)
    wrapped = getattr(target, "__wrapped__", None)  # its names are better than those of what is around it
    if wrapped is not None:
        yield from arrays_inside(wrapped)


def held_by(fn: Any) -> dict[str, Any]:
    """What a function holds on to: the variables of its closure, and the global ones that it mentions."""
    code, cells = getattr(fn, "__code__", None), getattr(fn, "__closure__", None)
    if code is None:
        return {}
    closure = {n: c.cell_contents for n, c in zip(code.co_freevars, cells or (), strict=True) if _is_filled(c)}
    return {n: fn.__globals__[n] for n in _mentioned(code) if n in fn.__globals__} | closure


def _mentioned(code: CodeType) -> Iterator[str]:
    """The names that a function mentions, also in functions that it defines."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _mentioned(constant)


def parameter_names(fn: Any, count: int) -> list[str]:
    """The names of the first parameters of a function, numbers where it has none."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature
        parameters = []
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [named[i] if i < len(named) else str(i) for i in range(count)]


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # a variable that is assigned later
        return False


def _named(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        yield from _named_tree(name, value)


def _named_tree(prefix: str, tree: Any) -> Iterator[tuple[str, Any]]:
    """The arrays in a pytree with their paths; an ordinary object is looked at one level deep."""
    leaves = jax.tree.leaves(tree)
    if len(leaves) == 1 and leaves[0] is tree:
        if isinstance(tree, jax.Array | np.ndarray):
            yield prefix, tree
        elif hasattr(tree, "__dict__") and not isinstance(tree, type):
            arrays = {k: v for k, v in vars(tree).items() if isinstance(v, jax.Array | np.ndarray)}
            yield from ((f"{prefix}/{k}" if prefix else k, v) for k, v in arrays.items())
        return
    for path, leaf in zip(tree_paths(prefix, tree), leaves, strict=True):
        if isinstance(leaf, jax.Array | np.ndarray):
            yield path, leaf
