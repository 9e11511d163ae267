"""Integers in even steps that are made of counters and dimensions, as in x[:, -1], x[::2] and x[::-1]."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from jax2onnx import compat
from jax2onnx.lower.context import Builder, Val

MOVES = ("Cast", "Reshape", "Squeeze", "Unsqueeze")

WIDE = (ir.DataType.INT32, ir.DataType.INT64)
"""What holds any number of elements: others wrap, or round."""


class Progression(NamedTuple):
    """start, start + step, start + 2 * step, ..."""

    start: Any
    step: int


def progression(g: Builder, x: Val, count: Any = 1) -> Progression | None:
    """What the elements of `x` are, of which there are `count`, if that can be seen."""
    return _read(g.dims.known(), x.value, count)


def counted_axis(g: Builder, x: Val) -> int | None:
    """The axis along which the elements of `x` are 0, 1, 2, ..., all others being the same."""
    if x.const is not None:
        return next((axis for axis in range(x.rank) if _counts(x.const, axis)), None)
    small = x.small or x
    many = [axis for axis, size in enumerate(small.shape) if size != 1]
    if len(many) != 1 or progression(g, small, small.shape[many[0]]) != (0, 1):
        return None
    return many[0] + x.rank - small.rank


def _counts(array: np.ndarray, axis: int) -> bool:
    size = array.shape[axis]
    line = np.arange(size).reshape([size if i == axis else 1 for i in range(array.ndim)])
    return size > 1 and bool((array == line).all())


def _read(known: dict[int, Any], value: ir.Value | None, count: Any) -> Progression | None:
    if value is None or value.dtype not in WIDE or value.shape is None or sum(d != 1 for d in value.shape) > 1:
        return None
    if id(value) in known:
        return Progression(known[id(value)], 0)
    if value.const_value is not None:
        return Progression(int(value.const_value.numpy().item()), 0) if value.const_value.size == 1 else None
    node = value.producer()
    if node is None:
        return None
    if node.op_type == "Range":
        start, _, step = node.inputs
        return Progression(0, 1) if [_read(known, v, 1) for v in (start, step)] == [(0, 0), (1, 0)] else None
    if node.op_type in MOVES:
        return _read(known, node.inputs[0], count)
    if node.op_type == "Slice" and _reverses(node):
        turned = _read(known, node.inputs[0], count)
        if turned is None:
            return None
        return Progression(turned.start + (count - 1) * turned.step, -turned.step)
    if node.op_type == "Where":  # JAX adds the size to what is negative
        return _read(known, node.inputs[2], count) if _is_never(known, node.inputs[0], count) else None
    if node.op_type not in ("Add", "Sub", "Mul"):
        return None
    a, b = (_read(known, v, count) for v in node.inputs)
    if a is None or b is None:
        return None
    match node.op_type:
        case "Add":
            return Progression(a.start + b.start, a.step + b.step)
        case "Sub":
            return Progression(a.start - b.start, a.step - b.step)
    if a.step:
        a, b = b, a
    return Progression(a.start * b.start, a.start * b.step) if isinstance(a.start, int) and not a.step else None


def _is_never(known: dict[int, Any], condition: ir.Value | None, count: Any) -> bool:
    """Is a condition that asks whether elements are negative false for all?"""
    node = condition.producer() if condition is not None else None
    if node is None or node.op_type != "Less" or _read(known, node.inputs[1], 1) != (0, 0):
        return False
    found = _read(known, node.inputs[0], count)
    return found is not None and all(compat.dims.is_at_least(d, 0) for d in ends(found, count))


def ends(found: Progression, count: Any) -> tuple[Any, Any]:
    """The smallest and the largest of `count` elements, if there are any."""
    last = found.start + (count - 1) * found.step
    return (found.start, last) if found.step > 0 else (last, found.start)


def _reverses(node: ir.Node) -> bool:
    """Does a Slice reverse the only axis that there is?"""
    numbers = [v.const_value.numpy().tolist() for v in node.inputs[1:] if v is not None and v.const_value is not None]
    return len(numbers) == 4 and numbers[0] == [-1] and numbers[1] == [-(2**63)] and numbers[3] == [-1]
