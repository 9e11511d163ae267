"""What the integers can be that loops carry: counters, places in a ring, the number of what has been found.

An index that is counted up to the end of an array is in range as long as the loop goes on, and `(i + 1) % n` always is.
What is found is noted at the values themselves, where `intervals.bounds` looks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import onnx_ir as ir

from jax2onnx.graphs import bodies, roots, use_instead
from jax2onnx.optimize.carries import Carries
from jax2onnx.optimize.intervals import BOUNDS, LIMITS, Interval, bounds
from jax2onnx.optimize.queries import attribute, dims, producer

ROUNDS = 3
"""So often an interval is made larger, to contain what one step makes of it. A ring takes one round."""

MAX_DEPTH = 8
"""Through how many nodes a counter is followed."""


def bound_carries(model: ir.Model) -> int:
    """Note between which integers carries are, and drop conditions that others imply; how much of both there was."""
    return sum(_visit(graph) for graph in roots(model))


def _visit(graph: ir.Graph) -> int:
    count = 0
    for node in graph:
        if node.op_type in ("Loop", "Scan"):
            count += _note_ranges(Carries(node))
        if node.op_type == "Loop":
            count += _drop_implied(Carries(node))
        for body in bodies(node):
            count += _visit(body)
    return count


def _note(value: ir.Value, found: Interval) -> bool:
    """Note the range of a value; whether that is news."""
    known = value.meta.get(BOUNDS)
    value.meta[BOUNDS] = found
    return found != known


def _note_ranges(loop: Carries) -> int:
    node, body = loop.node, loop.body
    count = 0
    for i in range(loop.count):
        inside = loop.inside(i)
        if inside.dtype not in LIMITS:
            continue
        found = _range(loop, i)
        if found is not None:
            count += _note(inside, found.inside) + _note(node.outputs[i], found.final)
    if node.op_type == "Scan":
        for value, whole in zip(list(body.inputs)[loop.count :], list(node.inputs)[loop.count :], strict=True):
            known = bounds(whole)
            if known is not None:
                count += _note(value, known)
    return count


class _Range(NamedTuple):
    """What a carry may be in a step, and behind the loop."""

    inside: Interval
    final: Interval


def _range(loop: Carries, i: int) -> _Range | None:
    return _counted(loop, i) or _closed(loop, i)


def _counted(loop: Carries, i: int) -> _Range | None:
    """The range of what changes by a known amount, for a known number of steps or until a condition fails."""
    inside, update, start = loop.inside(i), loop.update(i), bounds(loop.start(i))
    change = _change(update, inside)
    if start is None or change is None:
        return None
    low: int | None
    high: int | None
    if loop.node.op_type == "Scan":
        axes = attribute(loop.node, "scan_input_axes", [0])
        steps = dims(loop.node.inputs[loop.count])[axes[0]]  # type: ignore[arg-type]
        if not isinstance(steps, int):
            return None
        low, high = start[0] + (steps - 1) * min(change[0], 0), start[1] + (steps - 1) * max(change[1], 0)
    else:
        at_first = _limits(loop.node.inputs[1], loop.start(i))
        later = _limits(loop.body.outputs[0], update)
        low, high = start
        if change[0] < 0:
            low = None if later[0] is None else min(later[0], _larger(start[0], at_first[0]))
        if change[1] > 0:
            high = None if later[1] is None else max(later[1], _smaller(start[1], at_first[1]))
        if low is None or high is None or low > high:
            return None
    after = low + min(change[0], 0), high + max(change[1], 0)
    if not _fits(after, inside):
        return None
    return _Range((low, high), _hull(start, after))


def _larger(a: int, b: int | None) -> int:
    return a if b is None else max(a, b)


def _smaller(a: int, b: int | None) -> int:
    return a if b is None else min(a, b)


def _hull(a: Interval, b: Interval) -> Interval:
    return min(a[0], b[0]), max(a[1], b[1])


def _fits(found: Interval, value: ir.Value) -> bool:
    limits = LIMITS[value.dtype]  # type: ignore[index]
    return limits.min <= found[0] and found[1] <= limits.max


def _change(value: ir.Value | None, start: ir.Value, depth: int = MAX_DEPTH) -> Interval | None:
    """Between which numbers is what is added to `start`, if `value` is that, up to multiples of the dtype's size?"""
    if value is start:
        return 0, 0
    node = producer(value, "Add", "Sub", "Where", "Identity")
    if node is None or depth == 0:
        return None
    if node.op_type == "Identity":
        return _change(node.inputs[0], start, depth - 1)
    a, b = node.inputs[-2:]
    first = _change(a, start, depth - 1)
    if node.op_type == "Where":
        second = _change(b, start, depth - 1)
        return None if first is None or second is None else _hull(first, second)
    if first is None and node.op_type == "Add":
        a, b = b, a
        first = _change(a, start, depth - 1)
    more = bounds(b)
    if first is None or more is None:
        return None
    if node.op_type == "Sub":
        more = -more[1], -more[0]
    return first[0] + more[0], first[1] + more[1]


