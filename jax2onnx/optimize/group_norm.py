"""Group and instance normalization over images with the channels first or last, recognised by their maths.

They become InstanceNormalization: of the channels, of the groups, or of everything as one channel. Where the channels
are last, it is between two Transposes, which cancel against those of convolutions. In ONNX Runtime that is as fast as
the plain form with statistics in one pass, and up to 30 times faster than that in two passes (reductions over axes that
are not the last ones are slow), and its numbers are as good: it loses as many digits as the mean is larger than the
spread. GroupNormalization has no kernel there: it is written out when the model is loaded, and up to 1.8 times slower.
So it is for those who prefer it (`NATIVE`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from jax2onnx.attributes import attributes_of, values_of
from jax2onnx.dimensions import is_static
from jax2onnx.optimize import normalization
from jax2onnx.optimize.engine import Rewriter, RuleSet, some
from jax2onnx.optimize.layout import channels_first
from jax2onnx.optimize.queries import attribute, axes_of, constant, dims, producer
from jax2onnx.optimize.simplify import RESHAPES
from jax2onnx.permutations import inverse, permuted

RULES = RuleSet()
NATIVE = RuleSet()

GROUP_OPSET = 21


class Grouped(NamedTuple):
    """x is normalized over its positions and the channels of each group."""

    x: ir.Value
    groups: int
    is_channels_first: bool  # or else last
    split: ir.Node | None  # by which the program makes an axis of the groups


@RULES.rewrites("Mul", "Div", given=some(*normalization.PRODUCTS), needs=("Sqrt",))
def recognise_group_normalization(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """(x - mean) / sqrt(var + eps), and more factors, as InstanceNormalization."""
    return _recognised(r, node, native=False)


@NATIVE.rewrites("Mul", "Div", given=some(*normalization.PRODUCTS), needs=("Sqrt",))
def recognise_group_normalization_natively(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """(x - mean) / sqrt(var + eps), and more factors, as GroupNormalization or InstanceNormalization."""
    return _recognised(r, node, native=r.opset >= GROUP_OPSET)


@RULES.rewrites("Add", "Sub", given=some("Mul"), needs=("ReduceMean",))
@NATIVE.rewrites("Add", "Sub", given=some("Mul"), needs=("ReduceMean",))
def subtract_the_mean_first(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """x * k + (b - mean * k), where k has the variance of x, is (x - mean) * k + b; there may be no b."""
    if node.op_type == "Sub":
        found = [(scaled, shift, None) for shift, scaled in _subtracted(node.outputs[0])]
    else:
        both = (node.inputs, node.inputs[::-1])
        found = [(scaled, shift, bias) for scaled, offset in both for shift, bias in _subtracted(offset)]
    for scaled, shift, bias in found:
        product = producer(scaled, "Mul")
        for x, k in (product.inputs, product.inputs[::-1]) if product is not None else ():
            difference = _centered_by(r, x, k, shift)
            if difference is not None:
                centered = r.op("Mul", difference, k, like=scaled)
                return r.op("Add", centered, bias, like=node.outputs[0]) if bias is not None else centered
    return None


def _subtracted(value: ir.Value | None) -> list[tuple[Sequence[ir.Value | None], ir.Value | None]]:
    """((a, b), c) for each way in which `value` is c - a * b, with None for no c."""
    node = producer(value, "Sub", "Neg", "Mul", "Add")
    if node is None:
        return []
    if node.op_type in ("Sub", "Neg"):
        product = producer(node.inputs[-1], "Mul")
        return [(product.inputs, node.inputs[0] if node.op_type == "Sub" else None)] if product is not None else []
    both = (node.inputs, node.inputs[::-1])
    if node.op_type == "Mul":
        return [((negation.inputs[0], b), None) for a, b in both if (negation := producer(a, "Neg")) is not None]
    negative = [(a, b) for a, b in both if producer(a, "Neg", "Mul") is not None]
    return [(product, b) for a, b in negative for product, _ in _subtracted(a)]


def _centered_by(
    r: Rewriter, x: ir.Value | None, k: ir.Value | None, shift: Sequence[ir.Value | None]
) -> ir.Value | None:
    """x - mean, of which k has the variance, if `shift` is mean and k."""
    if x is None or k is None or k not in shift:
        return None
    _, roots = normalization.factors(k)
    inner = normalization.variance_plus_epsilon(roots[0]) if len(roots) == 1 else None
    if inner is None:
        return None
    difference = r.op("Sub", x, shift[0] if shift[1] is k else shift[1], like=x)
    _, is_centered, _ = normalization.matches(difference, inner[0])
    return difference if is_centered else None


def _recognised(r: Rewriter, node: ir.Node, native: bool) -> ir.Value | None:
    y = node.outputs[0]
    if y.dtype != ir.DataType.FLOAT:
        return None
    numerators, roots = normalization.factors(y)
    inner = normalization.variance_plus_epsilon(roots[0]) if len(roots) == 1 else None
    if inner is None:
        return None
    variance, epsilon = inner
    for candidate, others in normalization.candidates(numerators):
        found = _grouped(candidate, variance)
        if found is None or 0 in dims(found.x)[1:]:
            continue
        result = _emit(r, found, epsilon, native)
        if found.split is not None and dims(candidate) != dims(result):
            _, *operands = found.split.inputs
            result = r.op(found.split.op_type, result, *operands, like=candidate, **attributes_of(found.split))
        return normalization.multiplied(r, result, others, y)
    return None


def _emit(r: Rewriter, found: Grouped, epsilon: float, native: bool) -> ir.Value:
    """The normalization, without scale and bias. The sizes of the batch and of the positions need not be known."""
    x, groups, is_channels_first, _ = found
    first = channels_first(len(dims(x)))
    batch, channels, *positions = shape = list(dims(x) if is_channels_first else permuted(dims(x), first))

    def normalized(inner: ir.Value, op_type: str = "InstanceNormalization", **attributes: Any) -> ir.Value:
        count = dims(inner)[1]
        plain = [r.const(np.full(count, number, np.float32)) for number in (1, 0)]
        return r.op(op_type, inner, *plain, like=inner, epsilon=epsilon, **attributes)

    native &= isinstance(channels, int)
    if groups == 1 and channels != 1 and not native:
        axis = r.const([1], np.int64)
        whole = normalized(r.op("Unsqueeze", x, axis, like=x, shape=[batch, 1, *dims(x)[1:]]))
        return r.op("Squeeze", whole, axis, like=x)
    inner = x if is_channels_first else r.transpose(x, first)
    if groups == channels:
        inner = normalized(inner)
    elif native:
        inner = normalized(inner, "GroupNormalization", num_groups=groups)
    else:
        assert isinstance(channels, int)
        split = [batch, groups, channels // groups, *positions]
        whole, allowzero = r.const(_kept(shape), np.int64), None
        if not is_static(positions):
            whole, allowzero = r.op("Shape", inner, like=whole), 1
            # An axis of size 1, so that each position keeps its number, and 0 can say that it stays.
            spread = [batch, channels, 1, *positions]
            inner = r.op("Unsqueeze", inner, r.const([2], np.int64), like=x, shape=spread)
        inner = normalized(r.op("Reshape", inner, r.const(_kept(split), np.int64), like=x, shape=split))
        inner = r.op("Reshape", inner, whole, like=x, shape=shape, allowzero=allowzero)
    return inner if is_channels_first else r.op("Transpose", inner, like=x, perm=inverse(first))


def _kept(shape: Sequence[int | str]) -> list[int]:
    """The operand of a Reshape that leaves axes of unknown size as they are, and the first one."""
    return [0 if i == 0 or isinstance(d, str) else d for i, d in enumerate(shape)]


def _grouped(candidate: ir.Value, variance: ir.Value) -> Grouped | None:
    x, is_centered, axes = normalization.matches(candidate, variance)
    if x is not None and is_centered and axes is not None:
        return _of_axes(x, axes)
    # The statistics of groups, repeated for each channel of the group.
    difference = producer(candidate, "Sub")
    x = difference.inputs[0] if difference is not None else None
    if difference is None or x is None or len(dims(x)) < 2:
        return None
    mean, spread = _repeated(difference.inputs[1], x), _repeated(variance, x)
    if mean is None or spread is None:
        return None
    statistics = _mean_of(mean)
    if statistics is None or not _is_variance(normalization.without_clip(spread), mean, statistics):
        return None
    found = _of_axes(*statistics)
    if found is None or found.x is not x:
        return None
    # They are repeated along the last axis, and must be those of its groups.
    return None if found.is_channels_first and found.groups != 1 and len(dims(x)) > 2 else found


def _of_axes(x: ir.Value, axes: tuple[int, ...]) -> Grouped | None:
    """What is normalized over all axes but the first, or also but that of the channels, or of the groups of them."""
    shape = dims(x)
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    if kept == [0]:
        return Grouped(x, 1, True, None)
    if len(kept) != 2 or kept[0] != 0:
        return None
    axis = kept[1]
    groups, *behind = shape[axis:]
    split = producer(x, *RESHAPES)
    if not isinstance(groups, int):
        return None
    if split is not None and split.inputs[0] is not None and behind and isinstance(behind[0], int):
        whole = split.inputs[0]
        if dims(whole) == (*shape[:axis], groups * behind[0], *behind[1:]) and (axis == 1 or len(behind) == 1):
            return Grouped(whole, groups, axis == 1, split)
    return Grouped(x, groups, axis == 1, None) if axis == 1 or not behind else None


def _mean_of(value: ir.Value | None) -> tuple[ir.Value, tuple[int, ...]] | None:
    """(x, axes) if `value` is the mean of x over some axes, which may be gone."""
    node = producer(value, "ReduceMean")
    axes = axes_of(node) if node is not None else None
    if node is None or axes is None or node.inputs[0] is None:
        return None
    rank = len(dims(node.inputs[0]))
    return node.inputs[0], tuple(sorted(a % rank for a in axes))


def _is_variance(value: ir.Value, mean: ir.Value, statistics: tuple[ir.Value, tuple[int, ...]]) -> bool:
    """Is `value` mean(x * x) - mean * mean, or the mean of the squared differences?"""
    x, axes = statistics
    difference = producer(value, "Sub")
    if difference is not None:
        squares = _mean_of(difference.inputs[0])
        return (
            squares is not None
            and squares[1] == axes
            and normalization.square_of(squares[0]) is x
            and normalization.square_of(difference.inputs[1]) is mean
        )
    squares = _mean_of(value)
    centered = producer(normalization.square_of(squares[0]), "Sub") if squares is not None else None
    if squares is None or squares[1] != axes or centered is None or centered.inputs[0] is not x:
        return False
    return _mean_of(_without_ones(centered.inputs[1])) == statistics


def _without_ones(value: ir.Value | None) -> ir.Value | None:
    node = producer(value, "Unsqueeze", "Reshape")
    if node is None or value is None or node.inputs[0] is None:
        return value
    same = [d for d in dims(node.inputs[0]) if d != 1] == [d for d in dims(value) if d != 1]
    return node.inputs[0] if same else value


def _repeated(value: ir.Value | None, x: ir.Value) -> ir.Value | None:
    """The numbers for each group, if `value` has them for each channel of x."""
    batch, channels = dims(x)[0], dims(x)[-1]
    if value is None or dims(value) != (batch, *[1] * (len(dims(x)) - 2), channels):
        return None
    joined = producer(value, "Reshape")
    expanded = producer(joined.inputs[0], "Expand") if joined is not None else None
    if expanded is None or expanded.inputs[0] is None:
        return _without_ones(value)  # each channel is a group
    few, many = dims(expanded.inputs[0]), dims(expanded.outputs[0])
    if len(few) != len(many) or few[:-1] != many[:-1] or few[-1] != 1 or few[0] != batch:
        return None
    return _without_ones(expanded.inputs[0])


@RULES.rewrites("Mul", "Add", given=some("InstanceNormalization", "GroupNormalization"))
@NATIVE.rewrites("Mul", "Add", given=some("InstanceNormalization", "GroupNormalization"))
def give_channels_their_parameters(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """The scale and bias for each channel, which follow, become those of the node."""
    for normal, parameter in (node.inputs, node.inputs[::-1]):
        made = producer(normal, "InstanceNormalization", "GroupNormalization")
        array = constant(parameter)
        if made is None or array is None or normal is None or len(normal.uses()) != 1 or normal.is_graph_output():
            continue
        x, scale, bias = made.inputs
        rank, own, offset = len(dims(normal)), constant(scale), constant(bias)
        if own is None or offset is None or offset.any() or (node.op_type == "Mul" and (own != 1).any()):
            continue
        shape = (1,) * (rank - array.ndim) + array.shape
        if len(shape) != rank or shape[1] not in (1, len(own)) or any(d != 1 for d in (shape[0], *shape[2:])):
            continue
        new = r.moved(np.broadcast_to(array.reshape(-1), own.shape).astype(np.float32), parameter)
        operands = (new, bias) if node.op_type == "Mul" else (scale, new)
        attributes = values_of(made)
        return r.op(made.op_type, x, *operands, like=node.outputs[0], **attributes)
    return None


@RULES.rewrites("Mul", "Add", given=some("Reshape"))
@NATIVE.rewrites("Mul", "Add", given=some("Reshape"))
def join_groups_before_parameters(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A scale or bias for each channel of each group comes before the channels are split into groups."""
    for split, parameter in (node.inputs, node.inputs[::-1]):
        reshape, array = producer(split, "Reshape"), constant(parameter)
        if reshape is None or array is None or split is None or len(split.uses()) != 1 or split.is_graph_output():
            continue
        x, (*lead, groups, size) = reshape.inputs[0], (1, 1, *dims(split))
        if x is None or groups == 1 or size == 1 or array.shape[-2:] != (groups, size) or array.size != groups * size:
            continue
        if dims(split) != dims(node.outputs[0]) or dims(x) != (*lead[2:], groups * size):
            continue
        result = r.op(node.op_type, x, r.moved(array.reshape(-1), parameter), like=x)
        return r.op("Reshape", result, reshape.inputs[1], like=split, allowzero=attribute(reshape, "allowzero"))
    return None
