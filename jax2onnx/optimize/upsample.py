"""Images that grow by whole factors, each pixel repeated: one Resize where the channels come first.

Programs repeat the rows, then the columns, by picking (as in resizing to the nearest pixel) or by broadcasting and
joining axes. In ONNX Runtime a Resize takes a fifth of the time of that with the Transposes around it, and a tenth to
a thirtieth of that with the channels first. (Not so with three axes of space.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from jax2onnx.optimize.emptiness import is_number_of_elements
from jax2onnx.optimize.engine import Rewriter, RuleSet, first
from jax2onnx.optimize.layout import channels_first, channels_last
from jax2onnx.optimize.pixels import times
from jax2onnx.optimize.queries import (
    aligned_dims,
    attribute,
    constant,
    dims,
    only_user,
    producer,
    scalar,
    splat,
)
from jax2onnx.optimize.simplify import RESHAPES, reshaped
from jax2onnx.permutations import inverse

RULES = RuleSet()

MOST_AXES = 4

_WIDE = (ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""Types that hold the places of pixels."""


class _Repeated(NamedTuple):
    """x, with each element along an axis as often in a row as the factor of that axis says."""

    x: ir.Value
    factors: list[int]  # of the axes that are not of size 1, which may be at other places now

    def along(self, axes: Sequence[int]) -> tuple[int, ...]:
        """The factors of these axes of x."""
        rest = iter(self.factors)
        every = [1 if d == 1 else next(rest) for d in dims(self.x)]
        return tuple(every[i] for i in axes)


