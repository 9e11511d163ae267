"""Axes that may have no elements: sizes as the program has them, and values that nobody sees if an axis is empty.

The mean of nothing is NaN in JAX and 0 in ONNX Runtime. Where it is only subtracted from, or multiplied by, something
that is as empty, the difference is one of arrays without elements.
"""

from __future__ import annotations

import functools
import math

import onnx_ir as ir
from jax.export import SymbolicScope

from jax2onnx.dimensions import NOTE, parse_dim
from jax2onnx.errors import InputError
from jax2onnx.optimize.queries import attribute, dims, producer, scalar

_MANY = 50
"""How many values are looked at: more than there are between the statistics of a layer and where they are applied."""

_MOVES = ("Cast", "Reshape", "Squeeze", "Unsqueeze")

_WIDE = (ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT32, ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""Types that hold sizes. In others they wrap around, are rounded to a few bits, or are just not 0."""


Factors = tuple[int | str, ...]


def is_number_of_elements(value: ir.Value | None, sizes: Factors) -> bool:
    """Is a value of one element the product of `sizes`?"""
    factors = _factors(value)
    return factors is not None and _are_equal(factors, sizes)


@functools.lru_cache(maxsize=1024)
def _are_equal(a: Factors, b: Factors) -> bool:
    """Are two products of dimensions the same? (A thousand layers ask this of the same few.)"""
    scope = SymbolicScope()
    try:
        one, other = (math.prod(d if isinstance(d, int) else parse_dim(d, scope) for d in dims_) for dims_ in (a, b))
    except InputError:  # a size that depends on the data has no name
        return False
    return bool(one == other)


def _factors(value: ir.Value | None) -> Factors | None:
    """The dimensions whose product a value of one element is."""
    number = scalar(value)
    if number is not None:
        return (int(number),) if float(number).is_integer() else None  # neither 2.5 nor infinity
    if value is not None and NOTE in value.meta:
        return (value.meta[NOTE],)
    node = producer(value, "Shape", "Mul", *_MOVES)
    if node is None or node.inputs[0] is None or node.outputs[0].shape is None:
        return None
    if node.op_type == "Shape":
        axes = dims(node.inputs[0])[attribute(node, "start", 0) : attribute(node, "end")]
        return axes if len(axes) == 1 else None
    if node.op_type == "Mul":
        a, b = map(_factors, node.inputs)
        return None if a is None or b is None else a + b
    if node.op_type == "Cast" and node.outputs[0].dtype not in _WIDE:
        return None
    return _factors(node.inputs[0])


def is_seen_if_empty(value: ir.Value, size: str) -> bool:
    """May a result of the model depend on `value` where `size`, that of some axis, is 0?"""
    ahead, met = [value], {value}
    while ahead:
        value = ahead.pop()
        if value.is_graph_output() or len(met) > _MANY:
            return True
        for node, _ in value.uses():
            for output in node.outputs:
                if output.shape is None:
                    return True
                if size not in dims(output) and output not in met:
                    met.add(output)
                    ahead.append(output)
    return False
