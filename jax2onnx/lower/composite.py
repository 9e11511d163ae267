"""Primitives that are one node until formulas have been recognised, and are then written out.

softplus(x) contains log1p, elu(x) contains expm1, gelu(x) contains erfc. ONNX has operators for the formulas, not for
these parts of them; and once a part is written out in simpler operators, nobody would know the formula again. The hash
behind random numbers is one node so that several can become one (`optimize/draws.py`, where it is written out).
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from jax import lax
from jax.extend.core import primitives as P

from jax2onnx import opsets
from jax2onnx.decompose.registry import DECOMPOSITIONS
from jax2onnx.graphs import all_nodes, output_positions, roots, use_instead
from jax2onnx.lower.context import Builder, Val
from jax2onnx.lower.registry import lowers
from jax2onnx.lower.session import Session

FORMULAS = (lax.log1p_p, lax.expm1_p, lax.erfc_p)
COMPOSITES = (*FORMULAS, P.threefry2x32_p)
DOMAIN = "jax2onnx.composite"
"""The domain of nodes that stand for a decomposition. None is left when a model is complete."""

DRAWS = "jax2onnx.draws"
_OPERAND = "operand"


@lowers(P.threefry2x32_p)
def draw(g: Builder, *operands: Val) -> list[Val]:
    """One node with the name of the primitive. What it will be written out as needs a later opset than most."""
    opsets.check_operator("BitwiseXor", g.opset)
    out = [(v.aval.shape, v.aval.dtype) for v in g.eqn.outvars]
    return list(g.op(g.eqn.primitive.name, *operands, domain=DRAWS, out=out))


@lowers(*FORMULAS)
def composite(g: Builder, x: Val, **_: Any) -> Val:
    """One node with the name of the primitive."""
    y = g.op(g.eqn.primitive.name, x, domain=DOMAIN, out=(x.shape, x.dtype))
    y.value.producer().meta[_OPERAND] = (g.eqn.primitive, x.shape, x.dtype)
    return y


def write_out(session: Session, model: ir.Model) -> int:
    """Replace every composite node by its definition; how many there were."""
    written: dict[ir.Graph, list[tuple[ir.Node, ir.Value]]] = {}
    for graph in roots(model):
        for node in all_nodes(graph):
            if node.domain == DOMAIN:
                assert node.graph is not None
                result = _write_out(session, node, in_function=graph is not model.graph)
                written.setdefault(node.graph, []).append((node, result))
    for graph, replaced in written.items():
        positions = output_positions(graph)
        for node, result in replaced:
            (old,) = node.outputs
            for i in positions.get(old, ()):
                graph.outputs[i] = result
            if old in positions:
                result.name, old.name = old.name, None
        graph.remove([node for node, _ in replaced], safe=True)
    known = {id(v) for v in model.graph.initializers.values()}
    for value in session.initializers:
        if id(value) not in known and value.uses():
            model.graph.register_initializer(value)
    return sum(map(len, written.values()))


def _write_out(session: Session, node: ir.Node, *, in_function: bool) -> ir.Value:
    """What a composite node computes, in nodes before it, for all nodes that use its result."""
    primitive, shape, dtype = node.meta[_OPERAND]
    (operand,) = node.inputs
    assert operand is not None and node.graph is not None
    g = Builder(session, is_function=in_function)
    g.scope = (node.name or "").removesuffix(node.op_type).removesuffix("/")
    x = Val(operand, shape, dtype, g)
    g.dims.declare(x)
    result = g.call_jax(_definition(primitive), x)
    for new in g.nodes:
        new.metadata_props.update(node.metadata_props)
    if result.value.producer() is None:  # a definition that returns its operand
        result = g.Identity(result)
    node.graph.insert_before(node, g.nodes)
    use_instead(node.outputs[0].uses(), result.value)
    return result.value


def _definition(primitive: Any) -> Any:
    return DECOMPOSITIONS[primitive].fn
