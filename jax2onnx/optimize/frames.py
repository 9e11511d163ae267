"""Axes of images that are split behind a convolution, and joined again before the next, as of films and ensembles.

What `vmap` batches has an axis more than a convolution takes: the images of all batches are one batch for it, or the
channels of all members its channels. What lies between does not care: it is done with the axes joined.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from jax2onnx.attributes import attributes_of
from jax2onnx.dimensions import is_static
from jax2onnx.optimize.engine import Rewriter, RuleSet, first, some
from jax2onnx.optimize.queries import Dims, attribute, axes_of, constant, dims, integers, producer, scalar
from jax2onnx.optimize.simplify import REDUCTIONS, RESHAPES, reshaped
from jax2onnx.optimize.units import BINARY, UNARY

RULES = RuleSet()

CONVOLUTIONS = ("Conv", "ConvTranspose")
LEAST_AXES = 4
"""Of an image: the number, the height, the width, the channels."""

LONGEST_WAY = 32
"""How many steps back a common origin is looked for."""


class _Split(NamedTuple):
    """x, with its first or last axis split into several."""

    x: ir.Value
    axis: int
    parts: Dims


def _split(value: ir.Value | None) -> _Split | None:
    node = producer(value, "Reshape")
    x = node.inputs[0] if node is not None else None
    if x is None or value is None or value.is_graph_output():
        return None
    before, after = dims(x), dims(value)
    rest = len(before) - 1
    if len(before) < LEAST_AXES or len(after) <= len(before):
        return None
    if before[1:] == after[len(after) - rest :]:
        return _Split(x, 0, after[: len(after) - rest])
    return _Split(x, rest, after[rest:]) if before[:rest] == after[:rest] else None


def _joined(array: np.ndarray, rank: int, split: _Split) -> np.ndarray | None:
    """Known numbers for what is split, which has so many axes, as those for what is not."""
    _, axis, parts = split
    whole = array.reshape((1,) * (rank - array.ndim) + array.shape)
    before, own, after = whole.shape[:axis], whole.shape[axis : axis + len(parts)], whole.shape[axis + len(parts) :]
    if any(d != 1 for d in own):
        if not is_static(parts):
            return None
        whole = np.broadcast_to(whole, (*before, *(int(d) for d in parts), *after))
    return whole.reshape(*before, -1, *after)


def _join(value: ir.Value, split: _Split) -> ir.Node | None:
    """The Reshape that joins the axes of a value that are split here, if there is one."""
    x, axis, parts = split
    if dims(value) != (*dims(x)[:axis], *parts, *dims(x)[axis + 1 :]):
        return None
    joins = [u for u in value.consumers() if u.op_type == "Reshape" and dims(u.outputs[0]) == dims(x)]
    return next((u for u in joins if integers(u.inputs[1]) is not None or _is_behind(x, u)), None)


def _is_behind(value: ir.Value, node: ir.Node) -> bool:
    """Is a value computed from the result of a node? A shape that the node needs is known by then."""
    source = value.producer()
    for _ in range(LONGEST_WAY):
        if source is None or source is node or not source.inputs:
            break
        source = source.inputs[0].producer() if source.inputs[0] is not None else None
    return source is node


def _operand(r: Rewriter | None, value: ir.Value | None, rank: int, split: _Split) -> ir.Value | None:
    """An operand for what is not split instead of for what is, if there is one; without `r`, any value says so."""
    if value is None or not dims(value) or (scalar(value) is not None and len(dims(value)) <= len(dims(split.x))):
        return value or split.x
    found, known, join = _split(value), constant(value), _join(value, split)
    if found is not None:
        return found.x if found[1:] == split[1:] and len(dims(value)) == rank else None
    if join is not None:
        return split.x if r is None else r.op("Reshape", *join.inputs, like=join.outputs[0], **attributes_of(join))
    joined = _joined(known, rank, split) if known is not None and known.nbytes <= 1 << 20 else None
    if joined is None:
        return None
    return split.x if r is None else r.moved(joined, value)


def _passes(node: ir.Node, split: _Split, rank: int) -> bool:
    """Can a node be done before the axes are split, or does it join them?"""
    if node.op_type in RESHAPES:
        return True
    if node.domain or node.op_type not in (*UNARY, *BINARY, "Clip", *REDUCTIONS):
        return False
    if node.op_type in REDUCTIONS:
        return _reduced_axes(node, split, rank) is not None
    if node.op_type not in BINARY:
        return True
    return len(dims(node.outputs[0])) == rank and all(_operand(None, v, rank, split) is not None for v in node.inputs)


def _reduced_axes(node: ir.Node, split: _Split, rank: int) -> list[int] | None:
    """The axes of a reduction where they are not split, if the split ones are not among them."""
    axes = [a % rank for a in axes_of(node) or ()]
    own = range(split.axis, split.axis + len(split.parts))
    if not axes or any(a in own for a in axes):
        return None
    return sorted(a if a < split.axis else a - len(split.parts) + 1 for a in axes)


def _movable(value: ir.Value | None) -> _Split | None:
    """A split that all that follows can be done before."""
    split = _split(value)
    if split is None or value is None:
        return None
    rank = len(dims(value))
    return split if all(_passes(user, split, rank) for user in value.consumers()) else None


def _split_again(r: Rewriter, whole: ir.Value, like: ir.Value, value: ir.Value | None) -> ir.Value | None:
    """`whole` with its axes split, as those of `value` are."""
    node = producer(value, "Reshape")
    if node is None or value is None or dims(value) != dims(like):
        return reshaped(r, whole, like)
    return r.op("Reshape", whole, *node.inputs[1:], like=like, **attributes_of(node))


@RULES.rewrites(*UNARY, "Clip", given=first("Reshape"), needs=CONVOLUTIONS)
def compute_before_splitting(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """f(split(x)) = split(f(x)); the other operands of Clip are scalars."""
    value, y = node.inputs[0], node.outputs[0]
    split = _movable(value)
    if split is None:
        return None
    whole = r.op(node.op_type, split.x, *node.inputs[1:], like=y, shape=dims(split.x), **attributes_of(node))
    return _split_again(r, whole, y, value)


@RULES.rewrites(*BINARY, given=some("Reshape"), needs=CONVOLUTIONS)
def combine_before_splitting(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """All operands that vary are split alike; constants follow."""
    y = node.outputs[0]
    rank = len(dims(y))
    found = next(((v, split) for v in node.inputs if (split := _movable(v)) is not None), None)
    if found is None or dims(found[0]) != dims(y) or not _passes(node, found[1], rank):
        return None
    value, split = found
    operands = [_operand(r, v, rank, split) if v is not None else None for v in node.inputs]
    return _split_again(r, r.op(node.op_type, *operands, like=y, shape=dims(split.x)), y, value)


@RULES.rewrites(*REDUCTIONS, given=first("Reshape"), needs=CONVOLUTIONS)
def reduce_before_splitting(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Reduce other axes than the one that is split."""
    value, y = node.inputs[0], node.outputs[0]
    split = _movable(value)
    axes = _reduced_axes(node, split, len(dims(value))) if split is not None and value is not None else None
    if split is None or axes is None:
        return None
    keepdims = attribute(node, "keepdims", 1)
    shape = [1 if i in axes else d for i, d in enumerate(dims(split.x)) if keepdims or i not in axes]
    if attribute(node, "axes") is not None:
        whole = r.op(node.op_type, split.x, like=y, shape=shape, axes=axes, keepdims=keepdims)
    else:
        whole = r.op(node.op_type, split.x, r.const(axes, np.int64), like=y, shape=shape, keepdims=keepdims)
    return _split_again(r, whole, y, value)
