"""A matrix times the channels of an image is a convolution by a kernel of one pixel, where the channels come first.

Between convolutions such products would need Transposes around them, and a node for each bias. What is multiplied need
not come from a convolution: a Transpose behind the products is moved before them. In ONNX Runtime that takes 1 to 17%
less time (`targets/FACTS.md`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from jax2onnx.dimensions import likely_size
from jax2onnx.optimize import fold
from jax2onnx.optimize.engine import Rewriter, RuleSet
from jax2onnx.optimize.layout import channels_first, channels_last, left_behind, turns_of
from jax2onnx.optimize.matmul import FEW_COLUMNS, LONGEST_WAY, PASSED
from jax2onnx.optimize.queries import dims, only_user
from jax2onnx.permutations import inverse, permuted

RULES = RuleSet()


@RULES.rewrites("MatMul", needs=("Transpose",))
def multiply_by_convolution(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """x @ w as a Conv, if the result has its channels moved to the front in the end."""
    return as_convolution(r, node, lambda passed: False)


def as_convolution(r: Rewriter, node: ir.Node, is_passed: Callable[[ir.Node], bool]) -> ir.Value | None:
    """x @ w as a Conv, if that spares Transposes. `is_passed` knows nodes that can have the channels in front, too."""
    x, w = node.inputs
    y = node.outputs[0]
    if x is None or w is None or not _is_of_pixels(node):
        return None
    found, perm = channels_last(x), channels_first(len(dims(x)))
    before = x.producer()
    if found is not None or (before is not None and is_passed(before) and channels_last(before.inputs[0])):
        if left_behind(node, inverse(perm), lambda user: is_passed(user) or _is_of_pixels(user)) > 0:
            return None
    else:
        end = _turned_end(y)
        if end is None or likely_size(dims(x)) > likely_size(dims(end)):
            return None  # it would be more to transpose
    inner = found[0] if found is not None else r.transpose(x, perm)
    kernel_shape = [1] * (len(perm) - 2)
    operands = inner, _kernel(r, w, len(perm))
    product = r.op("Conv", *operands, like=y, shape=permuted(dims(y), perm), kernel_shape=kernel_shape)
    return r.op("Transpose", product, like=y, perm=inverse(perm))


def _kernel(r: Rewriter, w: ir.Value, rank: int) -> ir.Value:
    """A matrix as the kernel of a convolution, rearranged when it is written, unless others use it as it is."""
    rows, columns = (int(d) for d in dims(w))
    shape = (columns, rows, *[1] * (rank - 2))
    if len(w.uses()) == 1:
        return fold.rearranged(r, w, np.transpose, shape, ("kernel", shape), np.dtype(np.float32))
    axes = r.const(range(2, rank), np.int64)
    return r.op("Unsqueeze", r.transpose(w, [1, 0]), axes, like=w, shape=shape)


def _is_of_pixels(node: ir.Node) -> bool:
    """Is it a known matrix times the last axis of images, which are not tiny?"""
    if node.op_type != "MatMul":
        return False
    x, w = node.inputs
    if x is None or w is None or w.const_value is None or x.dtype != ir.DataType.FLOAT:
        return False
    shape = dims(x)
    return len(dims(w)) == 2 and len(shape) in (4, 5) and 0 not in shape and likely_size(shape[1:-1]) >= FEW_COLUMNS


def _turned_end(value: ir.Value) -> ir.Value | None:
    """What `value` becomes, by such products and arithmetic with known numbers, or with what has its channels moved to
    the front as well, until that is done with it, too."""
    front = channels_first(len(dims(value)))
    for _ in range(LONGEST_WAY):
        if turns_of(value, front):
            return value
        node = only_user(value)
        if node is None or node.domain:
            return None
        if node.op_type == "MatMul":
            if node.inputs[0] is not value or not _is_of_pixels(node):
                return None
        elif node.op_type not in PASSED or not all(v is value or _is_turned(v, front) for v in node.inputs):
            return None
        value = node.outputs[0]
    return None


def _is_turned(value: ir.Value | None, front: list[int]) -> bool:
    """Does it take no Transpose to have `value` with the channels first?"""
    if value is None or value.const_value is not None:
        return True
    return channels_last(value) is not None or bool(turns_of(value, front))
