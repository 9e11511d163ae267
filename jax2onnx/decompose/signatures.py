"""Which equations of programs are equal: they have the same primitive, parameters and types, and the same numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from jax2onnx import compat
from jax2onnx.functions import parse_mark


class Signatures:
    """Numbers for equations: the same number for those that do the same, whatever values they do it with."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._jaxprs: dict[tuple[int, ...], Any] = {}
        self._kept_alive: list[Any] = []  # what has its id() in a key
        self._unequal = 0

    def of_equation(self, eqn: Any) -> int:
        """Negative for an equation that is like no other."""
        try:
            return self._number(self._key(eqn))
        except _Unequal:
            self._unequal -= 1
            return self._unequal

    def _number(self, key: Any) -> int:
        try:
            return self._numbers.setdefault(key, len(self._numbers))
        except TypeError:  # a parameter that cannot be hashed
            raise _Unequal from None

    def _key(self, eqn: Any) -> Any:
        if eqn.effects:
            raise _Unequal
        if eqn.primitive in compat.kinds.CALL_PRIMITIVES:
            if is_marked(eqn):
                raise _Unequal
            params: Any = self._structure(compat.programs.callee(eqn.params))
        else:
            params = tuple([(name, self._frozen(value)) for name, value in eqn.params.items()])
        operands = tuple([literal_key(v) if isinstance(v, Literal) else _type(v) for v in eqn.invars])
        return eqn.primitive, params, operands, tuple(map(_type, eqn.outvars))

    def _frozen(self, value: Any) -> Any:
        """A parameter as something that is equal only to what means the same: 0.0 is not -0.0, and 1 is not True."""
        kind = type(value)
        if kind is int or kind is str or value is None:
            return kind, value
        if kind is tuple:
            if _INT.issuperset(map(type, value)):  # a shape, or axes
                return value
            return kind, tuple([self._frozen(item) for item in value])
        if kind is list:
            return kind, tuple([self._frozen(item) for item in value])
        if kind is float or kind is complex:
            return kind, repr(value)
        if isinstance(value, np.generic):
            return kind, value.tobytes()
        if compat.programs.is_jaxpr(value):
            raise _Unequal  # loops and branches: their bodies would have to be copied, too
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return kind, tuple([self._frozen(item) for item in value])
        if kind.__hash__ is None or isinstance(value, np.ndarray):
            raise _Unequal
        return kind, value

    def _structure(self, closed: ClosedJaxpr) -> Any:
        """What a called function does, as a number."""
        key = (id(closed.jaxpr), *map(id, closed.consts))
        if key not in self._jaxprs:
            self._kept_alive.append(closed)
            self._jaxprs[key] = self._number(self._program(closed))
        return self._jaxprs[key]

    def _program(self, closed: ClosedJaxpr) -> Any:
        jaxpr = closed.jaxpr
        place: dict[Any, int] = {}
        for v in (*jaxpr.constvars, *jaxpr.invars, *(v for eqn in jaxpr.eqns for v in eqn.outvars)):
            place[v] = len(place)

        def wiring(variables: Iterable[Any]) -> Any:
            return tuple([literal_key(v) if isinstance(v, Literal) else place[v] for v in variables])

        equations = [(self._key(eqn), wiring(eqn.invars)) for eqn in jaxpr.eqns]
        types = tuple(map(_type, (*jaxpr.constvars, *jaxpr.invars)))
        return types, tuple(map(id, closed.consts)), tuple(equations), wiring(jaxpr.outvars)


_INT = frozenset([int])


class _Unequal(Exception):
    """Something that cannot be compared."""


def _type(variable: Any) -> Any:
    aval = variable.aval
    try:
        return aval.shape, aval.dtype, aval.weak_type
    except AttributeError:  # a token, say
        raise _Unequal from None


def literal_key(literal: Any) -> Any:
    """A number in a program as something that is equal only to the same: 0.0 is not -0.0."""
    return _type(literal), type(literal.val), np.asarray(literal.val).tobytes()


def is_marked(eqn: Any) -> bool:
    """Is it a call that stays visible in the model?"""
    return parse_mark(str(eqn.params.get("name", ""))) is not None
