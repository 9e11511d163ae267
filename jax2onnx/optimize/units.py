"""Reshapes that only add or remove axes of size 1 move towards the results, where they meet others and cancel.

Batching and einsum leave many of them: an axis of size 1 is added, moved by a Transpose, carried through a softmax, and
removed again. What lies between works as well without the axis.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from jax2onnx.attributes import values_of
from jax2onnx.dimensions import is_static
from jax2onnx.optimize.engine import Rewriter, RuleSet, first, some
from jax2onnx.optimize.queries import (
    KNOWN,
    Dims,
    aligned_dims,
    attribute,
    axes_of,
    constant,
    dims,
    only_user,
    producer,
    scalar,
)
from jax2onnx.optimize.simplify import REDUCTIONS, RESHAPES, reshaped
from jax2onnx.reshapes import reshape_operand

RULES = RuleSet()
rewrites = RULES.rewrites

UNARY = (
    "Abs Neg Exp Log Sin Cos Tanh Sqrt Reciprocal Floor Ceil Round Sign Erf Sigmoid Relu Not Cast Gelu"
    " Softplus Elu LeakyRelu HardSigmoid HardSwish Mish Selu Celu Softsign ThresholdedRelu IsNaN log1p expm1 erfc"
).split()
BINARY = "Add Sub Mul Div Pow Max Min And Or Xor Equal Less LessOrEqual Greater GreaterOrEqual Where".split()


def unit_reshape(value: ir.Value | None, for_node: ir.Node | None = None) -> ir.Value | None:
    """x if `value` is x with axes of size 1 added or removed, and nothing else uses it; or, if it is asked `for_node`,
    only what combines it with the result of that node, as in x * sigmoid(x)."""
    node = producer(value, *RESHAPES)
    if node is None or value is None or value.is_graph_output():
        return None
    if for_node is None:
        if len(value.uses()) != 1:
            return None
    else:
        others = [use.node for use in value.uses() if use.node is not for_node]
        if any(other.op_type not in BINARY or for_node.outputs[0] not in other.inputs for other in others):
            return None
    x = node.inputs[0]
    assert x is not None
    return x if _core(dims(x)) == _core(dims(value)) else None


def _core(shape: Dims) -> Dims:
    return tuple(d for d in shape if d != 1)


def _axis_map(outer: Dims, inner: Dims) -> dict[int, int]:
    """Which axis of `inner` each axis of `outer` that is not 1 stands for."""
    kept = [i for i, d in enumerate(inner) if d != 1]
    return dict(zip((i for i, d in enumerate(outer) if d != 1), kept, strict=True))


@rewrites("Transpose", given=first(*RESHAPES))
def move_units_past_transpose(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Permute the axes that matter; those of size 1 stay where they are."""
    outer, y = node.inputs[0], node.outputs[0]
    x = unit_reshape(outer) or _before_units_of_several(outer)
    if x is None or outer is None:
        return None
    axes = _axis_map(dims(outer), dims(x))
    moved = iter(axes[i] for i in attribute(node, "perm") if i in axes)
    perm = [i if d == 1 else next(moved) for i, d in enumerate(dims(x))]
    inner = x
    if perm != sorted(perm):
        inner = r.transpose(x, perm)
    return reshaped(r, inner, y)


def _before_units_of_several(value: ir.Value | None) -> ir.Value | None:
    """x if `value` is x with axes of size 1 added, and is only transposed and then reshaped."""
    node = producer(value, *RESHAPES)
    if node is None or value is None or value.is_graph_output():
        return None
    for turn in value.consumers():
        user = only_user(turn.outputs[0]) if turn.op_type == "Transpose" else None
        if user is None or user.op_type not in RESHAPES:
            return None
    x = node.inputs[0]
    return x if x is not None and _core(dims(x)) == _core(dims(value)) else None


