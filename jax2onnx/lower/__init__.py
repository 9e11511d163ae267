"""The lower stage: a core jaxpr becomes a plain ONNX graph, one small rule per primitive."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import onnx_ir as ir
from jax.extend.core import ClosedJaxpr, Primitive

from jax2onnx import compat
from jax2onnx.boundary import at_boundary
from jax2onnx.lower import (  # noqa: F401  (each registers its rules)
    bitcast,
    calls,
    composite,
    cond,
    conv,
    convert,
    dot,
    elementwise,
    indexing_gather,
    indexing_scatter,
    indexing_slice,
    integer,
    reduce,
    repeats,
    scan,
    shape,
    sharding,
    sort,
    while_loop,
    window,
)
from jax2onnx.lower.composite import COMPOSITES, write_out
from jax2onnx.lower.context import Builder, Val
from jax2onnx.lower.registry import LOWERINGS, Rule
from jax2onnx.lower.session import Session
from jax2onnx.streaming import is_elsewhere
from jax2onnx.weights import Weight

__all__ = ["COMPOSITES", "LOWERINGS", "Builder", "Lowered", "Rule", "Val", "lower"]

NHWC_TO_NCHW = (0, 3, 1, 2)
NCHW_TO_NHWC = (0, 2, 3, 1)


class Lowered(NamedTuple):
    """A model, some of whose nodes may still be composites, and a function that writes those out."""

    model: ir.Model
    write_out_composites: Callable[[], int]


def lower(
    closed: ClosedJaxpr,
    *,
    input_names: Sequence[str],
    output_names: Sequence[str],
    model_name: str,
    opset: int,
    ir_version: int,
    lowerings: Mapping[Primitive, Rule],
    decompose: Callable[[ClosedJaxpr], ClosedJaxpr],
    names: Mapping[Any, str],
    weights: Sequence[Weight] = (),
    inputs_as_nchw: Sequence[int] = (),
    outputs_as_nchw: Sequence[int] = (),
    provenance_level: int = 0,
    optimize_part: Callable[[ir.Graph], None] | None = None,
) -> Lowered:
    """The ONNX model of a core jaxpr: valid, every value with its shape and dtype, and not yet optimised.

    The first arguments of the jaxpr are the `weights`, the others are inputs. `names` has the names of arrays that are
    constants of the program, by `naming.array_key`.
    """
    session = Session(opset, lowerings, decompose, provenance_level, names, optimize_part)
    session.reserve([*input_names, *output_names])
    g = Builder(session)
    invars = closed.jaxpr.invars
    args = [_weight(g, weight, var.aval) for weight, var in zip(weights, invars, strict=False)]
    for i, (var, name) in enumerate(zip(invars[len(weights) :], input_names, strict=True)):
        dims = tuple(var.aval.shape)
        if i in inputs_as_nchw:
            dims = tuple(dims[axis] for axis in NHWC_TO_NCHW)
        x = g.input(dims, var.aval.dtype, name)
        g.dims.declare(x)
        args.append(g.transpose(x, NCHW_TO_NHWC) if i in inputs_as_nchw else x)
    constants = [g.const(compat.evaluation.as_array(c)) for c in closed.consts]
    results = session.lower_jaxpr(g, closed.jaxpr, constants, args)
    results = [g.transpose(r, NHWC_TO_NCHW) if i in outputs_as_nchw else r for i, r in enumerate(results)]
    graph = g.graph(results, model_name)
    for value, name in zip(graph.outputs, output_names, strict=True):
        value.name = name
    for value in session.initializers:
        graph.register_initializer(value)
    graph.opset_imports[""] = opset
    functions = [function for function, _ in session.functions.values()]
    for function in functions:
        graph.opset_imports.setdefault(function.domain, 1)
    model = ir.Model(graph, ir_version=ir_version, producer_name="jax2onnx", functions=functions)
    return Lowered(model, functools.partial(write_out, session, model))


def _weight(g: Builder, weight: Weight, aval: Any) -> Val:
    if isinstance(weight.value, ir.TensorProtocol):
        return g.session.weight(g, weight.value, tuple(aval.shape), aval.dtype, weight.name)
    array = weight.value
    if not is_elsewhere(array) or array.dtype != aval.dtype:  # keys and complex numbers have other types in ONNX
        array = at_boundary(array).astype(aval.dtype, copy=False)  # 64 bits are 32 for JAX, unless x64 is on
    return g.session.constant(g, array, weight.name)
