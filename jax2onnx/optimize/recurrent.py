"""LSTM, GRU and RNN: a Scan whose body is such a cell, whoever wrote it, becomes one node.

ONNX Runtime computes the node two to ten times faster than the Scan, but for large batches: there a GRU is as fast, and
an RNN three times slower. It has kernels for float32 only. How its kernels fail (on NaN, on empty batches) is the
business of `targets/recurrent.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import onnx_ir as ir

from jax2onnx.dimensions import likely_size
from jax2onnx.optimize.bidirectional import MOVES, moved_result
from jax2onnx.optimize.cells import Array, formulas
from jax2onnx.optimize.engine import Rewriter, RuleSet, first
from jax2onnx.optimize.gates import Cell, gru, lstm, simple
from jax2onnx.optimize.queries import attribute, constant, dims, producer, scalar, splat
from jax2onnx.optimize.slices import columns_of

RULES = RuleSet()

FEW = 1024
"""Of more numbers in a state, a network with other gates than Sigmoid takes as long as its Scan: it has no kernel that
computes several at a time."""


@RULES.rewrites("Scan")
def recognise_recurrent_network(r: Rewriter, node: ir.Node) -> tuple[ir.Value, ...] | None:
    """A Scan of LSTM, GRU or RNN cells over an input, that gives the states after each step, or the last ones."""
    body = node.attributes["body"].as_graph()
    states = len(node.inputs) - attribute(node, "num_scan_inputs")
    if states not in (1, 2):
        return None
    direction = direction_of(node)
    if direction is None:
        return None
    results = formulas(body, body.outputs)
    for hidden in range(states):
        if any(y is not results[hidden] for y in results[states:]):
            continue
        memory = 1 - hidden if states == 2 else None
        h = body.inputs[hidden]
        cell = simple(results[hidden]) or gru(results[hidden], h)
        if memory is not None:
            cell = lstm(results[hidden], results[memory], body.inputs[memory])
        if cell is not None and (cell.op_type != "RNN" or _batch(h) == 1):
            made = network_of(r, node, cell, hidden, memory, direction)
            places = [1 if i == hidden else 2 if i == memory else 0 for i in range(len(node.outputs))]
            if made is not None:
                return tuple(results_of(r, made, list(zip(node.outputs, places, strict=True))))
    return None


@RULES.rewrites("Gather", given=first(*MOVES))
def take_the_last_state(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """What a network gives at its last step is its last state."""
    y, step, found = node.outputs[0], scalar(node.inputs[1]), moved_result(node.inputs[0])
    if found is None or found.position or step is None or len(dims(y)) != len(found.axes) - 1:
        return None
    network, axis = found.network, attribute(node, "axis", 0) % len(found.axes)
    if found.axes[axis] != "T" or found.axes.replace("T", "") != "BH":
        return None
    history = network.outputs[0]
    steps = dims(history)[0]
    last = {"forward": [-1, steps - 1] if isinstance(steps, int) else [-1], "reverse": [0]}
    if step not in last.get(attribute(network, "direction", "forward"), []):
        return None
    if len(network.outputs) < 2:
        network.resize_outputs(2)
    state = network.outputs[1]
    state.shape, state.type = ir.Shape([1, *list(history.shape)[2:]]), history.type  # type: ignore[arg-type]
    return r.op("Squeeze", state, r.const([0], np.int64), like=y)


def direction_of(node: ir.Node, mask: ir.Value | None = None) -> str | None:
    """The direction of a Scan over first axes, all of it in float32 but for a mask: as it reads, so it writes."""
    body = node.attributes["body"].as_graph()
    if any(v.dtype != ir.DataType.FLOAT for v in (*body.inputs, *body.outputs) if v is not mask):
        return None
    if not {"scan_input_axes", "scan_output_axes"}.isdisjoint(node.attributes):
        return None
    scanned = attribute(node, "num_scan_inputs")
    stacked = len(body.outputs) - (len(body.inputs) - scanned)
    reads = attribute(node, "scan_input_directions", [0] * scanned)
    writes = attribute(node, "scan_output_directions", [0] * stacked)
    directions = {*reads, *writes}
    return ("reverse" if 1 in directions else "forward") if len(directions) == 1 else None


def _batch(state: ir.Value) -> int | str:
    return dims(state)[0] if len(dims(state)) == 2 else 1


# ---------------------------------------------------------------------------------------------------- the node


class Source(NamedTuple):
    """The input of all steps, and for each gate its weights and biases."""

    x: ir.Value
    weights: list[list[Array]]
    biases: list[list[Array]]


class Steps(Protocol):
    """The steps that a network is to make, if these are not all."""

    def together(self, x: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The input of all steps with those that count in front, and how many these are."""


