"""SAME padding of sizes that vary: ONNX has a name for it (`auto_pad`), which takes no arithmetic on shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax

Padding = Sequence[tuple[Any, Any]]

_KINDS = {"SAME_UPPER": "SAME", "SAME_LOWER": "SAME_LOWER"}  # ONNX's names, and JAX's


def is_known(padding: Padding) -> bool:
    """Is the padding of all axes a number, and none of it negative?"""
    return all(isinstance(p, int) and p >= 0 for pair in padding for p in pair)


def auto_pad(
    space: Sequence[Any], window: Sequence[int], strides: Sequence[int], dilations: Sequence[int], padding: Padding
) -> str | None:
    """What ONNX calls `padding`, if it is SAME padding for every size of `space`; None for any other.

    ONNX Runtime does not do this with dilation, and pads by less than nothing where a window is smaller than its
    stride.
    """
    if set(dilations) != {1} or not all(isinstance(k, int) and k >= s for k, s in zip(window, strides, strict=True)):
        return None
    for name, kind in _KINDS.items():
        if _is_same(space, window, strides, padding, kind):
            return name
    return None


def without_needless(
    space: Sequence[Any], window: Sequence[int], strides: Sequence[int], padding: Padding
) -> list[tuple[Any, Any]]:
    """`padding`, with zeros for SAME padding of a window of size 1, of which JAX cannot tell that it is none."""

    def is_needless(size: Any, width: int, stride: int, pair: tuple[Any, Any]) -> bool:
        return width == 1 and any(_is_same([size], [1], [stride], [pair], kind) for kind in _KINDS.values())

    along = zip(space, window, strides, padding, strict=True)
    return [(0, 0) if is_needless(*axis) else axis[-1] for axis in along]


def _is_same(space: Sequence[Any], window: Sequence[int], strides: Sequence[int], padding: Padding, kind: str) -> bool:
    same = lax.padtype_to_pads(list(space), list(window), list(strides), kind)
    return [tuple(pair) for pair in padding] == [tuple(pair) for pair in same]
