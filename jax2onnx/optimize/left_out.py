"""Recurrent networks that leave out steps: where a mask says so, the states stay what they were.

A Scan does that with a `Where` for each state. The operators of ONNX cannot, but they can stop early. So for each
element of the batch, the steps that count are moved together, to the front; the network runs over as many as there are
(`sequence_lens`), and each step takes the state after the last one that counted. What the others had is never seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from jax2onnx.optimize.cells import formulas
from jax2onnx.optimize.engine import Rewriter, RuleSet
from jax2onnx.optimize.gates import gru, lstm
from jax2onnx.optimize.queries import attribute, dims, producer, scalar
from jax2onnx.optimize.recurrent import direction_of, network_of

RULES = RuleSet()

INT32, INT64, BOOL = ir.DataType.INT32, ir.DataType.INT64, ir.DataType.BOOL


class Masked(NamedTuple):
    """A body whose states are either new, or stay: those that are new, and where the mask is among the inputs."""

    mask: ir.Value
    stays: bool
    """Whether the states stay where the mask is true."""
    new: list[ir.Value]

    def choice(self, value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
        """What a value is where the states are new, and where they stay, if that is how it is chosen."""
        while (copy := producer(value, "Identity")) is not None and copy.inputs[0] is not None:
            value = copy.inputs[0]
        where = producer(value, "Where")
        if where is None or where.inputs[0] is not self.mask:
            return None
        _, a, b = where.inputs
        assert a is not None and b is not None
        return (b, a) if self.stays else (a, b)


@RULES.rewrites("Scan", needs=["Where"])
def recognise_network_that_leaves_out_steps(r: Rewriter, node: ir.Node) -> tuple[ir.Value, ...] | None:
    """A Scan of LSTM or GRU cells with a mask for each step and row, that gives the states after each step, or at the
    steps that count (and a number at others), or the last ones."""
    body = node.attributes["body"].as_graph()
    states = len(node.inputs) - attribute(node, "num_scan_inputs")
    masked = _masked(body, states)
    direction = None if masked is None else direction_of(node, masked.mask)
    if masked is None or direction is None:
        return None
    results = formulas(body, masked.new)
    for hidden in range(states):
        memory = 1 - hidden if states == 2 else None
        fillings = [_filling(masked, y, body.inputs[hidden], masked.new[hidden]) for y in body.outputs[states:]]
        if any(filling is None for filling in fillings):
            continue
        if memory is None:
            cell = gru(results[hidden], body.inputs[hidden])
        else:
            cell = lstm(results[hidden], results[memory], body.inputs[memory])
        if cell is None:
            continue
        steps = _Steps(r, node, masked, body.inputs[hidden], direction == "reverse")
        made = network_of(r, node, cell, hidden, memory, "forward", steps)
        if made is None:
            return None
        made.resize_outputs(1 + states)
        for value in made.outputs[1:]:
            value.shape, value.type = ir.Shape([1, *list(made.outputs[0].shape)[2:]]), made.outputs[0].type  # type: ignore[arg-type]
        last = [steps.last(made.outputs[1 + (i != hidden)], node.inputs[i], node.outputs[i]) for i in range(states)]
        history = steps.spread(made.outputs[0], node.inputs[hidden])
        stacked = [steps.filled(history, f, old) for f, old in zip(fillings, node.outputs[states:], strict=True)]
        return (*last, *stacked)
    return None


def _masked(body: ir.Graph, states: int) -> Masked | None:
    """How the states of a body stay, if they all do where one input says so, a mask with a number for each row."""
    if states not in (1, 2):
        return None
    found: set[tuple[ir.Value, bool]] = set()
    new = []
    for state, result in zip(body.inputs[:states], body.outputs[:states], strict=True):
        where = producer(result, "Where")
        if where is None or state not in where.inputs[1:]:
            return None
        mask, a, b = where.inputs
        if mask is None or mask not in body.inputs[states:] or a is None or b is None or a is b:
            return None
        found.add((mask, a is state))
        new.append(b if a is state else a)
    if len(found) != 1:
        return None
    mask, stays = found.pop()
    shape = dims(body.inputs[0])
    rows = {(*shape[:-1], 1)} if len(shape) == 2 else {(), (1,)}
    return Masked(mask, stays, new) if dims(mask) in rows else None


_STATE = "state"


def _filling(masked: Masked, y: ir.Value, state: ir.Value, new: ir.Value) -> Any:
    """What a stacked result is at the steps that are left out: the state, or a number. None if it is something else."""
    choice = masked.choice(y)
    if choice is None or choice[0] is not new:
        return None
    return _STATE if choice[1] is state else scalar(choice[1])


class _Steps:
    """Which steps count, and where they are moved to: those of a row follow each other, behind one place to waste."""

    def __init__(self, r: Rewriter, node: ir.Node, masked: Masked, state: ir.Value, is_reverse: bool):
        self.r = r
        self.is_unbatched = len(dims(state)) == 1
        self.size = dims(state)[-1]
        whole = node.inputs[list(node.attributes["body"].as_graph().inputs).index(masked.mask)]
        assert whole is not None
        self.length = dims(whole)[0]
        batch = 1 if self.is_unbatched else dims(state)[0]
        self.shape = [self.length, batch]
        self.counts = self._rows(whole, self.shape)
        if masked.stays:
            self.counts = r.op("Not", self.counts, like=self.counts)
        number = r.op("Cast", self.counts, like=self.counts, dtype=INT64, to=int(INT64))
        number = r.op("CumSum", number, r.const(0, np.int64), like=number, reverse=1 if is_reverse else None)
        rows, self.column = self._batch(batch)
        self.place = r.op("Add", r.op("Mul", number, rows, like=number), self.column, like=number)
        end = r.op("Gather", number, r.const(0 if is_reverse else -1, np.int64), like=number, shape=[batch])
        self.lengths = r.op("Cast", end, like=end, dtype=INT32, to=int(INT32))

    def _rows(self, mask: ir.Value, shape: Sequence[Any]) -> ir.Value:
        """The mask with an axis of steps and one of rows."""
        if dims(mask) == tuple(shape):
            return mask
        op_type, axis = ("Unsqueeze", 1) if len(dims(mask)) == 1 else ("Squeeze", 2)
        return self.r.op(op_type, mask, self.r.const([axis], np.int64), like=mask, shape=shape)

    def _batch(self, batch: int | str) -> tuple[ir.Value, ir.Value]:
        """How many rows there are, and their numbers."""
        r = self.r
        if isinstance(batch, int):
            return r.const(batch, np.int64), r.const(np.arange(batch))
        size = r.op("Shape", self.counts, shape=[1], dtype=INT64, start=1, end=2)
        rows = r.op("Squeeze", size, r.const([0], np.int64), like=size, shape=[])
        column = r.op("Range", r.const(0, np.int64), rows, r.const(1, np.int64), like=size, shape=[batch])
        return rows, column

    def together(self, x: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The input of all steps with those that count in front, and how many these are; zeros behind them."""
        r, features = self.r, dims(x)[-1]
        steps = [self.length + 1 if isinstance(self.length, int) else None, self.shape[1], features]
        if all(isinstance(d, int) for d in steps):
            shape = r.const(steps, np.int64)
        else:
            shape = r.op("Shape", x, shape=[3], dtype=INT64)
            shape = r.op("Add", shape, r.const([1, 0, 0], np.int64), like=shape)
        zeros = r.op("Expand", r.const(0, np.float32), shape, like=x, shape=steps)
        flat = [self._product(steps[:2]), features]
        target = r.op("Where", self.counts, self.place, self.column, like=self.place)
        target = r.op("Reshape", target, r.const([-1, 1], np.int64), like=target, shape=[self._product(self.shape), 1])
        moved = r.op(
            "ScatterND",
            r.op("Reshape", zeros, r.const([-1, features], np.int64), like=x, shape=flat),
            target,
            r.op("Reshape", x, r.const([-1, features], np.int64), like=x, shape=[self._product(self.shape), features]),
            like=x,
            shape=flat,
        )
        is_known = shape.const_value is not None  # else a size of 0 is one, not "as before"
        moved = r.op("Reshape", moved, shape, like=x, shape=steps, allowzero=None if is_known else 1)
        bounds = ([1], [np.iinfo(np.int64).max], [0])
        return r.op("Slice", moved, *(r.const(b, np.int64) for b in bounds), like=x), self.lengths

    def spread(self, y: ir.Value, start: ir.Value | None) -> ir.Value:
        """The states after each step, from those after the steps that count, and the first one."""
        r = self.r
        assert start is not None
        batch, length = self.shape[1], self.length
        axes, rows = ([0, 1], [1, 1, self.size]) if self.is_unbatched else ([0], [1, batch, self.size])
        first = r.op("Unsqueeze", start, r.const(axes, np.int64), like=start, shape=rows)
        others = r.op("Squeeze", y, r.const([1], np.int64), like=y, shape=[length, batch, self.size])
        count = length + 1 if isinstance(length, int) else None
        joined = r.op("Concat", first, others, like=y, shape=[count, batch, self.size], axis=0)
        flat = r.op(
            "Reshape",
            joined,
            r.const([-1, self.size], np.int64),
            like=y,
            shape=[self._product([count, batch]), self.size],
        )
        return r.op("Gather", flat, self.place, like=y, shape=[length, batch, self.size], axis=0)

    def filled(self, history: ir.Value, filling: Any, old: ir.Value) -> ir.Value:
        """The states after each step, or a number at the steps that are left out, as the result of a Scan."""
        r = self.r
        if filling is not _STATE:
            mask = r.op(
                "Unsqueeze", self.counts, r.const([2], np.int64), like=self.counts, shape=[*dims(self.counts), 1]
            )
            history = r.op("Where", mask, history, r.const(filling), like=history)
        if not self.is_unbatched:
            return history
        return r.op("Squeeze", history, r.const([1], np.int64), like=old)

    def last(self, state: ir.Value, start: ir.Value | None, old: ir.Value) -> ir.Value:
        """The last state, as the result of a Scan: the first one, if no step counts."""
        r = self.r
        assert start is not None
        axes = [0, 1] if self.is_unbatched else [0]
        state = r.op("Squeeze", state, r.const(axes, np.int64), like=old)
        some = r.op("Greater", self.lengths, r.const(0, np.int32), like=self.lengths, dtype=BOOL)
        if not self.is_unbatched:
            some = r.op("Unsqueeze", some, r.const([1], np.int64), like=some, shape=[*dims(some), 1])
        return r.op("Where", some, state, start, like=old)

    @staticmethod
    def _product(sizes: Sequence[Any]) -> int | None:
        return int(np.prod(sizes)) if all(isinstance(d, int) for d in sizes) else None
