"""LSTM, GRU and RNN: a Scan whose body is such a cell, whoever wrote it, becomes one node.

ONNX Runtime computes the node two to ten times faster than the Scan, but for large batches: there a GRU is as fast, and
an RNN three times slower. It has kernels for float32 only. How its kernels fail (on NaN, on empty batches) is the
business of `targets/recurrent.py`.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from jax2onnx.optimize.cells import Array, formulas
from jax2onnx.optimize.engine import Rewriter, RuleSet, first
from jax2onnx.optimize.gates import Cell, gru, lstm, simple
from jax2onnx.optimize.queries import attribute, axes_of, constant, dims, producer, scalar, splat

RULES = RuleSet()


@RULES.rewrites("Scan")
def recognise_recurrent_network(r: Rewriter, node: ir.Node) -> tuple[ir.Value, ...] | None:
    """A Scan of LSTM, GRU or RNN cells over one input, that gives the states after each step, or the last ones."""
    body = node.attributes["body"].as_graph()
    scanned = attribute(node, "num_scan_inputs")
    states = len(node.inputs) - scanned
    if scanned != 1 or states not in (1, 2):
        return None
    if any(v.dtype != ir.DataType.FLOAT for v in (*body.inputs, *body.outputs)):
        return None
    if "scan_input_axes" in node.attributes or "scan_output_axes" in node.attributes:
        return None
    direction = _direction(node, len(body.outputs) - states)
    results = formulas(body)
    if results is None or direction is None:
        return None
    x = body.inputs[states]
    for hidden in range(states):
        if any(y is not results[hidden] for y in results[states:]):
            continue
        memory = 1 - hidden if states == 2 else None
        h = body.inputs[hidden]
        cell = simple(results[hidden]) or gru(results[hidden], h)
        if memory is not None:
            cell = lstm(results[hidden], results[memory], body.inputs[memory])
        if cell is not None and (cell.op_type != "RNN" or _batch(h) == 1):
            made = _emit(r, node, cell, x, hidden, memory, direction)
            if made is not None:
                return made
    return None


@RULES.rewrites("Gather", given=first("Squeeze"))
def take_the_last_state(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """What a network gives at its last step is its last state."""
    y, step = node.outputs[0], scalar(node.inputs[1])
    squeezed = producer(node.inputs[0], "Squeeze")
    network = producer(squeezed.inputs[0], "LSTM", "GRU", "RNN") if squeezed is not None else None
    if network is None or squeezed is None or step is None or len(dims(y)) != 2 or attribute(node, "axis", 0) != 0:
        return None
    history = network.outputs[0]
    steps = dims(history)[0]
    last = {"forward": [-1, steps - 1] if isinstance(steps, int) else [-1], "reverse": [0]}
    if squeezed.inputs[0] is not history or axes_of(squeezed) != (1,):
        return None
    if step not in last.get(attribute(network, "direction", "forward"), []):
        return None
    if len(network.outputs) < 2:
        network.resize_outputs(2)
    state = network.outputs[1]
    state.shape, state.type = ir.Shape([1, *list(history.shape)[2:]]), history.type  # type: ignore[arg-type]
    return r.op("Squeeze", state, r.const([0], np.int64), like=y)


def _direction(node: ir.Node, stacked: int) -> str | None:
    reads = list(attribute(node, "scan_input_directions", [0]))
    writes = list(attribute(node, "scan_output_directions", [0] * stacked))
    if any(d != reads[0] for d in writes):
        return None
    return "reverse" if reads[0] else "forward"


def _batch(state: ir.Value) -> int | str:
    return dims(state)[0] if len(dims(state)) == 2 else 1


# ---------------------------------------------------------------------------------------------------- the node


class Source(NamedTuple):
    """The input of all steps, and for each gate its weights and biases."""

    x: ir.Value
    weights: list[list[Array]]
    biases: list[list[Array]]


def _emit(
    r: Rewriter, node: ir.Node, cell: Cell, x: ir.Value, hidden: int, memory: int | None, direction: str
) -> tuple[ir.Value, ...] | None:
    body = node.attributes["body"].as_graph()
    h = body.inputs[hidden]
    size = dims(h)[-1]
    assert isinstance(size, int)
    source = _source(r, cell, x, h, node.inputs[-1])
    if source is None or size == 0 or any(d == 0 for d in dims(source.x)):
        return None
    whole, unbatched = source.x, len(dims(h)) == 1
    if unbatched:
        steps, features = dims(whole)
        whole = r.op("Unsqueeze", whole, r.const([1], np.int64), like=whole, shape=[steps, 1, features])
    steps, batch, features = dims(whole)

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
        None,
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
    made.resize_outputs(1 if memory is None else 3)
    return _results(r, node, made, hidden, memory)


def _results(r: Rewriter, node: ir.Node, made: ir.Node, hidden: int, memory: int | None) -> tuple[ir.Value, ...]:
    """What the Scan gave, from the results of the new node."""
    y = made.outputs[0]
    states = 1 if memory is None else 2
    used = [bool(v.uses()) or v.is_graph_output() for v in node.outputs]
    wanted = [True, used[hidden], memory is not None and used[memory]]
    made.resize_outputs(3 if wanted[2] else 2 if wanted[1] else 1)
    for value in made.outputs[1:]:
        value.shape, value.type = ir.Shape([1, *list(y.shape)[2:]]), y.type  # type: ignore[arg-type]
    results = []
    for i, old in enumerate(node.outputs):
        if not used[i]:
            results.append(old)
            continue
        source = y if i >= states else made.outputs[1 if i == hidden else 2]
        axes = [1] if i >= states else [0]
        if len(dims(old)) < len(dims(source)) - 1:
            axes.append(axes[0] + 1)
        results.append(r.op("Squeeze", source, r.const(axes, np.int64), like=old))
    return tuple(results)


def _initial(r: Rewriter, state: ir.Value | None, unbatched: bool) -> ir.Value | None:
    """The first state with the axis of directions, None if it is zero."""
    if state is None or splat(state) == 0 or ((array := constant(state)) is not None and not array.any()):
        return None
    axes, shape = ([0, 1], [1, 1, *dims(state)]) if unbatched else ([0], [1, *dims(state)])
    return r.op("Unsqueeze", state, r.const(axes, np.int64), like=state, shape=shape)


def _source(r: Rewriter, cell: Cell, x: ir.Value, h: ir.Value, whole: ir.Value | None) -> Source | None:
    gates = cell.gates
    if whole is None or any(v not in (x, h) for gate in gates for v in gate.matrices):
        return None
    biases = [gate.biases for gate in gates]
    if not any(gate.picks for gate in gates):
        return Source(whole, [gate.matrices.get(x, []) for gate in gates], biases)
    if any(len(gate.picks) != 1 or gate.picks[0].value is not x or x in gate.matrices for gate in gates):
        return None
    projection = _projection(r, whole)
    if projection is None:
        return None
    inner, matrix, offsets = projection
    spans = [(gate.picks[0].start, gate.picks[0].start + gate.picks[0].width) for gate in gates]
    weights = [[_columns(matrix, span)] for span in spans]
    shifted = [[*own, *(_columns(o, span) for o in offsets)] for own, span in zip(biases, spans, strict=True)]
    return Source(inner, weights, shifted)


def _projection(r: Rewriter, value: ir.Value) -> tuple[ir.Value, Array, list[Array]] | None:
    """(x, matrix, biases) if `value` is x @ matrix + biases, computed before the loop for all steps."""
    offsets: list[Array] = []
    perms: list[list[int]] = []
    width = dims(value)[-1]
    while True:
        node = producer(value, "Transpose", "Add", "MatMul")
        if node is None:
            return None
        if node.op_type == "Transpose":
            perm = list(attribute(node, "perm"))
            if perm[-1] != len(perm) - 1:
                return None
            perms.append(perm)
            value = node.inputs[0]  # type: ignore[assignment]
        elif node.op_type == "Add":
            found = [(a, b) for a, b in (node.inputs, node.inputs[::-1]) if b is not None and b.const_value is not None]
            if not found or found[0][0] is None or dims(found[0][0]) != dims(value):
                return None
            value, bias = found[0]  # type: ignore[assignment]
            tensor, number = bias.const_value, scalar(bias)
            if number is not None:
                offsets.append(functools.partial(np.full, width, number, np.float32))
            elif tensor is not None and tensor.size == width == dims(bias)[-1]:
                offsets.append(lambda tensor=tensor: tensor.numpy().reshape(-1))  # type: ignore[misc]
            else:
                return None
        else:
            x, weights = node.inputs
            tensor = weights.const_value if weights is not None else None
            if x is None or tensor is None or len(tensor.shape) != 2:
                return None
            for perm in reversed(perms):
                x = r.op("Transpose", x, like=x, shape=[dims(x)[i] for i in perm], perm=perm)
            return x, tensor.numpy, offsets


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
