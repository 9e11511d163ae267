"""JAX convolutions are mostly channels-last, ONNX's are channels-first; between two of them nothing is transposed.

The Transpose after a convolution (to channels-last) is moved towards the results, past everything that does not care
about the order of axes, until it meets the Transpose before the next convolution, and both go.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from jax2onnx.attributes import values_of
from jax2onnx.optimize.engine import Rewriter, RuleSet, first, some
from jax2onnx.optimize.queries import (
    Dims,
    aligned_dims,
    attribute,
    axes_of,
    constant,
    dims,
    integers,
    only_user,
    producer,
    scalar,
)
from jax2onnx.optimize.simplify import REDUCTIONS
from jax2onnx.optimize.units import BINARY, UNARY

RULES = RuleSet()
rewrites = RULES.rewrites


def channels_last(value: ir.Value | None) -> tuple[ir.Value, list[int]] | None:
    """(x, perm) if `value` is x with its channels moved from the second to the last axis."""
    node = producer(value, "Transpose")
    if node is None or node.inputs[0] is None:
        return None
    perm = list(attribute(node, "perm"))
    rank = len(perm)
    return (node.inputs[0], perm) if 3 <= rank <= 5 and perm == [0, *range(2, rank), 1] else None


def _inverse(perm: Sequence[int]) -> list[int]:
    return [list(perm).index(i) for i in range(len(perm))]


def _permuted(shape: Dims, perm: Sequence[int]) -> Dims:
    return tuple(shape[i] for i in perm)


def _moved(r: Rewriter, inner: ir.Value, perm: Sequence[int], like: ir.Value) -> ir.Value:
    return r.op("Transpose", inner, like=like, perm=list(perm))


@rewrites(*UNARY, "Clip", given=first("Transpose"))
def move_past_unary(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """f(transpose(x)) = transpose(f(x)); the other operands of Clip are scalars."""
    found = channels_last(node.inputs[0])
    if found is None:
        return None
    x, perm = found
    attributes = values_of(node)
    y = node.outputs[0]
    if node.domain:
        return None
    return _moved(r, r.op(node.op_type, x, *node.inputs[1:], like=y, shape=dims(x), **attributes), perm, y)


@rewrites(*BINARY, given=some("Transpose"))
def move_past_broadcast(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """All operands that vary are transposed alike; constants and small operands follow."""
    y = node.outputs[0]
    perms = [found[1] for found in map(channels_last, node.inputs) if found is not None]
    if not perms or len(perms[0]) != len(dims(y)):
        return None
    perm = perms[0]
    operands = [_follow(r, operand, perm) for operand in node.inputs]
    if any(o is None for o in operands):
        return None
    inner = r.op(node.op_type, *operands, like=y, shape=_permuted(dims(y), _inverse(perm)))
    return _moved(r, inner, perm, y)


def _follow(r: Rewriter, operand: ir.Value | None, perm: list[int]) -> ir.Value | None:
    """An operand in the order of axes from before the Transpose."""
    if operand is None or scalar(operand) is not None:
        return operand
    found = channels_last(operand)
    if found is not None and found[1] == perm:
        return found[0]
    back = _inverse(perm)
    shape = aligned_dims(operand, len(perm))
    known = constant(operand)
    if known is not None and known.nbytes <= 1 << 20:
        turned = known.reshape([int(d) for d in shape]).transpose(back)
        while turned.ndim > 1 and len(turned) == 1:
            turned = turned[0]
        return r.moved(turned, operand)
    # A factor per image and channel, as in squeeze-and-excite: transposing it costs nothing.
    if len(dims(operand)) == len(perm) and all(d == 1 for d in shape[1:-1]):
        return r.op("Transpose", operand, like=operand, shape=_permuted(shape, back), perm=back)
    return None


@rewrites(*REDUCTIONS, given=first("Transpose"))
def move_past_reduction(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Reduce the same axes where they were before."""
    found, axes, y = channels_last(node.inputs[0]), axes_of(node), node.outputs[0]
    if found is None or not axes:
        return None
    x, perm = found
    mapped = sorted(perm[a % len(perm)] for a in axes)
    keepdims = attribute(node, "keepdims", 1)
    reduced = [1 if i in mapped else d for i, d in enumerate(dims(x))]
    if not keepdims:
        left = [perm[i] for i in range(len(perm)) if perm[i] not in mapped]
        if left != sorted(left):
            return None
        shape: Sequence[int | str] = dims(y)
    else:
        shape = reduced
    operands = [x] if attribute(node, "axes") is not None else [x, r.const(mapped, np.int64)]
    inner = r.op(
        node.op_type,
        *operands,
        like=y,
        shape=shape,
        keepdims=keepdims,
        axes=mapped if attribute(node, "axes") is not None else None,
    )
    return _moved(r, inner, perm, y) if keepdims else inner


