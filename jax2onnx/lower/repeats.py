"""Repeated equations: lowered and optimized once, and copied to where they are repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import onnx_ir as ir
from jax.extend.core import ClosedJaxpr

from jax2onnx import compat
from jax2onnx.decompose.repeats import repeated_p
from jax2onnx.dimensions import is_static
from jax2onnx.graphs import bodies
from jax2onnx.lower import fold
from jax2onnx.lower.context import Builder, Val
from jax2onnx.lower.registry import lowers
from jax2onnx.paths import scope_parts
from jax2onnx.reshapes import RESHAPES


class Part(NamedTuple):
    """A node of a body, and what its copies have in common: attributes, notes, and their name in the scope of one of
    the equations, which has this number (None if it is in no such scope). It may be a view of an input, which is the
    input in another shape: this is its position."""

    node: ir.Node
    attributes: tuple[ir.Attr, ...]
    notes: dict[str, Any]
    notes_of_results: list[dict[str, Any]]
    equation: int | None
    name: str
    view_of: int | None


class Template(NamedTuple):
    """The nodes of a body, to be copied: what they read, what they give, and the dimensions they need besides."""

    inputs: list[ir.Value]
    outputs: list[ir.Value]
    parts: list[Part]
    constants: dict[ir.Value, ir.Value]
    dims: list[str]


@lowers(repeated_p)
def repeated(
    g: Builder, *args: Val, body: ClosedJaxpr, equations: Sequence[Any], own: Callable[[Any], Any]
) -> list[Val]:
    """A copy of the nodes of the body; if they cannot be copied, the equations one by one."""
    session = g.session
    if id(body) not in session.templates:
        session.templates[id(body)] = _template(g, body)
    template = session.templates[id(body)]
    if template is None:
        copy = compat.programs.jaxpr_of(g.eqn.invars, g.eqn.outvars, [own(eqn) for eqn in equations])
        return session.lower_closed(g, copy, args)
    operands = [*args[len(args) - len(body.jaxpr.invars) :], *(g.dims.one(dim) for dim in template.dims)]
    values = dict(template.constants)
    values.update((old, new.value) for old, new in zip(template.inputs, operands, strict=True))
    last_stack, scope = None, ""
    for part in template.parts:
        if part.view_of is not None and (view := _reshaped(g, operands[part.view_of], part.node)) is not None:
            values[part.node.outputs[0]] = view
            continue
        inner = ""
        if part.equation is not None:
            stack = equations[part.equation].source_info.name_stack
            if stack is not last_stack:
                last_stack, scope = stack, "/".join(scope_parts(str(stack)))
            inner = scope
        name = "/".join([p for p in (g.scope, inner, part.name) if p])
        g.nodes.append(_copy(part, values, name))
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
    parts, constants = [], {}
    positions = {value: i for i, value in enumerate(graph.inputs)}
    for node in graph:
        if bodies(node):
            return None
        if node.op_type == "Constant":
            (value,) = node.outputs
            assert value.const_value is not None
            constants[value] = g.const(value.const_value.numpy()).value
        else:
            parts.append(_part(node, positions))
    return Template(list(graph.inputs), list(graph.outputs), parts, constants, inner.dims.missing())


def _part(node: ir.Node, positions: Mapping[ir.Value, int]) -> Part:
    """The first part of the name of a node says from which of the equations it is."""
    number, _, rest = (node.name or "").partition("/")
    equation = int(number.removeprefix(compat.equations.NUMBERED)) if rest else None
    notes = [dict(value.meta) for value in node.outputs]
    x = node.inputs[0] if node.op_type in RESHAPES else None
    view_of = positions.get(x) if x is not None else None
    attributes, name = tuple(node.attributes.values()), rest or node.op_type
    return Part(node, attributes, dict(node.meta), notes, equation, name, view_of)


def _reshaped(g: Builder, x: Val, node: ir.Node) -> ir.Value | None:
    """The result of a node, if it is a small weight in another shape, which need not be evaluated for each copy."""
    shape = node.outputs[0].shape
    if x.const is None or x.const.nbytes > fold.MAX_BYTES or shape is None or not is_static(shape):
        return None
    return g.const(x.const.reshape([int(d) for d in shape]), x.name).value


def _copy(part: Part, values: dict[ir.Value, ir.Value], name: str) -> ir.Node:
    node, outputs = part.node, []
    for value, notes in zip(node.outputs, part.notes_of_results, strict=True):
        copied = values[value] = ir.Value(shape=value.shape, type=value.type)
        if notes:
            copied.meta.update(notes)
        outputs.append(copied)
    inputs = [None if v is None else values[v] for v in node.inputs]
    copy = ir.Node(node.domain, node.op_type, inputs, part.attributes, outputs=outputs, name=name)
    if part.notes:
        copy.meta.update(part.notes)
    return copy
