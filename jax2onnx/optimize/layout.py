"""JAX convolutions are mostly channels-last, ONNX's are channels-first; between two of them nothing is transposed.

The Transpose after a convolution (to channels-last) is moved towards the results, past everything that does not care
about the order of axes, until it meets the Transpose before the next convolution, and both go. Where it would become
several (the parts of a Split), or others would have to be added (an operand that has none), it is counted first how
many would be left.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

import numpy as np
import onnx_ir as ir

from jax2onnx.attributes import attributes_of
from jax2onnx.dimensions import likely_size
from jax2onnx.optimize.engine import Rewriter, RuleSet, first, some
from jax2onnx.optimize.queries import (
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
from jax2onnx.permutations import inverse, permuted

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


def channels_first(rank: int) -> list[int]:
    """The order of axes that moves the channels from the last to the second."""
    return [0, rank - 1, *range(1, rank - 1)]


def _movable(node: ir.Node) -> tuple[ir.Value, list[int]] | None:
    """(x, perm) if the Transpose of x before a node can be moved behind it."""
    found, turn = channels_last(node.inputs[0]), producer(node.inputs[0], "Transpose")
    if found is None or turn is None or not _can_pass(node, found[1], ()):
        return None
    # With three axes, a Transpose is its own inverse. Where it becomes several, they would go back and forth.
    is_shared = len(found[1]) == 3 and only_user(turn.outputs[0]) is None
    return None if is_shared and left_behind(turn, found[1]) > 1 else found


def moved_behind(r: Rewriter, inner: ir.Value, perm: Sequence[int], like: ir.Value) -> ir.Value:
    """What `like` is, as a Transpose of `inner`, unless all that uses it are Transposes back."""
    turns, back = like.consumers(), inverse(perm)
    if not turns or like.is_graph_output() or turns_of(like, back) != list(turns):
        return r.op("Transpose", inner, like=like, perm=list(perm))
    for turn in turns:
        r.replace_other(turn.outputs[0], inner)
    return like


@rewrites(*UNARY, "Clip", given=first("Transpose"))
def move_past_unary(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """f(transpose(x)) = transpose(f(x)); the other operands of Clip are scalars."""
    found = _movable(node)
    if found is None:
        return None
    x, perm = found
    attributes = attributes_of(node)
    y = node.outputs[0]
    return moved_behind(r, r.op(node.op_type, x, *node.inputs[1:], like=y, shape=dims(x), **attributes), perm, y)


@rewrites(*BINARY, given=some("Transpose"))
def move_past_broadcast(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """All operands that vary are transposed alike, or it pays to transpose the others; constants follow."""
    perm = _common_perm(node)
    if perm is None:
        return None
    y = node.outputs[0]
    operands = [turned_back(r, operand, perm) for operand in node.inputs]
    inner = r.op(node.op_type, *operands, like=y, shape=permuted(dims(y), inverse(perm)))
    return moved_behind(r, inner, perm, y)


@rewrites("Concat", given=some("Transpose"))
def move_past_concat(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """All parts are transposed alike, or it pays to transpose the others."""
    perm = _common_perm(node)
    if perm is None:
        return None
    y = node.outputs[0]
    parts = [turned_back(r, part, perm) for part in node.inputs]
    axis = perm[attribute(node, "axis") % len(perm)]
    return moved_behind(r, r.op("Concat", *parts, like=y, shape=permuted(dims(y), inverse(perm)), axis=axis), perm, y)


def _common_perm(node: ir.Node) -> list[int] | None:
    """The Transpose that can be moved behind a node of several operands, so that no more are left than there were."""
    found = {v: turn for v in node.inputs if (turn := channels_last(v)) is not None}
    perm = next((perm for _, perm in found.values()), None)
    if perm is None or len(perm) != len(dims(node.outputs[0])):
        return None
    if _all_follow(node, perm, ()):
        return perm
    others = [v for v in {*node.inputs} if v is not None and not _follows(v, perm, ())]
    if any(v.const_value is not None or len(dims(v)) != len(perm) for v in others):
        return None
    if any(x in others for x, _ in found.values()):
        return None  # x + x.T would become the same again, for ever
    saved = sum(only_user(v) is node for v in found)
    added = sum(not turns_of(v, inverse(perm)) for v in others)
    # Fewer, not as many: with three axes, a Transpose is its own inverse, and would go back and forth.
    return perm if added + left_behind(node, perm) < saved else None


def _follows(operand: ir.Value | None, perm: Sequence[int], turned: Container[ir.Value]) -> bool:
    """Whether an operand in the order of axes from before the Transpose takes no Transpose of many elements."""
    if operand is None or not dims(operand) or scalar(operand) is not None or operand in turned:
        return True
    if operand.const_value is not None:
        return operand.const_value.nbytes <= 1 << 20
    found = channels_last(operand)
    if found is not None:
        return found[1] == perm
    # A factor per image and channel, as in squeeze-and-excite: transposing it costs nothing.
    return len(dims(operand)) == len(perm) and all(d == 1 for d in dims(operand)[1:-1])


def turned_back(r: Rewriter, operand: ir.Value | None, perm: Sequence[int]) -> ir.Value | None:
    """An operand in the order of axes from before the Transpose."""
    if operand is None or not dims(operand) or scalar(operand) is not None:
        return operand
    found, known, back = channels_last(operand), constant(operand), inverse(perm)
    if found is not None:
        return found[0]
    shape = aligned_dims(operand, len(perm))
    if known is None:
        return r.op("Transpose", operand, like=operand, shape=permuted(shape, back), perm=back)
    turned = known.reshape([int(d) for d in shape]).transpose(back)
    while turned.ndim > known.ndim and len(turned) == 1:
        turned = turned[0]
    return r.moved(turned, operand)


@rewrites(*REDUCTIONS, given=first("Transpose"))
def move_past_reduction(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Reduce the same axes where they were before."""
    found, axes, y = _movable(node), axes_of(node), node.outputs[0]
    if found is None or axes is None:
        return None
    x, perm = found
    mapped = sorted(perm[a % len(perm)] for a in axes)
    keepdims = attribute(node, "keepdims", 1)
    shape = [1 if i in mapped else d for i, d in enumerate(dims(x))] if keepdims else dims(y)
    operands = [x] if attribute(node, "axes") is not None else [x, r.const(mapped, np.int64)]
    inner = r.op(
        node.op_type,
        *operands,
        like=y,
        shape=shape,
        keepdims=keepdims,
        axes=mapped if attribute(node, "axes") is not None else None,
    )
    return moved_behind(r, inner, perm, y) if keepdims else inner


