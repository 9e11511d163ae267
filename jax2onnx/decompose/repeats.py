"""Layers that repeat: equations that occur several times, one copy after the other, are found and converted once.

A deep network is a list of equal layers, each with weights of its own, and JAX writes the equations of each. Here every
copy becomes one equation that says `repeated`, and all of them have the same `body`. The lowering converts and
optimizes the body once, and then only copies the few nodes that are left of it. The model is the same, sooner.

Nothing is taken for equal that is not: the same primitives with the same parameters on the same types, wired the same
way, and the same numbers where a number is in the program.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal, Primitive

from jax2onnx import compat
from jax2onnx.decompose.signatures import Signatures, is_marked, literal_key
from jax2onnx.dimensions import is_static

repeated_p = Primitive("repeated")
"""Equations that occur several times: `body` has them once for all, `equations` those of this very copy. They use
other values than the operands of this equation, but equal ones; `own` makes one of them use the operands."""
repeated_p.multiple_results = True

PARTS = frozenset([lax.slice_p, lax.squeeze_p])
"""What takes parts out of arrays."""

MIN_EQUATIONS = 200
"""A program with fewer is converted in a moment."""
MIN_COPIES = 3
MIN_PERIOD = 10
"""So many equations a copy must have, those of calls included, to be worth it. Several shorter ones are one copy."""
MIN_SAVED = 0.4
"""This part of a program must be copies of another: to find them, and to optimize what they have in common on its own,
takes as long as to convert a third of it."""
MAX_PERIODS = 8
"""So many distances between equal equations are tried."""
ANCHOR = 4
"""Equations in a row that must be equal to make their distance one to try."""
EMBEDDED_BYTES = 1024
"""Constants that all copies share are part of the body up to this size, so that rules can see their content."""
EMBEDDED_INDEX_BYTES = 1 << 16
"""The same for integers and booleans: what they are decides how one looks up elements with them."""


def share_repeats(closed: ClosedJaxpr, known: Sequence[bool] = ()) -> ClosedJaxpr:
    """`closed` with the copies of repeated equations as one equation each.

    `known` says which of the arguments are constants of the model.
    """
    count = _Counter()
    if count.of(closed) < MIN_EQUATIONS:
        return closed
    return _share(closed, known, count, Signatures())


class _Counter:
    """The number of equations of a jaxpr, those that it calls included."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def of(self, closed: ClosedJaxpr) -> int:
        key = id(closed.jaxpr)
        if key not in self._known:
            self._known[key] = sum(map(self.of_equation, closed.jaxpr.eqns))
        return self._known[key]

    def of_equation(self, eqn: Any) -> int:
        """A call counts as what it calls: as one if that is nothing, as of a function that returns its argument."""
        is_call = eqn.primitive in compat.kinds.CALL_PRIMITIVES
        return max(1, self.of(compat.programs.callee(eqn.params))) if is_call else 1


def _share(closed: ClosedJaxpr, known: Sequence[bool], count: _Counter, signatures: Signatures) -> ClosedJaxpr:
    jaxpr = closed.jaxpr
    contents = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    constants = {*contents, *(v for v, k in zip(jaxpr.invars, known, strict=False) if k)}
    fixed, eqns = _separate(jaxpr.eqns, constants)
    parts, eqns = _take_parts(eqns, {v for v in jaxpr.invars if v not in constants})
    weights = np.asarray([count.of_equation(eqn) for eqn in eqns], np.int64)
    calls: dict[int, tuple[int, Any]] = {}  # where a copy begins -> where it ends, and the equation in its place
    if _may_pay(eqns, weights):
        same = _Fixed(_equal_indices(contents), fixed, signatures)
        given = constants.union(*(eqn.outvars for eqn in parts))
        program = _Program(eqns, jaxpr.outvars, contents, given, same)
        labels = np.asarray([signatures.of_equation(eqn) for eqn in eqns], np.int64)
        for start, end, period in _runs(labels, weights):
            calls.update(_calls(program, start, end, period))
        fixed = list(map(same.with_the_same, fixed))

    def enter(eqn: Any) -> Any:
        """A call of a large program, as when all of it is in a `jax.jit`."""
        if (
            eqn.primitive not in compat.kinds.CALL_PRIMITIVES
            or count.of_equation(eqn) < MIN_EQUATIONS
            or is_marked(eqn)
        ):
            return eqn
        inner = [not isinstance(v, Literal) and v in constants for v in eqn.invars]
        params = compat.programs.map_sub_jaxprs(lambda c: _share(c, inner, count, signatures), eqn.params)
        return eqn if params is None else eqn.replace(params=params)

    result, i = [], 0
    while i < len(eqns):
        end, eqn = calls[i] if i in calls else (i + 1, enter(eqns[i]))
        result.append(eqn)
        i = end
    if not calls and all(a is b for a, b in zip(result, eqns, strict=True)):
        return closed
    result = [*parts, *result]
    return compat.programs.with_equations(closed, [*_used(fixed, result, jaxpr.outvars), *result])


