"""Integer arithmetic in the form that is shortest, and in ONNX Runtime fastest.

Its integer Mod takes 8 ns for each element, the seven operators that it can be written out as 1.5 ns together. Products
of matrices of integers take ten times as long as those of floats.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from jax2onnx.dimensions import is_static, likely_size
from jax2onnx.optimize.engine import Rewriter, RuleSet, first, some
from jax2onnx.optimize.intervals import LIMITS, bounds, bounds_of_dtype
from jax2onnx.optimize.queries import KNOWN, attribute, axes_of, constant, dims, has_many, producer, scalar

RULES = RuleSet()
LAST = RuleSet()
"""Rules for the end: a Mod says more to the other rules than what it is written out as."""

BITWISE_OPSET = 18
UNSIGNED = (ir.DataType.UINT32, ir.DataType.UINT64)
WIDE = (ir.DataType.INT32, ir.DataType.INT64, *UNSIGNED)

NARROW = (ir.DataType.BOOL, ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16)

EXACT = 2**24
"""No whole number up to this is rounded in float32."""

MANY_PRODUCTS = 4096
"""ONNX Runtime multiplies fewer in the time that a conversion of the result takes."""


@RULES.rewrites("Mul", given=some(KNOWN))
def zero_times_an_integer(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """That is 0, whatever the integer. (Random integers below a power of two need only half of the bits that are
    drawn for them.)"""
    y = node.outputs[0]
    shape = dims(y)
    if y.dtype not in WIDE or all(scalar(x) != 0 for x in node.inputs) or not is_static(shape):
        return None
    return None if has_many(y) else r.const(np.zeros([int(d) for d in shape], y.dtype.numpy()))


@RULES.rewrites("And", given=some("Less", "Greater"))
def drop_what_is_implied(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """What is less than a number is not that number."""
    for strict, other in (node.inputs, node.inputs[::-1]):
        less, equal = producer(strict, "Less", "Greater"), _unequal(other)
        if less is None or equal is None or less.inputs[0] is not equal.inputs[0]:
            continue
        bound = scalar(less.inputs[1])
        if bound is not None and bound == scalar(equal.inputs[1]) and strict is not None:
            return strict if dims(strict) == dims(node.outputs[0]) else None
    return None


def _unequal(value: ir.Value | None) -> ir.Node | None:
    """The Equal in not (a == b)."""
    negation = producer(value, "Not")
    return producer(negation.inputs[0], "Equal") if negation is not None else None


def _remainder(value: ir.Value | None) -> tuple[ir.Value, ir.Value] | None:
    """(x, n) if `value` is the remainder, with the sign of x, of a division by a constant n > 0."""
    node = producer(value, "Mod")
    if node is None or not attribute(node, "fmod", 0) or value is None or value.dtype not in LIMITS:
        return None
    x, divisor = node.inputs
    known = constant(divisor)
    if x is None or divisor is None or known is None or not (known > 0).all() or dims(x) != dims(value):
        return None
    return x, divisor


def _is_negative(value: ir.Value | None) -> ir.Value | None:
    """x in x < 0."""
    less = producer(value, "Less")
    return less.inputs[0] if less is not None and scalar(less.inputs[1]) == 0 else None


@RULES.rewrites("Where", given=first("Less"))
def recognise_modulo(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """The remainder, plus the divisor if it is negative, has the sign of the divisor."""
    condition, sum_, rest = node.inputs
    found, total = _remainder(rest), producer(sum_, "Add")
    if found is None or total is None or _is_negative(condition) is not rest:
        return None
    x, divisor = found
    if {id(v) for v in total.inputs} != {id(rest), id(divisor)}:
        return None
    power = scalar(divisor)
    if power is not None and power & (power - 1) == 0 and r.opset >= BITWISE_OPSET:
        return r.op("BitwiseAnd", x, r.const(power - 1), like=node.outputs[0])
    return r.op("Mod", x, divisor, like=node.outputs[0])


@RULES.rewrites("And", given=some("Not"))
def rounds_down(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Dividing x by n > 0 truncates upwards if x has not the sign of n and is no multiple: if the rest is negative."""
    for first_, second in (node.inputs, node.inputs[::-1]):
        signs, rest = _unequal(first_), _unequal(second)
        sign = producer(signs.inputs[0], "Sign") if signs is not None else None
        found = _remainder(rest.inputs[0]) if rest is not None else None
        if signs is None or rest is None or sign is None or found is None or sign.inputs[0] is not found[0]:
            continue
        if scalar(signs.inputs[1]) == 1 and scalar(rest.inputs[1]) == 0:
            return r.op("Less", *rest.inputs, like=node.outputs[0])
    return None


