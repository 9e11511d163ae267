"""Only what is used is computed: a part that is taken of a result is taken of the operands instead.

The first of 200 tokens goes into the head of a network, the last into the next word, a few of all frequencies into a
filter. What the last layers compute of the others is dropped: they need not be computed. So a Gather of one position,
or a Slice of at most half of them, moves up past operators that treat each position alike, while nothing else uses
what it is taken of. Of a product with a known matrix, only the columns that are used are kept, and no rows that meet
zeros only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from jax2onnx.attributes import attributes_of, values_of
from jax2onnx.optimize.engine import Rewriter, RuleSet, first, some
from jax2onnx.optimize.queries import attribute, constant, dims, has_many, integers, is_zero, only_user, producer, splat
from jax2onnx.optimize.slices import cut_of
from jax2onnx.optimize.units import BINARY, UNARY

RULES = RuleSet()
rewrites = RULES.rewrites

LARGEST_WEIGHT = 1 << 22
"""Of larger matrices no part is copied: it might be used elsewhere, as a whole."""


MOST_PARTS = 3
"""Of so many parts each is computed on its own."""


class Taken(NamedTuple):
    """A part of a value: one position along an axis, which is gone then, or a range of them."""

    node: ir.Node
    axis: int
    is_one: bool

    def of(self, r: Rewriter, x: ir.Value, axis: int) -> ir.Value:
        """The same part of another value."""
        shape: list[Any] = list(dims(x))
        if self.is_one:
            del shape[axis]
            return r.op("Gather", x, self.node.inputs[1], like=x, shape=shape, axis=axis)
        shape[axis] = dims(self.node.outputs[0])[self.axis]
        bounds = self.node.inputs[1:]
        return r.op("Slice", x, *bounds[:2], r.const([axis], np.int64), *bounds[3:], like=x, shape=shape)


def _taken(node: ir.Node) -> Taken | None:
    """What a Gather or Slice takes of a large value, if this is at most half of it, also together with what else is."""
    x = node.inputs[0]
    if x is None or not has_many(x) or x.is_graph_output():
        return None
    shape = dims(x)
    if node.op_type == "Gather":
        index = node.inputs[1]
        axis = attribute(node, "axis", 0) % len(shape)
        is_one = index is not None and dims(index) == () and shape[axis] != 1 and len(x.uses()) == 1
        return Taken(node, axis, True) if is_one else None
    axes = integers(node.inputs[3]) if len(node.inputs) > 3 else None
    if axes is None or len(axes) != 1 or len(x.uses()) > MOST_PARTS:
        return None
    axis = axes[0] % len(shape)
    used, whole = 0, shape[axis]
    for use in x.uses():
        size = dims(use.node.outputs[0])[axis] if use.node.op_type == "Slice" else None
        if not isinstance(size, int) or (len(x.uses()) > 1 and integers(use.node.inputs[3]) != axes):
            return None
        used += size
    return Taken(node, axis, False) if used == 1 or (isinstance(whole, int) and 2 * used <= whole) else None


ELEMENTWISE = frozenset([*UNARY, *BINARY, "Clip"])
NORMALIZATIONS = ("LayerNormalization", "RMSNormalization", "Softmax", "LogSoftmax")


@rewrites("Gather", "Slice", given=first(*ELEMENTWISE))
def take_before_arithmetic(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """f(x, y)[i] = f(x[i], y[i]), but for what is the same at all positions."""
    taken = _taken(node)
    source = node.inputs[0].producer() if node.inputs[0] is not None else None
    if taken is None or source is None or source.domain:
        return None
    rank = len(dims(source.outputs[0]))
    whole, part = dims(source.outputs[0])[taken.axis], 1 if taken.is_one else dims(node.outputs[0])[taken.axis]
    varying = sum(x is not None and dims(x) == dims(source.outputs[0]) for x in source.inputs)
    if varying > 1 and isinstance(whole, int) and isinstance(part, int) and 2 * varying * part > whole:
        return None  # to cut each of them takes longer than the arithmetic
    operands: list[ir.Value | None] = []
    for x in source.inputs:
        axis = taken.axis - rank + len(dims(x)) if x is not None else -1
        if x is None or axis < 0:
            operands.append(x)
        elif dims(x)[axis] != 1:
            operands.append(taken.of(r, x, axis))
        elif not taken.is_one:
            operands.append(x)
        elif (known := constant(x)) is not None:
            operands.append(r.moved(known.squeeze(axis), x))
        else:
            return None
    return r.op(source.op_type, *operands, like=node.outputs[0], **attributes_of(source))


@rewrites("Gather", "Slice", given=first(*NORMALIZATIONS))
def take_before_normalization(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Along the last axis each row is normalized on its own."""
    taken = _taken(node)
    source = node.inputs[0].producer() if node.inputs[0] is not None else None
    if taken is None or source is None or source.domain or source.inputs[0] is None:
        return None
    rank = len(dims(source.outputs[0]))
    if attribute(source, "axis", -1) not in (-1, rank - 1) or taken.axis == rank - 1 or len(source.outputs) > 1:
        return None
    if any(p is not None and len(dims(p)) != 1 for p in source.inputs[1:]):
        return None
    part = taken.of(r, source.inputs[0], taken.axis)
    attributes = values_of(source) | {"axis": -1}
    return r.op(source.op_type, part, *source.inputs[1:], like=node.outputs[0], **attributes)


