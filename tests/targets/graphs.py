"""Small models of several nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from jax2onnx import runtime
from tests.targets.one_node import checked, value


def chain_model(steps: Sequence[tuple[str, ...]], inputs: Mapping[str, np.ndarray], opset: int = 23) -> ir.Model:
    """Nodes in a row. Each step is an operator and the names of its operands; "" is the result of the step before."""
    values = {name: value(name, array) for name, array in inputs.items()}
    shape = np.broadcast_shapes(*(a.shape for a in inputs.values()))
    like = next(iter(inputs.values()))
    nodes: list[ir.Node] = []
    for i, (op, *operands) in enumerate(steps):
        out = value(f"y{i}", np.broadcast_to(like.ravel()[0], shape))
        nodes.append(ir.Node("", op, [values[o] for o in operands], outputs=[out], name=op))
        values[""] = out
    graph = ir.Graph(
        list(values.values())[: len(inputs)], [values[""]], nodes=nodes, opset_imports={"": opset}, name="g"
    )
    return ir.Model(graph, ir_version=10)


def chain(steps: Sequence[tuple[str, ...]], inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """The result of the chain in ONNX Runtime."""
    (result,) = runtime.run(checked(chain_model(steps, inputs)), dict(inputs))
    return result
