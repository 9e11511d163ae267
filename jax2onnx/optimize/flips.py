"""Arrays that are reversed twice are not reversed; a recurrent network over a reversed array runs backwards instead."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from jax2onnx.optimize.engine import Rewriter, RuleSet, first
from jax2onnx.optimize.queries import attribute, axes_of, constant, dims, integers, only_user, producer, scalar

RULES = RuleSet()

MOVES = ("Transpose", "Squeeze", "Unsqueeze", "Reshape")

LONGEST = 2**48
"""No axis is longer."""


def flipped_axis(node: ir.Node | None) -> int | None:
    """The axis that a Slice reverses as a whole."""
    if node is None or node.op_type != "Slice" or len(node.inputs) != 5 or dims(node.outputs[0]) != _shape(node):
        return None
    starts, ends, axes, steps = integers(node.inputs[1]), integers(node.inputs[2]), axes_of(node, 3), node.inputs[4]
    if starts != (-1,) or axes is None or len(axes) != 1 or integers(steps) != (-1,):
        return None
    axis = axes[0] % len(dims(node.outputs[0]))
    size = dims(node.outputs[0])[axis]
    return axis if ends is not None and ends[0] < -(size if isinstance(size, int) else LONGEST) else None


def _shape(node: ir.Node) -> Sequence[int | str] | None:
    return dims(node.inputs[0]) if node.inputs[0] is not None else None


def _axis_before(node: ir.Node, axis: int) -> int | None:
    """Where an axis of the result of a move comes from."""
    if node.op_type == "Transpose":
        return list(attribute(node, "perm"))[axis]
    before, after = dims(node.inputs[0]), dims(node.outputs[0])  # type: ignore[arg-type]
    kept = [i for i, d in enumerate(before) if d != 1]
    places = [i for i, d in enumerate(after) if d != 1]
    if axis not in places or [before[i] for i in kept] != [after[i] for i in places]:
        return None
    return kept[places.index(axis)]


def _moves_before(value: ir.Value | None, axis: int) -> tuple[list[ir.Node], ir.Value | None, int]:
    """The moves that made a value (and nothing else), the last first; what they moved; and where the axis was."""
    chain: list[ir.Node] = []
    while value is not None and (node := producer(value, *MOVES)) is not None and only_user(value) is not None:
        before = _axis_before(node, axis)
        if before is None:
            break
        chain.append(node)
        value, axis = node.inputs[0], before
    return chain, value, axis


def _moved(r: Rewriter, x: ir.Value, chain: list[ir.Node]) -> ir.Value:
    for node in reversed(chain):
        attributes = {name: a.value for name, a in node.attributes.items()}
        x = r.op(node.op_type, x, *node.inputs[1:], like=node.outputs[0], **attributes)
    return x


@RULES.rewrites("Slice")
def cancel_flips(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Reversed, moved and reversed again."""
    axis = flipped_axis(node)
    if axis is None:
        return None
    chain, value, place = _moves_before(node.inputs[0], axis)
    first = producer(value, "Slice")
    if first is None or first.inputs[0] is None or flipped_axis(first) != place:
        return None
    return _moved(r, first.inputs[0], chain)


@RULES.rewrites("Gather", given=first("Slice"))
def pick_from_the_other_end(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """One element of a reversed axis."""
    x, y, index = node.inputs[0], node.outputs[0], scalar(node.inputs[1])
    flip = producer(x, "Slice")
    axis = flipped_axis(flip)
    if flip is None or x is None or index is None or axis is None:
        return None
    if axis != attribute(node, "axis", 0) % len(dims(x)):
        return None
    size = dims(x)[axis]
    if isinstance(size, int) and not -size <= index < size:
        return None
    other = size - 1 - index % size if isinstance(size, int) else -1 - index
    place = r.const(np.asarray(other, index.dtype).reshape(constant(node.inputs[1]).shape))  # type: ignore[union-attr]
    return r.op("Gather", flip.inputs[0], place, like=y, axis=axis)


@RULES.rewrites("LSTM", "GRU", "RNN")
def run_backwards(r: Rewriter, node: ir.Node) -> tuple[ir.Value, ...] | None:
    """Over a reversed array, with the result reversed again or not used: in the other direction."""
    chain, value, axis = _moves_before(node.inputs[0], 0)
    flip = producer(value, "Slice")
    direction = attribute(node, "direction", "forward")
    y = node.outputs[0]
    if flip is None or flipped_axis(flip) != axis or flip.inputs[0] is None or direction == "bidirectional":
        return None
    if any(v is not None for v in node.inputs[4:5]):
        return None  # it ends early, at the other end of the array
    back = _flip_after(y)
    if back is None and (y.uses() or y.is_graph_output()):
        return None
    attributes = {name: a.value for name, a in node.attributes.items()}
    attributes["direction"] = "forward" if direction == "reverse" else "reverse"
    x = _moved(r, flip.inputs[0], chain)
    made = r.op(node.op_type, x, *node.inputs[1:], like=y, **attributes).producer()
    assert made is not None
    made.resize_outputs(len(node.outputs))
    for old, new in zip(node.outputs, made.outputs, strict=True):
        new.shape, new.type = old.shape, old.type
    first = made.outputs[0]
    if back is not None:  # cancels with the one that was there
        first = r.op("Slice", first, *back.inputs[1:3], r.const([0], "int64"), back.inputs[4], like=y)
    return (first, *made.outputs[1:])


def _flip_after(value: ir.Value) -> ir.Node | None:
    """The node that reverses the first axis of a value, after moves."""
    user = only_user(value)
    while user is not None:
        if user.op_type == "Slice":
            axis = flipped_axis(user)
            _, start, place = _moves_before(user.inputs[0], axis) if axis is not None else ([], None, 0)
            return user if start is value and place == 0 else None
        if user.op_type not in MOVES:
            return None
        user = only_user(user.outputs[0])
    return None
