"""Single numbers get as many axes as ONNX Runtime needs to see that they are the same for all elements.

What they are combined with may have axes of size 1 at its end, as norms, means and coordinates do. If a number has not
more axes than those, the runtime goes from element to element, 10 ns each: 100 us for (100, 100, 1) plus a number of
shape (), and 1.5 us if its shape is (1, 1).
"""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir

from jax2onnx.dimensions import likely_size
from jax2onnx.graphs import all_nodes
from jax2onnx.optimize.engine import constants_for, rename_operator
from jax2onnx.optimize.queries import dims
from jax2onnx.optimize.spans import BROADCASTING

OPERATORS = {*BROADCASTING, "Sum"}
SOME, MANY = 64, 256
"""From so many elements on it is worth another shape of a known number, and another node."""


def give_scalars_axes(model: ir.Model) -> int:
    """Give numbers in the main graph and in the bodies in it those axes; how many operands have got some."""
    constant, done = constants_for(model.graph, "number"), 0
    for node in list(all_nodes(model.graph)):
        if node.op_type not in OPERATORS or node.domain or node.outputs[0].shape is None:
            continue
        shape = dims(node.outputs[0])
        if not shape or shape[-1] != 1:
            continue
        ones = sum(1 for _ in itertools.takewhile(lambda d: d == 1, reversed(shape)))
        if ones == len(shape) or likely_size(shape) < SOME:
            continue
        for i, operand in enumerate(node.inputs):
            if operand is None or operand.shape is None or set(dims(operand)) - {1} or len(dims(operand)) > ones:
                continue
            target = (1,) * (ones + 1)
            if operand.const_value is not None:
                node.replace_input_with(i, constant(np.reshape(operand.const_value.numpy(), target)))
            elif likely_size(shape) >= MANY:
                node.replace_input_with(i, _reshaped(node, operand, constant(np.asarray(target, np.int64))))
            else:
                continue
            done += 1
    return done


def _reshaped(node: ir.Node, operand: ir.Value, target: ir.Value) -> ir.Value:
    assert node.graph is not None and target.const_value is not None
    result = ir.Value(shape=ir.Shape(target.const_value.numpy().tolist()), type=operand.type)
    name = rename_operator(node.name, node.op_type, "Reshape")
    properties = dict(node.metadata_props) or None
    node.graph.insert_before(
        node, ir.Node("", "Reshape", [operand, target], outputs=[result], name=name, metadata_props=properties)
    )
    return result
