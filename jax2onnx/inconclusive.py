"""When JAX cannot decide something about symbolic dimensions: why, where, and which constraint would help."""

from __future__ import annotations

import itertools
import os
import re
import traceback

from jax.errors import InconclusiveDimensionOperation as Inconclusive

from jax2onnx.compat.sources import is_library

__all__ = ["Inconclusive", "explain", "is_about_dimensions", "users_line"]

_COMPARISON = re.compile(r"comparison '(.+)' (<=|>=|<|>) '(.+)' is inconclusive")
_REMAINDER = re.compile(r"remainder (.+) should be 0")
_CONSTANT = re.compile(
    r"dimension '.+' used in a context that requires a constant|with non-constant arguments|of non-constant size"
    r"|a sequence of \(low, high\) pairs, got|[Ss]ymbolic (?:number|dimension cannot be raised)"
    r"|for \*: (?:'list' and '\w*Tracer'|'\w*Tracer' and 'list')"
)
_ALL_AXES = re.compile(r"(\S+) with axis=None is not supported with shape polymorphism")
_INDEX = re.compile(r"are valid indices\. Got [\w\s,()+*^-]*[A-Za-z]")
_DIVISIBLE = re.compile(r"axis size must be divisible by (\d+)")
_LABEL = re.compile(r"Size of label '.+' for operand \d+ \(\d+\) does not match")
_QUOTIENT = re.compile(r"\b(floordiv|mod)\(")
_CUT_OFF = re.compile(r"\b(min|max)\((?:(\d+), ([^(),]+)|([^(),]+), (\d+))\)")
_PADS = "(low, high)"  # how JAX says what it wants, not what it got
_SHAPE = re.compile(r"[\w\s,()+*^-]*")  # "= 2" and "float32[H]" are none
_SLICE_OF_NUMPY_ARRAY = "slice indices must be integers"

# What to write for each outcome of a comparison; JAX's constraints have no strict inequalities.
_OUTCOMES = {
    "<": ("{a} <= {b} - 1", "{a} >= {b}"),
    "<=": ("{a} <= {b}", "{a} >= {b} + 1"),
    ">": ("{a} >= {b} + 1", "{a} <= {b}"),
    ">=": ("{a} >= {b}", "{a} <= {b} - 1"),
}
_OWN_FOLDER = os.path.dirname(__file__) + os.sep
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # Keras writes its messages for terminals


def is_about_dimensions(error: Exception, *, some_are_symbolic: bool) -> bool:
    """Whether a symbolic dimension was used as an int, as in `range(x.shape[0])`, or may be larger than a table, or
    whether shapes do not fit only because of one, or JAX says in words of its own that it could not decide."""
    text = str(error)  # JAX's class is not public, and Python says no more
    if "_DimExpr" in text or isinstance(error.__cause__, Inconclusive):
        return True
    if not some_are_symbolic:
        return False
    if text.startswith(_SLICE_OF_NUMPY_ARRAY) or _different_sizes(text):
        return True
    return any(p.search(text) for p in (_CUT_OFF, _CONSTANT, _QUOTIENT, _ALL_AXES, _INDEX, _DIVISIBLE, _LABEL))


def _different_sizes(text: str) -> tuple[str, str] | None:
    """The first two sizes in an error about two shapes that differ, if one of them is symbolic."""
    inside = _in_parentheses(text.replace(_PADS, ""))
    shapes = [shape for shape in map(_entries, filter(_SHAPE.fullmatch, inside)) if shape]
    for a, b in itertools.pairwise(shapes):
        different = [pair for pair in zip(a, b, strict=False) if pair[0] != pair[1] and "1" not in pair]
        if len(a) == len(b) and different and all(any(map(str.isalpha, x + y)) for x, y in different):
            return different[0]
    return None


def _in_parentheses(text: str) -> list[str]:
    """What stands between outermost parentheses."""
    found, depth, start = [], 0, 0
    for i, character in enumerate(text):
        if character == "(":
            start = i + 1 if depth == 0 else start
            depth += 1
        elif character == ")" and depth:
            depth -= 1
            if depth == 0:
                found.append(text[start:i])
    return found


def _entries(shape: str) -> list[str]:
    """What stands between the commas that are not inside parentheses."""
    entries, depth = [""], 0
    for character in shape:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            entries.append("")
        else:
            entries[-1] += character
    return [entry.strip() for entry in entries if entry.strip()]


