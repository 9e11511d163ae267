"""Blocks of pixels as channels, and back: what channels-last code writes as reshape, transpose, reshape."""

from __future__ import annotations

import onnx_ir as ir

from jax2onnx.optimize.engine import Rewriter, RuleSet, first
from jax2onnx.optimize.layout import channels_last
from jax2onnx.optimize.queries import Dims, attribute, dims, only_user, producer

RULES = RuleSet()

# By the order of the axes (n, h, w, ...) that the channels are split into: how they are numbered.
_TO_SPACE = {(0, 1, 3, 2, 4, 5): "DCR", (0, 1, 4, 2, 5, 3): "CRD"}
_TO_DEPTH = (0, 1, 3, 2, 4, 5)


@RULES.rewrites("Reshape", given=first("Transpose"))
def shuffle_pixels(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """DepthToSpace or SpaceToDepth, where the channels came first: the Transpose that moved them comes after it."""
    y, shuffle = node.outputs[0], producer(node.inputs[0], "Transpose")
    split = None if shuffle is None else producer(shuffle.inputs[0], "Reshape")
    found = None if split is None else channels_last(split.inputs[0])
    if shuffle is None or split is None or found is None or len(dims(y)) != 4 or len(dims(split.outputs[0])) != 6:
        return None
    if len(found[1]) != 4 or only_user(split.outputs[0]) is None or only_user(shuffle.outputs[0]) is None:
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
    return wide == (n, _times(h, by), _times(w, by), channels // by**2)


def _times(size: int | str, factor: int) -> int | str | None:
    """A multiple of a dimension as it is written; None for a sum, whose multiple is written in another way."""
    if isinstance(size, int):
        return size * factor
    return None if {"+", "-"} & set(size) else f"{factor}*{size}"
