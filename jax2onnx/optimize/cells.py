"""What one step of a recurrent network computes, read from the body of a Scan as a formula.

Each library writes a cell differently: one product for all gates or one for each, the input and the state side by side
or apart, gates split before or after the sigmoid, batches first, last or missing. As a formula on rows of features
they are the same: sums of `source @ matrix`, activations, products. Matrices are never read here; what is done to them
(a slice, a transpose) is done when the model is written.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from jax2onnx.optimize.queries import attribute, axes_of, constant, dims, integers, scalar

MAX_BIAS = 1 << 20
"""A constant that may be a bias repeated for each row is compared with itself up to so many bytes."""

Array = Callable[[], np.ndarray]
"""A matrix or vector that is read when it is needed."""


class Function(NamedTuple):
    """An operator that is an activation function, and its parameters."""

    op_type: str
    alpha: float | None = None
    beta: float | None = None


@dataclass(frozen=True, eq=False)
class Formula:
    """A row of `width` numbers for each element of the batch."""

    width: int

    def columns(self, start: int, stop: int) -> Formula | None:
        """Some of the numbers; None if that is no formula of its own."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Input(Formula):
    """Columns, from `start` on, of an input of the body."""

    value: ir.Value
    start: int = 0

    def columns(self, start: int, stop: int) -> Formula:
        return Input(stop - start, self.value, self.start + start)

    def is_whole(self) -> bool:
        """Are these all columns?"""
        return self.start == 0 and self.value.shape is not None and self.value.shape[-1] == self.width


@dataclass(frozen=True, eq=False)
class Linear(Formula):
    """The sum of some `source @ matrix` and of some biases."""

    terms: tuple[tuple[Formula, Array], ...] = ()
    biases: tuple[Array, ...] = ()

    def columns(self, start: int, stop: int) -> Formula:
        terms = tuple((source, _columns(matrix, start, stop)) for source, matrix in self.terms)
        return Linear(stop - start, terms, tuple(_columns(bias, start, stop) for bias in self.biases))


@dataclass(frozen=True, eq=False)
class Number(Formula):
    """The same number everywhere."""

    number: float

    def columns(self, start: int, stop: int) -> Formula:
        return Number(stop - start, self.number)


@dataclass(frozen=True, eq=False)
class Apply(Formula):
    """An activation function."""

    function: Function
    argument: Formula

    def columns(self, start: int, stop: int) -> Formula | None:
        argument = self.argument.columns(start, stop)
        return None if argument is None else Apply(stop - start, self.function, argument)


@dataclass(frozen=True, eq=False)
class Product(Formula):
    """Elementwise."""

    factors: tuple[Formula, Formula]

    def columns(self, start: int, stop: int) -> None:
        return None


@dataclass(frozen=True, eq=False)
class Sum(Formula):
    """Positive and negative terms, not all of them linear."""

    plus: tuple[Formula, ...] = ()
    minus: tuple[Formula, ...] = ()

    def columns(self, start: int, stop: int) -> Formula | None:
        plus = [part.columns(start, stop) for part in self.plus]
        minus = [part.columns(start, stop) for part in self.minus]
        if any(part is None for part in (*plus, *minus)):
            return None
        return Sum(stop - start, tuple(plus), tuple(minus))  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Beside(Formula):
    """Formulas side by side."""

    parts: tuple[Formula, ...]

    def columns(self, start: int, stop: int) -> None:
        return None


def _columns(array: Array, start: int, stop: int) -> Array:
    return lambda: array()[..., start:stop]


class _Content:
    """Reads a tensor, which may come from a file; again only if nobody holds what was read."""

    def __init__(self, tensor: ir.TensorProtocol):
        self.tensor = tensor
        self.known: Callable[[], np.ndarray | None] = lambda: None

    def __call__(self) -> np.ndarray:
        array = self.known()
        if array is None:
            array = self.tensor.numpy()
            self.known = weakref.ref(array)
        return array


class Seen(NamedTuple):
    """A formula and the axis of the value that its columns are on. Another axis may be the batch; the rest are 1."""

    formula: Formula
    axis: int


class _NotFound(Exception):
    """What a node computes is no formula."""


def formulas(body: ir.Graph, values: Iterable[ir.Value]) -> list[Formula | None]:
    """Some values of a body as formulas of its inputs, None for those that are not."""
    seen: dict[ir.Value, Seen] = {}
    same: dict[tuple, Sequence[Seen]] = {}
    for value in body.inputs:
        shape = dims(value)
        if len(shape) in (1, 2) and isinstance(shape[-1], int):
            seen[value] = Seen(Input(shape[-1], value), len(shape) - 1)
    for node in body:
        with contextlib.suppress(_NotFound, KeyError):  # of an operand
            _read(node, seen, same)
    rank = len(dims(body.inputs[0]))
    return [_in_rows(value, seen.get(value), rank) for value in values]


