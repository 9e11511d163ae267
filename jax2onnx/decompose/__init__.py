"""The decompose stage: jaxpr -> jaxpr. What ONNX has no operator for is rewritten in JAX itself.

`decompose` leaves only core primitives: it expands the registered decompositions (also inside each other, and inside
the bodies of control flow), replaces typed PRNG keys by their data, and complex numbers by pairs of reals.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun

from jax2onnx import compat
from jax2onnx.compat.programs import Inventory
from jax2onnx.decompose import (  # noqa: F401  (each registers its decompositions)
    bits,
    collective,
    conv,
    cumulative,
    dot,
    empty,
    hijax,
    linalg_condense,
    linalg_eig,
    linalg_eigh,
    linalg_factor,
    linalg_qr,
    linalg_schur,
    linalg_solve,
    linalg_svd,
    linalg_triangular,
    platform,
    random,
    reduce,
    scatter,
    sort,
    special_bessel,
    special_elementary,
    special_erf,
    special_gamma,
    special_incomplete,
    window,
)
from jax2onnx.decompose.complex import eliminate_complex
from jax2onnx.decompose.keys import eliminate_keys
from jax2onnx.decompose.registry import DECOMPOSITIONS
from jax2onnx.errors import UnsupportedError
from jax2onnx.inconclusive import Inconclusive, explain

__all__ = ["DECOMPOSITIONS", "decompose", "jaxpr_as_fun"]

NOT_TRACEABLE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def decompose(
    closed: ClosedJaxpr,
    *,
    core: Container[Primitive] = (),
    kept: Container[Primitive] = (),
    inventory: Inventory | None = None,
) -> ClosedJaxpr:
    """`closed` in core primitives: those in `core` can be lowered.

    Those in `kept` are left as they are even if they have a decomposition: they have a lowering that is better. There
    is nothing in `closed` that its `inventory` has not, if that is given.
    """
    inventory = inventory or compat.programs.inventory(closed)
    expanded = expand(closed, core, kept, inventory)
    if expanded is not closed:
        inventory = compat.programs.inventory(expanded)
    plain = eliminate_keys(expanded, inventory)
    plain = eliminate_complex(plain, inventory if plain is expanded else None)
    return plain if plain is expanded else expand(plain, core, kept)


def expand(
    closed: ClosedJaxpr,
    core: Container[Primitive] = (),
    kept: Container[Primitive] = (),
    inventory: Inventory | None = None,
) -> ClosedJaxpr:
    """Replace each equation that has a decomposition by a call of it."""
    primitives, with_bodies, _ = inventory or compat.programs.inventory(closed)
    # Most equations of the program stay as they are. (In decompositions, the same primitives may hold jaxprs.)
    plain = {p for p in primitives - with_bodies if p in kept or (p in core and p not in DECOMPOSITIONS)}
    done: dict[Any, tuple[ClosedJaxpr, ClosedJaxpr]] = {}  # by identity; the originals are kept so that ids stay theirs
    traced: dict[Any, ClosedJaxpr] = {}
    around: list[Any] = []  # the equations whose bodies are being visited, outermost first
    inside: list[Any] = []  # those of them that are being decomposed

    def visit(closed: ClosedJaxpr) -> ClosedJaxpr:
        key = (id(closed.jaxpr), *map(id, closed.consts))
        if key not in done:
            stay = plain if not inside else ()
            eqns = [eqn if eqn.primitive in stay else visit_equation(eqn) for eqn in closed.jaxpr.eqns]
            changed = any(new is not old for new, old in zip(eqns, closed.jaxpr.eqns, strict=True))
            done[key] = (closed, compat.programs.with_equations(closed, eqns) if changed else closed)
        return done[key][1]

    def visit_equation(eqn: Any) -> Any:
        avals = [v.aval for v in eqn.invars]
        rule = None if eqn.primitive in kept else DECOMPOSITIONS.get(eqn.primitive)
        if rule is not None and (rule.when is None or rule.when(avals, eqn.params)):
            return compat.equations.call_equation(eqn, trace(rule.fn, eqn, avals))
        own = (
            None if eqn.primitive in core or eqn.primitive in kept else compat.definitions.own_definition(eqn.primitive)
        )
        if own is not None:
            # Made to control transformations, by another library mostly, and defined in JAX.
            try:
                return compat.equations.call_equation(eqn, trace(own, eqn, avals))
            except NOT_TRACEABLE:
                return eqn  # it is not defined in JAX after all
        around.append(eqn)
        params = compat.programs.map_sub_jaxprs(visit, eqn.params)
        around.pop()
        return eqn if params is None else eqn.replace(params=params)

    def trace(fn: Callable, eqn: Any, avals: list[Any]) -> ClosedJaxpr:
        key = compat.programs.hashable((eqn.primitive, [(a.shape, a.dtype) for a in avals], eqn.params))
        if key is None or key not in traced:
            specs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
            inside.append(eqn)
            try:
                closed = visit(jax.make_jaxpr(lambda *args: fn(*args, **eqn.params))(*specs))
            except Inconclusive as error:
                message = explain(error, compat.sources.source_line(eqn, *reversed(around)))
                raise UnsupportedError(f"{eqn.primitive} of these symbolic sizes: {message}") from error
            except UnsupportedError as error:
                raise error.at(compat.sources.source_line(eqn, *reversed(around))) from None
            finally:
                inside.pop()
            if key is None:
                return closed
            traced[key] = closed
        return traced[key]

    return visit(closed)