def network_of(
    r: Rewriter,
    node: ir.Node,
    cell: Cell,
    hidden: int,
    memory: int | None,
    direction: str,
    counting: Steps | None = None,
) -> ir.Node | None:
    """The node for a cell whose states are at these places in a Scan, which may leave out steps."""
    body = node.attributes["body"].as_graph()
    h = body.inputs[hidden]
    size = dims(h)[-1]
    assert isinstance(size, int)
    states = len(node.inputs) - attribute(node, "num_scan_inputs")
    scanned = zip(body.inputs[states:], node.inputs[states:], strict=True)
    source = _source(r, cell, {v: whole for v, whole in scanned if v.dtype == ir.DataType.FLOAT}, h)
    if source is None or size == 0 or any(d == 0 for d in dims(source.x)):
        return None
    if "activations" in dict(cell.attributes) and likely_size(dims(h)) > FEW:
        return None
    whole, unbatched = source.x, len(dims(h)) == 1
    if len(dims(whole)) == 2:  # which the state may have an axis more than, or less, for its batch of 1
        steps, features = dims(whole)
        whole = r.op("Unsqueeze", whole, r.const([1], np.int64), like=whole, shape=[steps, 1, features])
    steps, batch, features = dims(whole)
    lengths = None
    if counting is not None:
        whole, lengths = counting.together(whole)

    recurrent = [[*gate.matrices.get(h, []), *(matrix for _, matrix in gate.gated)] for gate in cell.gates]
    extra: list[list[Array]] = [[] for _ in cell.gates]
    if cell.inner is not None:
        recurrent[-1], extra[-1] = cell.inner.matrices[h], cell.inner.biases
    signs = [gate.sign for gate in cell.gates]
    name = "/".join([*(node.name or "").split("/")[:-1], cell.op_type])  # its weights are in the module of the scan
    inputs = [
        whole,
        _stacked(r, source.weights, signs, (int(features), size), f"{name}/W"),
        _stacked(r, recurrent, signs, (size, size), f"{name}/R"),
        _joined_biases(r, [*source.biases, *extra], [*signs, *signs], size, f"{name}/B"),
        lengths,
        _initial(r, node.inputs[hidden], unbatched),
        _initial(r, node.inputs[memory], unbatched) if memory is not None else None,
    ]
    while inputs[-1] is None:
        inputs.pop()
    y = r.op(
        cell.op_type,
        *inputs,
        like=whole,
        shape=[steps, 1, batch, size],
        hidden_size=size,
        direction=None if direction == "forward" else direction,
        **dict(cell.attributes),
    )
    made = y.producer()
    assert made is not None
    return made


def results_of(r: Rewriter, made: ir.Node, wanted: Sequence[tuple[ir.Value, int]]) -> list[ir.Value]:
    """What a Scan gave, if anybody uses it, from the results of the new node at the places that come with it."""
    used = [bool(old.uses()) or old.is_graph_output() for old, _ in wanted]
    made.resize_outputs(
        1 + max((place for (_, place), is_used in zip(wanted, used, strict=True) if is_used), default=0)
    )
    y = made.outputs[0]
    for value in made.outputs[1:]:
        value.shape, value.type = ir.Shape([1, *list(y.shape)[2:]]), y.type  # type: ignore[arg-type]
    results = []
    for (old, place), is_used in zip(wanted, used, strict=True):
        if not is_used:
            results.append(old)
            continue
        axes = [0] if place else [1]
        if len(dims(old)) < len(dims(made.outputs[place])) - 1:
            axes.append(axes[0] + 1)
        results.append(r.op("Squeeze", made.outputs[place], r.const(axes, np.int64), like=old))
    return results


def _initial(r: Rewriter, state: ir.Value | None, unbatched: bool) -> ir.Value | None:
    """The first state with the axis of directions, None if it is zero."""
    if state is None or splat(state) == 0 or ((array := constant(state)) is not None and not array.any()):
        return None
    axes, shape = ([0, 1], [1, 1, *dims(state)]) if unbatched else ([0], [1, *dims(state)])
    return r.op("Unsqueeze", state, r.const(axes, np.int64), like=state, shape=shape)


