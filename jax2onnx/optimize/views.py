"""Which axes of one array those of another are, if all that happens between them is that axes are moved, split, joined
or repeated.

Programs say the same product in many ways: heads first or last, groups of heads as an axis of their own, an axis of
size 1 somewhere. Here an axis is a list of atoms, outermost first. Atoms that are met as a part of two axes are split
when that turns out, wherever they are; an axis of size 1 has none.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import onnx_ir as ir

from jax2onnx.dimensions import is_static
from jax2onnx.optimize.engine import Rewriter
from jax2onnx.optimize.queries import Dims, as_shape, attribute, dims, producer, scalar
from jax2onnx.optimize.simplify import RESHAPES, can_be_reshaped, reshaped
from jax2onnx.permutations import inverse, permuted

VIEWS = ("Transpose", "Expand", *RESHAPES)


class Atom:
    """An axis, or a part of one, that is not taken apart; unless it is, into two `parts`."""

    def __init__(self, size: int | str):
        self.size = size
        self.parts: tuple[Atom, ...] = ()


Axes = list[list[Atom]]


class View(NamedTuple):
    """An array, and the atoms that its axes consist of."""

    value: ir.Value
    axes: Axes
    factors: tuple[ir.Node, ...] = ()  # by which it is multiplied after that, the last one first


def fresh(sizes: Iterable[int | str]) -> Axes:
    """Axes that nothing is known of."""
    return [[Atom(size)] if size != 1 else [] for size in sizes]


def atoms(axis: Iterable[Atom]) -> list[Atom]:
    """Those that have not been taken apart."""
    return [part for atom in axis for part in (atoms(atom.parts) if atom.parts else [atom])]


def all_atoms(axes: Axes) -> list[Atom]:
    """The atoms of all axes in order."""
    return [atom for axis in axes for atom in atoms(axis)]


def before(view: View, *, repeats: bool) -> View | None:
    """What a view is made of by moving, splitting, joining or (if allowed) repeating axes."""
    node = producer(view.value, *VIEWS)
    x = node.inputs[0] if node is not None else None
    if node is None or x is None or 0 in dims(x):
        return None
    if node.op_type == "Transpose":
        perm = list(attribute(node, "perm"))
        return view._replace(value=x, axes=list(permuted(view.axes, inverse(perm))))
    if node.op_type == "Expand":
        axes = view.axes[len(view.axes) - len(dims(x)) :]
        kept = [axis if size != 1 else [] for axis, size in zip(axes, dims(x), strict=True)]
        return view._replace(value=x, axes=kept) if repeats else None
    regrouped = _regrouped(all_atoms(view.axes), dims(x))
    return view._replace(value=x, axes=regrouped) if regrouped is not None else None


def after(view: View, user: ir.Node) -> View | None:
    """What a node makes of a view if it moves, splits or joins axes."""
    y = user.outputs[0]
    if user.op_type == "Transpose":
        return view._replace(value=y, axes=[view.axes[i] for i in attribute(user, "perm")])
    regrouped = _regrouped(all_atoms(view.axes), dims(y)) if user.op_type in RESHAPES else None
    return view._replace(value=y, axes=regrouped) if regrouped is not None else None


def origin(view: View, *, repeats: bool) -> View:
    """What a view is made of in the end. A number that it is multiplied by in between is one of its factors."""
    while True:
        earlier = before(view, repeats=repeats)
        if earlier is None:
            scaled = producer(view.value, "Mul", "Div")
            x = scaled.inputs[0] if scaled is not None and scalar(scaled.inputs[1]) is not None else None
            if scaled is None or x is None or producer(x, *VIEWS) is None or dims(x) != dims(view.value):
                return view
            earlier = view._replace(value=x, factors=(*view.factors, scaled))
        view = earlier


def _regrouped(flat: list[Atom], shape: Dims) -> Axes | None:
    """The same atoms in order, as axes of these sizes."""
    axes: Axes = []
    left = list(flat)
    for size in shape:
        axis: list[Atom] = []
        wanted = size
        while wanted != 1:
            if not left:
                return None
            atom = left.pop(0)
            rest, surplus = _quotient(wanted, atom.size), _quotient(atom.size, wanted)
            if rest is None and surplus is None:
                return None
            if rest is None:
                atom.parts = Atom(wanted), Atom(surplus)  # type: ignore[arg-type]
                atom, second = atom.parts
                left.insert(0, second)
            wanted = 1 if rest is None else rest
            axis.append(atom)
        axes.append(axis)
    return None if left else axes


def _quotient(a: int | str, b: int | str) -> int | str | None:
    """a / b, if that is a whole number whatever the sizes with names are."""
    if a == b or b == 1:
        return 1 if a == b else a
    (number, names), (divisor, others) = _factors(a), _factors(b)
    for name in others:
        if name not in names:
            return None
        names.remove(name)
    if not divisor or number % divisor:
        return None
    number //= divisor
    return "*".join([*([str(number)] if number != 1 else []), *names]) if names else number


def _factors(size: int | str) -> tuple[int, list[str]]:
    """The number and the names that a size is the product of, such as 2*T."""
    if isinstance(size, int):
        return size, []
    parts = size.split("*")
    if not all(part.isalnum() for part in parts):  # it is not only a product
        return 1, [size]
    return math.prod(int(p) for p in parts if p.isdigit()), [p for p in parts if not p.isdigit()]


def size_of(axis: Sequence[Atom]) -> int | str | None:
    """The size of an axis of these atoms, if it has a name."""
    sizes = [atom.size for atom in atoms(axis)]
    if len(sizes) == 1:
        return sizes[0]
    return math.prod(int(s) for s in sizes) if is_static(sizes) else None


def needs_transpose(view: View, wanted: Axes) -> bool:
    """Do atoms have to be moved to make a view have the axes that are `wanted`?"""
    return all_atoms(view.axes) != all_atoms(wanted)


class _Steps(NamedTuple):
    """How axes become others: axes between which atoms are moved, in which order, and those that are wanted."""

    apart: Axes
    order: list[int]
    wanted: Axes

    def shapes(self) -> list[list[int | str | None]]:
        moved = [self.apart[i] for i in self.order]
        return [[size_of(axis) for axis in axes] for axes in (self.apart, moved, self.wanted)]


def _steps(view: View, wanted: Axes) -> _Steps | None:
    old, new = all_atoms(view.axes), all_atoms(wanted)
    if len(old) != len(new) or set(old) != set(new):
        return None
    if old == new:
        return _Steps(view.axes, list(range(len(view.axes))), wanted)
    runs = _runs(old, wanted)
    order = sorted(range(len(runs)), key=lambda i: new.index(runs[i][0]))
    if [runs[i] for i in order] != [atoms(axis) for axis in wanted if axis]:
        return _Steps(runs, order, wanted)
    # Axes of size 1 that are wanted are there before the others are moved: afterwards, nothing is left to do.
    ones = len(wanted) - len(runs)
    first, others = iter(range(ones)), (ones + i for i in order)
    return _Steps([*[[] for _ in range(ones)], *runs], [next(others if axis else first) for axis in wanted], wanted)


def can_be_arranged(view: View, wanted: Axes) -> bool:
    """Can an array get other axes that are made of the same atoms, without a shape that has to be computed?"""
    steps = _steps(view, wanted)
    if steps is None:
        return False
    apart, moved, last = steps.shapes()
    pairs = ((list(dims(view.value)), apart), (moved, last))
    return all(None not in new and (old == new or can_be_reshaped(old, new)) for old, new in pairs)


def arranged(r: Rewriter, view: View, wanted: Axes) -> ir.Value | None:
    """The array with these axes, if it can have them."""
    steps = _steps(view, wanted) if can_be_arranged(view, wanted) else None
    if steps is None:
        return None
    x = _reshaped(r, view.value, steps.apart)
    if steps.order != sorted(steps.order):
        x = r.transpose(x, steps.order)
    x = _reshaped(r, x, wanted)
    for factor in reversed(view.factors):
        x = r.op(factor.op_type, x, r.const(scalar(factor.inputs[1])), like=x)
    return x


def _runs(old: list[Atom], wanted: Axes) -> Axes:
    """The atoms in their old order; those that also follow each other in an axis that is wanted are together."""
    following = {a: b for axis in wanted for a, b in itertools.pairwise(atoms(axis))}
    runs: Axes = []
    for atom in old:
        if runs and following.get(runs[-1][-1]) is atom:
            runs[-1].append(atom)
        else:
            runs.append([atom])
    return runs


def _reshaped(r: Rewriter, x: ir.Value, axes: Axes) -> ir.Value:
    result = reshaped(r, x, ir.Value(shape=as_shape(map(size_of, axes)), type=x.type))
    assert result is not None
    return result
