"""Nodes whose operands are all known become initializers.

Small results are computed here. Large ones (weights) are only rearranged, and lazily: the elements move when the file
is written, one tensor at a time, so that no second copy of a weight is ever held.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir

from jax2onnx import streaming
from jax2onnx.attributes import attributes_of
from jax2onnx.dimensions import is_static
from jax2onnx.naming import NAME
from jax2onnx.optimize.engine import Rewriter, RuleSet, all_known, first
from jax2onnx.optimize.queries import attribute, axes_of, integers, only_user, producer
from jax2onnx.streaming import StreamedTensor, pieces_of

RULES = RuleSet()

SMALL = 16 * 1024
"""Results up to this many bytes are computed while exporting."""

FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def _slice(node: ir.Node, x: np.ndarray, *_: Any) -> np.ndarray:
    operands: list[Any] = [integers(v) for v in node.inputs[1:]]
    starts, ends, axes, steps = [*operands, None, None][:4]
    assert starts is not None and ends is not None
    index = [slice(None)] * x.ndim
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        step = steps[i] if steps else 1
        axis = axes[i] if axes else i
        # A negative end counts from the end in both, but -2**63 means "to the front" in ONNX.
        stop = None if step < 0 and end < -x.shape[axis] else end
        index[axis] = slice(start, stop, step)
    return x[tuple(index)]


def _reshape(node: ir.Node, x: np.ndarray, target: np.ndarray) -> np.ndarray:
    shape = [x.shape[i] if d == 0 and not attribute(node, "allowzero", 0) else int(d) for i, d in enumerate(target)]
    return x.reshape(shape)


MOVES: dict[str, Callable[..., np.ndarray]] = {
    "Transpose": lambda node, x: np.transpose(x, attribute(node, "perm")),
    "Reshape": _reshape,
    "Squeeze": lambda node, x, *_: np.squeeze(x, axes_of(node)),
    "Unsqueeze": lambda node, x, *_: np.expand_dims(x, axes_of(node)),  # type: ignore[arg-type]
    "Slice": _slice,
}
"""Operators that only rearrange: done for weights of any size."""

IN_ORDER = {"Reshape", "Squeeze", "Unsqueeze"}
"""Those after which the elements are in the same order."""

EXACT: dict[str, Callable[..., np.ndarray]] = {
    "Cast": lambda node, x: x.astype(node.outputs[0].dtype.numpy()),  # type: ignore[union-attr]
    "Concat": lambda node, *xs: np.concatenate(xs, attribute(node, "axis")),
    "Add": lambda node, a, b: a + b,
    "Sub": lambda node, a, b: a - b,
    "Mul": lambda node, a, b: a * b,
    "Neg": lambda node, x: -x,
    "Not": lambda node, x: ~x,
    "And": lambda node, a, b: a & b,
    "Or": lambda node, a, b: a | b,
    "BitwiseAnd": lambda node, a, b: a & b,
    "BitwiseOr": lambda node, a, b: a | b,
    "BitwiseXor": lambda node, a, b: a ^ b,
    "Equal": lambda node, a, b: a == b,
    "Less": lambda node, a, b: a < b,
    "LessOrEqual": lambda node, a, b: a <= b,
    "Greater": lambda node, a, b: a > b,
    "GreaterOrEqual": lambda node, a, b: a >= b,
    "Where": lambda node, c, a, b: np.asarray(np.where(c, a, b)),
    "Gather": lambda node, x, i: np.take(x, i, attribute(node, "axis", 0)),
    "Range": lambda node, a, b, c: np.arange(a, b, c, dtype=a.dtype),
}
"""Operators that NumPy computes exactly as JAX does: done where the result is small."""

EXACT_ON_INTEGERS: dict[str, Callable[..., np.ndarray]] = {
    "Clip": lambda node, x, low, high: np.minimum(np.maximum(x, low), high),
    "Max": lambda node, *xs: functools.reduce(np.maximum, xs),
    "Min": lambda node, *xs: functools.reduce(np.minimum, xs),
}
"""The same, but for NaN and the signs of zeros."""


ROUNDED: dict[str, Callable[..., np.ndarray]] = {
    "ReduceMean": lambda node, x, *_: np.mean(x, axes_of(node), keepdims=attribute(node, "keepdims", 1) == 1),
    "Relu": lambda node, x: np.maximum(x, 0),
    "Div": lambda node, a, b: a / b,
    "Sqrt": lambda node, x: np.sqrt(x),
    "Reciprocal": lambda node, x: 1 / x,
}
"""Operators that NumPy computes as well as anybody does in its own floating-point types: done where all is small, so
that a formula on something large can still be recognised."""


@RULES.rewrites(*MOVES, *EXACT, *EXACT_ON_INTEGERS, *ROUNDED, given=all_known)
def fold_constants(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Evaluate a node with known operands."""
    tensors = [v.const_value if v is not None else None for v in node.inputs]
    if not tensors or any(t is None for t in tensors):
        return None
    y = node.outputs[0]
    if y.shape is None or y.dtype is None or not is_static(y.shape):
        return None
    shape = tuple(int(d) for d in y.shape)  # type: ignore[arg-type]
    is_move = node.op_type in MOVES
    if math.prod(shape) * y.dtype.itemsize > SMALL:
        return _fold_later(r, node, tensors, shape) if is_move and not _stays(node.inputs[0]) else None
    if node.op_type == "Cast" and _is_lossy(tensors[0], y.dtype):
        return None
    if node.op_type in EXACT_ON_INTEGERS and y.dtype.is_floating_point():
        return None
    if node.op_type in ROUNDED and (y.dtype not in FLOATS or tensors[0].nbytes > SMALL):  # type: ignore[union-attr]
        return None
    with np.errstate(all="ignore"):
        rule = MOVES[node.op_type] if is_move else (EXACT | EXACT_ON_INTEGERS | ROUNDED)[node.op_type]
        result = rule(node, *(t.numpy() for t in tensors))  # type: ignore[union-attr]
    name = node.inputs[0].meta.get(NAME) if is_move and node.inputs[0] is not None else None
    return r.const(np.asarray(result, y.dtype.numpy()).reshape(shape), name=name)


