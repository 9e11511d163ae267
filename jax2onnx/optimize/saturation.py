"""Floats that become integers, many at once: what the few need that no integer is near costs all of them.

In JAX NaN becomes 0, and numbers beyond the range of the integers the nearest one. With NaN replaced, and all that in
double precision, so that the limits are exact, a conversion of 262,144 numbers takes 0.8 ms. If the sum of the squares
of all is small, then none of them is special, and the plain Cast is right: that takes 0.2 ms with the sum.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from jax2onnx.dimensions import likely_size
from jax2onnx.graphs import DOMAIN
from jax2onnx.optimize.engine import Rewriter, RuleSet, first
from jax2onnx.optimize.functions import Nodes, function_for
from jax2onnx.optimize.intervals import bounds
from jax2onnx.optimize.queries import dims, producer, scalar

LAST = RuleSet()
"""What is known of the numbers may make the careful conversion simpler."""

MANY = 16 * 1024
"""For fewer, the question takes as long as what it saves."""

SMALL = 2.0**60
"""No number whose square is less is beyond the range of 32 bits."""

NAME = "SaturatingCast"


class _Conversion(NamedTuple):
    """What was recognised: x to the integers of `dtype` between `low` and `high`, if they are limited here, clipped in
    `wide` precision."""

    shape: tuple[int | str, ...]
    source: ir.DataType
    wide: ir.DataType
    low: Any
    high: Any
    dtype: ir.DataType


@LAST.rewrites("Cast", given=first("Clip", "Where"))
def convert_plain_numbers_at_once(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Cast(Clip(where(isnan(x), 0, x), low, high)), if none is NaN: only clipped, if at all.

    Without a Clip, the numbers are known to be near integers of that type.
    """
    y, clip = node.outputs[0], producer(node.inputs[0], "Clip")
    if y.dtype is None or not y.dtype.is_integer() or likely_size(dims(y)) < MANY:
        return None
    number, *limits = clip.inputs if clip is not None else node.inputs
    low, high = map(scalar, limits) if len(limits) == 2 else (None, None)
    widened = producer(number, "Cast")
    where = producer(widened.inputs[0] if widened is not None else number, "Where")
    is_nan = producer(where.inputs[0], "IsNaN") if where is not None else None
    if number is None or where is None or is_nan is None or (clip is not None and (low is None or high is None)):
        return None
    if clip is None and bounds(y) is None:
        return None
    x = where.inputs[2]
    if x is None or is_nan.inputs[0] is not x or scalar(where.inputs[1]) != 0 or dims(x) != dims(y):
        return None
    if x.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE) or number.dtype is None:
        return None
    found = _Conversion(dims(x), x.dtype, number.dtype, low, high, y.dtype)
    function = function_for(r, NAME, found, functools.partial(_body, found, r.opset))
    return r.op(function.name, x, like=y, domain=DOMAIN)


def _body(found: _Conversion, opset: int) -> ir.Graph:
    """The plain conversion if that is right, else the careful one."""
    n, quick, careful = Nodes(), Nodes(), Nodes()
    x = ir.Value(name="x", shape=ir.Shape(found.shape), type=ir.TensorType(found.source))
    shape, kind = found.shape, found.source.numpy()
    squares = n.add("ReduceSumSquare", x, shape=(), dtype=found.source, keepdims=0)
    is_small = n.add("Less", squares, n.known(SMALL, kind), shape=(), dtype=ir.DataType.BOOL)
    is_nan = careful.add("IsNaN", x, shape=shape, dtype=ir.DataType.BOOL)
    number = careful.add("Where", is_nan, careful.known(0, kind), x, shape=shape, dtype=found.source)
    limits = np.iinfo(np.int32)
    has_all = found.low is None or (found.low <= limits.min and found.high >= limits.max)
    branches = {
        "then_branch": _converted(quick, x, found, clips=not has_all),
        "else_branch": _converted(careful, number, found, clips=True),
    }
    result = n.add("If", is_small, shape=shape, dtype=found.dtype, **branches)
    result.name = "y"
    return ir.Graph([x], [result], nodes=n.nodes, opset_imports={"": opset})


def _converted(n: Nodes, x: ir.Value, found: _Conversion, *, clips: bool) -> ir.Graph:
    """A branch that converts what is not NaN."""
    shape, wide = found.shape, found.wide
    if clips and found.low is not None:
        if wide != found.source:
            x = n.add("Cast", x, shape=shape, dtype=wide, to=int(wide))
        limits = (n.known(limit, wide.numpy()) for limit in (found.low, found.high))
        x = n.add("Clip", x, *limits, shape=shape, dtype=wide)
    result = n.add("Cast", x, shape=shape, dtype=found.dtype, to=int(found.dtype))
    return ir.Graph([], [result], nodes=n.nodes, name="careful" if clips else "quick")
