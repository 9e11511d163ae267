"""Dimensions as people write them ("B", "T + 1", "2*H", "T // 2") and constraints on them ("B % 8 == 0").

They are read as Python expressions and become `jax.export` dimensions, all in one scope.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import jax.core
import numpy as np
from jax.export import SymbolicScope, symbolic_shape

from .compat.dims import contradiction
from .errors import InputError

Dim = Any
"""An int or a symbolic dimension of `jax.export`, whose class is not public."""

NOTE = "jax2onnx.dimension"
"""The key of a note (`ir.Value.meta`): this value of one element is the dimension that the note describes."""

TYPICAL = 64
"""What a size that is known only when the model runs is taken for, where one of two right ways has to be chosen."""

_OPERATORS: dict[type[ast.AST], Callable[[Dim, Dim], Dim]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_FUNCTIONS: dict[str, Callable[[Dim, Dim], Dim]] = {
    "max": jax.core.max_dim,
    "min": jax.core.min_dim,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
}
_COMPARISONS: dict[type[ast.AST], tuple[str, int]] = {  # JAX's comparison, and what to add to the right side
    ast.GtE: (">=", 0),
    ast.LtE: ("<=", 0),
    ast.Eq: ("==", 0),
    ast.Gt: (">=", 1),
    ast.Lt: ("<=", -1),
}


def parse_dim(text: str, scope: SymbolicScope) -> Dim:
    """The dimension that `text` describes."""
    return _evaluate(_parse(text), scope, text)


def names_in(text: str) -> set[str]:
    """The names of dimensions in an expression or a constraint."""
    tree = _parse(text)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called}


def make_scope(constraints: Iterable[str]) -> SymbolicScope:
    """A new scope in which `constraints`, for example "N >= 2" or "B % 8 == 0", hold."""
    if isinstance(constraints, str):
        raise InputError(f"constraints is a sequence of strings; write constraints=({constraints!r},).")
    constraints = list(constraints)
    in_jax_notation = [_constraint(text) for text in constraints]
    try:
        scope = SymbolicScope(in_jax_notation)
    except (ValueError, NotImplementedError) as error:
        raise InputError(f"JAX does not accept the constraints {', '.join(constraints)}: {error}") from error
    if reason := contradiction(scope):
        raise InputError(f"No sizes keep to the constraints {', '.join(constraints)}: {reason}")
    return scope


def parse_constraint(text: str, scope: SymbolicScope) -> tuple[Dim, bool]:
    """A constraint as (expression, must it be 0): else it must be 0 or more."""
    left, sign, right = _compared(text, scope)
    return (right - left if sign == "<=" else left - right), sign == "=="


def _constraint(text: str) -> str:
    """A constraint in JAX's notation."""
    return "{} {} {}".format(*_compared(text, SymbolicScope()))


def _compared(text: str, scope: SymbolicScope) -> tuple[Dim, str, Dim]:
    if not isinstance(text, str):
        raise InputError(f'The constraint {text!r} is not a string such as "N >= 2".')
    match _parse(text):
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
            sign, correction = _COMPARISONS[type(op)]
            return _evaluate(left, scope, text), sign, _evaluate(right, scope, text) + correction
    raise InputError(f'The constraint {text!r} is not a comparison of two dimensions, such as "N >= 2".')


def _parse(text: str) -> ast.expr:
    text = text.strip()
    if text.isidentifier():  # also Python's keywords: "in" and "class" are fine names for a dimension
        return ast.Name(text)
    try:
        return ast.parse(text.replace("^", "**"), mode="eval").body  # JAX prints a power as N^2
    except (SyntaxError, ValueError):
        raise _not_a_dimension(text) from None


def _evaluate(node: ast.expr, scope: SymbolicScope, text: str) -> Dim:
    match node:
        case ast.Name(id=name) if name in _FUNCTIONS:
            raise InputError(f"The dimension {text!r} cannot be computed: {name} is a function of two dimensions.")
        case ast.Name(id=name):
            return symbolic_shape(name, scope=scope)[0]
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand, scope, text)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            function = _OPERATORS[type(op)]
        case ast.Call(func=ast.Name(id=name), args=[left, right], keywords=[]) if name in _FUNCTIONS:
            function = _FUNCTIONS[name]
        case _:
            raise _not_a_dimension(text)
    a, b = (_evaluate(operand, scope, text) for operand in (left, right))
    if function is operator.pow and not isinstance(b, int):
        raise InputError(f"The dimension {text!r} cannot be computed: the exponent {b} is no number.")
    try:
        return function(a, b)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise InputError(f"The dimension {text!r} cannot be computed: {error}") from error


def _not_a_dimension(text: str) -> InputError:
    return InputError(
        f"{text!r} is not a dimension. A dimension is an int, a name such as 'B' (letters, digits and _), or an "
        "expression of them with + - * // % max() min(), such as 'T + 1'."
    )


def is_static(shape: Iterable[Any]) -> bool:
    """Are all sizes known while exporting?

    >>> is_static((2, 3)), is_static(("B", 3))
    (True, False)
    """
    for d in shape:  # noqa: SIM110 - a loop is faster, and this is asked of every equation
        if not isinstance(d, (int, np.integer)):
            return False
    return True


def likely_size(shape: Iterable[Any]) -> int:
    """How many elements an array of this shape is likely to have.

    >>> likely_size(("B", 3))
    192
    """
    return math.prod(d if isinstance(d, int) else TYPICAL for d in shape)
