"""Conditions that go a long way round: through numbers, or through the place of the first that holds."""

from __future__ import annotations

import operator

import onnx_ir as ir

from jax2onnx.attributes import attributes_of
from jax2onnx.dimensions import is_static
from jax2onnx.optimize.engine import Rewriter, RuleSet, first
from jax2onnx.optimize.queries import attribute, axes_of, dims, has_many, only_user, producer, scalar, splat
from jax2onnx.optimize.simplify import broadcast

RULES = RuleSet()
LAST = RuleSet()
"""What hides from others whether any of many conditions holds."""

COMPARED = {
    "Equal": operator.eq,
    "Greater": operator.gt,
    "GreaterOrEqual": operator.ge,
    "Less": operator.lt,
    "LessOrEqual": operator.le,
}


@RULES.rewrites(*COMPARED, given=first("Cast", "Where"))
def compare_condition(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A condition as a number, or a choice of two numbers, compared with a number is the condition or its opposite."""
    y, choice, number = node.outputs[0], producer(node.inputs[0], "Cast", "Where"), scalar(node.inputs[1])
    condition = choice.inputs[0] if choice is not None else None
    if choice is None or condition is None or condition.dtype != ir.DataType.BOOL or dims(condition) != dims(y):
        return None
    numbers = (1, 0) if choice.op_type == "Cast" else (splat(choice.inputs[1]), splat(choice.inputs[2]))
    if number is None or any(value is None for value in numbers):
        return None
    if_true, if_false = (bool(COMPARED[node.op_type](value, number)) for value in numbers)
    if if_false == if_true:
        return None
    return condition if if_true else r.op("Not", condition, like=y)


@RULES.rewrites(*COMPARED, given=first("Expand"))
def compare_before_repeating(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A comparison of repeated elements with a number: of each of them once. A choice repeats the condition itself."""
    repeated, number, y = producer(node.inputs[0], "Expand"), node.inputs[1], node.outputs[0]
    if repeated is None or repeated.inputs[0] is None or scalar(number) is None or dims(number) != ():  # type: ignore[arg-type]
        return None
    condition = r.op(node.op_type, repeated.inputs[0], number, like=y, shape=dims(repeated.inputs[0]))
    return r.op("Expand", condition, repeated.inputs[1], like=y)


@RULES.rewrites("Where", given=first("Not"))
def choose_the_other_way_round(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Where not c, a, b: where c, b, a. (ONNX Runtime does that, too.)"""
    opposite, a, b = node.inputs
    negation = producer(opposite, "Not")
    if negation is None or opposite is None or only_user(opposite) is None:
        return None
    same = producer(negation.inputs[0], "Equal")
    if same is not None and same.inputs[0] is same.inputs[1]:
        return None  # a question for NaN, which is asked in this order
    return r.op("Where", negation.inputs[0], b, a, like=node.outputs[0])


ORDER_OF_CONDITIONS = 20
"""From this opset on, conditions have a maximum."""


@LAST.rewrites("Cast", given=first("ReduceMax", "ReduceMin"))
def any_of_conditions(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Whether any of some conditions holds, or all: no numbers are needed. Of many, they are reduced faster as numbers;
    of none, ONNX Runtime refuses to tell."""
    y, reduced = node.outputs[0], producer(node.inputs[0], "ReduceMax", "ReduceMin")
    numbers = producer(reduced.inputs[0], "Cast") if reduced is not None else None
    conditions = numbers.inputs[0] if numbers is not None else None
    if reduced is None or conditions is None or r.opset < ORDER_OF_CONDITIONS:
        return None
    if y.dtype != ir.DataType.BOOL or conditions.dtype != ir.DataType.BOOL:
        return None
    shape = dims(conditions)
    if not is_static(shape) or 0 in shape or has_many(conditions):
        return None
    return r.op(reduced.op_type, conditions, *reduced.inputs[1:], like=y, **attributes_of(reduced))


@RULES.rewrites("Where", given=first("Less"))
def choose_by_the_first_that_holds(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A choice by the place of the first of some conditions that holds: one Where for each of them."""
    y, compared = node.outputs[0], producer(node.inputs[0], "Less")
    place = compared.inputs[0] if compared is not None else None
    conditions = _stacked(place)
    if conditions is None or any(_is_choice_by(user, place) for user in y.consumers()):
        return None  # what it is a part of is looked at as a whole
    cases: list[ir.Value | None] = []
    _collect(y, place, 0, len(conditions), cases)
    result = cases[0]
    for condition, case in zip(conditions[:0:-1], cases[:0:-1], strict=True):
        assert condition is not None and case is not None and result is not None
        shape = broadcast([dims(condition), dims(case), dims(result)])
        if shape is None:
            return None
        result = r.op("Where", condition, case, result, like=y, shape=shape)
    return result if result is not None and dims(result) == dims(y) else None


def _stacked(place: ir.Value | None) -> list[ir.Value | None] | None:
    """The conditions, if `place` is that of the first which holds, or 0, where one that never holds is."""
    cast = producer(place, "Cast")
    most = producer(cast.inputs[0], "ArgMax") if cast is not None else None
    numbers = producer(most.inputs[0], "Cast") if most is not None else None
    joined = producer(numbers.inputs[0], "Concat") if numbers is not None else None
    if most is None or joined is None or attribute(most, "keepdims", 1) or attribute(most, "select_last_index", 0):
        return None
    rank, axis = len(dims(joined.outputs[0])), attribute(most, "axis", 0)
    if joined.outputs[0].dtype != ir.DataType.BOOL or attribute(joined, "axis") % rank != axis % rank:
        return None
    never, *others = joined.inputs
    if splat(never) is None or splat(never) or dims(never)[axis] != 1:  # type: ignore[arg-type]
        return None
    parts = [_unsqueezed(part, rank, axis % rank) for part in others]
    return None if any(part is None for part in parts) else [None, *parts]


def _unsqueezed(value: ir.Value | None, rank: int, axis: int) -> ir.Value | None:
    """The condition that got a new axis, and may have been expanded then."""
    expanded = producer(value, "Expand")
    added = producer(expanded.inputs[0] if expanded is not None else value, "Unsqueeze")
    if added is None or len(dims(added.outputs[0])) != rank or [a % rank for a in axes_of(added) or ()] != [axis]:
        return None
    return added.inputs[0]


def _is_choice_by(node: ir.Node | None, place: ir.Value | None) -> bool:
    compared = producer(node.inputs[0], "Less") if node is not None and node.op_type == "Where" else None
    return compared is not None and compared.inputs[0] is place and scalar(compared.inputs[1]) is not None


def _collect(value: ir.Value | None, place: ir.Value | None, start: int, stop: int, cases: list) -> None:
    """What `value` is for each place from `start` to `stop`."""
    node = producer(value, "Where")
    if node is None or not _is_choice_by(node, place):
        cases += [value] * (stop - start)
        return
    middle = min(max(int(scalar(node.inputs[0].producer().inputs[1])), start), stop)  # type: ignore[union-attr]
    _collect(node.inputs[1], place, start, middle, cases)
    _collect(node.inputs[2], place, middle, stop, cases)