def _used(eqns: Sequence[Any], users: Iterable[Any], results: Iterable[Any]) -> list[Any]:
    """Those of some equations that others use (copies share what is equal), or that are results."""
    needed = {id(v) for variables in (results, *(user.invars for user in users)) for v in variables}
    used = []
    for eqn in reversed(eqns):
        if not needed.isdisjoint(map(id, eqn.outvars)):
            needed.update(map(id, eqn.invars))
            used.append(eqn)
    return used[::-1]


def _separate(eqns: Iterable[Any], constants: set[Any]) -> tuple[list[Any], list[Any]]:
    """The equations that depend on no input, and the others. Results of the former are added to `constants`.

    They can be evaluated while exporting, but not in a body that knows nothing but the types of its operands. (A weight
    that only gets axes of size 1 for what it is combined with is none the better for that.)
    """
    fixed, changing = {}, {}
    for i, eqn in enumerate(eqns):
        if not eqn.effects and all(isinstance(v, Literal) or v in constants for v in eqn.invars):
            constants.update(eqn.outvars)
            fixed[i] = eqn
        else:
            changing[i] = eqn
    evaluated = {v for eqn in fixed.values() for v in eqn.invars if not isinstance(v, Literal)}
    for i, eqn in list(fixed.items()):
        if _only_adds_axes(eqn) and evaluated.isdisjoint(eqn.outvars):
            constants.difference_update(eqn.outvars)
            changing[i] = fixed.pop(i)
    return list(fixed.values()), [eqn for _, eqn in sorted(changing.items())]


def _take_parts(eqns: Iterable[Any], inputs: set[Any]) -> tuple[list[Any], list[Any]]:
    """The equations that take parts out of inputs, and the others. Steps that are unrolled are equal but for that: each
    takes a part of its own. The results of the former are added to `inputs`."""
    parts, others = [], []
    for eqn in eqns:
        if eqn.primitive in PARTS and not any(isinstance(v, Literal) or v not in inputs for v in eqn.invars):
            inputs.update(eqn.outvars)
            parts.append(eqn)
        else:
            others.append(eqn)
    return parts, others


def _only_adds_axes(eqn: Any) -> bool:
    if eqn.primitive is not lax.broadcast_in_dim_p or isinstance(eqn.invars[0], Literal):
        return False
    sizes, shape = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    return is_static(shape) and math.prod(sizes) == math.prod(shape)


def _equal_indices(contents: Mapping[Any, Any]) -> dict[Any, Any]:
    """The first of the small constants of integers that have the same content, for each of them."""
    first: dict[Any, Any] = {}
    return {
        v: first.setdefault((v.aval.shape, v.aval.dtype, np.asarray(content).tobytes()), v)
        for v, content in contents.items()
        if _is_index(v) and _bytes(v) <= EMBEDDED_INDEX_BYTES
    }


