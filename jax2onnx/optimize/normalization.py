"""LayerNormalization and RMSNormalization, recognised by their maths, whoever wrote it.

A product is taken apart into its factors, so that the order in which a library multiplies does not matter:
(x - mean) * (rsqrt(var + eps) * scale) and scale * ((x - mean) / sqrt(var + eps)) are the same to us. The variance may
be the mean of the squared differences, or the mean of the squares minus the square of the mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import ml_dtypes
import numpy as np
import onnx_ir as ir

from jax2onnx.attributes import attributes_of
from jax2onnx.naming import NAME
from jax2onnx.optimize.emptiness import is_number_of_elements, is_seen_if_empty
from jax2onnx.optimize.engine import Rewriter, RuleSet, first, some
from jax2onnx.optimize.queries import attribute, axes_of, constant, dims, only_user, producer, scalar, splat
from jax2onnx.optimize.simplify import broadcast, reshaped
from jax2onnx.optimize.softmax import reduction

MEANS = RuleSet()
RULES = RuleSet()
rewrites = RULES.rewrites

RMS_OPSET = 23
PRODUCTS = ("Mul", "Div", "Reciprocal", "Sqrt")
"""What a product in which something is divided by a square root is made of."""


@MEANS.rewrites("Div", "Mul", given=first("ReduceSum"))
def recognise_mean(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A sum divided by the number of its terms."""
    summed = producer(node.inputs[0], "ReduceSum")
    if summed is None or len(summed.outputs[0].uses()) != 1 or summed.outputs[0].is_graph_output():
        return None
    x, axes = summed.inputs[0], axes_of(summed)
    if x is None or axes is None or x.dtype is None or not x.dtype.is_floating_point():
        return None
    sizes = tuple(dims(x)[a] for a in axes)
    if not _is_divided_by(node, sizes):
        return _divided_by_sizes(r, node, x, axes, sizes)
    keepdims = attribute(summed, "keepdims", 1)
    if dims(node.outputs[0]) != dims(summed.outputs[0]):
        return None
    if r.opset >= 18:
        return r.op("ReduceMean", x, r.const(axes, np.int64), like=node.outputs[0], keepdims=keepdims)
    return r.op("ReduceMean", x, like=node.outputs[0], axes=axes, keepdims=keepdims)


def _divided_by_sizes(
    r: Rewriter, node: ir.Node, x: ir.Value, axes: tuple[int, ...], sizes: tuple[int | str, ...]
) -> ir.Value | None:
    """The number of terms from the sizes of what is summed, where it is computed from other sizes in many steps.

    If there are no terms, the mean is NaN: ReduceMean would not do.
    """
    total, y = node.inputs[0], node.outputs[0]
    is_computed = any(isinstance(s, str) and not s.isidentifier() for s in sizes)
    if node.op_type != "Div" or total is None or not dims(total) or not is_computed:
        return None
    if not is_number_of_elements(node.inputs[1], sizes) or _is_read(node.inputs[1]):
        return None
    unit = r.const([math.prod(s for s in sizes if isinstance(s, int))], np.int64)
    count = None if constant(unit) == 1 else unit
    for axis, size in zip(axes, sizes, strict=True):
        if isinstance(size, str):
            axis %= len(dims(x))
            read = r.op("Shape", x, like=unit, start=axis, end=axis + 1)
            count = read if count is None else r.op("Mul", count, read, like=unit)
    return r.op("Div", total, r.op("Cast", count, like=total, shape=[1], to=total.dtype), like=y)


def _is_read(count: ir.Value | None) -> bool:
    """Is it a product of sizes as they are?"""
    node = producer(count, "Cast", "Mul", "Shape")
    if node is None or node.op_type == "Shape":
        return node is not None or scalar(count) is not None
    return all(_is_read(v) for v in node.inputs)


def _is_divided_by(node: ir.Node, sizes: tuple[int | str, ...]) -> bool:
    """Is something divided by the product of `sizes`, and not seen where one of them is 0?"""
    symbolic = [s for s in sizes if isinstance(s, str)]
    if symbolic:
        y = node.outputs[0]
        return (
            node.op_type == "Div"
            and 0 not in sizes
            and is_number_of_elements(node.inputs[1], sizes)
            and not any(is_seen_if_empty(y, size) for size in symbolic)
        )
    count, terms = scalar(node.inputs[1]), math.prod(int(s) for s in sizes)
    if count is None or not terms:
        return False
    # Multiplying by the reciprocal is the same number only where that is exact: for powers of two.
    return float(count) == terms if node.op_type == "Div" else float(count) * terms == 1.0 and not terms & (terms - 1)