def explain(error: Exception, line: str) -> str:
    """A message for the user: JAX's reason, the line of the program, and what to do."""
    text = _COLOURS.sub("", str(error))
    reason = " ".join(text.partition("\nThis error arises")[0].partition("\nUsing symbolic scope")[0].split())
    advice = _advice(reason)
    if "constraints=" in advice:
        advice += " Where another library calls to_onnx, use `with jax2onnx.assuming(...):` around that."
    return f"JAX cannot tell what happens at {line}: {reason.rstrip('.')}. {advice}"


def _advice(reason: str) -> str:
    if match := _COMPARISON.search(reason):
        a, sign, b = match.groups()
        yes, no = (_simplified(text.format(a=a, b=b)) for text in _OUTCOMES[sign])
        return f'If it always holds, add constraints=["{yes}"]; if it never does, constraints=["{no}"].'
    if match := _REMAINDER.search(reason):
        return (
            f'If it always is, add constraints=["{match[1]} == 0"], or write the dimension of the input as a multiple, '
            'such as "8*N".'
        )
    if match := _DIVISIBLE.search(reason):
        return (
            f'If it always is, add a constraint such as constraints=["T % {match[1]} == 0"], or write the dimension of '
            f'the input as a multiple, such as "{match[1]}*N".'
        )
    if match := _ALL_AXES.search(reason):
        return f"A size with a name may turn out to be 1: name the axes, as in {match[1]}(x, axis=0)."
    if _INDEX.search(reason):
        return (
            "A symbolic dimension is no index: make it one of JAX by jnp.asarray, or count from the end, as in x[-1] "
            "for x[x.shape[0] - 1]."
        )
    if _LABEL.search(reason):
        return (
            "To find an order of the products, JAX takes symbolic dimensions for numbers of its own, which are in "
            "this message: a label stands for one of them and for another size. Give the dimension that size, or, if "
            "they are two symbolic dimensions, give both the same name."
        )
    if reason.startswith(_SLICE_OF_NUMPY_ARRAY):
        return "A NumPy array or a list cannot be cut at a symbolic dimension: make it one of JAX by jnp.asarray."
    if match := _CUT_OFF.search(reason):
        number, dimension = match[2] or match[5], match[3] or match[4]
        signs = ("<=", ">=") if match[1] == "min" else (">=", "<=")
        one, other = (f"{dimension} {sign} {number}" for sign in signs)
        return (
            f"{match[0]} is {dimension} if {one}, and {number} if {other}: if it is the first that always holds, add "
            f'constraints=["{one}"], if it is the second, constraints=["{other}"].'
        )
    if different := _different_sizes(reason):
        return (
            f"It takes {different[0]} and {different[1]} for different sizes. If they are the same for all inputs that "
            'you have in mind, give both the same name, or write the size of the input as a multiple, such as "32*H" '
            'if it is halved five times, or say what you know, as in constraints=["S == T"].'
        )
    if _QUOTIENT.search(reason):
        return (
            "The function needs a number there: give the dimension a fixed size, or write it as a multiple, such as "
            '"2*H", so that what is divided leaves no remainder.'
        )
    if _CONSTANT.search(reason) or "_DimExpr" in reason:
        return (
            "The function needs a number there (as range, int and NumPy do): give the dimension a fixed size, or "
            "compute with it in jax.numpy and jax.lax."
        )
    return 'Say what you know about the sizes, as in constraints=["T >= 2", "B % 8 == 0"].'


def _simplified(constraint: str) -> str:
    """The constraint with its numbers taken together on the right: "T - 1 >= 1 + 1" is "T >= 3"."""
    constraint = re.sub(r"(-?\d+) ([-+]) 1$", lambda m: str(int(m[1]) + (1 if m[2] == "+" else -1)), constraint)
    match = re.fullmatch(r"(\w+) ([-+]) (\d+) (<=|>=) (-?\d+)", constraint)
    if match is None:
        return constraint
    name, sign, shift, comparison, bound = match.groups()
    return f"{name} {comparison} {int(bound) + (int(shift) if sign == '-' else -int(shift))}"


def users_line(error: BaseException) -> str:
    """The innermost line that belongs neither to this package nor to an installed library: in the traceback, or, where
    libraries call each other, among the calls that led there."""
    inner = reversed(traceback.extract_tb(error.__traceback__))
    outer = reversed(traceback.extract_stack())
    for frame in itertools.chain(inner, outer):
        if not frame.filename.startswith(_OWN_FOLDER) and not is_library(frame.filename):
            return f"{frame.filename}:{frame.lineno}"
    return "an unknown line"