class _Fixed:
    """The equations that depend on no input: which of their results are the same, and how to make them in a body."""

    def __init__(self, same: dict[Any, Any], eqns: Sequence[Any], signatures: Signatures) -> None:
        self._same = same
        self._source: dict[Any, Any] = {}  # of what depends on nothing at all: an iota, a mask
        first: dict[Any, Any] = {}
        for eqn in eqns:
            number = signatures.of_equation(eqn)
            operands = tuple([literal_key(v) if isinstance(v, Literal) else self.the_same(v) for v in eqn.invars])
            model = first.setdefault((number, operands), eqn)
            self._same.update(zip(eqn.outvars, model.outvars, strict=True))
            variables = [v for v in eqn.invars if not isinstance(v, Literal)]
            if _has_static_results(eqn) and all(v in self._source for v in variables):
                self._source.update((v, eqn) for v in eqn.outvars)

    def the_same(self, variable: Any) -> Any:
        """The first of the values that are equal to this one."""
        return self._same.get(variable, variable)

    def with_the_same(self, eqn: Any) -> Any:
        """The equation on the first of all values that are equal: those that a copy of it is given."""
        invars = [v if isinstance(v, Literal) else self.the_same(v) for v in eqn.invars]
        return eqn if all(a is b for a, b in zip(invars, eqn.invars, strict=True)) else eqn.replace(invars=invars)

    def can_be_made_anywhere(self, variable: Any) -> bool:
        """Whether a value depends on nothing at all."""
        return variable in self._source

    def equations_for(self, variables: Iterable[Any]) -> list[Any]:
        """What makes values that can be made anywhere, in order."""
        found: dict[int, Any] = {}

        def visit(variable: Any) -> None:
            eqn = self._source[variable]
            if id(eqn) not in found:
                for v in eqn.invars:
                    if not isinstance(v, Literal):
                        visit(v)
                found[id(eqn)] = eqn

        for variable in variables:
            visit(variable)
        return list(found.values())


def _has_static_results(eqn: Any) -> bool:
    """Whether no result has a symbolic dimension."""
    return is_static(d for v in eqn.outvars for d in getattr(v.aval, "shape", ()))


# ---------------------------------------------------------------------------------------------------- runs of copies


def _runs(labels: np.ndarray, weights: np.ndarray) -> list[tuple[int, int, int]]:
    """(start, end, period) of the parts of a program in which each equation equals the one a period later."""
    votes: Counter[int] = Counter()
    last: dict[tuple[int, ...], int] = {}
    for i, anchor in enumerate(zip(*(labels[k:].tolist() for k in range(ANCHOR)), strict=False)):
        if anchor in last:
            votes[i - last[anchor]] += 1
        last[anchor] = i
    found: list[tuple[int, int, int]] = []
    free = np.ones(len(labels), bool)
    periods = [period for period, _ in votes.most_common(MAX_PERIODS)]
    for period in sorted(periods, key=lambda p: (-_covered(labels, p), p)):
        for start, end in _equal_stretches(labels, period):
            together = period * math.ceil(MIN_PERIOD / weights[start : start + period].sum())
            if end - start >= MIN_COPIES * together and free[start:end].all():
                found.append((start, end, together))
                free[start:end] = False
    return found


def _may_pay(eqns: Sequence[Any], weights: np.ndarray) -> bool:
    """Would enough be saved if all equations were equal that look alike?"""
    numbers: dict[Any, int] = {}
    labels = np.asarray([numbers.setdefault(_looks(eqn), len(numbers)) for eqn in eqns], np.int64)
    saved = sum(weights[start + period : end].sum() for start, end, period in _runs(labels, weights))
    return bool(saved >= MIN_SAVED * weights.sum())


def _looks(eqn: Any) -> tuple[Any, ...]:
    """What equal equations have in common, and is quickly told: their primitive, sizes and numbers."""
    shapes = [getattr(v.aval, "shape", ()) for v in eqn.outvars]
    numbers = [np.asarray(v.val).tobytes() for v in eqn.invars if isinstance(v, Literal)]
    return id(eqn.primitive), *shapes, *numbers


