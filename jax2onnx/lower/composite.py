"""Primitives that are one node until formulas have been recognised, and are then written out.

softplus(x) contains log1p, elu(x) contains expm1, gelu(x) contains erfc. ONNX has operators for the formulas, not for
these parts of them; and once a part is written out in simpler operators, nobody would know the formula again.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from jax import lax

from jax2onnx.decompose.registry import DECOMPOSITIONS
from jax2onnx.graphs import all_nodes, roots, use_instead
from jax2onnx.lower.context import Builder, Val
from jax2onnx.lower.registry import lowers
from jax2onnx.lower.session import Session

COMPOSITES = (lax.log1p_p, lax.expm1_p, lax.erfc_p)
DOMAIN = "jax2onnx.composite"
"""The domain of nodes that stand for a decomposition. None is left when a model is complete."""

_OPERAND = "operand"


@lowers(*COMPOSITES)
def composite(g: Builder, x: Val, **_: Any) -> Val:
    """One node with the name of the primitive."""
    y = g.op(g.eqn.primitive.name, x, domain=DOMAIN, out=(x.shape, x.dtype))
    y.value.producer().meta[_OPERAND] = (g.eqn.primitive, x.shape, x.dtype)
    return y


def write_out(session: Session, model: ir.Model) -> int:
    """Replace every composite node by its definition; how many there were."""
    count = 0
    for graph in roots(model):
        for node in all_nodes(graph):
            if node.domain == DOMAIN:
                _write_out(session, node, in_function=graph is not model.graph)
                count += 1
    known = {id(v) for v in model.graph.initializers.values()}
    for value in session.initializers:
        if id(value) not in known and value.uses():
            model.graph.register_initializer(value)
    return count


def _write_out(session: Session, node: ir.Node, *, in_function: bool) -> None:
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
    (old,) = node.outputs
    new_value = result.value
    if old.is_graph_output():
        for i, output in enumerate(node.graph.outputs):
            if output is old:
                node.graph.outputs[i] = new_value
        new_value.name, old.name = old.name, None
    use_instead(old.uses(), new_value)
    node.graph.remove(node, safe=True)


def _definition(primitive: Any) -> Any:
    return DECOMPOSITIONS[primitive].fn
