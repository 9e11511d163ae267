"""Windows of images that a program makes axes of, to reduce them: these are pooled where they are."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from jax2onnx.attributes import attributes_of
from jax2onnx.optimize.engine import Rewriter, RuleSet, first
from jax2onnx.optimize.layout import channels_last
from jax2onnx.optimize.pixels import times
from jax2onnx.optimize.queries import Dims, as_shape, attribute, axes_of, dims, only_user, producer, scalar
from jax2onnx.optimize.simplify import REDUCTIONS, RESHAPES, reshaped
from jax2onnx.permutations import inverse, permuted

RULES = RuleSet()
LAST = RuleSet()

CONVOLUTIONS = ("Conv", "ConvTranspose")
POOLS = {"ReduceMean": "AveragePool", "ReduceMax": "MaxPool"}


@RULES.rewrites(*REDUCTIONS, given=first("Reshape"), needs=("Transpose",))
def reduce_in_place(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """What is transposed has its last axis split, and its windows reduced: before, so that less is moved."""
    split, axes, y = producer(node.inputs[0], "Reshape"), axes_of(node), node.outputs[0]
    turned = split.inputs[0] if split is not None else None
    turn = producer(turned, "Transpose")
    if split is None or turn is None or turned is None or axes is None or attribute(node, "keepdims", 1):
        return None
    x, after = turn.inputs[0], dims(split.outputs[0])
    rank = len(dims(turned))
    if x is None or any(only_user(v) is None for v in (turned, split.outputs[0])) or 0 in after:
        return None
    if len(after) != rank + 1 or after[: rank - 1] != dims(turned)[:-1] or [a % len(after) for a in axes] != [rank]:
        return None
    perm = list(attribute(turn, "perm"))
    place = perm[-1]
    apart = ir.Value(shape=as_shape([*dims(x)[:place], *after[-2:], *dims(x)[place + 1 :]]), type=x.type)
    windows = reshaped(r, x, apart)
    if windows is None:
        return None
    shape = [*dims(x)[:place], after[-2], *dims(x)[place + 1 :]]
    if attribute(node, "axes") is not None:
        reduced = r.op(node.op_type, windows, like=y, shape=shape, axes=[place + 1], keepdims=0)
    else:
        reduced = r.op(node.op_type, windows, r.const([place + 1], np.int64), like=y, shape=shape, keepdims=0)
    return r.op("Transpose", reduced, like=y, perm=perm)


@RULES.rewrites(*POOLS, given=first("Reshape"), needs=CONVOLUTIONS)
def pool_windows(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """x.reshape(n, h, 2, w, 2, c).max((2, 4)): a pool, whose windows lie side by side."""
    split, axes, y = producer(node.inputs[0], "Reshape"), axes_of(node), node.outputs[0]
    x = split.inputs[0] if split is not None else None
    if split is None or x is None or axes is None or attribute(node, "keepdims", 1) or x.dtype != ir.DataType.FLOAT:
        return None
    found = channels_last(x)
    rank, after = len(dims(x)), dims(split.outputs[0])
    windows = _windows(dims(x), after, {a % len(after) for a in axes})
    if windows is None or not (4 if found is None else 3) <= rank <= 5 or 0 in dims(x):
        return None
    image, perm = (x, list(range(rank))) if found is None else found
    sizes = permuted(windows, inverse(perm))
    if sizes[:2] != (1, 1) or set(sizes) == {1}:
        return None
    shape = permuted(dims(y), inverse(perm))
    pooled = r.op(POOLS[node.op_type], image, like=y, shape=shape, kernel_shape=sizes[2:], strides=sizes[2:])
    return pooled if found is None else r.op("Transpose", pooled, like=y, perm=perm)


def _windows(before: Dims, after: Dims, reduced: set[int]) -> list[int] | None:
    """The sizes of the windows along each axis, which are the axes behind it, if those and no others are reduced."""
    sizes, place = list[int](), 0
    for size in before:
        window = after[place + 1] if place + 1 in reduced else 1
        if (
            place in reduced
            or place >= len(after)
            or not isinstance(window, int)
            or times(after[place], window) != size
        ):
            return None
        place += 2 if place + 1 in reduced else 1
        sizes.append(window)
    return sizes if place == len(after) else None


@RULES.rewrites("AveragePool", given=first("AveragePool"))
@RULES.rewrites("MaxPool", given=first("MaxPool"))
def pool_once(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Windows of windows, which lie side by side."""
    inner = producer(node.inputs[0], node.op_type)
    sizes = [_side_by_side(n) for n in (inner, node)]
    if inner is None or None in sizes or only_user(inner.outputs[0]) is None:
        return None
    both = [a * b for a, b in zip(*sizes, strict=True)]  # type: ignore[arg-type]
    return r.op(node.op_type, inner.inputs[0], like=node.outputs[0], kernel_shape=both, strides=both)


def _side_by_side(pool: ir.Node | None) -> list[int] | None:
    """The size of the windows of a pool, if they are side by side, and fill what they are in."""
    if pool is None or set(pool.attributes) != {"kernel_shape", "strides"} or len(pool.outputs) != 1:
        return None
    sizes = list(attribute(pool, "kernel_shape"))
    before, after = (dims(v)[2:] for v in (pool.inputs[0], pool.outputs[0]) if v is not None)
    fills = all(times(b, k) == a for a, b, k in zip(before, after, sizes, strict=True))
    return sizes if fills and sizes == list(attribute(pool, "strides")) else None


@LAST.rewrites("AveragePool", needs=("Mul",))
def add_up_exactly(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """An average times the number of elements is a sum, but not to the last bit, which matters where something is
    counted. It is if x is multiplied before (by less than 1, so that nothing overflows), and then by a power of two.

    (m / n) * n is m, rounded twice, where n is a power of two, or the sum of two of them (Kahan).
    """
    x, y = node.inputs[0], node.outputs[0]
    count = math.prod(attribute(node, "kernel_shape"))
    if x is None or count.bit_count() < 3 or x.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return None
    value, user = y, only_user(y)
    while user is not None and user.op_type in (*RESHAPES, "Transpose") and user.inputs[0] is value:
        value, user = user.outputs[0], only_user(user.outputs[0])
    if user is None or user.op_type != "Mul" or user.graph is not node.graph:
        return None
    factor, total = user.inputs[user.inputs[0] is value], user.outputs[0]
    if scalar(factor) != count or dims(total) != dims(value):
        return None
    dtype, power = x.dtype.numpy(), 1 << count.bit_length()
    pooled = r.op("AveragePool", r.op("Mul", x, r.const(count / power, dtype), like=x), like=y, **attributes_of(node))
    r.replace_other(total, value)
    return r.op("Mul", pooled, r.const(power, dtype), like=y)