def _conditions(value: ir.Value | None) -> Iterator[ir.Value]:
    """Those that all hold if `value` does."""
    both = producer(value, "And")
    if both is not None:
        for condition in both.inputs:
            yield from _conditions(condition)
    elif value is not None:
        yield value


def _limits(condition: ir.Value | None, value: ir.Value | None) -> tuple[int | None, int | None]:
    """The least and the greatest that `value` can be where a condition holds, if it says so."""
    found = [_limits_of_one(each, value) for each in _conditions(condition)]
    lows, highs = ([end for end in ends if end is not None] for ends in zip(*found, strict=True))
    return max(lows, default=None), min(highs, default=None)


def _limits_of_one(condition: ir.Value, value: ir.Value | None) -> tuple[int | None, int | None]:
    found = _compared(condition, value)
    if found is None:
        return None, None
    (least, greatest), is_below, strict = found
    return (None, greatest - strict) if is_below else (least + strict, None)


def _holds_up_to(condition: ir.Value, value: ir.Value | None) -> int | None:
    """The number up to which `value` fulfils a condition for certain, if it does so at all. What it is compared with
    may be larger."""
    found = _compared(condition, value)
    if found is None or not found[1]:
        return None
    (least, _), _, strict = found
    return least - strict


def _compared(condition: ir.Value, value: ir.Value | None) -> tuple[Interval, bool, int] | None:
    """What `value` is compared with, whether it has to be below that, and whether the two must not be equal."""
    node = producer(condition, "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
    if node is None or value is None or value not in node.inputs or dims(condition) != ():
        return None
    is_first = node.inputs[0] is value
    other = bounds(node.inputs[1 if is_first else 0])
    strict = 0 if node.op_type.endswith("OrEqual") else 1
    return None if other is None else (other, node.op_type.startswith("Less") == is_first, strict)


def _closed(loop: Carries, i: int) -> _Range | None:
    """A range that contains the start, and what a step makes of each number in it."""
    found, inside = bounds(loop.start(i)), loop.inside(i)
    for _ in range(ROUNDS):
        if found is None:
            return None
        known = inside.meta.pop(BOUNDS, None)
        inside.meta[BOUNDS] = found
        after = _after_a_step(loop.update(i))
        del inside.meta[BOUNDS]
        if known is not None:
            inside.meta[BOUNDS] = known
        if after is not None and found[0] <= after[0] and after[1] <= found[1]:
            return _Range(found, found)
        found = _hull(found, after) if after is not None else None
    return None


def _after_a_step(value: ir.Value) -> Interval | None:
    """What is known of a value that may be the result of a loop inside of that step."""
    source = producer(value, "Loop", "Scan")
    if source is not None and value in list(source.outputs)[: Carries(source).count]:
        found = _range(Carries(source), list(source.outputs).index(value))
        if found is not None:
            return found.final
    return bounds(value)


def _drop_implied(loop: Carries) -> int:
    """A loop that counts the same steps twice, each up to a limit, ends when the first of both is reached."""
    counters: dict[int, tuple[int, Interval, int]] = {}
    for i in range(loop.count):
        change, start = _change(loop.update(i), loop.inside(i)), bounds(loop.start(i))
        limit = _limits(loop.body.outputs[0], loop.update(i))[1]
        if BOUNDS not in loop.inside(i).meta or start is None or limit is None:
            continue
        if change is not None and change[0] == change[1] > 0:
            counters[i] = (change[0], start, limit)
    for condition in _conditions(loop.body.outputs[0]):
        for i, (by, start, _) in counters.items():
            enough = _holds_up_to(condition, loop.update(i))
            for j, (other_by, other_start, other_limit) in counters.items():
                # The other one is ahead by at least that, at each step.
                ahead = other_start[0] - start[1]
                if enough is not None and other_by == by and i != j and other_limit - ahead <= enough:
                    return _drop(loop.body, condition)
    return 0


def _drop(body: ir.Graph, condition: ir.Value) -> int:
    """Take a condition out of those that have to hold for a loop to go on."""
    both = next((use.node for use in condition.uses() if use.node.op_type == "And" and use.node.graph is body), None)
    if both is None or len(condition.uses()) != 1:
        return 0
    rest, y = both.inputs[1 - list(both.inputs).index(condition)], both.outputs[0]
    if rest is None or (len(y.uses()) + y.is_graph_output()) != 1:
        return 0
    use_instead(y.uses(), rest)
    if y.is_graph_output():
        body.outputs[list(body.outputs).index(y)] = rest
    body.remove(both, safe=True)
    return 1
