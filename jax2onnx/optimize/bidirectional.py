"""Two recurrent networks over the same array, one in each direction, whose results are joined, become one node.

In ONNX Runtime that takes as long or a fourth less, for the same numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from jax2onnx.naming import NAME
from jax2onnx.optimize.engine import Rewriter, RuleSet, first
from jax2onnx.optimize.queries import attribute, axes_of, dims, only_user, producer
from jax2onnx.permutations import permuted
from jax2onnx.reshapes import reshape_operand

RULES = RuleSet()

MOVES = ("Transpose", "Squeeze", "Reshape")
RESULTS = ("TDBH", "DBH", "DBH")
"""The axes of the results of such a node: time, direction, batch and hidden units."""


class Moved(NamedTuple):
    """A result of a recurrent network, with its axes in another order and without the axis of directions."""

    network: ir.Node
    position: int
    axes: str


@RULES.rewrites("Concat", given=first(*MOVES))
def run_in_both_directions(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """[forwards(x), backwards(x)] along the hidden units."""
    y = node.outputs[0]
    if len(node.inputs) != 2 or attribute(node, "axis") % len(dims(y)) != len(dims(y)) - 1:
        return None
    forwards, backwards = map(_only_result, node.inputs)
    if forwards is None or backwards is None or forwards[1:] != backwards[1:] or not forwards.axes.endswith("H"):
        return None
    made = _both(r, forwards.network, backwards.network, forwards.position)
    if made is None:
        return None
    result = made.outputs[forwards.position]
    order = forwards.axes[:-1] + "DH"
    perm = [RESULTS[forwards.position].index(axis) for axis in order]
    target, is_zero_size = reshape_operand(permuted(dims(result), perm), dims(y))
    if target is None or is_zero_size:
        return None
    return r.op("Reshape", r.transpose(result, perm), r.const(target, np.int64), like=y)


def _only_result(value: ir.Value | None) -> Moved | None:
    """Where a value comes from, if a network made it for nothing else."""
    found = moved_result(value)
    while value is not None and only_user(value) is not None and (move := producer(value, *MOVES)) is not None:
        value = move.inputs[0]
    if found is None or value is None or only_user(value) is None or value is not found.network.outputs[found.position]:
        return None
    used = [v for v in found.network.outputs if v.uses() or v.is_graph_output()]
    return found if used == [value] else None


def moved_result(value: ir.Value | None) -> Moved | None:
    """Where a value comes from, if that is a network."""
    moves: list[ir.Node] = []
    while (move := producer(value, *MOVES)) is not None:
        moves.append(move)
        value = move.inputs[0]
    network = producer(value, "LSTM", "GRU", "RNN")
    if network is None or value is None:
        return None
    position = list(network.outputs).index(value)
    axes: str | None = RESULTS[position]
    for move in reversed(moves):
        axes = _axes_after(move, axes) if axes is not None else None
    return Moved(network, position, axes) if axes is not None and "D" not in axes else None


def _axes_after(move: ir.Node, axes: str) -> str | None:
    """The axes of the result of a move that removes no other axis than that of the directions."""
    if move.op_type == "Transpose":
        return "".join(axes[i] for i in attribute(move, "perm"))
    x, place = move.inputs[0], axes.find("D")
    assert x is not None
    if place < 0 or dims(move.outputs[0]) != dims(x)[:place] + dims(x)[place + 1 :]:
        return None
    if move.op_type == "Squeeze" and [a % len(axes) for a in axes_of(move) or ()] != [place]:
        return None
    return axes.replace("D", "")


def _both(r: Rewriter, forwards: ir.Node, backwards: ir.Node, position: int) -> ir.Node | None:
    """One node for two, which gives the results up to that at `position`."""
    settings = [
        {name: a.value for name, a in n.attributes.items() if name != "direction"} for n in (forwards, backwards)
    ]
    directions = [attribute(n, "direction", "forward") for n in (forwards, backwards)]
    if directions != ["forward", "reverse"] or settings[0] != settings[1] or forwards.op_type != backwards.op_type:
        return None
    ours, theirs = ([*n.inputs, *[None] * 8][:8] for n in (forwards, backwards))
    if ours[0] is not theirs[0] or any((a is None) != (b is None) for a, b in zip(ours, theirs, strict=True)):
        return None
    if any(v is not None for v in (ours[4], ours[7])) or forwards.graph is not backwards.graph:
        return None
    weights = [(a, b) for a, b in zip(ours[1:4], theirs[1:4], strict=True) if a is not None and b is not None]
    if any(a.const_value is None or b.const_value is None for a, b in weights):
        return None
    inputs = [ours[0], *(_joined(r, a, b) for a, b in weights), *[None] * (4 - len(weights))]
    for a, b in zip(ours[5:7], theirs[5:7], strict=True):
        if a is not None:
            inputs.append(r.op("Concat", a, b, like=a, shape=[2, *dims(a)[1:]], axis=0))
    while inputs[-1] is None:
        inputs.pop()
    y = forwards.outputs[0]
    steps, _, batch, size = dims(y)
    shape = [steps, 2, batch, size]
    both = {name: value * 2 if name.startswith("activation") else value for name, value in settings[0].items()}
    made = r.op(forwards.op_type, *inputs, like=y, shape=shape, direction="bidirectional", **both).producer()
    assert made is not None
    made.resize_outputs(position + 1)
    for state in made.outputs[1:]:
        state.shape, state.type = ir.Shape([2, *list(y.shape)[2:]]), y.type  # type: ignore[arg-type]
    return made


def _joined(r: Rewriter, forwards: ir.Value, backwards: ir.Value) -> ir.Value:
    """The weights of both directions, put together when they are written."""
    one, other = forwards.const_value, backwards.const_value
    assert one is not None and other is not None

    def read() -> ir.TensorProtocol:
        return ir.Tensor(np.concatenate([one.numpy(), other.numpy()]))

    tensor = ir.LazyTensor(read, one.dtype, ir.Shape([2, *list(one.shape)[1:]]))
    return r.tensor(tensor, name=_common_name(forwards.meta.get(NAME), backwards.meta.get(NAME)))


def _common_name(one: str | None, other: str | None) -> str | None:
    """a/forwards/LSTM/W and a/backwards/LSTM/W: a/LSTM/W."""
    if one is None or other is None:
        return one or other
    parts = zip(one.split("/"), other.split("/"), strict=False)
    return "/".join(a for a, b in parts if a == b) or one