@rewrites("Transpose", given=first("Reshape"))
def transpose_without_ones(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Before a reshape that only adds or removes axes of size 1, and after another one, it gives the final shape."""
    outer, y = node.inputs[0], node.outputs[0]
    split, user = producer(outer, "Reshape"), only_user(y)
    if split is None or outer is None or user is None or user.op_type not in RESHAPES:
        return None
    # The shape after all reshapes in a row: those in between go, and must not be given in the meantime.
    while (after := only_user(user.outputs[0])) is not None and after.op_type in RESHAPES:
        user = after
    x, wanted = split.inputs[0], dims(user.outputs[0])
    if x is None or wanted == dims(y) or _core(wanted) != _core(dims(y)):
        return None
    # The same axes of size 1 as in the end, the others in the order from before.
    kept = [i for i, d in enumerate(dims(outer)) if d != 1]
    rest = iter(_core(dims(outer)))
    shape = tuple(1 if d == 1 else next(rest) for d in wanted)
    places = [i for i, d in enumerate(wanted) if d != 1]
    order = iter(places[kept.index(i)] for i in attribute(node, "perm") if i in kept)
    perm = [i if d == 1 else next(order) for i, d in enumerate(wanted)]
    before, is_zero_size = reshape_operand(dims(x), shape)
    if before is None or is_zero_size:
        return None
    inner = r.op("Reshape", x, r.const(before, np.int64), like=outer, shape=shape)
    if perm != sorted(perm):
        inner = r.op("Transpose", inner, like=y, shape=wanted, perm=perm)
    return reshaped(r, inner, y)


@rewrites(*UNARY, "Clip", given=first(*RESHAPES))
def move_units_past_unary(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """f(reshape(x)) = reshape(f(x))."""
    y = node.outputs[0]
    x = unit_reshape(node.inputs[0], for_node=node)
    if x is None or node.domain or (node.op_type == "Clip" and len(y.uses()) > 1):  # an index, wanted as a vector
        return None
    attributes = values_of(node)
    inner = r.op(node.op_type, x, *node.inputs[1:], like=y, shape=dims(x), **attributes)
    return reshaped(r, inner, y)


@rewrites("Softmax", "LogSoftmax", given=first(*RESHAPES))
def move_units_past_softmax(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A softmax over an axis that both shapes have."""
    outer, y = node.inputs[0], node.outputs[0]
    x = unit_reshape(outer)
    if x is None or outer is None:
        return None
    axis = attribute(node, "axis", -1) % len(dims(outer))
    axes = _axis_map(dims(outer), dims(x))
    if axis not in axes:
        return None
    last = axes[axis] == len(dims(x)) - 1
    inner = r.op(node.op_type, x, like=y, shape=dims(x), axis=-1 if last else axes[axis])
    return reshaped(r, inner, y)


@rewrites(*BINARY, given=some(*RESHAPES))
def move_units_past_broadcast(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Several operands: those that vary were reshaped alike, the others are constants that can follow."""
    y = node.outputs[0]
    inner_shape: Dims | None = None
    for operand in node.inputs:
        x = unit_reshape(operand)
        if x is not None and operand is not None and dims(operand) == dims(y):
            inner_shape = dims(x)
            break
    if inner_shape is None:
        return None
    operands = [_inner_operand(r, operand, dims(y), inner_shape) for operand in node.inputs]
    if any(o is None for o in operands):
        return None
    inner = r.op(node.op_type, *operands, like=y, shape=inner_shape)
    return reshaped(r, inner, y)


def _inner_operand(r: Rewriter, operand: ir.Value | None, outer: Dims, inner: Dims) -> ir.Value | None:
    if operand is None or (scalar(operand) is not None and len(dims(operand)) <= len(inner)):
        return operand
    x = unit_reshape(operand)
    if x is not None and dims(operand) == outer and dims(x) == inner:
        return x
    # Its axes are those of `outer`, aligned at the end; which of `inner` are they?
    shape = aligned_dims(operand, len(outer))
    axes = _axis_map(outer, inner)
    if any(size != 1 and i not in axes for i, size in enumerate(shape)):
        return None
    new: list[int | str] = [1] * len(inner)
    for i, size in enumerate(shape):
        if i in axes:
            new[axes[i]] = size
    if _without_leading_ones(tuple(new)) == _without_leading_ones(dims(operand)) and len(dims(operand)) <= len(inner):
        return operand
    known = constant(operand)
    return r.moved(known.reshape(new), operand) if known is not None and known.nbytes <= 1 << 16 else None  # type: ignore[arg-type]


def _without_leading_ones(shape: Dims) -> Dims:
    start = next((i for i, d in enumerate(shape) if d != 1), len(shape))
    return shape[start:]


@rewrites(*BINARY, given=some(KNOWN, *RESHAPES))
def lower_rank(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Leading axes of size 1 are left out of the operands, and added to the result."""
    y = node.outputs[0]
    extra = len(dims(y)) - len(_without_leading_ones(dims(y)))
    if not extra:
        return None
    sources = [_before_leading_ones(v) for v in node.inputs if v is not None]
    rank = max(len(shape) for _, shape in sources)
    if rank >= len(dims(y)):
        return None
    shape = dims(y)[len(dims(y)) - rank :]
    operands = []
    for value, own in sources:
        if len(own) < len(dims(value)):
            known = constant(value)
            assert known is not None
            value = r.moved(known.reshape(own), value)  # type: ignore[arg-type]
        operands.append(value)
    return reshaped(r, r.op(node.op_type, *operands, like=y, shape=shape), y)


def _before_leading_ones(value: ir.Value) -> tuple[ir.Value, Dims]:
    """A value without leading axes of size 1, and its shape; a constant still has to be reshaped to it."""
    node = producer(value, *RESHAPES)
    if node is not None and node.inputs[0] is not None:
        shape = dims(node.inputs[0])
        if len(shape) < len(dims(value)) and dims(value) == (1,) * (len(dims(value)) - len(shape)) + shape:
            return node.inputs[0], shape
    if value.const_value is not None and value.const_value.nbytes <= 1 << 16:
        return value, _without_leading_ones(dims(value))
    return value, dims(value)


@rewrites(*REDUCTIONS, given=first(*RESHAPES))
def move_units_past_reduction(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Reduce the axes that matter; one of size 1 needs no reduction (all of these give back their only element)."""
    outer, y, axes = node.inputs[0], node.outputs[0], axes_of(node)
    inner = producer(outer, *RESHAPES)
    if inner is None or outer is None or axes is None or node.op_type == "ReduceL2":
        return None
    x = inner.inputs[0]
    assert x is not None
    if _core(dims(x)) != _core(dims(outer)) or not axes:
        return None
    rank = len(dims(outer))
    table = _axis_map(dims(outer), dims(x))
    mapped = sorted(table[a % rank] for a in axes if a % rank in table)
    if not mapped or dims(x) == dims(outer):
        return None
    shape = [1 if i in mapped else d for i, d in enumerate(dims(x))]
    if attribute(node, "axes") is not None:
        reduced = r.op(node.op_type, x, like=y, shape=shape, axes=mapped, keepdims=1)
    else:
        reduced = r.op(node.op_type, x, r.const(mapped, np.int64), like=y, shape=shape, keepdims=1)
    return reshaped(r, reduced, y)


@rewrites("ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd")
def reduce_single_elements(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """The sum of one element is the element, whatever it is; also -0.0, in compiled programs."""
    x, axes = node.inputs[0], axes_of(node)
    if x is None or not axes or any(dims(x)[a] != 1 for a in axes):
        return None
    return reshaped(r, x, node.outputs[0])


@rewrites("Reshape", "Squeeze", given=first(*REDUCTIONS))
def drop_reduced_axes(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A reduction whose axes are kept and then removed need not keep them."""
    kept, y = node.inputs[0], node.outputs[0]
    reduction = producer(kept, *REDUCTIONS)
    axes = axes_of(reduction) if reduction is not None else None
    if (
        kept is None
        or reduction is None
        or not axes
        or only_user(kept) is None
        or not attribute(reduction, "keepdims", 1)
    ):
        return None
    rank = len(dims(kept))
    removed = {a % rank for a in axes}
    if dims(y) != tuple(d for i, d in enumerate(dims(kept)) if i not in removed):
        return None
    return r.op(reduction.op_type, *reduction.inputs, like=y, keepdims=0, axes=attribute(reduction, "axes"))


@rewrites("MaxPool", "AveragePool", given=first(*RESHAPES))
def pool_without_units(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """An axis of size 1 that is added for a pool, and that it goes along with a window of one element, is no axis."""
    outer, y, attributes = node.inputs[0], node.outputs[0], values_of(node)
    x, rank = unit_reshape(outer), len(attributes["kernel_shape"])
    if x is None or outer is None or len(node.outputs) > 1:
        return None
    pads = attributes.get("pads", [0] * 2 * rank)
    windows = zip(
        attributes["kernel_shape"], attributes.get("strides", [1] * rank), pads[:rank], pads[rank:], strict=True
    )
    kept = [i for i, window in enumerate(windows) if window != (1, 1, 0, 0) or dims(outer)[i + 2] != 1] or [rank - 1]
    if len(kept) == rank or dims(x) != (*dims(outer)[:2], *(dims(outer)[i + 2] for i in kept)):
        return None
    for name in {"kernel_shape", "strides", "dilations", "pads"} & attributes.keys():
        attributes[name] = [
            attributes[name][i] for i in (*kept, *(rank + i for i in kept)) if i < len(attributes[name])
        ]
    shape = (*dims(y)[:2], *(dims(y)[i + 2] for i in kept))
    return reshaped(r, r.op(node.op_type, x, like=y, shape=shape, **attributes), y)


@rewrites("Reshape", "Squeeze", "Unsqueeze", given=first(*RESHAPES))
def merge_with_inner_reshape(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A reshape of a unit reshape needs no unit reshape."""
    outer, y = node.inputs[0], node.outputs[0]
    x = unit_reshape(outer)
    if x is None or dims(x) == dims(y):
        return x
    return reshaped(r, x, y, at_once=True)


@rewrites("Reshape", "Squeeze", "Unsqueeze", given=first("Expand"))
def move_before_expand(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Axes along which nothing is repeated are joined or split before an array is repeated rather than after; so are
    axes of size 1 added or removed."""
    y = node.outputs[0]
    outer = node.inputs[0]
    expand = producer(outer, "Expand")
    x = expand.inputs[0] if expand is not None else None
    if outer is None or x is None or len(outer.uses()) != 1 or not is_static((*dims(x), *dims(y))):
        return None
    aligned = aligned_dims(x, len(dims(outer)))
    if 0 in dims(y):
        return None
    shape: list[int | str] = []
    for before, behind in _blocks(dims(outer), dims(y)):
        if aligned[before] == dims(outer)[before]:
            shape += dims(y)[behind]
        elif all(d == 1 for d in aligned[before]):
            shape += [1] * len(dims(y)[behind])
        else:
            return None
    small = x if tuple(shape) == dims(x) else r.op("Reshape", x, r.const(shape, np.int64), like=x, shape=shape)
    return r.op("Expand", small, r.const(dims(y), np.int64), like=y)


def _blocks(old: Dims, new: Dims) -> Iterator[tuple[slice, slice]]:
    """The axes of two shapes of as many elements, as few at a time as are as many."""
    i = j = 0
    while i < len(old) or j < len(new):
        start, other, a, b = i, j, 1, 1
        while (a != b or (start, other) == (i, j)) and (i < len(old) or j < len(new)):
            if j == len(new) or (i < len(old) and a <= b):
                a, i = a * int(old[i]), i + 1
            else:
                b, j = b * int(new[j]), j + 1
        yield slice(start, i), slice(other, j)