def _source(r: Rewriter, cell: Cell, scanned: dict[ir.Value, ir.Value | None], h: ir.Value) -> Source | None:
    """Where the input of the cell comes from: `scanned` has what each input of the body is for all steps."""
    gates = cell.gates
    inputs = {v for gate in gates for v in gate.matrices} - {h}
    biases = [gate.biases for gate in gates]
    if any(v not in scanned for v in inputs) or len(inputs) > 1:
        return None
    if not any(gate.picks for gate in gates):
        x = inputs.pop() if inputs else next((v for v in scanned if _has_rows(v, dims(h)[:-1])), None)
        if x is None:
            return None
        whole = scanned[x]
        return None if whole is None else Source(whole, [gate.matrices.get(x, []) for gate in gates], biases)
    if inputs or any(len(gate.picks) != 1 or gate.picks[0].value not in scanned for gate in gates):
        return None
    picks = [gate.picks[0] for gate in gates]
    found = {v: _projection(scanned[v]) for v in {pick.value: None for pick in picks}}
    projections = [found[pick.value] for pick in picks]
    first = projections[0]
    if first is None or any(p is None or p.x is not first.x or p.perms != first.perms for p in projections):
        return None
    weights, shifted = [], []
    for own, pick, projection in zip(biases, picks, projections, strict=True):
        assert projection is not None
        span = (pick.start, pick.start + pick.width)
        weights.append([_columns(projection.matrix, span)])
        shifted.append([*own, *(_columns(offset, span) for offset in projection.offsets)])
    inner = first.x
    for perm in reversed(first.perms):
        inner = r.transpose(inner, perm)
    return Source(inner, weights, shifted)


def _has_rows(value: ir.Value, rows: Sequence[int | str]) -> bool:
    """Is a value that many rows of a known number of features?"""
    *own, features = dims(value) or (None,)
    return own == list(rows) and isinstance(features, int)


class Projection(NamedTuple):
    """x @ matrix + offsets, with the axes but the last in other orders."""

    x: ir.Value
    perms: list[list[int]]
    matrix: Array
    offsets: list[Array]


def _projection(value: ir.Value | None) -> Projection | None:
    """What is computed before the loop for all steps, if it is a product with a known matrix, or columns of one."""
    offsets: list[Array] = []
    perms: list[list[int]] = []
    spans: list[tuple[int, int]] = []

    def columns(array: Array) -> Array:
        for span in reversed(spans):
            array = _columns(array, span)
        return array

    while True:
        node = producer(value, "Transpose", "Add", "MatMul", "Slice", "Split")
        if node is None or value is None:
            return None
        width = dims(value)[-1]
        if node.op_type == "Transpose":
            perm = list(attribute(node, "perm"))
            if perm[-1] != len(perm) - 1:
                return None
            perms.append(perm)
            value = node.inputs[0]
        elif node.op_type in ("Slice", "Split"):
            cut = columns_of(value)
            if cut is None:
                return None
            spans.append((cut.start, cut.end))
            value = cut.x
        elif node.op_type == "Add":
            found = [(a, b) for a, b in (node.inputs, node.inputs[::-1]) if b is not None and b.const_value is not None]
            if not found or found[0][0] is None or dims(found[0][0]) != dims(value):
                return None
            value, bias = found[0]
            assert bias is not None
            tensor, number = bias.const_value, scalar(bias)
            if number is not None:
                offsets.append(columns(functools.partial(np.full, width, number, np.float32)))
            elif tensor is not None and tensor.size == width == dims(bias)[-1]:
                offsets.append(columns(lambda tensor=tensor: tensor.numpy().reshape(-1)))  # type: ignore[misc]
            else:
                return None
        else:
            x, weights = node.inputs
            tensor = weights.const_value if weights is not None else None
            if x is None or tensor is None or len(tensor.shape) != 2:
                return None
            return Projection(x, perms, columns(tensor.numpy), offsets)


def _columns(array: Array, span: tuple[int, int]) -> Array:
    return lambda: array()[..., span[0] : span[1]]


def _stacked(r: Rewriter, gates: list[list[Array]], signs: list[int], shape: tuple[int, int], name: str) -> ir.Value:
    """The matrices of all gates, transposed, as one weight that is put together when it is written."""
    rows, size = shape

    def read() -> ir.TensorProtocol:
        stacked = np.zeros((1, len(gates) * size, rows), np.float32)
        parts = [
            [matrix() for matrix in matrices] for matrices in gates
        ]  # all, before those of one weight let go of it
        for i, (matrices, sign) in enumerate(zip(parts, signs, strict=True)):
            for matrix in matrices:
                stacked[0, i * size : (i + 1) * size] += sign * matrix.T
        return ir.tensor(stacked)

    return r.tensor(ir.LazyTensor(read, ir.DataType.FLOAT, ir.Shape([1, len(gates) * size, rows])), name=name)


def _joined_biases(r: Rewriter, gates: list[list[Array]], signs: list[int], size: int, name: str) -> ir.Value | None:
    """First those of the input, then those of the state."""
    if not any(gates):
        return None

    def read() -> ir.TensorProtocol:
        joined = np.zeros((1, len(gates), size), np.float32)
        for i, (biases, sign) in enumerate(zip(gates, signs, strict=True)):
            for bias in biases:
                joined[0, i] += sign * bias()
        return ir.tensor(joined.reshape(1, -1))

    return r.tensor(ir.LazyTensor(read, ir.DataType.FLOAT, ir.Shape([1, len(gates) * size])), name=name)