@RULES.rewrites("Gather", given=first("Transpose", "Gather"))
@RULES.rewrites("Reshape", given=first("Expand"))
def repeat_by_resizing(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Repeated pixels of what had its channels first: the Transpose that moved them comes after the Resize. What
    has them first still is resized if both the rows and the columns are repeated."""
    y = node.outputs[0]
    found = _repeated(y)
    turned = channels_last(found.x) if found is not None else None
    if found is None:
        return None
    if turned is None:
        found = _repeated_before(found)
        factors = found.along(range(len(dims(found.x))))
        result = _resized(r, found.x, factors) if min(factors[2:], default=1) > 1 else None
        return reshaped(r, result, y) if result is not None else None
    x, perm = turned
    result = _resized(r, x, found.along(inverse(perm)))
    if result is None:
        return None
    return reshaped(r, r.transpose(result, perm), y)


@RULES.rewrites("Transpose", given=first("Gather", "Reshape"))
def transpose_before_resizing(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Repeated pixels whose channels are then moved to the front: moved before, when they are fewer."""
    repeated, perm = node.inputs[0], list(attribute(node, "perm"))
    if len(perm) < 4 or perm != channels_first(len(perm)) or repeated is None or only_user(repeated) is None:
        return None
    last = _repeated(repeated)
    found = _repeated_before(last) if last is not None else None
    if found is None or dims(repeated) != _grown(found.x, found.along(range(len(dims(found.x))))):
        return None
    moved = r.transpose(found.x, perm)
    return _resized(r, moved, found.along(perm))


@RULES.rewrites("Resize", given=first("Resize"))
def resize_once(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """The factors of one axis, and then of another."""
    inner = producer(node.inputs[0], "Resize")
    if inner is None or inner.inputs[0] is None or only_user(inner.outputs[0]) is None:
        return None
    factors = [_factors(n) for n in (inner, node)]
    product = tuple(a * b for a, b in zip(*factors, strict=True))
    return _resized(r, inner.inputs[0], product)


def _factors(resize: ir.Node) -> list[int]:
    found = constant(resize.inputs[2])
    assert found is not None, "a Resize that is not ours"
    return [int(factor) for factor in found]


def _grown(x: ir.Value, factors: tuple[int, ...]) -> tuple[int | str | None, ...]:
    return tuple(size if k == 1 else times(size, k) for size, k in zip(dims(x), factors, strict=True))


def _resized(r: Rewriter, x: ir.Value, factors: tuple[int, ...]) -> ir.Value | None:
    """A Resize of the axes behind the channels, which are the second."""
    if not 3 <= len(factors) <= MOST_AXES or factors[:2] != (1, 1) or x.dtype != ir.DataType.FLOAT:
        return None
    return r.op(
        "Resize",
        x,
        None,
        r.const(factors, np.float32),
        like=x,
        shape=_grown(x, factors),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


# -------------------------------------------------------------------------------------------------- how it is written


def _repeated(value: ir.Value | None) -> _Repeated | None:
    node = producer(value, "Gather", "Reshape")
    if node is None or value is None:
        return None
    return _picked(node) if node.op_type == "Gather" else _broadcast(node)


def _repeated_before(found: _Repeated) -> _Repeated:
    """The same, along with what was repeated before, along another axis."""
    before = _repeated(found.x) if only_user(found.x) is not None else None
    if before is None or len(before.factors) != len(found.factors):
        return found
    return _Repeated(before.x, [a * b for a, b in zip(before.factors, found.factors, strict=True)])


def _picked(node: ir.Node) -> _Repeated | None:
    """The elements 0, 0, 1, 1, 2, 2, ... of an axis."""
    x, index = node.inputs
    if x is None or index is None or len(dims(index)) != 1:
        return None
    axis = attribute(node, "axis", 0) % len(dims(x))
    size, number, known = dims(x)[axis], dims(index)[0], constant(index)
    if size == 1:
        return None
    if known is not None and isinstance(size, int):
        factor = known.size // size if size else 0
        is_repeated = factor > 1 and np.array_equal(known, np.arange(size).repeat(factor))
    else:
        factor = next((k for k in range(2, 17) if times(size, k) == number), 0)
        is_repeated = factor > 0 and _is_nearest(index, size, number)
    return _Repeated(x, [factor if i == axis else 1 for i, d in enumerate(dims(x)) if d != 1]) if is_repeated else None


def _is_nearest(index: ir.Value, size: int | str, number: int | str) -> bool:
    """Is it floor((i + 0.5) * size / number), made an integer? Where the number is a multiple of the size, rounding
    makes no difference below 100,000 pixels."""
    bounded: ir.Value | None = index
    while (node := producer(bounded, "Cast", "Clip", "Where")) is not None:
        if not _leaves_indices(node, size):
            return False
        bounded = node.inputs[2 if node.op_type == "Where" else 0]
    floor = producer(bounded, "Floor")
    quotient = producer(floor.inputs[0], "Div") if floor is not None else None
    product = producer(quotient.inputs[0], "Mul") if quotient is not None else None
    if quotient is None or product is None or not is_number_of_elements(quotient.inputs[1], (number,)):
        return False
    both = (product.inputs, product.inputs[::-1])
    return any(is_number_of_elements(factor, (size,)) and _is_center(center, number) for center, factor in both)


def _leaves_indices(node: ir.Node, size: int | str) -> bool:
    """Does a node, one of those by which numbers become indices, leave those from 0 to below the size as they are?"""
    if node.op_type == "Cast":
        return node.outputs[0].dtype in _WIDE
    if node.op_type == "Where":
        condition = producer(node.inputs[0], "IsNaN", "Less")
        is_false = condition is not None and (condition.op_type == "IsNaN" or scalar(condition.inputs[1]) == 0)
        return condition is not None and condition.inputs[0] is node.inputs[2] and is_false
    if len(node.inputs) != 3:
        return False
    low, high = (scalar(v) for v in node.inputs[1:])
    below = producer(node.inputs[1], "Sub")  # -1 - (size - 1)
    is_below = below is not None and scalar(below.inputs[0]) == -1 and _is_last(below.inputs[1], size)
    return (is_below if low is None else low <= 0) and (
        _is_last(node.inputs[2], size) if high is None else high == np.iinfo(np.int32).max
    )


def _is_last(value: ir.Value | None, size: int | str) -> bool:
    """Is it the size less one?"""
    return is_number_of_elements(value, (f"{size} - 1",))


def _is_center(value: ir.Value | None, number: int | str) -> bool:
    """Is it i + 0.5, for each i below a number?"""
    total = 0.0
    while value is not None and value.dtype in _WIDE and (node := producer(value, "Add", "Cast")) is not None:
        if node.op_type == "Cast":
            value = node.inputs[0]
            continue
        known = [splat(v) for v in node.inputs]
        if (known[0] is None) == (known[1] is None):
            return False
        total += float(known[0] if known[0] is not None else known[1])
        value = node.inputs[0 if known[0] is None else 1]
    count = producer(value, "Range")
    if count is None or total != 0.5 or value is None or dims(value) != (number,) or value.dtype not in _WIDE:
        return False
    return scalar(count.inputs[0]) == 0 and scalar(count.inputs[2]) == 1


def _broadcast(node: ir.Node) -> _Repeated | None:
    """Each axis has one of size 1 behind it, which is expanded, and both are joined."""
    expand = producer(node.inputs[0], "Expand")
    few = expand.inputs[0] if expand is not None else None
    if expand is None or few is None:
        return None
    many = dims(expand.outputs[0])
    sizes, factors = list[int | str](), list[int]()
    for before, after in zip(aligned_dims(few, len(many)), many, strict=True):
        if before != 1:
            sizes.append(before)
            factors.append(1)
        elif isinstance(after, int) and (factors or after == 1):
            factors[-1:] = [factors[-1] * after] if factors else []
        else:
            return None
    if max(factors, default=1) == 1:
        return None
    if [d for d in dims(node.outputs[0]) if d != 1] != [times(d, k) for d, k in zip(sizes, factors, strict=True)]:
        return None
    spread = producer(few, *RESHAPES)
    x = spread.inputs[0] if spread is not None else few
    return _Repeated(x if x is not None and [d for d in dims(x) if d != 1] == sizes else few, factors)