@RULES.rewrites("Where", given=some("Sub"))
def subtract_the_condition(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """x - 1 where c, x elsewhere, is x - c."""
    condition, less, x = node.inputs
    difference, y = producer(less, "Sub"), node.outputs[0]
    if difference is None or y.dtype not in WIDE or condition is None or difference.inputs[0] is not x:
        return None
    if scalar(difference.inputs[1]) != 1 or dims(condition) != dims(y):
        return None
    return r.op("Sub", x, r.op("Cast", condition, like=y, to=int(y.dtype)), like=y)


@RULES.rewrites("Sub", given=some("Cast"))
def divide_by_power_of_two(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Division that rounds down, as `subtract_the_condition` leaves it: clear the bits of the remainder first."""
    quotient, cast = producer(node.inputs[0], "Div"), producer(node.inputs[1], "Cast")
    found = _remainder(_is_negative(cast.inputs[0])) if cast is not None else None
    if quotient is None or found is None or list(quotient.inputs) != list(found) or r.opset < BITWISE_OPSET:
        return None
    power = scalar(found[1])
    if power is None or power & (power - 1) != 0:
        return None
    multiple = r.op("BitwiseAnd", found[0], r.const(-power), like=node.outputs[0])
    return r.op("Div", multiple, found[1], like=node.outputs[0])


@RULES.rewrites("BitwiseOr", given=some("BitShift"))
def add_disjoint_bits(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """x * 2**k has no bits below the k-th, and what was shifted to the right none above: as in a rotation."""
    y = node.outputs[0]
    for low, high in (node.inputs, node.inputs[::-1]):
        shift, product = producer(low, "BitShift"), producer(high, "Mul")
        if shift is None or product is None or y.dtype not in WIDE or attribute(shift, "direction") != "RIGHT":
            continue
        by, power = scalar(shift.inputs[1]), next((s for s in map(scalar, product.inputs) if s is not None), None)
        if by is None or power is None or int(power) <= 0:
            continue
        lowest_bit = int(power) & -int(power)
        if LIMITS[y.dtype].bits - int(by) <= lowest_bit.bit_length() - 1:  # type: ignore[index]
            return r.op("Add", *node.inputs, like=y)
    return None


def _power_of_two(value: ir.Value | None) -> int:
    """The number that a value is, if it is a power of two, else 0."""
    number = scalar(value)
    return int(number) if number is not None and number > 0 and int(number) & (int(number) - 1) == 0 else 0


@LAST.rewrites("Where")
def count_conditions(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """c ? x + 1 : x is x plus c as a number, and takes half the time. (The loops of a batch count their steps so.)"""
    (c, more, x), y = node.inputs, node.outputs[0]
    total = producer(more, "Add")
    if c is None or x is None or total is None or y.dtype not in WIDE or dims(x) != dims(y):
        return None
    if not any(a is x and scalar(b) == 1 for a, b in (total.inputs, total.inputs[::-1])):
        return None
    return r.op("Add", x, r.op("Cast", c, like=y, shape=dims(c), to=int(y.dtype)), like=y)  # type: ignore[arg-type]


@LAST.rewrites("ReduceSum")
def add_as_floats(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Sums of many small integers, counts above all, in floats that hold each of them exactly: a third of the time."""
    x, axes, y = node.inputs[0], axes_of(node), node.outputs[0]
    if x is None or not axes or y.dtype not in WIDE or not has_many(x) or attribute(node, "axes") is not None:
        return None
    sizes, interval = [dims(x)[a] for a in axes], bounds(x)
    if interval is None or not is_static(sizes) or math.prod(map(int, sizes)) * max(-interval[0], interval[1]) > EXACT:
        return None
    cast = producer(x, "Cast")
    source = cast.inputs[0] if cast is not None and (cast.inputs[0].dtype in NARROW) else x  # type: ignore[union-attr]
    floats = r.op("Cast", source, like=x, dtype=ir.DataType.FLOAT, to=int(ir.DataType.FLOAT))
    keepdims = attribute(node, "keepdims", 1)
    total = r.op("ReduceSum", floats, node.inputs[1], like=y, dtype=ir.DataType.FLOAT, keepdims=keepdims)
    return r.op("Cast", total, like=y, to=int(y.dtype))


@LAST.rewrites("Div", given=lambda origins: origins[-1] == KNOWN)
def divide_by_shifting(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """By a power of two, of numbers without a sign: a third of the time."""
    (x, divisor), y = node.inputs, node.outputs[0]
    if x is None or y.dtype not in UNSIGNED or dims(x) != dims(y) or not (power := _power_of_two(divisor)):
        return None
    return r.op("BitShift", x, r.const(power.bit_length() - 1, y.dtype.numpy()), like=y, direction="RIGHT")


@LAST.rewrites("Mod", given=lambda origins: origins[-1] == KNOWN)
def remainder_by_division(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """The last bits; or x - (x / n) * n, for many elements; it is made positive by hand."""
    x, divisor = node.inputs
    y = node.outputs[0]
    known = constant(divisor)
    if known is None or x is None or y.dtype not in WIDE or np.isin(known, (0, -1)).any():
        return None
    rounds_down = not attribute(node, "fmod", 0) or not y.dtype.is_signed()
    if rounds_down and dims(x) == dims(y) and r.opset >= BITWISE_OPSET and (power := _power_of_two(divisor)):
        return r.op("BitwiseAnd", x, r.const(power - 1, known.dtype), like=y)
    if not has_many(y) or dims(x) != dims(y):
        return None
    rest = r.op("Sub", x, r.op("Mul", r.op("Div", x, divisor, like=y), divisor, like=y), like=y)
    if attribute(node, "fmod", 0) or not y.dtype.is_signed():
        return rest
    if not (known > 0).all():
        return None
    least = bounds(x)
    if least is not None and least[0] >= 0:
        return rest
    below = r.op("Less", rest, r.const(0, known.dtype), like=y, dtype=ir.DataType.BOOL)
    return r.op("Add", rest, r.op("Mul", r.op("Cast", below, like=y, to=int(y.dtype)), divisor, like=y), like=y)


@RULES.rewrites("MatMul")
def multiply_as_floats(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Sums of many products of integers, in floats that hold each of them exactly."""
    (a, b), y = node.inputs, node.outputs[0]
    if a is None or b is None or y.dtype not in LIMITS:
        return None
    terms = dims(a)[-1]
    if not isinstance(terms, int) or likely_size((*dims(y), terms)) < MANY_PRODUCTS:
        return None
    intervals = [bounds(x) or bounds_of_dtype(x) for x in (a, b)]
    largest = terms * math.prod(max(-i[0], i[1]) for i in intervals if i is not None)
    if largest >= 2**31:  # which would not fit the integers that they become
        return None
    floats = ir.DataType.FLOAT if largest <= EXACT else ir.DataType.DOUBLE
    operands = [r.op("Cast", x, like=x, dtype=floats, to=int(floats)) for x in (a, b)]
    product = r.op("MatMul", *operands, like=y, dtype=floats)
    # In a smaller type they wrap around.
    whole = r.op("Cast", product, like=y, dtype=ir.DataType.INT32, to=int(ir.DataType.INT32))
    return r.op("Cast", whole, like=y, to=int(y.dtype))
