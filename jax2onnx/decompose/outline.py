"""Make the module tree of a program visible: what a named scope encloses becomes a marked call, an ONNX function.

Scopes come from the program (`jax.named_scope`, which most libraries open for each module). Modules that compute the
same share one function, which takes their weights as inputs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Literal

from jax2onnx import compat
from jax2onnx.functions import Marked
from jax2onnx.paths import scope_parts

NAMESPACE = "modules"
_FORMULA = re.compile(r",|->")
MIN_EQUATIONS = 2
"""A scope with fewer equations is not worth a function."""


def outline(closed: ClosedJaxpr) -> ClosedJaxpr:
    """`closed` with each run of equations in one named scope as a call. Calls are entered, but not loops and branches:
    formulas are recognised in their bodies."""
    done: dict[tuple[int, ...], ClosedJaxpr] = {}  # by the identity of what `closed` keeps alive

    def visit(closed: ClosedJaxpr) -> ClosedJaxpr:
        jaxpr = closed.jaxpr
        key = (id(jaxpr), *map(id, closed.consts))
        if key not in done:
            entered = [enter(eqn) for eqn in jaxpr.eqns]
            # Constants become arguments of the calls that use them, as all other values from outside.
            eqns = _outlined(entered, {v for v in jaxpr.outvars if not isinstance(v, Literal)}, 0)
            changed = len(eqns) != len(jaxpr.eqns) or any(a is not b for a, b in zip(eqns, jaxpr.eqns, strict=True))
            done[key] = compat.programs.with_equations(closed, eqns) if changed else closed
        return done[key]

    def enter(eqn: Any) -> Any:
        params = (
            compat.programs.map_sub_jaxprs(visit, eqn.params) if eqn.primitive in compat.kinds.CALL_PRIMITIVES else None
        )
        return eqn if params is None else eqn.replace(params=params)

    return visit(closed)


def _outlined(eqns: Sequence[Any], used_outside: set, depth: int) -> list[Any]:
    """The equations of one level: those deeper in the scopes are grouped into calls."""
    result: list[Any] = []
    groups = [(scope, list(group)) for scope, group in itertools.groupby(eqns, lambda e: _scope(e, depth))]
    # What later groups (and the results) need decides what a call returns.
    needed: list[set] = []
    later = set(used_outside)
    for _, group in reversed(groups):
        needed.append(set(later))
        later |= _reads(group)
    for (scope, group), after in zip(groups, reversed(needed), strict=True):
        if scope is None or sum(map(_count, group)) < MIN_EQUATIONS:
            result += group
        else:
            result.append(_call(scope, group, after, depth))
    return result


def _count(eqn: Any) -> int:
    """The number of equations that an equation stands for: that of the function that it calls, if it is a call."""
    if eqn.primitive not in compat.kinds.CALL_PRIMITIVES or str(eqn.params.get("name", "")).startswith(
        compat.equations.DECOMPOSED
    ):
        return 1
    return sum(map(_count, compat.programs.callee(eqn.params).jaxpr.eqns))


def _scope(eqn: Any, depth: int) -> str | None:
    """The module that an equation belongs to. `jnp.einsum` opens a scope named by its formula, which is none."""
    parts = scope_parts(str(eqn.source_info.name_stack))
    return parts[depth] if len(parts) > depth and not _FORMULA.search(parts[depth]) else None


def _reads(eqns: Iterable[Any]) -> set:
    return {v for eqn in eqns for v in eqn.invars if not isinstance(v, Literal)}


def _call(scope: str, eqns: list[Any], used_after: set, depth: int) -> Any:
    made = [v for eqn in eqns for v in eqn.outvars]
    own = set(made)
    invars = list(dict.fromkeys(v for e in eqns for v in e.invars if not isinstance(v, Literal) and v not in own))
    outvars = [v for v in made if v in used_after]
    inner = _outlined(eqns, set(outvars), depth + 1)
    body = compat.programs.jaxpr_of(invars, outvars, [compat.equations.without_scope(e, depth + 1) for e in inner])
    mark = Marked(NAMESPACE, _identifier(scope), is_shared=True)
    return compat.equations.marked_call(str(mark), body, invars, outvars, eqns[0])


def _identifier(scope: str) -> str:
    """A name for the function: the scope without the number that tells modules of a kind apart."""
    name = re.sub(r"[^A-Za-z0-9_.]+", "_", scope).strip("_")
    return re.sub(r"[._]\d+$", "", name) or "scope"