@rewrites("Pad", given=first("Transpose"))
def move_past_pad(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Pad the same axes where they were before."""
    found, pads = _movable(node), integers(node.inputs[1])
    if found is None or pads is None:
        return None
    x, perm = found
    rank, y = len(perm), node.outputs[0]
    back = inverse(perm)
    moved = [pads[back[i]] for i in range(rank)] + [pads[rank + back[i]] for i in range(rank)]
    inner = r.op(
        "Pad",
        x,
        r.const(moved, np.int64),
        *node.inputs[2:],
        like=y,
        shape=permuted(dims(y), back),
        mode=attribute(node, "mode"),
    )
    return moved_behind(r, inner, perm, y)


@rewrites("Transpose", given=first("Pad"))
def pad_what_is_transposed(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Padding before the channels are moved to the front: after it, where it can become that of a convolution. (What is
    padded with its own elements cannot, and is padded faster with the channels last.)"""
    padded, y, perm = node.inputs[0], node.outputs[0], list(attribute(node, "perm"))
    pad = producer(padded, "Pad")
    pads = integers(pad.inputs[1]) if pad is not None else None
    rank = len(perm)
    if pad is None or padded is None or pads is None or only_user(padded) is None or len(pad.inputs) > 3:
        return None
    x = pad.inputs[0]
    # With three axes, this would be the way that `move_past_pad` goes back.
    if x is None or rank < 4 or perm != channels_first(rank) or attribute(pad, "mode", "constant") != "constant":
        return None
    inner = r.transpose(x, perm)
    moved = [pads[i] for i in perm] + [pads[rank + i] for i in perm]
    return r.op("Pad", inner, r.const(moved, np.int64), *pad.inputs[2:], like=y)


@rewrites("Slice", given=first("Transpose"))
def move_past_slice(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Cut the same axes where they were before."""
    found = _movable(node)
    axes = integers(node.inputs[3]) if found is not None else None
    if found is None or axes is None:
        return None
    x, perm = found
    y = node.outputs[0]
    mapped = r.const([perm[a % len(perm)] for a in axes], np.int64)
    shape = permuted(dims(y), inverse(perm))
    inner = r.op("Slice", x, *node.inputs[1:3], mapped, *node.inputs[4:], like=y, shape=shape)
    return moved_behind(r, inner, perm, y)


# --------------------------------------------------------------------------------------------------- what is cut


@rewrites("Split", given=first("Transpose"))
def move_past_split(r: Rewriter, node: ir.Node) -> tuple[ir.Value, ...] | None:
    """Cut the same axis where it was before, if not more Transposes of the parts are left than there were."""
    whole, found = node.inputs[0], channels_last(node.inputs[0])
    if whole is None or found is None or left_behind(node, found[1]) > (only_user(whole) is node):
        return None
    x, perm = found
    return tuple(
        moved_behind(r, part, perm, like) for part, like in zip(_split(r, node, x, perm), node.outputs, strict=True)
    )


def _split(r: Rewriter, node: ir.Node, x: ir.Value, perm: Sequence[int]) -> list[ir.Value]:
    """The parts of `x`, which has the axes of what `node` splits in another order."""
    axis = attribute(node, "axis", 0) % len(perm)
    return r.split(x, [dims(part)[axis] for part in node.outputs], perm[axis], operand=node.inputs[1])


@rewrites("Transpose", given=first("Expand"))
def transpose_before_repeating(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """An array that is repeated and then transposed: if it is known, it is known in the new order, too; and if there
    are few elements before, there is little to transpose."""
    y, perm, expand = node.outputs[0], list(attribute(node, "perm")), producer(node.inputs[0], "Expand")
    x, sizes = expand.inputs[:2] if expand is not None else (None, None)
    if x is None or sizes is None or dims(sizes) != (len(perm),):
        return None
    known = constant(x)
    if known is not None and known.nbytes <= 1 << 20:
        array = known.reshape(aligned_dims(x, len(perm))).transpose(perm)  # type: ignore[arg-type]
        turned = r.moved(array, x)
    elif known is None and len(dims(x)) == len(perm) and 4 * likely_size(dims(x)) <= likely_size(dims(y)):
        turned = r.transpose(x, perm)
    else:
        return None
    shape = r.op("Gather", sizes, r.const(perm, np.int64), like=sizes, axis=0)
    return r.op("Expand", turned, shape, like=y)


LAST = RuleSet()
"""For when no Transpose moves any more."""


@LAST.rewrites("Split")
def transpose_before_split(r: Rewriter, node: ir.Node) -> tuple[ir.Value, ...] | None:
    """Most parts have their channels moved to the front: those of all are, at once."""
    x = node.inputs[0]
    back = channels_first(len(dims(node.outputs[0])))
    turned = [turns_of(part, back) for part in node.outputs]
    if x is None or not 3 <= len(back) <= 5 or sum(map(bool, turned)) <= max(1, len(turned) // 2):
        return None
    moved, perm = turned_back(r, x, inverse(back)), inverse(back)
    assert moved is not None
    for part, turns in zip(_split(r, node, moved, perm), turned, strict=True):
        for turn in turns:
            r.redirect(turn.outputs[0], part)
    return tuple(node.outputs)


MOST_SLICES = 8
"""Of so many slices it is asked how they are transposed."""


@LAST.rewrites("Transpose", given=first("Slice"))
def transpose_before_slices(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """An array is transposed as a whole if it is anyway, or if several slices, as large as the whole, are."""
    y, perm, cut = node.outputs[0], list(attribute(node, "perm")), producer(node.inputs[0], "Slice")
    x = cut.inputs[0] if cut is not None else None
    axes = integers(cut.inputs[3]) if cut is not None and len(cut.inputs) > 3 else None
    if cut is None or x is None or axes is None or len(x.uses()) > MOST_SLICES:
        return None
    back = channels_first(len(perm))
    parts = [u.outputs[0] for u in x.consumers() if u.op_type == "Slice" and turns_of(u.outputs[0], perm)]
    is_whole = len(parts) > 1 and sum(likely_size(dims(part)) for part in parts) >= likely_size(dims(x))
    if perm not in (back, inverse(back)) or not (is_whole or turns_of(x, perm)):
        return None
    moved = r.transpose(x, perm)
    places = r.const([perm.index(a % len(perm)) for a in axes], np.int64)
    return r.op("Slice", moved, *cut.inputs[1:3], places, *cut.inputs[4:], like=y)


@LAST.rewrites("Transpose", given=first(*UNARY, *BINARY, "Clip"))
def transpose_operands(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """What is computed from arrays that have their channels moved to the front anyway is computed from those."""
    value, perm = node.inputs[0], list(attribute(node, "perm"))
    if value is None or len(perm) < 4 or perm != channels_first(len(perm)) or not _is_of_turned(value, perm):
        return None
    return _of_turned(r, value, perm)


def _is_of_turned(value: ir.Value, perm: list[int], steps: int = 4) -> bool:
    node = producer(value, *UNARY, *BINARY, "Clip")
    if node is None or node.domain or only_user(value) is None or len(dims(value)) != len(perm) or not steps:
        return False
    needed = [v for v in node.inputs if v is not None and not _follows(v, inverse(perm), ())]
    return bool(needed) and all(turns_of(v, perm) or _is_of_turned(v, perm, steps - 1) for v in needed)


def _of_turned(r: Rewriter, value: ir.Value, perm: list[int]) -> ir.Value:
    node, back = value.producer(), inverse(perm)
    assert node is not None
    operands = [
        turned_back(r, v, back) if v is None or _follows(v, back, ()) or turns_of(v, perm) else _of_turned(r, v, perm)
        for v in node.inputs
    ]
    return r.op(node.op_type, *operands, like=value, shape=permuted(dims(value), perm), **attributes_of(node))


# ------------------------------------------------------------------------------------------------------- looking ahead


MOST_AHEAD = 64
"""So many nodes are looked at before a Transpose is moved: the cost stays linear."""


def left_behind(node: ir.Node, perm: Sequence[int], is_passed: Callable[[ir.Node], bool] = lambda node: False) -> int:
    """How many more Transposes there are behind a node, if each of its results is transposed, and these Transposes are
    moved on as far as they go, or meet their inverse, or those of other operands.

    `is_passed` knows more nodes that can have their first operand and their result in the other order."""
    turned, passed, back = dict.fromkeys(node.outputs), {node}, inverse(perm)
    ahead, met = list(node.outputs), 0
    for value in ahead:  # which grows meanwhile
        for user in value.consumers():
            if user in passed or user.graph is not node.graph or len(passed) > MOST_AHEAD:
                continue
            is_more = is_passed(user) and user.inputs[0] is value
            results = user.outputs if is_more else _turned_results(user, perm, turned)
            if results is not None:
                passed.add(user)
                others = [v for v in user.inputs if v is not None and v not in turned and only_user(v) is user]
                met += sum(channels_last(v) is not None for v in others)
                ahead += results
                turned.update(dict.fromkeys(results))
    cancelled = sum(len(turns_of(value, back)) for value in turned)
    left = sum(value.is_graph_output() or not passed.issuperset(value.consumers()) for value in turned)
    return left - cancelled - met


def _turned_results(node: ir.Node, perm: Sequence[int], turned: Container[ir.Value]) -> Sequence[ir.Value] | None:
    """The results that are transposed if a node is moved before the Transposes of operands; None if it cannot be."""
    if node.op_type == "Transpose":
        return ()  # two in a row are one
    if not _can_pass(node, perm, turned) and not _others_are_turned(node, perm, turned):
        return None
    return () if node.op_type in REDUCTIONS and not attribute(node, "keepdims", 1) else node.outputs


def _others_are_turned(node: ir.Node, perm: Sequence[int], turned: Container[ir.Value]) -> bool:
    """Whether the operands that are not transposed yet have Transposes already into the order from before."""
    if node.op_type not in BINARY or len(dims(node.outputs[0])) != len(perm):
        return False
    return all(_follows(v, perm, turned) or (v is not None and turns_of(v, inverse(perm))) for v in node.inputs)


def _can_pass(node: ir.Node, perm: Sequence[int], turned: Container[ir.Value]) -> bool:
    """Whether a Transpose of an operand, and of the others that are `turned`, can come after a node instead."""
    condition = _CONDITIONS.get(node.op_type)
    return condition is not None and not node.domain and condition(node, perm, turned)


def _all_follow(node: ir.Node, perm: Sequence[int], turned: Container[ir.Value]) -> bool:
    return len(dims(node.outputs[0])) == len(perm) and all(_follows(v, perm, turned) for v in node.inputs)


def _reduces_in_order(node: ir.Node, perm: Sequence[int], turned: Container[ir.Value]) -> bool:
    axes = {a % len(perm) for a in axes_of(node) or ()}
    kept = [p for i, p in enumerate(perm) if i not in axes]
    return bool(axes) and (attribute(node, "keepdims", 1) == 1 or kept == sorted(kept))


_CONDITIONS: dict[str, Callable[[ir.Node, Sequence[int], Container[ir.Value]], bool]] = {
    **dict.fromkeys((*UNARY, "Clip", "Split"), lambda node, perm, turned: True),
    **dict.fromkeys((*BINARY, "Concat"), _all_follow),
    **dict.fromkeys(REDUCTIONS, _reduces_in_order),
    "Pad": lambda node, perm, turned: integers(node.inputs[1]) is not None and len(node.inputs) <= 3,
    "Slice": lambda node, perm, turned: len(node.inputs) > 3 and integers(node.inputs[3]) is not None,
}
"""By operator, when a Transpose can come after it instead of before."""


def turns_of(value: ir.Value, perm: list[int]) -> list[ir.Node]:
    """The Transposes of a value into this order."""
    return [u for u in value.consumers() if u.op_type == "Transpose" and list(attribute(u, "perm")) == perm]
