"""The pytree structure of a model's inputs and outputs, as text that a model can carry.

    describe({"image": "batch/image", "sizes": ("s0", "s1")})
    -> {"dict": {"image": "batch/image", "sizes": {"tuple": ["s0", "s1"]}}}

A leaf is the name of an input or output. A named tuple becomes one with the same name and fields, nodes of other kinds
(dataclasses, modules, dictionaries by other keys than strings or integers) become ordered dictionaries by field, index,
or key as text, because their class may not exist where the model runs. All have their leaves in the same order.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from jax import tree_util

NAMED = "namedtuple "
NUMBERED = "dict of integers"


def describe(tree: Any) -> Any:
    """A tree whose leaves are names, as JSON."""
    if isinstance(tree, str) or tree is None:
        return tree
    if type(tree) in (tuple, list):
        return {type(tree).__name__: [describe(child) for child in tree]}
    children, _ = tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)
    kind = "fields"
    if type(tree) is dict:
        kind = {(): "dict", (str,): "dict", (int,): NUMBERED}.get(tuple({type(key) for key in tree}), kind)
    elif isinstance(tree, tuple) and hasattr(tree, "_fields"):
        kind = NAMED + type(tree).__name__
    return {kind: {tree_util.keystr(path, simple=True): describe(child) for path, child in children}}


def names(description: Any) -> Iterator[str]:
    """The names in a description, in order."""
    if isinstance(description, str):
        yield description
    elif description is not None:
        ((_, children),) = description.items()
        for child in children.values() if isinstance(children, dict) else children:
            yield from names(child)


def rebuild(description: Any, values: Mapping[str, Any]) -> Any:
    """The tree with the value of each name in its place."""
    if description is None:
        return None
    if isinstance(description, str):
        return values[description]
    ((kind, children),) = description.items()
    if isinstance(children, dict):
        fields = {key: rebuild(child, values) for key, child in children.items()}
        if kind.startswith(NAMED):
            return _named_tuple(kind.removeprefix(NAMED), tuple(fields))(*fields.values())
        if kind == NUMBERED:
            return {int(key): field for key, field in fields.items()}
        return fields if kind == "dict" else collections.OrderedDict(fields)
    items = [rebuild(child, values) for child in children]
    return tuple(items) if kind == "tuple" else items


@functools.cache
def _named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    """The same class each time: trees of different classes cannot be combined."""
    return collections.namedtuple(name, fields, rename=True)  # type: ignore[misc]


def assign(description: Any, tree: Any) -> dict[str, Any]:
    """The value of each name, taken from a tree of this structure. Raises ValueError where the tree is different."""
    if description is None:
        if tree is not None:
            raise ValueError(f"expected None, got a {type(tree).__name__}")
        return {}
    if isinstance(description, str):
        return {description: tree}
    ((kind, children),) = description.items()
    parts: Mapping[str, Any]
    if isinstance(children, dict):
        if not isinstance(tree, Mapping):
            found, _ = tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)
            tree = {tree_util.keystr(path, simple=True): child for path, child in found}
        tree = {str(key): child for key, child in tree.items()}
        if set(tree) != set(children):
            raise ValueError(f"expected the keys {sorted(children)}, got {sorted(tree)}")
        parts, pairs = tree, children.items()
        chosen = [(child, parts[key]) for key, child in pairs]
    else:
        if not isinstance(tree, tuple | list) or len(tree) != len(children):
            got = f" of {len(tree)}" if isinstance(tree, tuple | list) else ""
            raise ValueError(f"expected a {kind} of {len(children)}, got a {type(tree).__name__}{got}")
        chosen = list(zip(children, tree, strict=True))
    result: dict[str, Any] = {}
    for child, value in chosen:
        result.update(assign(child, value))
    return result