def _in_rows(value: ir.Value, found: Seen | None, rank: int) -> Formula | None:
    """The formula of a value, if its columns are where the states have theirs: it may be the same, but transposed."""
    return found.formula if found is not None and len(dims(value)) == rank and found.axis == rank - 1 else None


def _read(node: ir.Node, seen: dict[ir.Value, Seen], same: dict[tuple, Sequence[Seen]]) -> None:
    """What a node computes, which may be the `same` as another: a body computes each of its outputs by itself."""
    rule, key = _RULES.get(node.op_type), (node.op_type, *node.inputs)
    if rule is None or node.domain:
        raise _NotFound
    results = same[key] if key in same and not node.attributes else rule(node, seen)
    if not node.attributes:
        same[key] = results
    for value, result in zip(node.outputs, results, strict=True):
        if result.formula.width != dims(value)[result.axis]:
            raise _NotFound
        seen[value] = result


def _same(node: ir.Node, seen: dict[ir.Value, Seen]) -> list[Seen]:
    return [seen[node.inputs[0]]]  # type: ignore[index]


def _apply(node: ir.Node, seen: dict[ir.Value, Seen]) -> list[Seen]:
    formula, axis = seen[node.inputs[0]]  # type: ignore[index]
    function = Function(node.op_type)
    if node.op_type == "HardSigmoid":
        function = Function(node.op_type, attribute(node, "alpha", 0.2), attribute(node, "beta", 0.5))
    return [Seen(Apply(formula.width, function, formula), axis)]


def _reshape(node: ir.Node, seen: dict[ir.Value, Seen]) -> list[Seen]:
    """Axes of size 1 come and go."""
    formula, axis = seen[node.inputs[0]]  # type: ignore[index]
    before, after = dims(node.inputs[0]), dims(node.outputs[0])  # type: ignore[arg-type]
    if before == after:
        return [Seen(formula, axis)]
    kept = [i for i, d in enumerate(before) if d != 1]
    if axis not in kept or [before[i] for i in kept] != [d for d in after if d != 1]:
        raise _NotFound
    return [Seen(formula, [i for i, d in enumerate(after) if d != 1][kept.index(axis)])]


def _transpose(node: ir.Node, seen: dict[ir.Value, Seen]) -> list[Seen]:
    formula, axis = seen[node.inputs[0]]  # type: ignore[index]
    return [Seen(formula, list(attribute(node, "perm")).index(axis))]


def _part(seen: Seen, axis: int, start: int, stop: int) -> Seen:
    found = seen.formula.columns(start, stop) if axis == seen.axis else None
    if found is None:
        raise _NotFound
    return Seen(found, axis)


def _split(node: ir.Node, seen: dict[ir.Value, Seen]) -> list[Seen]:
    source = seen[node.inputs[0]]  # type: ignore[index]
    axis = attribute(node, "axis", 0) % len(dims(node.inputs[0]))  # type: ignore[arg-type]
    parts, start = [], 0
    for value in node.outputs:
        size = dims(value)[axis]
        if not isinstance(size, int):
            raise _NotFound
        parts.append(_part(source, axis, start, start + size))
        start += size
    return parts


def _slice(node: ir.Node, seen: dict[ir.Value, Seen]) -> list[Seen]:
    source = seen[node.inputs[0]]  # type: ignore[index]
    shape = dims(node.inputs[0])  # type: ignore[arg-type]
    starts, axes = integers(node.inputs[1]), axes_of(node, 3)
    steps = integers(node.inputs[4]) if len(node.inputs) > 4 else (1,)
    if starts is None or axes is None or steps is None or len(axes) != 1 or steps != (1,):
        raise _NotFound
    axis = axes[0] % len(shape)
    size, whole = dims(node.outputs[0])[axis], shape[axis]
    if not isinstance(size, int) or not isinstance(whole, int):
        raise _NotFound
    start = min(max(starts[0] + (whole if starts[0] < 0 else 0), 0), whole)
    return [_part(source, axis, start, start + size)]


def _concat(node: ir.Node, seen: dict[ir.Value, Seen]) -> list[Seen]:
    parts = [seen[v] for v in node.inputs if v is not None]
    axis = attribute(node, "axis") % len(dims(node.outputs[0]))
    if any(part.axis != axis for part in parts):
        raise _NotFound
    formulas = tuple(part.formula for part in parts)
    return [Seen(Beside(sum(f.width for f in formulas), formulas), axis)]


def _matmul(node: ir.Node, seen: dict[ir.Value, Seen]) -> list[Seen]:
    left, right = node.inputs
    rank = len(dims(node.outputs[0]))
    if left in seen:
        return [Seen(_times(seen[left], len(dims(left)) - 1, _matrix(right)), rank - 1)]  # type: ignore[arg-type, index]
    matrix = _matrix(left)
    turned = (lambda: matrix[0]().T), matrix[1][::-1]
    return [Seen(_times(seen[right], len(dims(right)) - 2, turned), rank - 2)]  # type: ignore[arg-type, index]


