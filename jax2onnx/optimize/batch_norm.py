"""BatchNormalization with known statistics that no convolution can take in.

For those who prefer the operator, where the program has one, though it rounds differently: x * k + (b - mean * k). For
all, that formula where x is a sum, which was rounded itself; and a factor and a shift for each channel, if the channels
come first: that is one node and one pass for two.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from jax2onnx.optimize.engine import Rewriter, RuleSet, some
from jax2onnx.optimize.layout import channels_first
from jax2onnx.optimize.queries import constant, dims, only_user, producer
from jax2onnx.permutations import inverse

RULES = RuleSet()
LAST = RuleSet()

SUMS = ("Conv", "ConvTranspose", "MatMul", "Gemm", "AveragePool", "ReduceMean")
KEPT = (
    "Relu Clip LeakyRelu Elu Selu Celu Gelu HardSwish Sigmoid Tanh Softplus Mish"
    " MaxPool Concat Transpose Reshape Resize"
).split()
"""Operators whose results are as inexact as their operands."""
LARGEST_MEAN = 32
MOST_BEFORE = 100
"""How many nodes are looked at to find out that a value is a sum."""


@RULES.rewrites("Add", given=some("Mul"))
def recognise_batch_normalization(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """(x - mean) * scale + bias with numbers for each channel, which are on the second or the last axis."""
    y = node.outputs[0]
    rank = len(dims(y))
    scaled = _operand_and_constant(node)
    multiplied = producer(scaled[0], "Mul") if scaled is not None else None
    centered = _operand_and_constant(multiplied)
    difference = producer(centered[0], "Sub") if centered is not None else None
    if scaled is None or centered is None or difference is None or y.dtype != ir.DataType.FLOAT or rank < 2:
        return None
    x, mean = difference.inputs[0], constant(difference.inputs[1])
    if x is None or mean is None or dims(x) != dims(y) or not _only_here(multiplied, difference):
        return None
    for axis in (1, rank - 1):
        channels = dims(y)[axis]
        found = [_vector(a, axis, rank, channels) for a in (centered[1], scaled[1], mean)]
        if isinstance(channels, int) and channels > 1 and mean.size > 1 and all(v is not None for v in found):
            break
    else:
        return None
    parameters = [r.const(v) for v in (*found, np.ones(channels, np.float32))]
    first = channels_first(rank)
    if axis != 1:
        x = r.transpose(x, first)
    result = r.op("BatchNormalization", x, *parameters, like=x, epsilon=0.0)
    return result if axis == 1 else r.op("Transpose", result, like=y, perm=inverse(first))


@LAST.rewrites("Add", given=some("Mul"))
def subtract_mean_with_shift(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """(x - mean) * k + b = x * k + (b - mean * k), with known numbers.

    The result is that of an x that differs by a few roundings of x. (Where x is much smaller than the mean, what is
    rounded is the difference, in both.) So x must be a sum, which differs by more. An input may be exact, and all that
    matters of it be how it differs from a large mean.
    """
    y = node.outputs[0]
    shifted = _operand_and_constant(node)
    product = producer(shifted[0], "Mul") if shifted is not None else None
    scaled = _operand_and_constant(product)
    difference = producer(scaled[0], "Sub") if scaled is not None else None
    if shifted is None or scaled is None or difference is None or y.dtype != ir.DataType.FLOAT:
        return None
    x, mean, factor = difference.inputs[0], constant(difference.inputs[1]), scaled[1]
    if x is None or mean is None or dims(x) != dims(y) or not _only_here(product, difference):
        return None
    exact = with_mean(shifted[1], mean, factor)
    if exact is None or exact.size > max(mean.size, factor.size, shifted[1].size) or not is_sum(x):
        return None
    scaled_x = r.op("Mul", x, r.const(factor), like=y)
    return r.op("Add", scaled_x, r.moved(exact.astype(np.float32), node.inputs[1]), like=y)


def with_mean(shift: np.ndarray, mean: np.ndarray, factor: np.ndarray) -> np.ndarray | None:
    """shift - mean * factor, if no mean is so large, compared with what is normalized to about 1, that digits get
    lost: that would be less exact than to subtract it first."""
    product = mean.astype(np.float64) * factor
    return shift - product if (abs(product) <= LARGEST_MEAN).all() else None


def is_sum(value: ir.Value | None, seen: list[ir.Value] | None = None) -> bool:
    """Does each element of a value come from a sum of several products?"""
    seen = [] if seen is None else seen
    node = value.producer() if value is not None else None
    if value is None or node is None or node.domain or len(seen) >= MOST_BEFORE:
        return False
    if node.op_type in SUMS:
        return True
    seen.append(value)
    operands = [x for x in node.inputs if x is not None and x.const_value is None]
    if node.op_type in ("Add", "Mul"):
        return any(is_sum(x, seen) for x in operands)
    return node.op_type in KEPT and all(is_sum(x, seen) for x in operands)


@LAST.rewrites("Add", given=some("Mul"), needs=("Conv", "ConvTranspose"))
def scale_and_shift_at_once(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """x * k + b with numbers for each channel, which are on the second axis: it rounds the same.

    All channels have the same numbers in a network that was not trained. (Where x is no sum, such numbers are not about
    channels.)
    """
    y = node.outputs[0]
    shifted = _operand_and_constant(node)
    product = producer(shifted[0], "Mul") if shifted is not None else None
    scaled = _operand_and_constant(product)
    rank = len(dims(y))
    if shifted is None or scaled is None or y.dtype != ir.DataType.FLOAT or rank < 3 or not _only_here(product):
        return None
    x, channels = scaled[0], dims(y)[1]
    if dims(x) != dims(y) or channels == 1 or not isinstance(channels, int):
        return None
    if scaled[1].size != channels and not is_sum(x):
        return None
    factor, shift = (_vector(a, 1, rank, channels) for a in (scaled[1], shifted[1]))
    if factor is None or shift is None or not np.isfinite(factor).all():
        return None
    mean = np.copysign(np.float32(0), factor)  # so that what is computed, shift - mean * factor, keeps a shift of -0.0
    parameters = (factor, shift, mean, np.ones_like(mean))
    return r.op("BatchNormalization", x, *(r.const(v) for v in parameters), like=y, epsilon=0.0)


def _operand_and_constant(node: ir.Node | None) -> tuple[ir.Value, np.ndarray] | None:
    if node is None:
        return None
    for value, other in (node.inputs, node.inputs[::-1]):
        array = constant(other)
        if array is not None and value is not None and value.const_value is None:
            return value, array
    return None


def _only_here(*nodes: ir.Node | None) -> bool:
    return all(node is not None and only_user(node.outputs[0]) is not None for node in nodes)


def _vector(array: np.ndarray, axis: int, rank: int, channels: int | str) -> np.ndarray | None:
    """A number for each channel, if the array has that."""
    shape = (1,) * (rank - array.ndim) + array.shape
    if len(shape) != rank or shape[axis] not in (1, channels) or array.size != shape[axis]:
        return None
    return np.broadcast_to(array.reshape(-1), (int(channels),)).astype(np.float32)
