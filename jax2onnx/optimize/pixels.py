"""Blocks of pixels as channels, and back, or channels in another order: written as reshape, transpose, reshape."""

from __future__ import annotations

import math
import re

import numpy as np
import onnx_ir as ir

from jax2onnx.dimensions import is_static
from jax2onnx.optimize.engine import Rewriter, RuleSet, first
from jax2onnx.optimize.layout import channels_first, channels_last
from jax2onnx.optimize.queries import Dims, attribute, dims, only_user, producer

RULES = RuleSet()

# By the order of the axes (n, h, w, ...) that the channels are split into: how they are numbered.
_TO_SPACE = {(0, 1, 3, 2, 4, 5): "DCR", (0, 1, 4, 2, 5, 3): "CRD"}
_TO_DEPTH = (0, 1, 3, 2, 4, 5)

_NO_BLOCKS = (ir.DataType.INT64, ir.DataType.UINT64)
"""Types of which runtimes shuffle no blocks, and neither can another type that holds them."""


@RULES.rewrites("Reshape", given=first("Transpose"))
def shuffle_pixels(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """DepthToSpace or SpaceToDepth, where the channels came first: the Transpose that moved them comes after it."""
    y, shuffle = node.outputs[0], producer(node.inputs[0], "Transpose")
    split = None if shuffle is None else producer(shuffle.inputs[0], "Reshape")
    found = None if split is None else channels_last(split.inputs[0])
    if shuffle is None or split is None or found is None or len(dims(y)) != 4 or len(dims(split.outputs[0])) != 6:
        return None
    if (
        y.dtype in _NO_BLOCKS
        or len(found[1]) != 4
        or only_user(split.outputs[0]) is None
        or only_user(shuffle.outputs[0]) is None
    ):
        return None
    x, perm = found
    order = tuple(attribute(shuffle, "perm"))
    before, between, after = dims(split.inputs[0]), dims(split.outputs[0]), dims(y)
    first = (after[0], after[3], after[1], after[2])
    if order in _TO_SPACE:
        _, _, a, _, b, _ = (between[i] for i in order)
        if between[:3] == before[:3] and a == b and _are_blocks(deep=before, wide=after, by=a):
            moved = r.op("DepthToSpace", x, like=y, shape=first, blocksize=a, mode=_TO_SPACE[order])
            return r.op("Transpose", moved, like=y, perm=perm)
    if order == _TO_DEPTH:
        n, h, a, w, b, c = between
        if after[:3] == (n, h, w) and a == b and before[3] == c and _are_blocks(deep=after, wide=before, by=a):
            moved = r.op("SpaceToDepth", x, like=y, shape=first, blocksize=a)
            return r.op("Transpose", moved, like=y, perm=perm)
    return None


def _are_blocks(deep: Dims, wide: Dims, by: int | str) -> bool:
    """Whether one shape has `by` times the height and width of the other, and so many fewer channels."""
    n, h, w, channels = deep
    if not isinstance(by, int) or by == 0 or not isinstance(channels, int) or channels % by**2:
        return False
    return wide == (n, times(h, by), times(w, by), channels // by**2)


def times(size: int | str, factor: int) -> int | str | None:
    """A multiple of a dimension as it is written; None for a sum, whose multiple is written in another way."""
    if isinstance(size, int) or factor == 1:
        return size * factor if isinstance(size, int) else size
    terms, found = size, 1
    while found:
        terms, found = re.subn(r"\([^()]*\)", "", terms)
    if "+" in terms or "-" in terms:
        return None
    number, _, rest = size.partition("*")
    return f"{factor * int(number)}*{rest}" if number.isdecimal() else f"{factor}*{size}"


@RULES.rewrites("Reshape", given=first("Transpose"))
def shuffle_channels(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Channels that are shuffled behind the Transpose are picked in their new order before it."""
    shuffled, y = _shuffled(node.outputs[0]), node.outputs[0]
    found = channels_last(shuffled[0]) if shuffled is not None else None
    if shuffled is None or found is None:
        return None
    x, perm = found
    return r.op("Transpose", r.op("Gather", x, r.const(shuffled[1], np.int64), like=x, axis=1), like=y, perm=perm)


@RULES.rewrites("Transpose", given=first("Reshape"))
def shuffle_channels_in_front(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Channels that are shuffled, then moved to the front: moved, then picked in their new order."""
    shuffled, perm = _shuffled(node.inputs[0]), list(attribute(node, "perm"))
    if shuffled is None or perm != channels_first(len(perm)) or only_user(node.inputs[0]) is None:  # type: ignore[arg-type]
        return None
    y = node.outputs[0]
    moved = r.op("Transpose", shuffled[0], like=y, perm=perm)
    return r.op("Gather", moved, r.const(shuffled[1], np.int64), like=y, axis=1)


def _shuffled(value: ir.Value | None) -> tuple[ir.Value, np.ndarray] | None:
    """(x, order) if the last axis of x is written as a matrix, and read along its columns: as x[..., order]."""
    join = producer(value, "Reshape")
    turn = producer(join.inputs[0], "Transpose") if join is not None else None
    matrix = producer(turn.inputs[0], "Reshape") if turn is not None else None
    x = matrix.inputs[0] if matrix is not None else None
    if value is None or turn is None or matrix is None or x is None or only_user(turn.outputs[0]) is None:
        return None
    lead, sizes, perm = len(dims(x)) - 1, dims(matrix.outputs[0]), list(attribute(turn, "perm"))
    if dims(value) != dims(x) or sizes[:lead] != dims(x)[:lead] or perm[:lead] != list(range(lead)):
        return None
    if not is_static(sizes[lead:]):
        return None
    numbers = np.arange(math.prod(sizes[lead:])).reshape(sizes[lead:])  # type: ignore[arg-type]
    return x, numbers.transpose([axis - lead for axis in perm[lead:]]).reshape(-1)
