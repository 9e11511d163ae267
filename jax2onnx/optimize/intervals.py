"""What integers can be: an index that is known to be in range needs no clipping and no test.

Bounds come from known arrays, from Range and Clip, and go through integer arithmetic that cannot overflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from jax2onnx.dimensions import is_static
from jax2onnx.graphs import bodies
from jax2onnx.optimize.engine import Rewriter, RuleSet, first
from jax2onnx.optimize.queries import attribute, axes_of, constant, dims, producer, scalar, splat
from jax2onnx.optimize.ranges import FLOATS, LIMITS, is_clipped, range_of, truncated

RULES = RuleSet()

Interval = tuple[int, int]
"""The least and the greatest value that an element may have."""

BOUNDS = "bounds"
"""The key under which a value remembers what `counters.py` found out about it."""

MAX_DEPTH = 8
"""How many nodes back bounds are looked for."""

MAX_SIZE = 100_000
"""Larger arrays are not searched for their extremes."""

LARGEST_SIZE = 2**31 - 1
"""No axis is longer: JAX counts in int32."""

SAME_VALUES = {"Reshape", "Squeeze", "Unsqueeze", "Expand", "Transpose", "Slice", "Gather", "Identity"}
PLACES = {"ArgMax": 0, "ArgMin": 0, "TopK": -1}
"""Operators that tell the places of elements along an axis, and the one that they do it for by default."""


def bounds(value: ir.Value | None, depth: int = MAX_DEPTH) -> Interval | None:
    """Between which integers all elements of a value are, if that is known."""
    if value is None or value.dtype not in LIMITS:
        return None
    if value.const_value is not None:
        array = value.const_value.numpy() if 0 < value.const_value.size <= MAX_SIZE else None
        return None if array is None else (int(array.min()), int(array.max()))
    node = value.producer()
    if BOUNDS in value.meta:
        return value.meta[BOUNDS]
    if node is None or depth == 0:
        return None
    if node.op_type == "Shape":
        return 0, LARGEST_SIZE
    if node.op_type == "Range":
        start, limit, step = map(scalar, node.inputs)
        if start is None or step is None:
            return None
        if limit is None:
            most = bounds(node.inputs[1], depth - 1)
            return (int(start), max(int(start), most[1] - 1)) if most is not None and step == 1 else None
        steps = range(int(start), int(limit), int(step))
        return (min(steps[0], steps[-1]), max(steps[0], steps[-1])) if len(steps) else None
    if node.op_type == "Cast":
        found = (
            bounds(node.inputs[0], depth - 1) or bounds_of_dtype(node.inputs[0]) or truncated(node.inputs[0], depth - 1)
        )
    elif node.op_type in SAME_VALUES:
        found = bounds(node.inputs[0], depth - 1)
    elif node.op_type in PLACES:
        count = dims(node.inputs[0])[attribute(node, "axis", PLACES[node.op_type])]  # type: ignore[arg-type]
        is_place = value is node.outputs[-1]
        found = (0, (count if isinstance(count, int) else LARGEST_SIZE) - 1) if is_place and count != 0 else None
    elif node.op_type == "ReduceSum":
        found = _of_sum(node, bounds(node.inputs[0], depth - 1))
    elif node.op_type in ("Concat", "If"):
        place = list(node.outputs).index(value)
        joined = node.inputs if node.op_type == "Concat" else [branch.outputs[place] for branch in bodies(node)]
        parts = [p for p in (bounds(v, depth - 1) for v in joined) if p is not None]
        if len(parts) < len(joined):
            return None
        found = min(p[0] for p in parts), max(p[1] for p in parts)
    elif node.op_type in ARITHMETIC:
        operands = node.inputs[1:] if node.op_type == "Where" else node.inputs
        known = [bounds(v, depth - 1) for v in operands]
        if node.op_type in ("Min", "Max"):  # one of them is enough
            known = [k or (LIMITS[value.dtype].min, LIMITS[value.dtype].max) for k in known]
        found = ARITHMETIC[node.op_type](*known) if known and all(known) else None
    elif node.op_type == "Clip" and len(node.inputs) == 3:
        low, high = scalar(node.inputs[1]), scalar(node.inputs[2])
        if low is None or high is None:
            return None
        least, greatest = bounds(node.inputs[0], depth - 1) or (int(low), int(high))
        found = min(max(least, int(low)), int(high)), min(max(greatest, int(low)), int(high))
    elif node.op_type == "Mod" and not attribute(node, "fmod", 0):
        divisor = scalar(node.inputs[1])
        found = None if divisor is None or divisor <= 0 else (0, int(divisor) - 1)
    elif node.op_type == "BitwiseAnd":
        masks = [int(m) for m in map(scalar, node.inputs) if m is not None and m >= 0]
        found = (0, min(masks)) if masks else None
    else:
        return None
    limits = LIMITS[value.dtype]  # type: ignore[index]
    return found if found is not None and limits.min <= found[0] and found[1] <= limits.max else None


def bounds_of_dtype(value: ir.Value | None) -> Interval | None:
    """Between which integers the elements of a value are because of its type."""
    if value is None or value.dtype == ir.DataType.BOOL:
        return None if value is None else (0, 1)
    limits = LIMITS.get(value.dtype)  # type: ignore[arg-type]
    return None if limits is None else (int(limits.min), int(limits.max))


def _of_sum(node: ir.Node, terms: Interval | None) -> Interval | None:
    """What sums of integers may be."""
    axes = axes_of(node)
    if terms is None or axes is None:
        return None
    sizes = [dims(node.inputs[0])[axis] for axis in axes]  # type: ignore[arg-type]
    count = math.prod(size if isinstance(size, int) else LARGEST_SIZE for size in sizes)
    return min(count * terms[0], 0), max(count * terms[1], 0)


def fits(value: ir.Value, dtype: ir.DataType | None) -> bool:
    """Are all elements of a value known to be integers that `dtype`, one of integers, holds?"""
    found = bounds(value) if dtype in LIMITS else None
    return found is not None and LIMITS[dtype].min <= found[0] and found[1] <= LIMITS[dtype].max  # type: ignore[index]


def _corners(combine: Callable[[int, int], int]) -> Callable[[Interval, Interval], Interval]:
    def interval(a: Interval, b: Interval) -> Interval:
        results = [combine(x, y) for x in a for y in b]
        return min(results), max(results)

    return interval


ARITHMETIC: dict[str, Callable[..., Interval]] = {
    "Add": _corners(lambda x, y: x + y),
    "Sub": _corners(lambda x, y: x - y),
    "Mul": _corners(lambda x, y: x * y),
    "Neg": lambda a: (-a[1], -a[0]),
    "Min": lambda *xs: (min(x[0] for x in xs), min(x[1] for x in xs)),
    "Max": lambda *xs: (max(x[0] for x in xs), max(x[1] for x in xs)),
    "Where": lambda a, b: (min(a[0], b[0]), max(a[1], b[1])),
}


@RULES.rewrites("Clip")
def clip_what_is_in_range(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Clip(x, low, high) = x if x is known to be in between."""
    x, low, high = node.inputs[0], scalar(node.inputs[1]), scalar(node.inputs[2])
    if x is None or low is None or high is None:
        return None
    if x.dtype in FLOATS:
        return x if is_clipped(x, float(low), float(high)) else None
    known = bounds(x)
    return x if known is not None and low <= known[0] and known[1] <= high else None


