"""LSTM and GRU: ONNX Runtime's kernels turn NaN into numbers, and kill the process if the batch is empty.

So they are used where all numbers are finite, which an If finds out; elsewhere the recurrence is computed step by step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from jax2onnx.targets.emitter import Emitter, dims_of
from jax2onnx.targets.plans import expands

FLOAT, INT64, BOOL = ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.BOOL

_Gate = Callable[..., ir.Value]


@expands("LSTM GRU", "f16 bf16")
def recurrent_network_of_halves(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    """In float32."""
    inputs = [v if v is None or v.dtype == ir.DataType.INT32 else e.cast(v, FLOAT) for v in node.inputs]
    wide = [ir.Value(shape=v.shape, type=ir.TensorType(FLOAT)) for v in node.outputs]
    single = ir.Node("", node.op_type, inputs, list(node.attributes.values()), outputs=wide, name=node.name)
    node.graph.insert_before(node, single)  # type: ignore[union-attr]
    return [e.cast(v, e.dtype) for v in e.legalizer.visit(single)]


@expands("LSTM GRU", "f32", as_function=True)
def recurrent_network(e: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """The node where the sums of the squares of inputs and of weights are finite, so that no product of them overflows.

    Those of weights are computed when the model is loaded.
    """
    if not _is_plain(node):
        return None
    x, w, r, bias, _, *states = [*e.operands, *[None] * 7][:7]
    total = _squares(e, x, *states)
    if not all(isinstance(d, int) and d > 0 for d in dims_of(x)):
        total = e.Div(total, total, shape=[])  # 0 / 0, if there is nothing to sum
    total = e.Add(total, _squares(e, w, r, bias), shape=[])
    is_finite = e.Less(total, e.const(np.asarray(np.inf, np.float32)), shape=[], dtype=BOOL)
    values = [ir.Value(shape=v.shape, type=v.type) for v in node.outputs]
    kernel = ir.Node("", node.op_type, list(node.inputs), list(node.attributes.values()), outputs=values)
    quick = ir.Graph([], values, nodes=[kernel], name="quick")
    results = [ir.Value(shape=v.shape, type=v.type) for v in node.outputs]
    branches = [ir.AttrGraph("then_branch", quick), ir.AttrGraph("else_branch", _careful(e, node))]
    choice = ir.Node("", "If", [is_finite], branches, outputs=results, name=node.name)
    choice.metadata_props.update(node.metadata_props)
    node.graph.insert_before(node, choice)  # type: ignore[union-attr]
    return results


def _squares(e: Emitter, *values: ir.Value | None) -> ir.Value:
    """The sum of the squares of all numbers in some values."""
    sums = [e.ReduceSumSquare(v, keepdims=0, shape=[]) for v in values if v is not None]
    return functools.reduce(lambda a, b: e.Add(a, b, shape=[]), sums)


def _is_plain(node: ir.Node) -> bool:
    """Is this a node as the optimizer makes them?"""
    inputs = list(node.inputs)
    activations = ("activations", "activation_alpha", "activation_beta")
    return (
        set(node.attributes) <= {"hidden_size", "direction", "linear_before_reset", *activations}
        and len(inputs) < 8
        and all(inputs[i] is not None for i in range(3))
    )


class _Nodes:
    """The nodes of a body."""

    def __init__(self, e: Emitter):
        self.e, self.nodes = e, list[ir.Node]()

    def __call__(self, op: str, *inputs: Any, shape: Sequence[Any], **attributes: Any) -> ir.Value:
        result = ir.Value(shape=ir.Shape(shape), type=ir.TensorType(attributes.pop("dtype", FLOAT)))
        return self.add(op, inputs, [result], attributes)[0]

    def add(
        self, op: str, inputs: Sequence[Any], outputs: list[ir.Value], attributes: dict[str, Any]
    ) -> list[ir.Value]:
        operands = [v if v is None or isinstance(v, ir.Value) else self.e.const(np.asarray(v)) for v in inputs]
        self.nodes.append(
            ir.Node("", op, operands, ir.convenience.convert_attributes(attributes), outputs=outputs, name=op)
        )
        return outputs

    def split(self, x: ir.Value, sizes: Sequence[int]) -> list[ir.Value]:
        rows = dims_of(x)[0]
        parts = [ir.Value(shape=ir.Shape([rows, size]), type=x.type) for size in sizes]
        return self.add("Split", [x, np.asarray(sizes)], parts, {"axis": 1})

    def halves(self, x: ir.Value) -> list[ir.Value]:
        """The parameters of each direction."""
        parts = [ir.Value(shape=ir.Shape([1, *dims_of(x)[1:]]), type=x.type) for _ in range(2)]
        return self.add("Split", [x, np.asarray([1, 1])], parts, {"axis": 0})


def _careful(e: Emitter, node: ir.Node) -> ir.Graph:
    """The recurrence as a Scan of plain operators, with the same weights."""
    x, w, r, bias, lengths, *states = [*e.operands, *[None] * 7][:7]
    parameters = [w, r, bias, *states]
    add = _Nodes(e)
    mask = None if lengths is None else _before(add, x, lengths)
    direction = node.attributes.get_string("direction", "forward")
    if direction != "bidirectional":
        outputs = _one_direction(e, add, node, x, mask, parameters, direction == "reverse")
    else:
        halves = [add.halves(v) if v is not None else [None, None] for v in parameters]
        forwards = _one_direction(e, add, node, x, mask, [h[0] for h in halves], False)
        backwards = _one_direction(e, add, node, x, mask, [h[1] for h in halves], True)
        outputs = [
            add("Concat", a, b, shape=dims_of(whole), axis=1 if i == 0 else 0)
            for i, (a, b, whole) in enumerate(zip(forwards, backwards, node.outputs, strict=True))
        ]
    return ir.Graph([], outputs, nodes=add.nodes, name="careful")


def _before(add: _Nodes, x: ir.Value, lengths: ir.Value) -> ir.Value:
    """For each step and element of the batch, whether it is before the end."""
    steps, batch, _ = dims_of(x)
    count = add("Squeeze", add("Shape", x, shape=[1], dtype=INT64, start=0, end=1), [0], shape=[], dtype=INT64)
    step = add("Range", np.asarray(0), count, np.asarray(1), shape=[steps], dtype=INT64)
    step = add("Unsqueeze", step, [1], shape=[steps, 1], dtype=INT64)
    ends = add("Cast", lengths, shape=[batch], dtype=INT64, to=int(INT64))
    mask = add("Less", step, ends, shape=[steps, batch], dtype=BOOL)
    return add("Unsqueeze", mask, [2], shape=[steps, batch, 1], dtype=BOOL)


def _one_direction(
    e: Emitter,
    add: _Nodes,
    node: ir.Node,
    x: ir.Value,
    mask: ir.Value | None,
    parameters: Sequence[ir.Value | None],
    is_reverse: bool,
) -> list[ir.Value]:
    w, r, bias, *initial = parameters
    steps, batch, features = dims_of(x)
    size = node.attributes.get_int("hidden_size")
    gates = 4 if node.op_type == "LSTM" else 3
    width = gates * size
    weights = add("Transpose", w, shape=[1, features, width], perm=[0, 2, 1])
    inner = add("Squeeze", add("Transpose", r, shape=[1, size, width], perm=[0, 2, 1]), [0], shape=[size, width])
    projected = add("MatMul", x, weights, shape=[steps, batch, width])
    own = None
    if bias is not None:
        flat = add("Squeeze", bias, [0], shape=[2 * width])
        outer, own = (ir.Value(shape=ir.Shape([width]), type=bias.type) for _ in range(2))
        add.add("Split", [flat, np.asarray([width, width])], [outer, own], {"axis": 0})
        projected = add("Add", projected, outer, shape=[steps, batch, width])
    count = 2 if gates == 4 else 1
    states = [_first(add, x, state, batch, size) for state in initial[:count]]

    body = _Nodes(e)
    gate = _gate(body, node)
    p, *current = (
        ir.Value(shape=ir.Shape([batch, n]), type=x.type, name=name)
        for n, name in zip([width, size, size], "phc", strict=True)
    )
    if gates == 4:
        new = _lstm_step(body, gate, p, current[0], current[1], inner, own, size)
    else:
        linear = node.attributes.get_int("linear_before_reset", 0)
        new = [_gru_step(body, gate, p, current[0], inner, own, size, bool(linear))]
    scanned, slices = [projected], [p]
    if mask is None:
        stacked = body("Identity", new[0], shape=[batch, size])
    else:
        goes_on = ir.Value(shape=ir.Shape([batch, 1]), type=mask.type, name="m")
        scanned, slices = [projected, mask], [p, goes_on]
        stacked = body("Where", goes_on, new[0], np.zeros((), np.float32), shape=[batch, size])
        new = [body("Where", goes_on, a, b, shape=[batch, size]) for a, b in zip(new, current, strict=False)]
    step = ir.Graph([*current[:count], *slices], [*new, stacked], nodes=body.nodes, name="step")
    results = [ir.Value(shape=ir.Shape([batch, size]), type=x.type) for _ in range(count)]
    results.append(ir.Value(shape=ir.Shape([steps, batch, size]), type=x.type))
    attributes: dict[str, Any] = {"body": step, "num_scan_inputs": len(scanned)}
    if is_reverse:
        attributes |= {"scan_input_directions": [1] * len(scanned), "scan_output_directions": [1]}
    *last, history = add.add("Scan", [*states, *scanned], results, attributes)
    outputs = [add("Unsqueeze", history, [1], shape=[steps, 1, batch, size])]
    for state in last[: len(node.outputs) - 1]:
        outputs.append(add("Unsqueeze", state, [0], shape=[1, batch, size]))
    return outputs


def _first(add: _Nodes, x: ir.Value, state: ir.Value | None, batch: Any, size: int) -> ir.Value:
    if state is not None:
        return add("Squeeze", state, [0], shape=[batch, size])
    rows = add("Shape", x, shape=[1], dtype=INT64, start=1, end=2)
    shape = add("Concat", rows, [size], shape=[2], dtype=INT64, axis=0)
    return add("Expand", np.zeros((), np.float32), shape, shape=[batch, size])


def _with_bias(add: _Nodes, x: ir.Value, bias: ir.Value | None) -> ir.Value:
    return x if bias is None else add("Add", x, bias, shape=dims_of(x))


def _gate(add: _Nodes, node: ir.Node) -> _Gate:
    """The function of the gates; both directions have the same."""
    name = node.attributes.get_strings("activations", ["Sigmoid"])[0]
    if name == "Sigmoid":
        return functools.partial(add, name)
    alpha, beta = (node.attributes.get_floats(f"activation_{p}")[0] for p in ("alpha", "beta"))
    return functools.partial(add, name, alpha=alpha, beta=beta)


def _lstm_step(
    add: _Nodes,
    gate: _Gate,
    p: ir.Value,
    h: ir.Value,
    c: ir.Value,
    weights: ir.Value,
    bias: ir.Value | None,
    size: int,
) -> list[ir.Value]:
    whole, one = dims_of(p), dims_of(h)
    own = _with_bias(add, add("MatMul", h, weights, shape=whole), bias)
    parts = add.split(add("Add", p, own, shape=whole), [size] * 4)
    i, o, f = (gate(part, shape=one) for part in parts[:3])
    new = add("Mul", i, add("Tanh", parts[3], shape=one), shape=one)
    memory = add("Add", add("Mul", f, c, shape=one), new, shape=one)
    return [add("Mul", o, add("Tanh", memory, shape=one), shape=one), memory]


def _gru_step(
    add: _Nodes,
    gate: _Gate,
    p: ir.Value,
    h: ir.Value,
    weights: ir.Value,
    bias: ir.Value | None,
    size: int,
    linear: bool,
) -> ir.Value:
    whole, one = dims_of(p), dims_of(h)
    z, r, n = add.split(p, [size] * 3)
    own = add.split(_with_bias(add, add("MatMul", h, weights, shape=whole), bias), [size] * 3)
    z, r = (gate(add("Add", a, b, shape=one), shape=one) for a, b in zip((z, r), own[:2], strict=True))
    if linear:
        gated = add("Mul", r, own[2], shape=one)
    else:
        last = add.split(weights, [size] * 3)[2]
        gated = add("MatMul", add("Mul", r, h, shape=one), last, shape=one)
        if bias is not None:
            row = add("Unsqueeze", bias, [0], shape=[1, 3 * size])
            gated = add("Add", gated, add.split(row, [size] * 3)[2], shape=one)
    new = add("Tanh", add("Add", n, gated, shape=one), shape=one)
    rest = add("Sub", np.ones((), np.float32), z, shape=one)
    return add("Add", add("Mul", rest, new, shape=one), add("Mul", z, h, shape=one), shape=one)
