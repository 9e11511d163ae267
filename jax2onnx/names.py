"""Names of the leaves of pytrees: their keys joined by slashes, `params/encoder/kernel`."""

from __future__ import annotations

from typing import Any

from jax import tree_util


def tree_paths(prefix: str, tree: Any) -> list[str]:
    """The path of each leaf of `tree`, below `prefix`."""
    keys = [[tree_util.keystr((k,), simple=True) for k in path] for path, _ in tree_util.tree_leaves_with_path(tree)]
    return ["/".join([prefix, *path] if prefix else path) for path in keys]
