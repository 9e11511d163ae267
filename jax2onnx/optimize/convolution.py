"""What surrounds a convolution and can be part of it: padding, a bias, a factor per channel (batch norm)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from jax2onnx.attributes import attributes_of, values_of
from jax2onnx.dimensions import is_static
from jax2onnx.optimize import fold
from jax2onnx.optimize.engine import Rewriter, RuleSet, first, some
from jax2onnx.optimize.layout import channels_last
from jax2onnx.optimize.queries import KNOWN, Dims, attribute, constant, dims, integers, only_user, producer, scalar

RULES = RuleSet()
rewrites = RULES.rewrites

CONVOLUTIONS = ("Conv", "ConvTranspose")
ARITHMETIC = ("Add", "Sub", "Mul", "Div")
PAD_AXES_OPSET = 18
NOT_NEGATIVE = ("Relu", "Sigmoid", "HardSigmoid", "Abs", "Exp", "Softplus")
MAX_STEPS = 4
"""How many steps behind a convolution become part of it at once."""


def _per_channel(value: ir.Value | None, axis: int, like: ir.Value) -> np.ndarray | None:
    """The vector in a constant that has one number for each channel of `like`, which are along `axis`."""
    known, shape = constant(value), dims(like)
    channels, missing = shape[axis], len(shape) - known.ndim if known is not None else -1
    if known is None or missing < 0 or not isinstance(channels, int):
        return None
    if any(d != 1 for i, d in enumerate(known.shape, missing) if i != axis) or known.size not in (1, channels):
        return None
    numbers = known.reshape(-1)
    return numbers if numbers.size == channels else np.broadcast_to(numbers, (channels,))


class _Convolved(NamedTuple):
    """The result of a convolution, maybe with its channels moved to the end."""

    node: ir.Node
    perm: list[int] | None

    def result(self) -> ir.Value:
        """With the channels where they are moved to."""
        if self.perm is None:
            return self.node.outputs[0]
        user = only_user(self.node.outputs[0])
        assert user is not None
        return user.outputs[0]

    def channels(self) -> int:
        """Their axis."""
        return 1 if self.perm is None else -1 % len(self.perm)

    def can_be_scaled(self, factor: np.ndarray) -> bool:
        """Are its channels along one axis of the kernel, which can be multiplied by these numbers? In half precision,
        the products may be infinite, or nearly nothing."""
        is_along = self.node.op_type == "Conv" or attribute(self.node, "group", 1) == 1
        is_wide = self.node.outputs[0].dtype in fold.FLOATS
        return is_along and is_wide and fold.can_be_scaled(self.node.inputs[1], factor)

    def replaced(self, r: Rewriter, *operands: ir.Value | None, like: ir.Value) -> ir.Value:
        """The same of a convolution of these operands."""
        y = r.op(self.node.op_type, *operands, like=self.node.outputs[0], **attributes_of(self.node))
        return y if self.perm is None else r.op("Transpose", y, like=like, perm=self.perm)


def _convolution(value: ir.Value | None) -> _Convolved | None:
    turned = channels_last(value)
    result, perm = (value, None) if turned is None else turned
    node = producer(result, *CONVOLUTIONS)
    if node is None or value is None or only_user(value) is None or not _is_known(node.inputs[1]):
        return None
    if perm is not None and only_user(node.outputs[0]) is None:
        return None
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    return _Convolved(node, perm) if bias is None or constant(bias) is not None else None


def _is_known(value: ir.Value | None) -> bool:
    """Is a value a constant? Its content may be large, and not read yet."""
    return value is not None and value.const_value is not None


class _Step(NamedTuple):
    """A number for each channel that is added, subtracted, or multiplied by."""

    op_type: str
    numbers: np.ndarray
    source: ir.Value


def _step(node: ir.Node | None, value: ir.Value, convolved: _Convolved) -> _Step | None:
    """What `node` does with `value`, if a convolution can do that."""
    if node is None or node.op_type not in ARITHMETIC or dims(value) != dims(node.outputs[0]):
        return None
    for i, other in ((0, 1), (1, 0))[: 1 if node.op_type in ("Sub", "Div") else 2]:
        source = node.inputs[other]
        if node.inputs[i] is not value or source is None:
            continue
        numbers = _per_channel(source, convolved.channels(), value)
        if numbers is None:
            return None
        if node.op_type in ("Add", "Sub"):
            return _Step(node.op_type, numbers, source)
        with np.errstate(divide="ignore"):
            factor = 1 / numbers if node.op_type == "Div" else numbers
        if convolved.can_be_scaled(factor):
            return _Step("Mul", factor, source)
    return None


@rewrites(*ARITHMETIC, given=some(KNOWN), needs=CONVOLUTIONS)
def take_in_arithmetic(r: Rewriter, node: ir.Node) -> tuple[ir.Value, ...] | None:
    """Steps as in batch normalization, (conv(x) - mean) * scale + bias: all at once, when the first of them is seen."""
    convolved = _convolution(next((x for x, y in (node.inputs, node.inputs[::-1]) if _is_known(y)), None))
    if convolved is None:
        return None
    steps: list[_Step] = []
    value, following = convolved.result(), node
    while len(steps) < MAX_STEPS and (step := _step(following, value, convolved)) is not None:
        steps.append(step)
        value = following.outputs[0]
        user = only_user(value)
        if user is None:
            break
        following = user
    if not steps:
        return None
    result = _with_steps(r, convolved, steps, value)
    if value is node.outputs[0]:
        return (result,)
    r.replace_other(value, result)
    return tuple(node.outputs)


def _with_steps(r: Rewriter, convolved: _Convolved, steps: list[_Step], y: ir.Value) -> ir.Value:
    conv = convolved.node
    x, kernel, *rest = conv.inputs
    source = rest[0] if rest else None
    bias, scale = constant(source), None
    for op_type, numbers, origin in steps:
        if op_type in ("Add", "Sub"):
            shift = -numbers if op_type == "Sub" else numbers
            bias, source = shift if bias is None else bias + shift, source or origin
        else:
            bias = bias * numbers if bias is not None else None
            scale = numbers if scale is None else scale * numbers
    if scale is not None and kernel is not None:
        kernel = scaled_kernel(r, kernel, scale, axis=0 if conv.op_type == "Conv" else 1)
    return convolved.replaced(r, x, kernel, *([] if bias is None else [r.moved(bias, source)]), like=y)


def scaled_kernel(r: Rewriter, kernel: ir.Value, scale: np.ndarray, axis: int) -> ir.Value:
    """A kernel with a factor per channel, along an axis."""
    return fold.scaled(r, kernel, scale.reshape([-1 if i == axis else 1 for i in range(len(dims(kernel)))]))


@rewrites("Conv", "MaxPool", "AveragePool", given=first("Pad"))
def merge_padding(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A Pad of the spatial axes with what the operator pads with anyway: zeros, or -inf for a maximum, where zeros are
    no larger than anything that is 0 or more: each window has something of that."""
    pad = producer(node.inputs[0], "Pad")
    if pad is None or attribute(pad, "mode", "constant") != "constant" or len(pad.inputs) > 3:
        return None
    pads = integers(pad.inputs[1])
    value = scalar(pad.inputs[2]) if len(pad.inputs) > 2 else np.float32(0)
    wanted = -np.inf if node.op_type == "MaxPool" else 0
    if node.op_type == "MaxPool" and value == 0 and producer(pad.inputs[0], *NOT_NEGATIVE) is not None:
        wanted = 0 if attribute(node, "dilations") is None else wanted
    if pads is None or value is None or value != wanted or min(pads) < 0:
        return None
    rank = len(pads) // 2
    low, high = pads[:rank], pads[rank:]
    if any(low[:2]) or any(high[:2]):
        return None
    attributes = values_of(node)
    if "auto_pad" in attributes:  # depends on the size before
        return None
    old = attributes.get("pads", [0] * (2 * (rank - 2)))
    merged = [a + b for a, b in zip(old, [*low[2:], *high[2:]], strict=True)]
    if node.op_type != "Conv":
        if node.op_type == "AveragePool" and not attributes.get("count_include_pad") and any(old):
            return None
        if any(p >= k for p, k in zip(merged, [*attributes["kernel_shape"]] * 2, strict=True)):
            return None
        if not _hold_steps(dims(pad.inputs[0])[2:], attributes.get("dilations")):  # type: ignore[arg-type]
            return None
        if node.op_type == "AveragePool":
            attributes["count_include_pad"] = 1
    attributes["pads"] = merged
    return r.op(node.op_type, pad.inputs[0], *node.inputs[1:], like=node.outputs[0], **attributes)


