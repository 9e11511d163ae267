"""Axes that are moved, and moved on after something that does not care about their order, are moved once.

Batching over heads or groups puts an axis in front for a softmax, and back for the product that follows.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from jax2onnx.attributes import values_of
from jax2onnx.optimize.engine import Rewriter, RuleSet, first
from jax2onnx.optimize.queries import Dims, attribute, dims, only_user, producer
from jax2onnx.optimize.units import BINARY, UNARY
from jax2onnx.reshapes import reshape_operand

RULES = RuleSet()

SOFTMAX = ("Softmax", "LogSoftmax")
STOPS = (*UNARY, *BINARY, *SOFTMAX)
MAX_STOPS = 8


@RULES.rewrites("Transpose", given=first(*STOPS))
def move_once(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """transpose(f(transpose(x))) = transpose(f(x)), where f treats the axes that move alike."""
    value, stops = node.inputs[0], list[tuple[ir.Node, int]]()
    while value is not None and only_user(value) is not None and len(stops) < MAX_STOPS:
        stop = producer(value, *STOPS)
        way = _way(stop) if stop is not None and not stop.domain else None
        if stop is None or way is None:
            break
        stops.append((stop, way))
        value = stop.inputs[way]
    before = producer(value, "Transpose")
    if value is None or before is None or before.inputs[0] is None or only_user(value) is None or not stops:
        return None
    perm = list(attribute(before, "perm"))
    kept = next((i for i, axis in enumerate(reversed(perm)) if axis != len(perm) - 1 - i), len(perm))
    if not all(_is_about(stop, way, kept) for stop, way in stops):
        return None
    x = result = before.inputs[0]
    for stop, way in reversed(stops):
        operands = list(stop.inputs)
        operands[way] = result
        attributes = values_of(stop)
        result = r.op(stop.op_type, *operands, like=stop.outputs[0], shape=dims(x), **attributes)
    both = [perm[i] for i in attribute(node, "perm")]
    return result if both == sorted(both) else r.op("Transpose", result, like=node.outputs[0], perm=both)


def _way(stop: ir.Node) -> int | None:
    """Which operand has the shape of the result, if only one does."""
    found = [i for i, v in enumerate(stop.inputs) if v is not None and dims(v) == dims(stop.outputs[0])]
    return found[0] if len(found) == 1 else None


def _is_about(stop: ir.Node, way: int, kept: int) -> bool:
    """Does a node treat all axes alike, but for the last `kept`?"""
    if stop.op_type in SOFTMAX:
        rank = len(dims(stop.outputs[0]))
        return attribute(stop, "axis", -1) % rank >= rank - kept
    return all(v is None or i == way or _rank_without_ones(dims(v)) <= kept for i, v in enumerate(stop.inputs))


def _rank_without_ones(shape: Dims) -> int:
    return len(shape) - next((i for i, d in enumerate(shape) if d != 1), len(shape))


@RULES.rewrites("Transpose", given=first("Reshape"))
def transpose_before_merging(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Axes that are moved, those behind them joined, and moved again: moved once, then joined."""
    joined, y, perm = node.inputs[0], node.outputs[0], list(attribute(node, "perm"))
    join = producer(joined, "Reshape")
    x = join.inputs[0] if join is not None else None
    if joined is None or x is None or producer(x, "Transpose") is None or only_user(joined) is None:
        return None
    kept = len(perm) - 1
    if perm[-1] != kept or dims(x)[:kept] != dims(joined)[:kept] or len(dims(x)) <= len(perm):
        return None
    whole = [*perm[:-1], *range(kept, len(dims(x)))]
    shape = tuple(dims(x)[i] for i in whole)
    target, is_zero_size = reshape_operand(shape, dims(y))
    if target is None or is_zero_size:
        return None
    moved = r.op("Transpose", x, like=x, shape=shape, perm=whole)
    return r.op("Reshape", moved, r.const(target, np.int64), like=y)
