"""Questions that rules ask of the values and nodes of a graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx_ir as ir

from jax2onnx.dimensions import likely_size
from jax2onnx.graphs import all_nodes, bodies, static_shape

Dims = tuple[int | str, ...]

KNOWN = "known"
"""What the operands of a node come from, where they are constants."""


def producer(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The node that makes `value` if it is of one of these operators."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type in op_types else None


def constant(value: ir.Value | None) -> np.ndarray | None:
    """The content of an initializer or Constant, if `value` is one."""
    if value is None or value.const_value is None:
        return None
    return value.const_value.numpy()


def scalar(value: ir.Value | None) -> Any:
    """The number in a constant of one element, as a NumPy scalar, else None."""
    tensor = value.const_value if value is not None else None
    if tensor is None:
        return None
    for size in tensor.shape.dims:  # a loop is faster, and rules ask this all the time
        if size != 1:
            return None
    return tensor.numpy().reshape(())[()]


def splat(value: ir.Value | None) -> Any:
    """The number that a value consists of, if it is a constant scalar, possibly expanded or reshaped, else None."""
    while (node := producer(value, *_SPREADS)) is not None:
        value = node.inputs[0]
    return scalar(value)


def is_zero(number: Any) -> bool:
    """Whether a number is 0, and not -0.0."""
    return number is not None and number == 0 and not np.signbit(number)


_SPREADS = ("Expand", "Reshape", "Unsqueeze", "Squeeze")
SPLATS = (KNOWN, *_SPREADS)
"""Where a value that is one number comes from."""


_INT = frozenset([int])

UNKNOWN = "?"
"""How the name of a size that depends on the data starts."""


def dims(value: ir.Value) -> Dims:
    """The shape of a value: ints, and the names of symbolic dimensions. A size without a name is equal to no other."""
    assert value.shape is not None, f"{value} has no shape"
    found = value.shape.dims
    if _INT.issuperset(map(type, found)):  # nearly always, and rules ask this all the time
        return found
    return tuple(
        d if isinstance(d, int) else f"{UNKNOWN}{id(value)}.{i}" if d.value is None else str(d.value)
        for i, d in enumerate(found)
    )


def aligned_dims(value: ir.Value, rank: int) -> Dims:
    """The sizes of a value as broadcasting sees them: with axes of size 1 before them, `rank` in all."""
    return (1,) * (rank - len(dims(value))) + dims(value)


MANY = 4096
"""From so many elements on, several fast operators take clearly less time than a slow one."""


def has_many(value: ir.Value) -> bool:
    """Is a value likely to have many elements?"""
    return likely_size(dims(value)) >= MANY


def as_shape(dims: Iterable[Any]) -> ir.Shape:
    """The shape of a value that has these `dims`."""
    dims = tuple(dims)
    if _INT.issuperset(map(type, dims)):
        return static_shape(dims)
    return ir.Shape(None if isinstance(d, str) and d.startswith(UNKNOWN) else d for d in dims)


def integers(value: ir.Value | None) -> tuple[int, ...] | None:
    """The content of a constant vector of int64, else None."""
    array = constant(value)
    return None if array is None else tuple(map(int, array.reshape(-1).tolist()))


def attribute(node: ir.Node, name: str, default: Any = None) -> Any:
    """The value of an attribute of a node."""
    found = node.attributes.get(name)
    return default if found is None else found.value


def only_user(value: ir.Value) -> ir.Node | None:
    """The one node that uses `value`, if it is used once and is not a result of the graph."""
    uses = value.uses()
    return next(iter(uses)).node if len(uses) == 1 and not value.is_graph_output() else None


def axes_of(node: ir.Node, position: int = 1) -> tuple[int, ...] | None:
    """The axes of a reduction, Squeeze or Unsqueeze: an operand or, in older opsets, an attribute."""
    found = node.attributes.get("axes")
    if found is not None:
        return tuple(found.value)
    return integers(node.inputs[position]) if len(node.inputs) > position else None


def used_values(node: ir.Node) -> list[ir.Value]:
    """The values that a node uses, those that its bodies take from outside included."""
    values = [v for v in node.inputs if v is not None]
    for body in bodies(node):
        for inner in all_nodes(body):
            values += [v for v in inner.inputs if v is not None]
    return values
