"""LSTM, GRU and RNN: a Scan whose body is such a cell, whoever wrote it, becomes one node.

ONNX Runtime computes the node two to ten times faster than the Scan, but for large batches: there a GRU is as fast, and
an RNN three times slower. It has kernels for float32 only. How its kernels fail (on NaN, on empty batches) is the
business of `targets/recurrent.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from jax2onnx.optimize.cells import Apply, Array, Formula, Input, Linear, Number, Product, Sum, formulas
from jax2onnx.optimize.engine import Rewriter, RuleSet, attribute, constant, dims, producer, scalar, splat

RULES = RuleSet()

OPSET = 14
"""Older versions of the operators are the same; Squeeze is not."""


class Affine(NamedTuple):
    """x @ a + h @ b + gated @ c + bias, where `gated` is the state times the reset gate, and what is left over."""

    matrices: dict[ir.Value, list[Array]]
    gated: list[tuple[Product, Array]]
    picks: list[Input]
    biases: list[Array]
    rest: list[Formula]
    sign: int = 1


class Cell(NamedTuple):
    """A cell: its operator, its gates in the order of ONNX, and what only some cells have."""

    op_type: str
    gates: list[Affine]
    inner: Affine | None = None
    """Of a GRU that multiplies by the reset gate last: what it multiplies."""
    attributes: tuple[tuple[str, Any], ...] = ()


@RULES.rewrites("Scan")
def recognise_recurrent_network(r: Rewriter, node: ir.Node) -> tuple[ir.Value, ...] | None:
    """A Scan of LSTM, GRU or RNN cells over one input, that gives the states after each step, or the last ones."""
    body = node.attributes["body"].as_graph()
    scanned = attribute(node, "num_scan_inputs")
    states = len(node.inputs) - scanned
    if scanned != 1 or states not in (1, 2) or r.opset < OPSET:
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
        cell = _simple(results[hidden]) or _gru(results[hidden], h)
        if memory is not None:
            cell = _lstm(results[hidden], results[memory], body.inputs[memory])
        if cell is not None and (cell.op_type != "RNN" or _batch(h) == 1):
            made = _emit(r, node, cell, x, hidden, memory, direction)
            if made is not None:
                return made
    return None


def _direction(node: ir.Node, stacked: int) -> str | None:
    reads = list(attribute(node, "scan_input_directions", [0]))
    writes = list(attribute(node, "scan_output_directions", [0] * stacked))
    if any(d != reads[0] for d in writes):
        return None
    return "reverse" if reads[0] else "forward"


def _batch(state: ir.Value) -> int | str:
    return dims(state)[0] if len(dims(state)) == 2 else 1


# ---------------------------------------------------------------------------------------------------- cells


def _argument(formula: Formula, function: str) -> Formula | None:
    return formula.argument if isinstance(formula, Apply) and formula.function == function else None


def _orders(formula: Formula) -> Iterator[tuple[Formula, Formula]]:
    """The factors of a product, or the terms of a sum of two, in both orders."""
    pair: Sequence[Formula] = ()
    if isinstance(formula, Product):
        pair = formula.factors
    elif isinstance(formula, Sum) and not formula.minus and len(formula.plus) == 2:
        pair = formula.plus
    if len(pair) == 2:
        yield pair[0], pair[1]
        yield pair[1], pair[0]


def _is_input(formula: Formula, value: ir.Value) -> bool:
    return isinstance(formula, Input) and formula.value is value and formula.is_whole()


def _is_same(a: Formula, b: Formula) -> bool:
    return a is b or (isinstance(b, Input) and _is_input(a, b.value) and b.is_whole())


def _simple(result: Formula) -> Cell | None:
    """h' = tanh(x @ a + h @ b + bias). With relu instead, ONNX Runtime's kernel drops NaN."""
    gate = _affine(_argument(result, "Tanh"))
    return None if gate is None or gate.rest or gate.gated else Cell("RNN", [gate])


def _lstm(hidden: Formula, memory: Formula, before: ir.Value) -> Cell | None:
    """c' = f * c + i * g; h' = o * tanh(c')."""
    for out, squashed in _orders(hidden):
        o = _argument(out, "Sigmoid")
        if o is None or _argument(squashed, "Tanh") is not memory:
            continue
        for kept, new in _orders(memory):
            for forget, c in _orders(kept):
                f = _argument(forget, "Sigmoid")
                if f is None or not _is_input(c, before):
                    continue
                for enter, candidate in _orders(new):
                    i, g = _argument(enter, "Sigmoid"), _argument(candidate, "Tanh")
                    gates = [_affine(gate) for gate in (i, o, f, g)]
                    if all(gate is not None and not gate.rest and not gate.gated for gate in gates):
                        return Cell("LSTM", gates)  # type: ignore[arg-type]
    return None


def _gru(result: Formula, h: ir.Value) -> Cell | None:
    """h' = z * h + (1 - z) * n, where n = tanh(x @ a + r * (h @ b + bias)) or tanh(x @ a + (r * h) @ b)."""
    for z, candidate, sign in _interpolations(result, h):
        update, argument = _affine(_argument(z, "Sigmoid")), _argument(candidate, "Tanh")
        new = _affine(argument)
        if update is None or new is None or update.rest or update.gated or h in new.matrices:
            continue
        inner: Affine | None = None
        if len(new.rest) == 1 and not new.gated:
            found = [(r, _affine(factor)) for r, factor in _orders(new.rest[0]) if _argument(r, "Sigmoid") is not None]
            reset, inner = next(((r, f) for r, f in found if f is not None), (None, None))
            if inner is None or inner.rest or inner.gated or inner.picks or set(inner.matrices) != {h}:
                continue
        elif len(new.gated) == 1 and not new.rest:
            product = new.gated[0][0]
            reset = next((r for r, state in _orders(product) if _is_input(state, h)), None)
        else:
            continue
        gate = _affine(_argument(reset, "Sigmoid")) if reset is not None else None
        if gate is None or gate.rest or gate.gated:
            continue
        last = () if inner is None else (("linear_before_reset", 1),)
        return Cell("GRU", [update._replace(sign=sign), gate, new], inner, last)
    return None


def _interpolations(result: Formula, h: ir.Value) -> Iterator[tuple[Formula, Formula, int]]:
    """(z, n, sign) such that the result is z * h + (1 - z) * n; with the sign -1, (1 - z) * h + z * n."""
    if not isinstance(result, Sum):
        return
    for first, second in _orders(result):
        for weight, state in _orders(first):
            for other, candidate in _orders(second):
                if _is_input(state, h):
                    if _complement(other) is weight:
                        yield weight, candidate, 1
                    if _complement(weight) is other:
                        yield other, candidate, -1
        for z, difference in _orders(second):  # first + z * (end - first)
            if isinstance(difference, Sum) and len(difference.plus) == len(difference.minus) == 1:
                end, start = difference.plus[0], difference.minus[0]
                if _is_same(start, first) and _is_input(end, h):
                    yield z, first, 1
                if _is_same(start, first) and _is_input(first, h):
                    yield z, end, -1


def _complement(formula: Formula) -> Formula | None:
    """z if this is 1 - z."""
    if not isinstance(formula, Sum) or len(formula.plus) != 1 or len(formula.minus) != 1:
        return None
    one = formula.plus[0]
    return formula.minus[0] if isinstance(one, Number) and one.number == 1 else None


def _affine(formula: Formula | None) -> Affine | None:
    if formula is None or (isinstance(formula, Sum) and formula.minus):
        return None
    found = Affine({}, [], [], [], [])
    for part in formula.plus if isinstance(formula, Sum) else (formula,):
        if isinstance(part, Linear):
            found.biases.extend(part.biases)
            for source, matrix in part.terms:
                if isinstance(source, Input) and source.is_whole():
                    found.matrices.setdefault(source.value, []).append(matrix)
                elif isinstance(source, Product):
                    found.gated.append((source, matrix))
                else:
                    return None
        elif isinstance(part, Number):
            found.biases.append(functools.partial(np.full, part.width, part.number, np.float32))
        elif isinstance(part, Input):
            found.picks.append(part)
        else:
            found.rest.append(part)
    return found


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
    return _results(r, node, made, hidden, memory, len(node.outputs), batch)


def _results(
    r: Rewriter, node: ir.Node, made: ir.Node, hidden: int, memory: int | None, count: int, batch: int | str
) -> tuple[ir.Value, ...]:
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
        for i, (matrices, sign) in enumerate(zip(gates, signs, strict=True)):
            for matrix in matrices:
                stacked[0, i * size : (i + 1) * size] += sign * matrix().T
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
