"""Paths: of the leaves of pytrees, `params/encoder/kernel`, and of the named scopes of a program."""

from __future__ import annotations

import functools
import re
from typing import Any

from jax import tree_util


def tree_paths(prefix: str, tree: Any) -> list[str]:
    """The path of each leaf of `tree`, below `prefix`."""
    keys = [_without_box(path) for path, _ in tree_util.tree_leaves_with_path(tree)]
    return ["/".join([prefix, *path] if prefix else path) for path in keys]


def _without_box(path: tuple[Any, ...]) -> list[str]:
    """The keys of a path. That an array is the `value` of an object around it (a variable, metadata) says nothing."""
    if len(path) > 1 and path[-1] == tree_util.GetAttrKey("value"):
        path = path[:-1]
    return [tree_util.keystr((key,), simple=True) for key in path]


@functools.lru_cache(maxsize=4096)
def scope_parts(name_stack: str) -> tuple[str, ...]:
    """The named scopes in JAX's description of them: `vmap(encoder)/jvp()/dense` is encoder and dense."""
    parts = []
    for part in name_stack.split("/"):
        while (inner := re.fullmatch(r"\w+\((.*)\)", part)) is not None:
            part = inner.group(1)
        if part:
            parts.append(part)
    return tuple(parts)
