"""How to reduce axes that have others behind them, so that ONNX Runtime is fast: in one step, or in two.

It is slow at extremes of many rows, and at anything of fewer matrices than it has threads. (`FACTS.md` has numbers.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from jax2onnx.dimensions import is_static
from jax2onnx.reshapes import reshape_operand

MANY = 4096
"""From so many elements of a matrix on, another way pays."""

FEW_MATRICES = 4
"""There may be more threads than that."""

MANY_ROWS = 128
"""With fewer rows, extremes of several matrices are as fast in one step."""

FEW_BLOCKS = 4
"""In fewer blocks than that, a matrix is not worth two steps."""


class Columns(NamedTuple):
    """The sizes of an array: before the axes that are reduced, of these, and behind them."""

    before: tuple[Any, ...]
    rows: tuple[int, ...]
    behind: tuple[int, ...]

    def are_few(self) -> bool:
        """May there be fewer matrices than threads?"""
        return math.prod(d for d in self.before if isinstance(d, int)) < FEW_MATRICES


class Steps(NamedTuple):
    """A reduction in two steps of an array of this shape: of the axis behind `axis`, and then of that."""

    shape: list[Any]
    operand: list[int]
    axis: int
    keeps_first: bool

    def after_first(self) -> list[Any]:
        """The shape after the first step."""
        return [*self.shape[: self.axis + 1], *([1] if self.keeps_first else []), *self.shape[self.axis + 2 :]]


def columns_of(shape: Sequence[Any], axes: Iterable[int]) -> Columns | None:
    """What is reduced if these are columns of large matrices, and the axes lie side by side."""
    reduced = sorted(a % len(shape) for a in axes)
    first, last = reduced[0], reduced[-1]
    found = Columns(tuple(shape[:first]), tuple(shape[first : last + 1]), tuple(shape[last + 1 :]))
    if reduced != list(range(first, last + 1)) or not is_static((*found.rows, *found.behind)):
        return None
    columns = math.prod(found.behind)
    return found if columns > 1 and math.prod(found.rows) * columns >= MANY else None


def extreme_in_two_steps(shape: Sequence[Any], axes: Iterable[int], *, keeps: bool) -> Steps | None:
    """How to take the largest or smallest of each column if two steps are faster; do the axes stay, with size 1?"""
    found = columns_of(shape, axes)
    if found is None or (math.prod(found.rows) < MANY_ROWS and not found.are_few()):
        return None
    return in_two_steps(found, keeps=keeps)


def in_two_steps(found: Columns, *, keeps: bool) -> Steps | None:
    """Blocks of rows, and then their results: as many blocks as there are rows in each, or fewer."""
    rows = math.prod(found.rows)
    blocks = next((n for n in range(math.isqrt(rows), FEW_BLOCKS - 1, -1) if rows % n == 0), None)
    if blocks is None:
        return None
    units = [1] * (len(found.rows) - 2) if keeps else []
    shape = [*found.before, *units, blocks, rows // blocks, *found.behind]
    operand, _ = reshape_operand([*found.before, *found.rows, *found.behind], shape)
    is_kept = keeps and len(found.rows) > 1
    return None if operand is None else Steps(shape, operand, len(found.before) + len(units), is_kept)