@RULES.rewrites(*IN_ORDER, "Transpose", given=first("Cast"))
def rearrange_before_cast(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A weight that is computed with in another dtype than it is stored in is rearranged as it is stored."""
    cast, y = producer(node.inputs[0], "Cast"), node.outputs[0]
    weight = cast.inputs[0] if cast is not None else None
    if cast is None or weight is None or weight.const_value is None or only_user(cast.outputs[0]) is None:
        return None
    stored = r.op(node.op_type, weight, *node.inputs[1:], like=y, dtype=weight.dtype, **attributes_of(node))
    return r.op("Cast", stored, like=y, **attributes_of(cast))


def _stays(weight: ir.Value | None) -> bool:
    """Is a weight also used as it is? Then it would be stored twice (an embedding that is the last layer too, say)."""
    return weight is not None and any(use.node.op_type not in MOVES for use in weight.uses())


def _is_lossy(tensor: Any, to: ir.DataType) -> bool:
    """Casts from float to integer have cases that NumPy and the runtime may see differently. A bool is just not 0."""
    return tensor.dtype.is_floating_point() and not to.is_floating_point() and to != ir.DataType.BOOL


def _fold_later(r: Rewriter, node: ir.Node, tensors: list[Any], shape: tuple[int, ...]) -> ir.Value:
    """A weight that is rearranged when it is read."""
    operands = [t.numpy() for t in tensors[1:]]
    rule, attributes, x, y = MOVES[node.op_type], _Frozen(node), node.inputs[0], node.outputs[0]
    assert x is not None and y.dtype is not None
    attributes_key = str(sorted((k, str(a.value)) for k, a in node.attributes.items()))
    key = (node.op_type, attributes_key, tuple((a.shape, a.tobytes()) for a in operands))

    def rearrange(array: np.ndarray) -> np.ndarray:
        return rule(attributes, array, *operands)

    return rearranged(r, x, rearrange, shape, key, y.dtype.numpy(), in_order=node.op_type in IN_ORDER)


def rearranged(
    r: Rewriter,
    weight: ir.Value,
    rearrange: Callable[[np.ndarray], np.ndarray],
    shape: tuple[int, ...],
    key: tuple,
    dtype: Any,
    in_order: bool = False,
) -> ir.Value:
    """A weight whose elements have other places when it is read, unless they stay `in_order`. The `key` says how."""
    source = weight.const_value
    assert source is not None

    def read() -> np.ndarray:
        return rearrange(source.numpy()).reshape(shape)

    def pieces() -> Iterator[np.ndarray]:
        return pieces_of(source) if in_order else streaming.pieces(read())

    tensor = StreamedTensor(pieces, read, dtype, shape)
    return r.tensor(tensor, key=(id(source), *key), name=weight.meta.get(NAME))


COUNTING_BITS = 16
"""Of whole numbers with more, few can be summed exactly."""
FIRST = 64
"""How many numbers of a weight are looked at to find that they are not whole, as hardly any are."""
LARGEST = 1 << 22
"""Larger weights are not read before the file is written."""


def can_be_scaled(weight: ir.Value | None, factor: np.ndarray) -> bool:
    """Can a weight be multiplied by known numbers, instead of what is computed with it?

    Not if the program may count on that: sums of products with whole numbers (or with multiples of another number) are
    exact, and then so are quotients that are whole, as in floor(bits @ powers / 3), unless they are rounded before.
    """
    if weight is None or not np.isfinite(factor).all():
        return False
    if (abs(np.frexp(factor)[0]) == 0.5).all():
        return True
    tensor = weight.const_value
    return tensor is not None and (tensor.size > LARGEST or not _are_whole(tensor.numpy()))


def _are_whole(numbers: np.ndarray) -> bool:
    """Are these multiples of one number, by integers of few bits, and not all 0?"""
    some = numbers.flat[:FIRST]
    if numbers.size > FIRST and some.any() and not _are_whole(some):
        return False
    largest = abs(numbers).max(initial=0)
    if not 0 < largest < np.inf:
        return False
    unit = np.ldexp(1.0, int(np.frexp(largest)[1]) - COUNTING_BITS)
    return bool((numbers.astype(np.float64) % unit == 0).all())


def scaled(r: Rewriter, weight: ir.Value, factor: np.ndarray) -> ir.Value:
    """A weight times known numbers, multiplied when it is written."""
    tensor = weight.const_value
    assert tensor is not None
    numbers = np.ascontiguousarray(factor)

    def read(read_weight: Callable[[], np.ndarray] = tensor.numpy) -> ir.TensorProtocol:
        return ir.Tensor(read_weight() * numbers)

    return r.tensor(ir.LazyTensor(read, tensor.dtype, tensor.shape), name=weight.meta.get(NAME))


class _Frozen:
    """The attributes and constant operands of a node that is about to be removed."""

    def __init__(self, node: ir.Node):
        self.attributes = dict(node.attributes)
        self.inputs = list(node.inputs)
        self.outputs = list(node.outputs)