@rewrites("Concat", given=first("Transpose"))
def move_past_concat(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """All parts are transposed alike."""
    found = [channels_last(v) for v in node.inputs]
    if not found or any(f is None for f in found):
        return None
    perm = next(f[1] for f in found if f is not None)
    y = node.outputs[0]
    axis = perm[attribute(node, "axis") % len(perm)]
    parts = [f[0] for f in found if f is not None]
    return _moved(r, r.op("Concat", *parts, like=y, shape=_permuted(dims(y), _inverse(perm)), axis=axis), perm, y)


@rewrites("Pad", given=first("Transpose"))
def move_past_pad(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Pad the same axes where they were before."""
    found, pads = channels_last(node.inputs[0]), integers(node.inputs[1])
    if found is None or pads is None or len(node.inputs) > 3:
        return None
    x, perm = found
    rank, y = len(perm), node.outputs[0]
    back = _inverse(perm)
    moved = [pads[back[i]] for i in range(rank)] + [pads[rank + back[i]] for i in range(rank)]
    inner = r.op(
        "Pad",
        x,
        r.const(moved, np.int64),
        *node.inputs[2:],
        like=y,
        shape=_permuted(dims(y), back),
        mode=attribute(node, "mode"),
    )
    return _moved(r, inner, perm, y)


@rewrites("Transpose", given=first("Pad"))
def pad_what_is_transposed(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Padding before the channels are moved to the front: after it, where it can become that of a convolution."""
    padded, y, perm = node.inputs[0], node.outputs[0], list(attribute(node, "perm"))
    pad = producer(padded, "Pad")
    pads = integers(pad.inputs[1]) if pad is not None else None
    rank = len(perm)
    if pad is None or padded is None or pads is None or only_user(padded) is None or len(pad.inputs) > 3:
        return None
    x = pad.inputs[0]
    # With three axes, this would be the way that `move_past_pad` goes back.
    if x is None or rank < 4 or perm != [0, rank - 1, *range(1, rank - 1)]:
        return None
    inner = r.op("Transpose", x, like=x, shape=_permuted(dims(x), perm), perm=perm)
    moved = [pads[i] for i in perm] + [pads[rank + i] for i in perm]
    return r.op("Pad", inner, r.const(moved, np.int64), *pad.inputs[2:], like=y, mode=attribute(pad, "mode"))


@rewrites("Slice", given=first("Transpose"))
def move_past_slice(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Cut the same axes where they were before."""
    found = channels_last(node.inputs[0])
    axes = integers(node.inputs[3]) if len(node.inputs) > 3 else None
    if found is None or axes is None:
        return None
    x, perm = found
    y = node.outputs[0]
    mapped = r.const([perm[a % len(perm)] for a in axes], np.int64)
    shape = _permuted(dims(y), _inverse(perm))
    inner = r.op("Slice", x, *node.inputs[1:3], mapped, *node.inputs[4:], like=y, shape=shape)
    return _moved(r, inner, perm, y)