@MEANS.rewrites("Where", given=first("Greater"))
def skip_question_whether_there_are_any(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """count > 0 ? y : something else is y where nothing is seen if the count is 0, as in a variance."""
    condition, y, _ = node.inputs
    greater = producer(condition, "Greater")
    if greater is None or y is None or dims(y) != dims(node.outputs[0]) or scalar(greater.inputs[1]) != 0:
        return None
    mean = producer(y, "ReduceMean")
    x, axes = (mean.inputs[0], axes_of(mean)) if mean is not None else (None, None)
    if x is None or axes is None:
        return None
    sizes = tuple(dims(x)[a] for a in axes)
    if not is_number_of_elements(greater.inputs[0], sizes):
        return None
    return None if any(is_seen_if_empty(node.outputs[0], s) for s in sizes if isinstance(s, str)) else y


class Normalized(NamedTuple):
    """x, normalized over its last axes (from `axis` on), times some factors."""

    x: ir.Value
    axis: int
    epsilon: float
    is_centered: bool
    factors: list[ir.Value]


@rewrites("Mul", "Add", given=some("LayerNormalization", "RMSNormalization"))
def give_normalization_its_parameters(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """The scale and the bias that follow become those of the node."""
    for normal, operand in (node.inputs, reversed(node.inputs)):
        made = producer(normal, "LayerNormalization", "RMSNormalization")
        if made is None or operand is None or len(made.inputs) > 2 or only_user(made.outputs[0]) is None:
            continue
        x, scale = made.inputs
        assert x is not None and scale is not None
        new = _parameter(r, operand, _normalized_shape(x, attribute(made, "axis", -1)))
        if node.op_type == "Mul":
            parameters = [_product(r, scale, new)]
        else:
            parameters = [scale, new if made.op_type == "LayerNormalization" else None]
        if parameters[-1] is not None:
            result = r.op(made.op_type, x, *parameters, like=normal, **attributes_of(made))
            return reshaped(r, result, node.outputs[0])  # the operand may have more axes, of size 1
    return None


def _product(r: Rewriter, scale: ir.Value, factor: ir.Value | None) -> ir.Value | None:
    """The product of two scales. If both matter, it must be known, so that nothing is lost but in rounding."""
    own, other = constant(scale), constant(factor)
    if own is not None and (own == 1).all():
        return factor
    if own is None or other is None:
        return None
    with np.errstate(all="ignore"):
        product = own * other
    is_normal = np.isfinite(product) & (abs(product) >= ml_dtypes.finfo(product.dtype).smallest_normal)
    if not (is_normal | (own == 0) | (other == 0)).all():
        return None
    return r.moved(product, scale if NAME in scale.meta else factor)


@rewrites("Mul", "Div", given=some(*PRODUCTS), needs=("ReduceMean",))
def recognise_normalization(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """(x - mean) / sqrt(var + eps), or x / sqrt(mean(x * x) + eps), and more factors."""
    y = node.outputs[0]
    found = _normalized(y)
    if found is None or y.dtype is None:
        return None
    if not found.is_centered and r.opset < RMS_OPSET:
        return None
    ones = r.const(np.ones(_normalized_shape(found.x, found.axis), y.dtype.numpy()))
    op_type = "LayerNormalization" if found.is_centered else "RMSNormalization"
    axis = found.axis - len(dims(found.x))
    result = r.op(op_type, found.x, ones, like=found.x, axis=axis, epsilon=found.epsilon)
    return multiplied(r, result, found.factors, y)


def multiplied(r: Rewriter, result: ir.Value, factors: list[ir.Value], y: ir.Value) -> ir.Value | None:
    """A product in place of y."""
    for factor in factors:
        shape = broadcast([dims(result), dims(factor)])
        if shape is None:
            return None
        result = r.op("Mul", result, factor, like=y, shape=shape)
    return result if dims(result) == dims(y) else None


def _parameter(r: Rewriter, value: ir.Value, shape: tuple[int, ...]) -> ir.Value | None:
    """`value` with exactly the normalized shape: leading axes of size 1 go, a constant is broadcast."""
    own = dims(value)
    if own == shape:
        return value
    stripped = own
    while len(stripped) > len(shape) and stripped[0] == 1:
        stripped = stripped[1:]
    array = constant(value)
    if array is not None and len(stripped) <= len(shape) and math.prod(shape) <= 1 << 20:
        small = array.reshape([int(d) for d in stripped])
        if all(a in (1, b) for a, b in zip(small.shape[::-1], shape[::-1], strict=False)):
            return r.moved(np.broadcast_to(small, shape), value)
    if stripped == shape:
        return r.op("Reshape", value, r.const(shape, np.int64), like=value, shape=shape)
    return None


def _normalized_shape(x: ir.Value, axis: int) -> tuple[int, ...]:
    return tuple(dims(x)[axis:])  # type: ignore[arg-type]


def _normalized(product: ir.Value) -> Normalized | None:
    numerators, roots = factors(product)
    for root in roots:
        inner = variance_plus_epsilon(root)
        if inner is None:
            continue
        variance, epsilon = inner
        for candidate, others in candidates(numerators):
            x, is_centered, axes = matches(candidate, variance)
            if x is None or axes is None or len(roots) != 1:
                continue
            rank = len(dims(x))
            axis = rank - len(axes)
            if axes != tuple(range(axis, rank)) or not all(isinstance(d, int) and d > 0 for d in dims(x)[axis:]):
                continue
            if x.dtype == ir.DataType.DOUBLE and float(np.float32(epsilon)) != epsilon:
                continue  # the attribute is a float32
            return Normalized(x, axis, float(epsilon), is_centered, others)
    return None


def candidates(factors: list[ir.Value], depth: int = 3) -> Iterator[tuple[ir.Value, list[ir.Value]]]:
    """Each factor of a product with the others. What is normalized may be a product, or a factor of one."""
    for i, factor in enumerate(factors):
        others = factors[:i] + factors[i + 1 :]
        yield factor, others
        node = producer(factor, "Mul") if depth else None
        if node is not None and node.inputs[0] is not node.inputs[1]:
            for part, rest in candidates(list(node.inputs), depth - 1):  # type: ignore[arg-type]
                yield part, rest + others


def factors(product: ir.Value, depth: int = 5) -> tuple[list[ir.Value], list[ir.Value]]:
    """The factors of a product, and the arguments of the square roots that it is divided by; not deeper than any
    library multiplies."""
    node = producer(product, "Mul", "Div", "Reciprocal") if depth else None
    if node is None:
        return [product], []
    if node.op_type == "Reciprocal":
        root = producer(node.inputs[0], "Sqrt")
        return ([], [root.inputs[0]]) if root is not None else ([product], [])  # type: ignore[list-item]
    a, b = node.inputs
    assert a is not None and b is not None
    if node.op_type == "Div":
        root = producer(b, "Sqrt")
        if root is None:
            return [product], []
        over, under = factors(a, depth - 1) if len(a.uses()) == 1 else ([a], [])
        return over, [*under, root.inputs[0]]  # type: ignore[list-item]
    if a is b:
        return [product], []
    over_a, under_a = factors(a, depth - 1)
    over_b, under_b = factors(b, depth - 1)
    if not under_a and not under_b:
        return [product], []
    return over_a + over_b, under_a + under_b


def variance_plus_epsilon(value: ir.Value) -> tuple[ir.Value, float] | None:
    node = producer(value, "Add")
    if node is None:
        return None
    for i in (0, 1):
        epsilon = splat(node.inputs[i])
        variance = node.inputs[1 - i]
        if epsilon is not None and variance is not None:
            return without_clip(variance), float(epsilon)
    return None


def without_clip(value: ir.Value) -> ir.Value:
    """max(0, v) of a variance is v: it is never negative but by rounding."""
    node = producer(value, "Max", "Relu")
    if node is None:
        return value
    if node.op_type == "Relu":
        return node.inputs[0]  # type: ignore[return-value]
    for i in (0, 1):
        if splat(node.inputs[i]) == 0:
            return node.inputs[1 - i]  # type: ignore[return-value]
    return value


def matches(candidate: ir.Value, variance: ir.Value) -> tuple[ir.Value | None, bool, tuple[int, ...] | None]:
    """(x, is it centered, axes) if `variance` is the variance (or mean square) that belongs to `candidate`."""
    mean_of = reduction(variance, "ReduceMean")
    if mean_of is not None:
        squared = square_of(mean_of[0])
        if squared is candidate:
            difference = producer(candidate, "Sub")
            if difference is not None:
                x, mean = difference.inputs
                found = reduction(mean, "ReduceMean")
                if found is not None and found[0] is x and found[1] == mean_of[1]:
                    return x, True, mean_of[1]
            return candidate, False, mean_of[1]
        # The same difference may have been computed twice.
        centered, other = _centered(candidate), _centered(squared)
        if centered is not None and centered == other and centered[1] == mean_of[1]:
            return centered[0], True, mean_of[1]
        return None, False, None
    difference = producer(variance, "Sub")
    centered = _centered(candidate)
    if difference is None or centered is None:
        return None, False, None
    x, axes = centered
    mean_square = reduction(difference.inputs[0], "ReduceMean")
    mean = square_of(difference.inputs[1])
    if mean_square is None or mean is None or mean_square[1] != axes or square_of(mean_square[0]) is not x:
        return None, False, None
    found = reduction(mean, "ReduceMean")
    return (x, True, axes) if found is not None and found == (x, axes) else (None, False, None)


def _centered(value: ir.Value | None) -> tuple[ir.Value, tuple[int, ...]] | None:
    """(x, axes) if `value` is x - mean(x, axes)."""
    node = producer(value, "Sub")
    found = reduction(node.inputs[1], "ReduceMean") if node is not None else None
    return found if node is not None and found is not None and found[0] is node.inputs[0] else None


def square_of(value: ir.Value | None) -> ir.Value | None:
    node = producer(value, "Mul", "Pow")
    if node is None:
        return None
    if node.op_type == "Pow":
        return node.inputs[0] if scalar(node.inputs[1]) == 2 else None
    return node.inputs[0] if node.inputs[0] is node.inputs[1] else None
