"""Equations that stand for others: calls of a decomposition, of a function, of layers that repeat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax._src import core, source_info_util
from jax.extend.core import ClosedJaxpr
from jax.extend.core import primitives as primitives_module


def without_effects(eqn: Any) -> Any:
    """An equation that may be dead code."""
    return eqn.replace(effects=core.no_effects)


DECOMPOSED = "jax2onnx:"
"""The names of calls that stand for a decomposed equation start with this."""


def marked_call(name: str, body: ClosedJaxpr, invars: Sequence[Any], outvars: Sequence[Any], like: Any) -> Any:
    """An equation that calls `body`, in the place of the equation `like`."""
    return like.replace(
        primitive=primitives_module.closed_call_p,
        params={"call_jaxpr": body, "name": name},
        invars=list(invars),
        outvars=list(outvars),
        effects=frozenset(),
    )


class _Decomposed(str):
    """The name of a call that knows which equation it is a decomposition of. (JAX allows it no other parameters.)"""

    eqn: Any


def call_equation(eqn: Any, closed: ClosedJaxpr) -> Any:
    """An equation that calls `closed` in the place of `eqn`, which it is a decomposition of."""
    name = _Decomposed(DECOMPOSED + eqn.primitive.name)
    name.eqn = eqn
    return marked_call(name, closed, eqn.invars, eqn.outvars, eqn)


def decomposed(call: Any) -> Any | None:
    """The equation that a call is a decomposition of, unless the call has other operands or results by now: parts of
    complex numbers, the data of keys, or only those that are used."""
    name = call.params.get("name")
    return name.eqn if isinstance(name, _Decomposed) and _types(name.eqn) == _types(call) else None


def _types(eqn: Any) -> tuple[list[Any], list[Any]]:
    types = [[(v.aval.shape, v.aval.dtype) for v in variables] for variables in (eqn.invars, eqn.outvars)]
    return types[0], types[1]


NUMBERED = "#"
"""The equations of a repeated body are in scopes of this name and their number."""


def repeated_body(
    consts: Sequence[tuple[Any, Any]],
    invars: Sequence[Any],
    outvars: Sequence[Any],
    before: Sequence[Any],
    eqns: Sequence[Any],
) -> ClosedJaxpr:
    """A jaxpr of equations of another one, which knows some of its constants (variable, content). The scope of each
    equation is its number, that of those `before` is 0."""
    numbered = []
    for i, eqn in [*((0, eqn) for eqn in before), *enumerate(eqns)]:
        stack = source_info_util.new_name_stack(f"{NUMBERED}{i}")
        numbered.append(eqn.replace(source_info=eqn.source_info.replace(name_stack=stack)))
    debug_info = core.DebugInfo("jax2onnx", "repeated", ("",) * len(invars), ("",) * len(outvars))
    jaxpr = core.Jaxpr([v for v, _ in consts], invars, outvars, numbered, debug_info=debug_info)
    return ClosedJaxpr(jaxpr, [content for _, content in consts])


def repeated_call(
    primitive: Any,
    body: ClosedJaxpr,
    eqns: Sequence[Any],
    invars: Sequence[Any],
    outvars: Sequence[Any],
    own: Callable[[Any], Any],
) -> Any:
    """An equation that does what `eqns` do, which are a copy of those of `body`; `own` makes them use its `invars`."""
    return eqns[0].replace(
        primitive=primitive,
        params={"body": body, "equations": eqns, "own": own},
        invars=list(invars),
        outvars=list(outvars),
        effects=frozenset(),
        source_info=eqns[0].source_info.replace(name_stack=source_info_util.new_name_stack()),
    )


def without_scope(eqn: Any, depth: int) -> Any:
    """An equation without the outermost `depth` named scopes around it."""
    stack = eqn.source_info.name_stack
    parts = [part for part in stack.stack if isinstance(part, source_info_util.Scope)]
    return eqn.replace(source_info=eqn.source_info.replace(name_stack=type(stack)(tuple(parts[depth:]))))
