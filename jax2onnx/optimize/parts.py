"""Slices that are all the parts of an array, side by side, are one Split.

Programs that take `x[:, :n]` and `x[:, n:]`, or the three rows of a stacked projection, mean that, too. In ONNX Runtime
both take the same time; it comes last, for the other rules only read slices.
"""

from __future__ import annotations

import onnx_ir as ir

from jax2onnx.optimize.engine import Rewriter, RuleSet
from jax2onnx.optimize.queries import dims
from jax2onnx.optimize.slices import cut_of

LAST = RuleSet()

MOST_USERS = 64
"""Of an array that is used more often it is not asked what is cut from it: the cost stays linear."""


@LAST.rewrites("Slice")
def split_into_parts(r: Rewriter, node: ir.Node) -> tuple[ir.Value, ...] | None:
    """All slices along an axis of an array, if they are all of it and have nothing in common."""
    own = cut_of(node.outputs[0])
    if own is None or len(own.ranges) != 1 or len(own.x.uses()) > MOST_USERS or 0 in dims(own.x):
        return None
    ((axis, _),) = own.ranges.items()
    parts: dict[tuple[int, int], ir.Node] = {}
    for user in own.x.consumers():
        cut = cut_of(user.outputs[0]) if user.op_type == "Slice" else None
        if cut is None or cut.x is not own.x or list(cut.ranges) != [axis]:
            continue
        if user.graph is not node.graph or cut.ranges[axis] in parts:
            return None
        parts[cut.ranges[axis]] = user
    spans = sorted(parts)
    ends = [0, *(end for _, end in spans)]
    if len(spans) < 2 or ends[-1] != dims(own.x)[axis] or any(s != e for (s, _), e in zip(spans, ends, strict=False)):
        return None
    results = r.split(own.x, [end - start for start, end in spans], axis)
    for span, part in zip(spans, results, strict=True):
        if parts[span] is node:
            found = part
        else:
            r.redirect(parts[span].outputs[0], part)
    return (found,)