def _gemm(node: ir.Node, seen: dict[ir.Value, Seen]) -> list[Seen]:
    if attribute(node, "alpha", 1.0) != 1 or attribute(node, "transA", 0) or attribute(node, "beta", 1.0) != 1:
        raise _NotFound
    read, shape = _matrix(node.inputs[1])
    matrix = ((lambda: read().T), shape[::-1]) if attribute(node, "transB", 0) else (read, shape)
    product: Formula = _times(seen[node.inputs[0]], 1, matrix)  # type: ignore[index]
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        product = _add(product, _operand(node.inputs[2], node.outputs[0], 1, seen))
    return [Seen(product, 1)]


def _matrix(value: ir.Value | None) -> tuple[Array, tuple[int, int]]:
    tensor = value.const_value if value is not None else None
    if tensor is None or len(tensor.shape) != 2:
        raise _NotFound
    rows, columns = (int(d) for d in tensor.shape)  # type: ignore[arg-type]
    return _Content(tensor), (rows, columns)


def _times(seen: Seen, axis: int, matrix: tuple[Array, tuple[int, int]]) -> Linear:
    read, (rows, width) = matrix
    if seen.axis != axis or seen.formula.width != rows:
        raise _NotFound
    terms, start = [], 0
    for part in seen.formula.parts if isinstance(seen.formula, Beside) else (seen.formula,):
        terms.append((part, _rows(read, start, start + part.width)))
        start += part.width
    return Linear(width, tuple(terms))


def _rows(matrix: Array, start: int, stop: int) -> Array:
    return lambda: matrix()[start:stop]


def _operand(value: ir.Value | None, result: ir.Value, axis: int, seen: dict[ir.Value, Seen]) -> Formula:
    """An operand of an elementwise node as a formula."""
    assert value is not None
    if value in seen:
        if seen[value].axis != axis or dims(value) != dims(result):
            raise _NotFound
        return seen[value].formula
    tensor = value.const_value
    shape, rank = dims(value), len(dims(result))
    width = dims(result)[axis]
    if tensor is None or not isinstance(width, int):
        raise _NotFound
    number = scalar(value)
    if number is not None:
        return Number(width, float(number))
    shape = (1,) * (rank - len(shape)) + shape
    if shape[axis] != width:
        raise _NotFound
    if tensor.size == width:
        return Linear(width, (), (lambda: tensor.numpy().reshape(-1),))
    if tensor.nbytes > MAX_BIAS:
        raise _NotFound
    rows = np.moveaxis(constant(value).reshape(shape), axis, -1).reshape(-1, width)  # type: ignore[union-attr, arg-type]
    if rows.tobytes() != rows[0].tobytes() * len(rows):
        raise _NotFound
    return Linear(width, (), (lambda: rows[0],))


def _elementwise(node: ir.Node, seen: dict[ir.Value, Seen]) -> list[Seen]:
    axis = next((seen[v].axis for v in node.inputs if v in seen), None)
    if axis is None or len(node.inputs) != 2:
        raise _NotFound
    a, b = (_operand(v, node.outputs[0], axis, seen) for v in node.inputs)
    if node.op_type == "Mul":
        return [Seen(Product(a.width, (a, b)), axis)]
    return [Seen(_add(a, b, negative=node.op_type == "Sub"), axis)]


def _add(a: Formula, b: Formula, negative: bool = False) -> Formula:
    """A sum in which the linear parts are one."""
    plus_a, minus_a = (a.plus, a.minus) if isinstance(a, Sum) else ((a,), ())
    plus_b, minus_b = (b.plus, b.minus) if isinstance(b, Sum) else ((b,), ())
    if negative:
        plus_b, minus_b = minus_b, plus_b
    plus, minus = [*plus_a, *plus_b], (*minus_a, *minus_b)
    linear = [part for part in plus if isinstance(part, Linear)]
    if len(linear) > 1:
        terms = tuple(term for part in linear for term in part.terms)
        biases = tuple(bias for part in linear for bias in part.biases)
        plus = [Linear(a.width, terms, biases), *(part for part in plus if not isinstance(part, Linear))]
    return plus[0] if len(plus) == 1 and not minus else Sum(a.width, tuple(plus), minus)


_RULES: dict[str, Callable[[ir.Node, dict[ir.Value, Seen]], Sequence[Seen]]] = {
    **dict.fromkeys(["Sigmoid", "HardSigmoid", "Tanh"], _apply),
    **dict.fromkeys(["Reshape", "Squeeze", "Unsqueeze"], _reshape),
    **dict.fromkeys(["Add", "Sub", "Mul"], _elementwise),
    "Identity": _same,
    "Transpose": _transpose,
    "Split": _split,
    "Slice": _slice,
    "Concat": _concat,
    "MatMul": _matmul,
    "Gemm": _gemm,
}