@rewrites("Gather", "Slice", given=first("MatMul"))
def take_before_product(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Some rows of a product are the product of these rows; some columns that of those columns of a known matrix."""
    y = node.outputs[0]
    source = producer(node.inputs[0], "MatMul")
    if source is None:
        return None
    a, b = source.inputs
    taken, rank = _taken(node), len(dims(source.outputs[0]))
    if taken is None or a is None or b is None or min(len(dims(a)), len(dims(b))) < 2:
        return None
    of_rows = taken.axis != rank - 1
    if len(dims(b)) == 2 and of_rows:
        return None if rank < 3 and taken.is_one else r.op("MatMul", taken.of(r, a, taken.axis), b, like=y)
    matrix, other = (a, b) if len(dims(a)) == 2 else (b, a)
    if len(dims(matrix)) != 2 or len(dims(other)) != rank or taken.is_one:
        return None
    if matrix is a and taken.axis != rank - 2:
        return r.op("MatMul", a, taken.of(r, b, taken.axis), like=y)
    cut, known = cut_of(y), constant(matrix) if _is_small_matrix(matrix) else None
    if cut is None or known is None:
        return None
    start, end = cut.ranges[taken.axis]
    part = known[start:end] if of_rows else known[:, start:end]
    kept = r.moved(np.ascontiguousarray(part), matrix)
    return r.op("MatMul", *([kept, b] if of_rows else [a, kept]), like=y)


@rewrites("Gather", "Slice", given=first("Transpose"))
def take_before_transpose(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Along the axis that is moved there."""
    taken = _taken(node)
    source = producer(node.inputs[0], "Transpose")
    if taken is None or source is None or source.inputs[0] is None:
        return None
    perm = list(attribute(source, "perm"))
    axis = perm[taken.axis]
    part = taken.of(r, source.inputs[0], axis)
    if taken.is_one:
        perm = [p - (p > axis) for p in perm if p != axis]
    return part if perm == sorted(perm) else r.op("Transpose", part, like=node.outputs[0], perm=perm)


@rewrites("Gather", "Slice", given=first("Reshape"))
def take_before_reshape(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """If only later axes are changed."""
    taken = _taken(node)
    source = producer(node.inputs[0], "Reshape")
    x = source.inputs[0] if source is not None else None
    if taken is None or source is None or x is None:
        return None
    before, after = dims(x), dims(source.outputs[0])
    shape = dims(node.outputs[0])
    if before[: taken.axis + 1] != after[: taken.axis + 1] or sum(not isinstance(d, int) for d in shape) > 1:
        return None
    target = [d if isinstance(d, int) else -1 for d in shape]
    if 0 in target:
        return None
    return r.op("Reshape", taken.of(r, x, taken.axis), r.const(target, np.int64), like=node.outputs[0])


@rewrites("Gather", "Slice", given=first("Concat"))
def take_before_concat(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Of each part, if they are joined along another axis."""
    taken = _taken(node)
    source = producer(node.inputs[0], "Concat")
    if taken is None or source is None:
        return None
    axis = attribute(source, "axis") % len(dims(source.outputs[0]))
    if axis == taken.axis:
        return None
    parts = [taken.of(r, x, taken.axis) for x in source.inputs if x is not None]
    return r.op("Concat", *parts, like=node.outputs[0], axis=axis - (taken.is_one and taken.axis < axis))


@rewrites("Slice", given=first("MatMul", "Transpose", "Reshape", "Concat", "Slice", *NORMALIZATIONS, *ELEMENTWISE))
def one_axis_at_a_time(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Each cut can then go its own way."""
    cut, y = cut_of(node.outputs[0]), node.outputs[0]
    if cut is None or len(cut.ranges) < 2 or not has_many(cut.x):
        return None
    part = cut.x
    for axis, (start, end) in cut.ranges.items():
        shape = [end - start if i == axis else d for i, d in enumerate(dims(part))]
        part = r.op("Slice", part, *(r.const([i], np.int64) for i in (start, end, axis)), like=y, shape=shape)
    return part


@rewrites("MatMul", given=some("Concat", "Pad", "Transpose"))
def leave_out_zeros(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """What is multiplied by known zeros in one operand adds nothing, if the other is a known matrix."""
    for i, x in enumerate(node.inputs):
        matrix = node.inputs[1 - i]
        if x is None or matrix is None or not _is_small_matrix(matrix) or len(dims(x)) <= i:
            continue
        found = _without_zeros(r, x, len(dims(x)) - 1 - i, node)
        known = constant(matrix) if found is not None and _is_finite(matrix) else None
        if found is None or known is None:
            continue
        rest, kept = found
        part = r.moved(np.ascontiguousarray(known[kept] if i == 0 else known[:, kept]), matrix)
        return r.op("MatMul", *([rest, part] if i == 0 else [part, rest]), like=node.outputs[0])
    return None


def _is_finite(value: ir.Value) -> bool:
    known = constant(value)
    return known is not None and bool(np.isfinite(known).all())


def _is_small_matrix(value: ir.Value) -> bool:
    return value.const_value is not None and len(dims(value)) == 2 and value.const_value.size <= LARGEST_WEIGHT


@rewrites("MatMul", given=some("Pad"))
def pad_after_product(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Rows or columns of zeros stay zeros in the product with a known matrix."""
    for i, x in enumerate(node.inputs):
        source, matrix = producer(x, "Pad"), node.inputs[1 - i]
        if x is None or matrix is None or not _is_small_matrix(matrix) or source is None or source.inputs[0] is None:
            continue
        pads, rank, summed = _zero_pads(source), len(dims(x)), len(dims(x)) - 1 - i
        if pads is None or only_user(x) != node or rank < 2:
            continue
        if any(p for at, p in enumerate(pads) if at % rank == summed) or not _is_finite(matrix):
            continue
        inner = source.inputs[0]
        operands = [inner, matrix] if i == 0 else [matrix, inner]
        shape = [*dims(inner)[:-2], dims(operands[0])[-2], dims(operands[1])[-1]]
        product = r.op("MatMul", *operands, like=node.outputs[0], shape=shape)
        return r.op("Pad", product, *source.inputs[1:], like=node.outputs[0])
    return None


def _zero_pads(pad: ir.Node) -> tuple[int, ...] | None:
    """How many zeros a Pad adds before and behind each axis, if it does just that."""
    pads = integers(pad.inputs[1])
    value = pad.inputs[2] if len(pad.inputs) > 2 else None
    if attribute(pad, "mode", "constant") != "constant" or len(pad.inputs) > 3 or pads is None or min(pads) < 0:
        return None
    return pads if value is None or is_zero(splat(value)) else None


def _without_zeros(r: Rewriter, x: ir.Value, axis: int, user: ir.Node) -> tuple[ir.Value, np.ndarray] | None:
    """A value without the zeros that are added along an axis for its only user, and which positions are left."""
    source = producer(x, "Concat", "Pad", "Transpose")
    if source is None or only_user(x) != user or source.inputs[0] is None:
        return None
    shape = dims(x)
    if source.op_type == "Transpose":
        perm = list(attribute(source, "perm"))
        found = _without_zeros(r, source.inputs[0], perm[axis], source)
        if found is None:
            return None
        kept = found[1]
        turned = [len(kept) if i == axis else d for i, d in enumerate(shape)]
        return r.op("Transpose", found[0], like=x, shape=turned, perm=perm), kept
    if source.op_type == "Pad":
        pads, length = _zero_pads(source), dims(source.inputs[0])[axis]
        if pads is None or not isinstance(length, int) or not pads[axis] + pads[axis + len(shape)]:
            return None
        kept = np.arange(pads[axis], pads[axis] + length)
        others = [0 if i % len(shape) == axis else p for i, p in enumerate(pads)]
        if not any(others):
            return source.inputs[0], kept
        smaller = [length if i == axis else d for i, d in enumerate(shape)]
        return r.op("Pad", source.inputs[0], r.const(others, np.int64), *source.inputs[2:], like=x, shape=smaller), kept
    if attribute(source, "axis") % len(shape) != axis:
        return None
    start, parts, positions = 0, [], []
    for part in source.inputs:
        size = dims(part)[axis] if part is not None else None
        if part is None or not isinstance(size, int):
            return None
        if not is_zero(splat(part)):
            rest, kept = _without_zeros(r, part, axis, source) or (part, np.arange(size))
            parts.append(rest)
            positions.append(start + kept)
        start += size
    if not parts:
        return None
    kept = np.concatenate(positions)
    if len(kept) == start:
        return None
    smaller = [len(kept) if i == axis else d for i, d in enumerate(shape)]
    return (r.op("Concat", *parts, like=x, shape=smaller, axis=axis) if len(parts) > 1 else parts[0]), kept
