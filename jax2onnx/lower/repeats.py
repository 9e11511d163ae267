"""Repeated equations: lowered and optimized once, and copied to where they are repeated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import onnx_ir as ir
from jax.extend.core import ClosedJaxpr

from jax2onnx import compat
from jax2onnx.decompose.repeats import repeated_p
from jax2onnx.graphs import bodies
from jax2onnx.lower.context import Builder, Val
from jax2onnx.lower.registry import lowers
from jax2onnx.paths import scope_parts


class Template(NamedTuple):
    """The nodes of a body, to be copied: what they read, what they give, and the dimensions they need besides."""

    inputs: list[ir.Value]
    outputs: list[ir.Value]
    nodes: list[ir.Node]
    constants: dict[ir.Value, ir.Value]
    dims: list[str]


@lowers(repeated_p)
def repeated(g: Builder, *args: Val, body: ClosedJaxpr, equations: Sequence[Any]) -> list[Val]:
    """A copy of the nodes of the body; if they cannot be copied, the equations one by one."""
    session = g.session
    if id(body) not in session.templates:
        session.templates[id(body)] = _template(g, body)
    template = session.templates[id(body)]
    if template is None:
        own = compat.programs.jaxpr_of(g.eqn.invars, g.eqn.outvars, equations)
        return session.lower_closed(g, own, args)
    operands = [*args[len(args) - len(body.jaxpr.invars) :], *(g.dims.one(dim) for dim in template.dims)]
    values = dict(template.constants)
    values.update((old, new.value) for old, new in zip(template.inputs, operands, strict=True))
    scopes = ["/".join(scope_parts(str(eqn.source_info.name_stack))) for eqn in equations]
    for node in template.nodes:
        g.nodes.append(_copy(node, values, scopes, g.scope))
    types = [(v.aval.shape, v.aval.dtype) for v in g.eqn.outvars]
    return [Val(values[v], *type_, g) for v, type_ in zip(template.outputs, types, strict=True)]


def _template(g: Builder, body: ClosedJaxpr) -> Template | None:
    session = g.session
    if session.optimize_part is None:
        return None
    inner = Builder(session, is_function=True)
    args = [inner.input(v.aval.shape, v.aval.dtype, f"input_{i}") for i, v in enumerate(body.jaxpr.invars)]
    results = session.lower_closed(inner, body, args)
    graph = inner.graph(results, "repeated")
    session.optimize_part(graph)
    nodes, constants = [], {}
    for node in graph:
        if bodies(node):
            return None
        if node.op_type == "Constant":
            (value,) = node.outputs
            assert value.const_value is not None
            constants[value] = g.const(value.const_value.numpy()).value
        else:
            nodes.append(node)
    return Template(list(graph.inputs), list(graph.outputs), nodes, constants, inner.dims.missing())


def _copy(node: ir.Node, values: dict[ir.Value, ir.Value], scopes: Sequence[str], around: str) -> ir.Node:
    """A node like this one. The first part of its name says from which of the equations it is: it gets their scope."""
    outputs = []
    for value in node.outputs:
        copied = values[value] = ir.Value(shape=value.shape, type=value.type)
        copied.meta.update(value.meta)
        outputs.append(copied)
    number, _, rest = (node.name or "").partition("/")
    scope = scopes[int(number.removeprefix(compat.equations.NUMBERED))] if rest else ""
    copy = ir.Node(
        node.domain,
        node.op_type,
        [None if v is None else values[v] for v in node.inputs],
        node.attributes.values(),
        outputs=outputs,
        name="/".join(part for part in (around, scope, rest or node.op_type) if part),
    )
    copy.meta.update(node.meta)
    return copy
