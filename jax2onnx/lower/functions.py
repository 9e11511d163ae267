"""Calls of ONNX functions: a marked call becomes a function of the model and a node that calls it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from jax2onnx import compat
from jax2onnx.functions import Marked
from jax2onnx.graphs import all_nodes
from jax2onnx.lower.context import Builder, Val


def call_function(g: Builder, closed: Any, args: Sequence[Val], mark: Marked) -> list[Val]:
    """Call the function with the body `closed`. Its constants (weights) become inputs, so that calls can share it."""
    session = g.session
    operands = [*args, *(g.const(compat.evaluation.as_array(c)) for c in closed.consts)]
    key: Any = object()
    if mark.is_shared:
        types = tuple((o.shape, o.dtype) for o in operands)
        key = mark, str(closed.jaxpr), types, tuple(_constants_inside(closed.jaxpr))
    if key not in session.functions:
        session.functions[key] = _function(g, closed, operands, len(args), mark)
    function, dims = session.functions[key]
    outs = [(tuple(v.aval.shape), v.aval.dtype) for v in closed.jaxpr.outvars]
    extra = [g.dims.one(dim) for dim in dims]
    return g.op(function.name, *operands, *extra, domain=function.domain, out=outs)


def _constants_inside(jaxpr: Any) -> Iterator[bytes]:
    """A digest of each constant of what is called inside, none of which is in the text of a jaxpr."""
    for eqn in jaxpr.eqns:
        for inner in compat.programs.sub_jaxprs(eqn.params):
            for constant in inner.consts:
                yield hashlib.sha256(np.asarray(compat.evaluation.as_array(constant)).tobytes()).digest()
            yield from _constants_inside(inner.jaxpr)


def _function(g: Builder, closed: Any, operands: Sequence[Val], count: int, mark: Marked) -> tuple[ir.Function, list]:
    session = g.session
    body = Builder(session, is_function=True)
    body.scope = ""
    inputs = [body.input(o.shape, o.dtype, f"input_{i}") for i, o in enumerate(operands)]
    for x in inputs:
        body.dims.declare(x)
    results = session.lower_jaxpr(body, closed.jaxpr, inputs[count:], inputs[:count])
    graph = body.graph(results, mark.name)
    for i, value in enumerate(graph.outputs):
        value.name = f"output_{i}"
    graph.opset_imports[""] = session.opset
    called = {f.domain for f, _ in session.functions.values()}
    graph.opset_imports.update({n.domain: 1 for n in all_nodes(graph) if n.domain in called})
    taken = {f.name for f, _ in session.functions.values() if f.domain == mark.namespace}
    name, n = mark.name, 1
    while name in taken:
        n += 1
        name = f"{mark.name}_{n}"
    return ir.Function(mark.namespace, name, graph=graph, attributes=[]), body.dims.missing()