def _equal_stretches(labels: np.ndarray, period: int) -> list[tuple[int, int]]:
    """The longest stretches with that period."""
    same = np.concatenate([[False], labels[:-period] == labels[period:], [False]])
    edges = np.flatnonzero(same[1:] != same[:-1])
    return [(int(a), int(b) + period) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _covered(labels: np.ndarray, period: int) -> int:
    return sum(b - a for a, b in _equal_stretches(labels, period) if b - a >= MIN_COPIES * period)


# ---------------------------------------------------------------------------------------------------- copies as calls


class _Program:
    """Equations, and what is made and used where."""

    def __init__(
        self,
        eqns: Sequence[Any],
        outvars: Sequence[Any],
        contents: Mapping[Any, Any],
        constants: set[Any],
        fixed: _Fixed,
    ) -> None:
        self.eqns = eqns
        self.contents = contents
        self.fixed = fixed
        self.made: dict[Any, tuple[int, int]] = {v: (i, o) for i, e in enumerate(eqns) for o, v in enumerate(e.outvars)}
        self.last_use: dict[Any, int] = {}
        for i, eqn in enumerate(eqns):
            self.last_use.update((v, i) for v in eqn.invars if not isinstance(v, Literal))
        self.last_use.update((v, len(eqns)) for v in outvars if not isinstance(v, Literal))
        change = np.zeros(len(eqns) + 2, np.int64)
        for v, last in self.last_use.items():
            if v not in constants:
                change[self.made[v][0] + 1 if v in self.made else 0] += 1
                change[last + 1] -= 1
        self.alive = np.cumsum(change)  # before each equation: how many values from before it are still needed


class _Copy(NamedTuple):
    """A copy that begins at an equation: the values that it has for those from outside of the first, and its results
    that are used outside, as (equation, result)."""

    start: int
    outside: dict[Any, Any]
    results: frozenset[tuple[int, int]]


def _calls(program: _Program, start: int, end: int, period: int) -> dict[int, tuple[int, Any]]:
    """The equations that stand for the copies in a run."""
    # Cut where the fewest values go from one copy to the next: there a layer ends, and no formula is torn apart.
    alive = program.alive[start : end + 1]
    phases = np.arange(len(alive)) % period
    crossing = np.bincount(phases, alive) / np.bincount(phases)
    starts = range(start + int(np.argmin(crossing)), end - period + 1, period)
    model = starts[len(starts) // 2]  # the first and the last may have something of their own
    copies = [c for c in (_match(program, model, i, period) for i in starts) if c is not None]
    results, _ = Counter(c.results for c in copies).most_common(1)[0]
    copies = [c for c in copies if c.results <= results]
    if all(c.start != model for c in copies):  # it may have other numbers than they share, which the body is to have
        model = copies[len(copies) // 2].start
        copies = [c for c in (_match(program, model, c.start, period) for c in copies) if c is not None]
    if len(copies) < MIN_COPIES:
        return {}
    outside = copies[0].outside
    shared = [v for v in outside if len({c.outside[v] for c in copies}) == 1]
    small = [v for v in shared if _is_small_constant(program, v)]
    made = [v for v in shared if program.fixed.can_be_made_anywhere(v)]
    given = [v for v in outside if v not in {*small, *made}]
    body = compat.equations.repeated_body(
        [(v, program.contents[v]) for v in small],
        given,
        [program.eqns[model + k].outvars[o] for k, o in sorted(results)],
        program.fixed.equations_for(made),
        program.eqns[model : model + period],
    )
    calls = {}
    for copy in copies:
        eqns = program.eqns[copy.start : copy.start + period]
        outvars = [eqns[k].outvars[o] for k, o in sorted(results)]
        operands = [copy.outside[v] for v in (*small, *made, *given)]
        call = compat.equations.repeated_call(repeated_p, body, eqns, operands, outvars, program.fixed.with_the_same)
        calls[copy.start] = copy.start + period, call
    return calls


def _match(program: _Program, model: int, start: int, period: int) -> _Copy | None:
    """The copy at `start`, if it is wired as the one at `model`."""
    outside: dict[Any, Any] = {}
    results: set[tuple[int, int]] = set()
    for k in range(period):
        eqn = program.eqns[start + k]
        for theirs, ours in zip(program.eqns[model + k].invars, eqn.invars, strict=True):
            if isinstance(theirs, Literal):
                continue
            at, to = program.made.get(theirs, (-1, 0)), program.made.get(ours, (-1, 0))
            value = program.fixed.the_same(ours)
            if model <= at[0] < model + period:
                if to != (at[0] - model + start, at[1]):
                    return None
            elif start <= to[0] < start + period or outside.setdefault(theirs, value) is not value:
                return None
        results.update((k, o) for o, v in enumerate(eqn.outvars) if program.last_use.get(v, -1) >= start + period)
    return _Copy(start, outside, frozenset(results))


def _is_small_constant(program: _Program, variable: Any) -> bool:
    limit = EMBEDDED_INDEX_BYTES if _is_index(variable) else EMBEDDED_BYTES
    return variable in program.contents and _bytes(variable) <= limit


def _is_index(variable: Any) -> bool:
    return variable.aval.dtype.kind in "biu"


def _bytes(variable: Any) -> int:
    return math.prod(variable.aval.shape) * variable.aval.dtype.itemsize
