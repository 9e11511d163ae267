"""Arrays without elements that ONNX Runtime's kernels do not survive. An If on their size costs 3 microseconds."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from jax2onnx.attributes import values_of
from jax2onnx.targets.emitter import Emitter, dims_of
from jax2onnx.targets.plans import expands

BOOL, INT64 = ir.DataType.BOOL, ir.DataType.INT64


def _has_positions(node: ir.Node) -> bool:
    x = node.inputs[0]
    assert x is not None
    return all(isinstance(d, int) and d > 0 for d in dims_of(x)[2:])


@expands("InstanceNormalization", "f32", as_function=True, unless=_has_positions)
def instance_normalization(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    """The node where there is something to normalize, else its operand, which is as empty."""
    x = e.operands[0]
    is_full = e.raw("Cast", e.raw("Size", x, shape=[], dtype=INT64), shape=[], dtype=BOOL, to=int(BOOL))
    normal, same = (ir.Value(shape=x.shape, type=x.type) for _ in range(2))
    kernel = ir.Node("", node.op_type, list(node.inputs), list(node.attributes.values()), outputs=[normal])
    full = ir.Graph([], [normal], nodes=[kernel], name="full")
    empty = ir.Graph([], [same], nodes=[ir.Node("", "Identity", [x], outputs=[same])], name="empty")
    return [e.raw("If", is_full, then_branch=full, else_branch=empty)]


@expands("InstanceNormalization", "f16 bf16")
def instance_normalization_of_halves(e: Emitter, node: ir.Node) -> Sequence[ir.Value]:
    """In float32."""
    attributes = values_of(node)
    wide = [e.cast(v, ir.DataType.FLOAT) for v in e.operands]
    return [e.cast(e.InstanceNormalization(*wide, **attributes), e.dtype)]
