"""Elements that are read one by one, although many lie side by side: the windows of a signal are gathered in blocks.

Frames of 400 samples, one every 160, are five blocks of 80 each. A row of 80 takes ONNX Runtime as long as 16 elements.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from jax2onnx.dimensions import is_static
from jax2onnx.optimize.engine import Rewriter, RuleSet
from jax2onnx.optimize.queries import KNOWN, attribute, constant, dims, producer

RULES = RuleSet()

SHORT = 16
"""Blocks of fewer elements are not read faster than these are."""

MANY = 1 << 22
"""Of more elements, it takes too long to see where they are."""


@RULES.rewrites("Gather", "GatherElements", given=lambda origins: origins[1] in (KNOWN, "Add", "Reshape", "Expand"))
def gather_blocks(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Known places along the last axis, in runs that start and end with blocks of one size."""
    x, index, y = node.inputs[0], node.inputs[1], node.outputs[0]
    assert x is not None and index is not None
    *lead, size = dims(x)
    if attribute(node, "axis", 0) % (len(lead) + 1) != len(lead) or not is_static((size, *dims(y))):
        return None
    if node.op_type == "GatherElements" and lead:  # the same places in each row
        repeated = producer(index, "Expand")
        index = repeated.inputs[0] if repeated is not None else None
        if index is None or len(lead) > 1 or dims(index) not in (dims(y)[1:], (1, *dims(y)[1:])):
            return None
    places = _places(index)
    if places is None or places.min() < 0 or places.max() >= size:
        return None
    starts = np.flatnonzero(np.diff(places, prepend=places[0]) != 1)
    block = int(np.gcd.reduce([places.size, *starts, *places[starts]]))
    if block < SHORT or len(starts) < 2:  # a single run is a slice
        return None
    count = int(size) // block
    if count * block != size:
        ends = (r.const([i], np.int64) for i in (0, count * block, len(lead)))
        x = r.op("Slice", x, *ends, like=x, shape=(*lead, count * block))
    shape = (*lead, count, block)
    blocks = r.op("Reshape", x, r.const(shape, np.int64), like=x, shape=shape)
    wanted = places[::block] // block
    rows = r.op("Gather", blocks, r.const(wanted, np.int64), like=y, shape=(*lead, wanted.size, block), axis=len(lead))
    return r.op("Reshape", rows, r.const(dims(y), np.int64), like=y)


def _places(index: ir.Value) -> np.ndarray | None:
    """The elements of an index, if they are known, or are sums of known numbers, and seem to follow each other."""
    flat = producer(index, "Reshape")
    whole = flat.inputs[0] if flat is not None and flat.inputs[0] is not None else index
    shape, total = dims(whole), producer(whole, "Add")
    if not is_static(shape) or not 0 < math.prod(shape) <= MANY or not shape or shape[-1] < SHORT:  # type: ignore
        return None
    parts = [constant(v) for v in (total.inputs if total is not None else [whole])]
    known = [part for part in parts if part is not None and part.ndim]
    if len(known) < len(parts):
        return None
    start = sum(part[(0,) * (part.ndim - 1)][:SHORT].astype(np.int64) for part in known)
    if not (np.diff(start) == 1).all():
        return None
    return np.broadcast_to(sum(part.astype(np.int64) for part in known), shape).reshape(-1)  # type: ignore[arg-type]