def _hold_steps(sizes: Dims, dilations: Sequence[int] | None) -> bool:
    """Are axes as long as the steps in a window, which could step over them else? A window of nothing but padding is
    the least finite number to ONNX Runtime."""
    steps = zip(sizes, dilations, strict=True) if dilations is not None else ()
    return all(step == 1 or (isinstance(size, int) and size >= step) for size, step in steps)


LAST = RuleSet()


@LAST.rewrites("AveragePool", given=first("Pad"))
def keep_padding_apart(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A Pad that is left says which axes it pads, or pads an array with one axis more: else ONNX Runtime makes it the
    padding of the pool, also where that is not smaller than the window, and then does not load the model."""
    pad = producer(node.inputs[0], "Pad")
    if pad is None or len(pad.inputs) > 3 or only_user(pad.outputs[0]) is None:
        return None
    padded, shape = pad.outputs[0], dims(pad.outputs[0])
    x, pads, value = (*pad.inputs, None)[:3]
    if r.opset >= PAD_AXES_OPSET:
        axes = r.const(range(len(shape)), np.int64)
        apart = r.op("Pad", x, pads, value, axes, like=padded, **attributes_of(pad))
    else:
        known = integers(pads)
        if x is None or known is None:
            return None
        axis = r.const([0], np.int64)
        deeper = r.op("Unsqueeze", x, axis, like=x, shape=[1, *dims(x)])
        wider = r.const([0, *known[: len(shape)], 0, *known[len(shape) :]], np.int64)
        apart = r.op("Pad", deeper, wider, value, like=padded, shape=[1, *shape], **attributes_of(pad))
        apart = r.op("Squeeze", apart, axis, like=padded)
    return r.op("AveragePool", apart, like=node.outputs[0], **attributes_of(node))


@rewrites("Div", given=first("Mul"))
def average_of_window(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A sum over windows (the average times their size) divided by their size, or by what of it is not padding."""
    total, size, y = producer(node.inputs[0], "Mul"), constant(node.inputs[1]), node.outputs[0]
    if total is None or size is None:
        return None
    for i in (0, 1):
        pool, factor = producer(total.inputs[1 - i], "AveragePool"), scalar(total.inputs[i])
        if pool is None or factor is None:
            continue
        if size.size == 1 and size == factor:
            return total.inputs[1 - i]
        counts = _elements_in_windows(pool)
        if counts is None or factor != math.prod(attribute(pool, "kernel_shape")) or size.ndim > counts.ndim + 2:
            continue
        divisors = size.reshape((1,) * (counts.ndim + 2 - size.ndim) + size.shape)
        fits = all(a in (1, b) for a, b in zip(divisors.shape[2:], counts.shape, strict=True))
        if divisors.shape[0] == 1 and fits and (divisors == counts).all():
            attributes = values_of(pool) | {"count_include_pad": None}
            return r.op("AveragePool", pool.inputs[0], like=y, **attributes)
    return None


def _elements_in_windows(pool: ir.Node) -> np.ndarray | None:
    """How many elements each window of an AveragePool has that are not padding, if its attributes are those we write
    and no window is empty."""
    known = {"kernel_shape", "strides", "pads", "count_include_pad"}
    shape, places = dims(pool.inputs[0])[2:], dims(pool.outputs[0])[2:]  # type: ignore[arg-type]
    if not set(pool.attributes) <= known or not is_static((*shape, *places)):
        return None
    rank = len(shape)
    pads = attribute(pool, "pads", [0] * 2 * rank)
    counts = np.ones([1] * rank)
    for axis, (kernel, stride) in enumerate(
        zip(attribute(pool, "kernel_shape"), attribute(pool, "strides", [1] * rank), strict=True)
    ):
        starts = np.arange(int(places[axis])) * stride - pads[axis]
        inside = np.minimum(starts + kernel, int(shape[axis])) - np.maximum(starts, 0)
        counts = counts * inside.reshape([-1 if i == axis else 1 for i in range(rank)])
    return counts if counts.min(initial=1) > 0 else None