@RULES.rewrites("Cast", given=first("Cast"))
def convert_without_more_digits(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Floats that have more digits only to become integers, and are near integers of that type anyway."""
    y, wide = node.outputs[0], producer(node.inputs[0], "Cast")
    x = wide.inputs[0] if wide is not None else None
    if x is None or x.dtype != ir.DataType.FLOAT or node.inputs[0].dtype != ir.DataType.DOUBLE:  # type: ignore[union-attr]
        return None
    known, limits = truncated(x), LIMITS.get(y.dtype)  # type: ignore[arg-type]
    if known is None or limits is None or not limits.min <= known[0] <= known[1] <= limits.max:
        return None
    return r.op("Cast", x, like=y, to=int(y.dtype))  # type: ignore[arg-type]


# For each comparison: when it always holds, and when it never does.
COMPARISONS: dict[str, tuple[Callable[..., bool], Callable[..., bool]]] = {
    "Less": (lambda a, b: a[1] < b[0], lambda a, b: a[0] >= b[1]),
    "LessOrEqual": (lambda a, b: a[1] <= b[0], lambda a, b: a[0] > b[1]),
    "Greater": (lambda a, b: a[0] > b[1], lambda a, b: a[1] <= b[0]),
    "GreaterOrEqual": (lambda a, b: a[0] >= b[1], lambda a, b: a[1] < b[0]),
    "Equal": (lambda a, b: a[0] == a[1] == b[0] == b[1], lambda a, b: a[1] < b[0] or b[1] < a[0]),
}


def _outcome(node: ir.Node) -> bool | None:
    """What a comparison says of all elements, if that follows from their ranges, integers meet themselves, or a number
    meets what it was replaced in."""
    a, b = node.inputs
    if _repeated(a) is _repeated(b) and a is not None and a.dtype is not None and a.dtype.is_integer():
        return node.op_type in ("Equal", "LessOrEqual", "GreaterOrEqual")
    if node.op_type == "Equal" and _was_replaced(a, b):
        return False
    left, right = bounds(a), bounds(b)
    if left is None or right is None:
        return None
    always, never = COMPARISONS[node.op_type]
    return True if always(left, right) else False if never(left, right) else None


def _was_replaced(value: ir.Value | None, number: ir.Value | None) -> bool:
    """Is `value` x == number ? another : x, as a divisor is that must not be 0?"""
    choice, k = producer(value, "Where"), splat(number)
    test = producer(choice.inputs[0], "Equal") if choice is not None else None
    if choice is None or test is None or k is None or choice.inputs[2] is not test.inputs[0]:
        return False
    other = splat(choice.inputs[1])
    return other is not None and other != k and splat(test.inputs[1]) == k


def _repeated(value: ir.Value | None) -> ir.Value | None:
    """What a value repeats."""
    while (expand := producer(value, "Expand")) is not None:
        value = expand.inputs[0]
    return value


@RULES.rewrites(*COMPARISONS)
def compare_known_ranges(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A comparison whose outcome is known, of arrays whose size is."""
    outcome = _outcome(node)
    return None if outcome is None else everywhere(r, outcome, node)


def everywhere(r: Rewriter, answer: bool, node: ir.Node, whole: ir.Value | None = None) -> ir.Value | None:
    """One answer for all elements of the result of a node, whose shape is that of `whole` or known."""
    y = node.outputs[0]
    shape, known = dims(y), r.const(answer, bool)
    if not shape:
        return known
    if is_static(shape):
        return r.op("Expand", known, r.const(shape, np.int64), like=y)
    if whole is None or dims(whole) != shape:
        return None
    return r.op("Expand", known, r.op("Shape", whole, shape=[len(shape)], dtype=ir.DataType.INT64), like=y)


@RULES.rewrites("Where", given=first(*COMPARISONS))
def choose_by_known_ranges(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """The case that a comparison, whose outcome is known, always chooses."""
    comparison = producer(node.inputs[0], *COMPARISONS)
    outcome = _outcome(comparison) if comparison is not None else None
    if outcome is None:
        return None
    chosen = node.inputs[1 if outcome else 2]
    return chosen if chosen is not None and dims(chosen) == dims(node.outputs[0]) else None


@RULES.rewrites("IsNaN", given=first("Conv"))
def sums_of_integers_are_numbers(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Floats that became of integers are no NaN, and nor are the sums of their products."""
    return None if range_of(node.inputs[0]).has_nan else everywhere(r, False, node, node.inputs[0])


@RULES.rewrites("Compress")
def keep_all(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A Compress that drops nothing."""
    x, condition = node.inputs
    kept = constant(condition)
    keeps_all = kept.all() if kept is not None else splat(condition)
    if x is None or condition is None or "axis" not in node.attributes or not keeps_all:
        return None
    return x if dims(x)[attribute(node, "axis")] == dims(condition)[0] else None


@RULES.rewrites("Where", given=first("Expand"))
def where_one_number_is_the_condition(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A condition that is one known number, expanded to its shape."""
    condition = producer(node.inputs[0], "Expand")
    number = None if condition is None else scalar(condition.inputs[0])
    if number is None:
        return None
    chosen = node.inputs[1 if number else 2]
    assert chosen is not None
    return chosen if dims(chosen) == dims(node.outputs[0]) else None


@RULES.rewrites("GreaterOrEqual", "Less", given=first("Clip", "Max", "Min"))
def compare_before_clipping(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Whether x is k or more does not change if x is clipped to a range around k, as the number of a branch is."""
    x, y, k = node.inputs[0], node.outputs[0], scalar(node.inputs[1])
    clip = producer(x, "Clip", "Max", "Min")
    if clip is None or k is None or x is None or x.dtype not in LIMITS or len(clip.inputs) < 2:
        return None
    if clip.op_type == "Clip":
        low, high = bounds(clip.inputs[1]), bounds(clip.inputs[2] if len(clip.inputs) > 2 else None)
        is_neutral = low is not None and high is not None and low[1] < k <= high[0]
        source = clip.inputs[0]
    else:
        source = next((v for v in clip.inputs if scalar(v) is None), None)
        ends = [scalar(v) for v in clip.inputs if v is not source]
        is_neutral = None not in ends and all(end < k if clip.op_type == "Max" else end >= k for end in ends)
    if not is_neutral or source is None or dims(source) != dims(y):
        return None
    return r.op(node.op_type, source, node.inputs[1], like=y)
