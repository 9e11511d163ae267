"""Identities that are exact for every input: what does nothing goes, what cancels cancels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from jax2onnx.dimensions import is_static
from jax2onnx.optimize.engine import Rewriter, RuleSet, all_known, first, some
from jax2onnx.optimize.intervals import fits
from jax2onnx.optimize.queries import (
    SPLATS,
    attribute,
    axes_of,
    constant,
    dims,
    integers,
    only_user,
    producer,
    scalar,
    splat,
)
from jax2onnx.reshapes import RESHAPES, reshape_operand, unit_axes

RULES = RuleSet()
rewrites = RULES.rewrites

REDUCTIONS = ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd", "ReduceL2", "ReduceLogSumExp")


@rewrites("Identity")
def skip_identity(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Identity(x) = x, except where it gives a graph output a value of its own."""
    (x,), (y,) = node.inputs, node.outputs
    assert x is not None
    source = x.producer()
    if y.is_graph_output() and (source is None or source.graph is not node.graph or x.is_graph_output()):
        return x if y.uses() else None
    return x


@rewrites("Cast")
def skip_cast(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A cast to the same type, or through a type that holds every value that there is."""
    (x,), (y,) = node.inputs, node.outputs
    assert x is not None
    if x.dtype == y.dtype:
        return x
    inner = producer(x, "Cast")
    if inner is None:
        return None
    origin = inner.inputs[0]
    assert origin is not None and origin.dtype is not None and x.dtype is not None and y.dtype is not None
    if not _holds(x.dtype, origin.dtype) and not fits(origin, x.dtype):
        return None
    if origin.dtype == y.dtype:
        return origin
    how = {name: attribute(node, name) for name in ("saturate", "round_mode")}
    return r.op("Cast", origin, like=y, to=int(y.dtype), **how)


def _holds(wide: ir.DataType, narrow: ir.DataType) -> bool:
    """Can every value of `narrow` be told apart and written exactly in `wide`?"""
    if wide == narrow:
        return True
    if narrow == ir.DataType.BOOL:
        return wide != ir.DataType.FLOAT8E8M0  # which has powers of two only, and no 0
    a, b = wide.numpy(), narrow.numpy()
    if a.kind in "iu" and b.kind in "iu":
        return np.iinfo(a).min <= np.iinfo(b).min and np.iinfo(a).max >= np.iinfo(b).max
    if a == np.float64:
        return b in (np.float32, np.float16) or narrow == ir.DataType.BFLOAT16 or (b.kind in "iu" and b.itemsize <= 4)
    if a == np.float32:
        return b == np.float16 or narrow == ir.DataType.BFLOAT16 or (b.kind in "iu" and b.itemsize <= 2)
    return False


@rewrites("Transpose", given=first("Concat"))
def stack_along_another_axis(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Arrays that get a new axis each and are joined along it, which is then moved: it gets there at once."""
    y, joined = node.outputs[0], producer(node.inputs[0], "Concat")
    if joined is None or only_user(joined.outputs[0]) is None:
        return None
    perm, axis = attribute(node, "perm"), attribute(joined, "axis") % len(dims(y))
    others, place = [i for i in perm if i != axis], perm.index(axis)
    parts = [added for added in (producer(part, "Unsqueeze") for part in joined.inputs) if added is not None]
    if others != sorted(others) or len(parts) < len(joined.inputs):
        return None
    if any(axes_of(added) not in ((axis,), (axis - len(perm),)) for added in parts):
        return None
    position = r.const([place], np.int64)
    shape = [1 if i == place else d for i, d in enumerate(dims(y))]
    moved = [r.op("Unsqueeze", part.inputs[0], position, like=y, shape=shape) for part in parts]
    return r.op("Concat", *moved, like=y, axis=place)


@rewrites("Transpose")
def merge_transposes(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """No permutation, two in a row, or one that only moves axes of size 1 (a Reshape)."""
    (x,), (y,) = node.inputs, node.outputs
    assert x is not None
    perm = list(attribute(node, "perm"))
    if perm == sorted(perm):
        return x
    inner = producer(x, "Transpose")
    if inner is not None:
        first = attribute(inner, "perm")
        together = [first[i] for i in perm]
        cancel = together == sorted(together)
        return inner.inputs[0] if cancel else r.op("Transpose", inner.inputs[0], like=y, perm=together)
    shape = dims(x)
    if 1 not in shape:
        return None
    moved = [i for i in perm if shape[i] != 1]
    return reshaped(r, x, y) if moved == sorted(moved) else None


@rewrites("Shape", given=first("Transpose"))
def shape_before_transpose(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Neighbouring sizes that the Transpose leaves next to each other."""
    turned = producer(node.inputs[0], "Transpose")
    if turned is None or turned.inputs[0] is None:
        return None
    perm = list(attribute(turned, "perm"))
    axes = perm[attribute(node, "start", 0) : attribute(node, "end")]
    if not axes or axes != list(range(axes[0], axes[0] + len(axes))):
        return None
    return r.op("Shape", turned.inputs[0], like=node.outputs[0], start=axes[0], end=axes[-1] + 1)


@rewrites(*RESHAPES)
def merge_reshapes(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A reshape to the same shape goes; two in a row are one."""
    x, y = node.inputs[0], node.outputs[0]
    assert x is not None
    if dims(x) == dims(y):
        return x
    inner = producer(x, *RESHAPES)
    if inner is None:
        return None
    origin = inner.inputs[0]
    assert origin is not None
    if dims(origin) == dims(y):
        return origin
    return reshaped(r, origin, y, at_once=True)


def reshaped(r: Rewriter, x: ir.Value, like: ir.Value, *, at_once: bool = False) -> ir.Value | None:
    """`x` in the shape of `like`, if that need not be computed; if `at_once`, by one node."""
    if dims(x) == dims(like):
        return x
    target, is_zero_size = reshape_operand(dims(x), dims(like))
    if target is not None:
        return r.op("Reshape", x, r.const(target, np.int64), like=like, allowzero=1 if is_zero_size else None)
    units = unit_axes(dims(x), dims(like))
    if units is None or (at_once and all(units)):
        return None
    removed, added = units
    if removed:
        shape = [d for i, d in enumerate(dims(x)) if i not in removed]
        x = r.op("Squeeze", x, r.const(removed, np.int64), like=like, shape=shape)
    return r.op("Unsqueeze", x, r.const(added, np.int64), like=like) if added else x


def can_be_reshaped(old: Sequence[Any], new: Sequence[Any]) -> bool:
    """Need the new shape not be computed?"""
    return reshape_operand(old, new)[0] is not None or unit_axes(old, new) is not None


POINTWISE = "Add Sub Mul Div Pow Max Min Sqrt Reciprocal Exp Log Abs Neg Relu Tanh Sigmoid".split()
"""Operators that treat each element alone, so that a change of shape may come before or after them."""


@rewrites("Unsqueeze", "Reshape", given=first(*REDUCTIONS, *POINTWISE), needs=REDUCTIONS)
def keep_reduced_axes(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A reduction whose axes are put back as axes of size 1 can keep them, also through what is computed in between."""
    x, y = node.inputs[0], node.outputs[0]
    assert x is not None
    if scalar(x) is not None or not _can_keep_axes(x, dims(y), dims(x)):
        return None
    return _with_kept_axes(r, x, dims(y))


def _can_keep_axes(x: ir.Value, wanted: tuple, shape: tuple) -> bool:
    if scalar(x) is not None:
        return True
    node = producer(x, *REDUCTIONS, *POINTWISE)
    if node is None or dims(x) != shape:
        return False
    if node.op_type in POINTWISE:
        if len(x.uses()) != 1 or all(scalar(v) is not None for v in node.inputs):  # numbers have no axes to keep
            return False
        return all(v is not None and _can_keep_axes(v, wanted, shape) for v in node.inputs)
    axes, source = axes_of(node), node.inputs[0]
    if attribute(node, "keepdims", 1) != 0 or axes is None or source is None:
        return False
    rank = len(dims(source))
    kept = {a % rank for a in axes}
    return wanted == tuple(1 if i in kept else d for i, d in enumerate(dims(source)))


def _with_kept_axes(r: Rewriter, x: ir.Value, wanted: tuple) -> ir.Value:
    node = producer(x, *REDUCTIONS, *POINTWISE)
    if node is None or scalar(x) is not None:
        return x
    if node.op_type in POINTWISE:
        operands = [_with_kept_axes(r, v, wanted) for v in node.inputs if v is not None]
        return r.op(node.op_type, *operands, like=x, shape=wanted)
    return r.op(node.op_type, *node.inputs, like=x, shape=wanted, keepdims=1, axes=attribute(node, "axes"))


BROADCASTING = (
    "Add Sub Mul Div Mod Pow Max Min And Or Xor Equal Less LessOrEqual Greater GreaterOrEqual Where BitwiseAnd"
    " BitwiseOr BitwiseXor BitShift"
).split()


@rewrites(*BROADCASTING, given=some("Expand", "Unsqueeze", "Reshape"))
def broadcast_implicitly(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """An operand need not be expanded, nor given leading axes of size 1, for an operator that broadcasts."""
    result = dims(node.outputs[0])
    changed = False
    for i, operand in enumerate(node.inputs):
        if operand is None:
            continue
        smaller = _before_broadcast(operand, result)
        if smaller is None:
            continue
        others = [dims(v) for j, v in enumerate(node.inputs) if j != i and v is not None]
        if broadcast([dims(smaller), *others]) == result:
            node.replace_input_with(i, smaller)
            changed = True
    return node.outputs[0] if changed else None


def _before_broadcast(value: ir.Value, result: tuple) -> ir.Value | None:
    node = producer(value, "Expand", "Unsqueeze", "Reshape")
    if node is None:
        return None
    source = node.inputs[0]
    assert source is not None
    if node.op_type == "Expand":
        return source
    old, new = dims(source), dims(value)
    extra = len(new) - len(old)
    if extra <= 0 or new != (1,) * extra + old:
        return None
    # Where the result has such an axis too, `units.lower_rank` takes it from all operands at once.
    return None if result[:1] == (1,) else source


def broadcast(shapes: list[tuple]) -> tuple | None:
    """The shape of what is computed from arrays of these, if that is certain."""
    rank = max(map(len, shapes))
    result: list[int | str] = [1] * rank
    for shape in shapes:
        for i, dim in enumerate(shape, rank - len(shape)):
            if dim == 1 or dim == result[i]:
                continue
            if result[i] != 1:
                return None
            result[i] = dim
    return tuple(result)


@rewrites("Expand")
def skip_expand(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Expanding to the same shape does nothing; twice is once, and leading axes of size 1 need not be there before."""
    (x, shape), y = node.inputs, node.outputs[0]
    assert x is not None and shape is not None
    if dims(x) == dims(y):
        return x
    says_all = integers(shape) in (None, dims(y))  # a 1 is what x has there
    smaller = _before_broadcast(x, dims(y)) if dims(shape) == (len(dims(y)),) and says_all else None
    return r.op("Expand", smaller, shape, like=y) if smaller is not None else None


NEUTRAL = {
    # operator: (position of the constant or None for any, its value for integers, for floats)
    "Mul": (None, 1, 1.0),
    "Div": (1, 1, 1.0),
    "Sub": (1, 0, 0.0),
    "Add": (None, 0, -0.0),  # x + 0.0 would turn -0.0 into 0.0
    "Pow": (1, 1, 1.0),
    "Max": (None, None, -np.inf),
    "Min": (None, None, np.inf),
    "And": (None, True, None),
    "Or": (None, False, None),
    "Xor": (None, False, None),
}


@rewrites(*NEUTRAL, given=some(*SPLATS))
def skip_neutral(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """x * 1, x - 0, max(x, -inf) and the like, exact also for NaN and signed zeros."""
    position, integer, floating = NEUTRAL[node.op_type]
    if len(node.inputs) != 2:
        return None
    for i in (0, 1) if position is None else (position,):
        neutral = splat(node.inputs[i])
        if neutral is None:
            continue
        x = node.inputs[1 - i]
        is_float = neutral.dtype.kind not in "iub"
        wanted = floating if is_float else integer
        if wanted is None or neutral != wanted:
            continue
        if is_float and wanted == 0 and np.signbit(neutral) != np.signbit(wanted):
            continue
        if x is not None and dims(x) == dims(node.outputs[0]):
            return x
    return None


@rewrites("Not", given=first("Not"))
def cancel_not(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """not not x = x."""
    inner = producer(node.inputs[0], "Not")
    return inner.inputs[0] if inner is not None else None


@rewrites("And", "Or")
def same_condition_twice(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """x and x, x or x."""
    return node.inputs[0] if node.inputs[0] is node.inputs[1] else None


@rewrites("Where")
def known_where(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A condition that is known and the same everywhere, or two equal cases."""
    condition, a, b = node.inputs
    assert a is not None and b is not None
    known = scalar(condition)
    chosen = a if a is b else None if known is None else (a if known else b)
    return chosen if chosen is not None and dims(chosen) == dims(node.outputs[0]) else None


@rewrites("If", given=all_known)
def known_branch(r: Rewriter, node: ir.Node) -> tuple[ir.Value, ...] | None:
    """A branch that is always taken. (ONNX Runtime inlines it too, but crashes on some that are nested.)"""
    known = scalar(node.inputs[0])
    if known is None:
        return None
    return r.inline(node.attributes["then_branch" if known else "else_branch"].as_graph())


CHOICES = {
    (True, False): ("", False),
    (False, True): ("", True),
    (True, None): ("Or", False),
    (False, None): ("And", True),
    (None, True): ("Or", True),
    (None, False): ("And", False),
}
"""Choices between conditions, one or both known: what joins the condition, or its opposite, with the other."""


@rewrites("Where")
def choice_of_conditions(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """where(c, true, b) = where(c, c, b) = c or b, and so on: ONNX Runtime cannot choose between conditions."""
    c, a, b = node.inputs
    y = node.outputs[0]
    if c is None or a is None or b is None or y.dtype != ir.DataType.BOOL:
        return None
    if_true, if_false = True if a is c else splat(a), False if b is c else splat(b)
    if (if_true, if_false) not in CHOICES:
        return None
    operator, is_opposite = CHOICES[if_true, if_false]
    other = b if if_false is None else a
    if dims(y) != broadcast([dims(c), dims(other)] if operator else [dims(c)]):
        return None
    condition = r.op("Not", c, like=c) if is_opposite else c
    return r.op(operator, condition, other, like=y) if operator else condition


@rewrites("Concat")
def merge_concats(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A Concat of one, or of a Concat along the same axis."""
    inputs, axis = list(node.inputs), attribute(node, "axis")
    if len(inputs) == 1:
        return inputs[0]
    parts: list[ir.Value | None] = []
    for x in inputs:
        inner = producer(x, "Concat")
        if inner is not None and attribute(inner, "axis") == axis and len(inner.outputs[0].uses()) == 1:
            parts += inner.inputs
        else:
            parts.append(x)
    return r.op("Concat", *parts, like=node.outputs[0], axis=axis) if len(parts) > len(inputs) else None


@rewrites("Slice")
def skip_slice(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A Slice that keeps everything (in the same order)."""
    x, y = node.inputs[0], node.outputs[0]
    assert x is not None
    steps = integers(node.inputs[4]) if len(node.inputs) > 4 else ()
    return None if steps is None or any(s < 0 for s in steps) or dims(x) != dims(y) else x


@rewrites("Pad")
def skip_pad(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Padding by nothing."""
    pads = constant(node.inputs[1])
    return node.inputs[0] if pads is not None and not pads.any() else None


@rewrites("Mul", "Div", given=some("Neg"))
def negate_the_constant(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """-x * c = x * -c, to the bit."""
    for i in (0, 1) if node.op_type == "Mul" else (0,):
        negation, c = producer(node.inputs[i], "Neg"), constant(node.inputs[1 - i])
        dtype = node.outputs[0].dtype
        if negation is None or c is None or c.size != 1 or dtype is None or not dtype.is_floating_point():
            continue
        if len(negation.outputs[0].uses()) == 1 and not negation.outputs[0].is_graph_output():
            return r.op(node.op_type, negation.inputs[0], r.const(-c), like=node.outputs[0])
    return None


LAST = RuleSet()
"""Rules that hide from others what they look for."""


@LAST.rewrites("Concat")
def stack_by_reshaping(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Arrays that get a new axis each and are joined along it: joined along the axis behind it, which is then split."""
    y, axis = node.outputs[0], attribute(node, "axis")
    if len(node.inputs) < 3 or not is_static(dims(y)):
        return None
    axis %= len(dims(y))
    parts = []
    for x in node.inputs:
        added = producer(x, "Unsqueeze")
        if (
            added is None
            or x is None
            or len(x.uses()) != 1
            or [a % len(dims(y)) for a in axes_of(added) or ()] != [axis]
        ):
            return None
        parts.append(added.inputs[0])
    first = dims(parts[0])  # type: ignore[arg-type]
    if axis >= len(first):
        return None
    joined = [*first[:axis], len(parts) * int(first[axis]), *first[axis + 1 :]]
    flat = r.op("Concat", *parts, like=y, shape=joined, axis=axis)
    return reshaped(r, flat, y)
