"""How to change a shape that may have symbolic dimensions without computing the new shape while the model runs.

Shapes are sequences of ints and anything else that says which sizes are equal: dimension expressions, or their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax2onnx.dimensions import is_static

RESHAPES = ("Reshape", "Squeeze", "Unsqueeze")
"""Operators that change the shape and keep the elements in order."""


def reshape_operand(old: Sequence[Any], new: Sequence[Any]) -> tuple[list[int] | None, bool]:
    """The shape operand of a Reshape if it can be a constant (with 0 for "as it was", -1 for "the rest"), and whether a
    0 in it means a size of zero. None where the shape has to be computed."""
    if is_static(new):
        return list(new), 0 in new
    if 0 in [d for d in new if isinstance(d, int)]:
        return None, True  # Reshape cannot have both meanings of 0
    operand = [
        d if isinstance(d, int) else 0 if i < len(old) and old[i] is not None and d == old[i] else -1
        for i, d in enumerate(new)
    ]
    rests = operand.count(-1)
    if rests > 1 or (rests and 0 in operand):
        return None, True  # "the rest" of nothing is not defined: beside a -1, no size may turn out to be 0
    return operand, False


def unit_axes(old: Sequence[Any], new: Sequence[Any]) -> tuple[list[int], list[int]] | None:
    """The axes of size 1 to remove from `old`, and those that are then added in `new`; None if more is different."""
    (old_sizes, old_units), (new_sizes, new_units) = _groups(old), _groups(new)
    if old_sizes != new_sizes:
        return None
    pairs = list(zip(old_units, new_units, strict=True))
    removed = [axis for before, after in pairs for axis in before[len(after) :]]
    added = [axis for before, after in pairs for axis in after[len(before) :]]
    return removed, added


def _groups(shape: Sequence[Any]) -> tuple[list[Any], list[list[int]]]:
    """The sizes that are not 1, and the axes of size 1 before each of them and at the end."""
    sizes: list[Any] = []
    units: list[list[int]] = [[]]
    for axis, dim in enumerate(shape):
        if isinstance(dim, int) and dim == 1:
            units[-1].append(axis)
        else:
            sizes.append(dim)
            units.append([])
    return sizes, units
