"""What a program does besides computing its results: it prints, and it checks. A model does neither.

Both are taken out of the traced program first of all, so that what only they need is dead code.
"""

from __future__ import annotations

import warnings
from typing import Any

from jax.extend.core import ClosedJaxpr
from jax.extend.core import primitives as P

from jax2onnx import compat

RAISING_MODULES = ("equinox._errors",)
"""Modules of which callbacks only raise an error or report one: a branch that calls them is a check."""


_OF_INTEREST = frozenset([*compat.kinds.PRINTS, *compat.kinds.CHECKS, P.cond_p])


def drop(closed: ClosedJaxpr, inventory: compat.programs.Inventory | None = None) -> ClosedJaxpr:
    """`closed` without prints and run-time checks; says so, once, if there were checks.

    It has nothing that its `inventory` has not, if that is given.
    """
    inventory = inventory or compat.programs.inventory(closed)
    if _OF_INTEREST.isdisjoint(inventory.primitives):
        return closed
    checks: list[str] = []
    done: dict[int, tuple[ClosedJaxpr, ClosedJaxpr]] = {}  # by identity; originals are kept so that ids stay theirs

    def visit(closed: ClosedJaxpr, *around: Any) -> ClosedJaxpr:
        key = id(closed.jaxpr)
        if key not in done:
            new = [visit_equation(eqn, *around) for eqn in closed.jaxpr.eqns]
            changed = any(a is not b for a, b in zip(new, closed.jaxpr.eqns, strict=True))
            eqns = [eqn for eqn in new if eqn is not None]
            done[key] = closed, compat.programs.with_equations(closed, eqns) if changed else closed
        return done[key][1]

    def visit_equation(eqn: Any, *around: Any) -> Any:
        if eqn.primitive in compat.kinds.PRINTS:
            return None
        if eqn.primitive in compat.kinds.CHECKS:
            checks.append(compat.sources.source_line(eqn, *around))
            return None
        if eqn.primitive is P.cond_p:
            harmless = [b for b in eqn.params["branches"] if not _raises(b)]
            if len(harmless) == 1 < len(eqn.params["branches"]):
                checks.append(compat.sources.source_line(eqn, *around))
                return compat.equations.call_equation(
                    eqn.replace(invars=eqn.invars[1:]), visit(harmless[0], eqn, *around)
                )
        params = compat.programs.map_sub_jaxprs(lambda body: visit(body, eqn, *around), eqn.params)
        return eqn if params is None else compat.equations.without_effects(eqn.replace(params=params))

    result = visit(closed)
    if checks:
        warnings.warn(
            f"The model does without the {len(checks)} run-time checks of the program (the first is at {checks[0]}).",
            stacklevel=5,
        )
    return result


def _raises(branch: ClosedJaxpr) -> bool:
    """Does a branch call back into one of the `RAISING_MODULES`?"""
    return any(
        eqn.primitive in compat.kinds.CALLBACKS and compat.kinds.callback_module(eqn.params) in RAISING_MODULES
        for eqn in branch.jaxpr.eqns
    )
