"""Orders of axes, as a Transpose has them: the axis `i` of the result is the axis `perm[i]` of the operand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def permuted(items: Sequence[T], perm: Sequence[int]) -> tuple[T, ...]:
    """What belongs to the axes of an operand, in the order of the axes of the result.

    >>> permuted("NHWC", (0, 3, 1, 2))
    ('N', 'C', 'H', 'W')
    """
    return tuple(items[i] for i in perm)


def inverse(perm: Sequence[int]) -> list[int]:
    """The order that takes the axes back to where they were.

    >>> inverse((0, 3, 1, 2))
    [0, 2, 3, 1]
    """
    return [perm.index(i) for i in range(len(perm))]
