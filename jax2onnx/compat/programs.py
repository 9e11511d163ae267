"""Jaxprs: made, taken apart and put together again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax._src import core, linear_util
from jax._src.interpreters import partial_eval
from jax._src.state.discharge import discharge_state
from jax.extend.core import ClosedJaxpr

try:
    from jax._src import flattree  # type: ignore[attr-defined]  # since JAX 0.12
except ImportError:
    flattree = None

JAXPRS = (ClosedJaxpr, core.Jaxpr)
"""The classes of jaxprs, with and without constants; with a union, `isinstance` takes twice as long."""

_PLAIN = frozenset([bool, int, float, str, type(None), np.dtype, *(type(np.dtype(c)) for c in "?bBhHiIlLefd")])
"""Types of most parameters of equations, which hold no jaxprs. They are asked for that again and again."""


def closed_jaxpr(jaxpr: Any, consts: Sequence[Any] = ()) -> ClosedJaxpr:
    """A jaxpr with its (possibly no) constants: JAX 0.12 has one class for what used to be two."""
    return jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, consts)


def is_jaxpr(value: Any) -> bool:
    """Whether a parameter is a jaxpr, with or without its constants."""
    return isinstance(value, JAXPRS)


def callee(params: dict[str, Any]) -> ClosedJaxpr:
    """The jaxpr that a call primitive calls. Its parameter has several names, and may be without constants."""
    (jaxpr,) = (params[k] for k in ("jaxpr", "call_jaxpr", "fun_jaxpr", "call", "callee") if k in params)
    return closed_jaxpr(jaxpr)


def sub_jaxprs(params: dict[str, Any]) -> list[ClosedJaxpr]:
    """The jaxprs among the parameters of an equation, also inside tuples (the branches of a cond)."""
    found = []
    for value in params.values():
        if type(value) in _PLAIN:
            continue
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, JAXPRS):
                found.append(closed_jaxpr(item))
    return found


def map_sub_jaxprs(fn: Callable[[ClosedJaxpr], ClosedJaxpr], params: dict[str, Any]) -> dict[str, Any] | None:
    """`params` with `fn` applied to each jaxpr in it; None if nothing changed."""
    changed = {}
    for name, value in params.items():
        if type(value) in _PLAIN:
            continue
        if isinstance(value, JAXPRS):
            closed = closed_jaxpr(value)
            new = fn(closed)
            if new is not closed:
                # Rules of JAX (for dead code, say) expect an open jaxpr where there was one.
                changed[name] = new if isinstance(value, ClosedJaxpr) or new.consts else new.jaxpr
        elif isinstance(value, tuple) and value and isinstance(value[0], ClosedJaxpr):
            branches = [fn(item) if isinstance(item, ClosedJaxpr) else item for item in value]
            if any(a is not b for a, b in zip(branches, value, strict=True)):
                # The solvers of custom_linear_solve, not all of which need be there, are a named tuple.
                changed[name] = tuple(branches) if type(value) is tuple else type(value)(*branches)
    return {**params, **changed} if changed else None


class Inventory(NamedTuple):
    """What a program and the jaxprs in it consist of: all primitives, those of equations that hold jaxprs, and one type
    for each dtype that a value has."""

    primitives: set[Any]
    with_bodies: set[Any]
    types: dict[Any, Any]


def inventory(closed: ClosedJaxpr) -> Inventory:
    """Look at each equation once, so that what there is nothing to do for need not be looked for in several stages."""
    found = Inventory(set(), set(), {})
    primitives, with_bodies, types = found
    seen: set[int] = set()
    to_do: list[Any] = [closed.jaxpr]
    while to_do:
        jaxpr = to_do.pop()
        if id(jaxpr) in seen:
            continue
        seen.add(id(jaxpr))
        variables = [*jaxpr.constvars, *jaxpr.invars, *jaxpr.outvars]
        for eqn in jaxpr.eqns:
            primitives.add(eqn.primitive)
            variables += eqn.invars
            variables += eqn.outvars
            for value in eqn.params.values():
                if type(value) in _PLAIN:
                    continue
                for item in value if isinstance(value, tuple | list) else (value,):
                    if isinstance(item, JAXPRS):
                        with_bodies.add(eqn.primitive)
                        to_do.append(item.jaxpr if isinstance(item, ClosedJaxpr) else item)
        for v in variables:
            types[getattr(v.aval, "dtype", None)] = v.aval
    return found


def scan_layout(params: dict[str, Any]) -> tuple[int, int]:
    """How many operands of a scan are constants, and how many carries. JAX 0.12 has trees in place of the numbers."""
    if "ft_in" in params:
        consts, carries, _ = params["ft_in"].unpack()
        return len(consts), len(carries)
    return params["num_consts"], params["num_carry"]


def scan_with_layout(params: dict[str, Any], jaxpr: ClosedJaxpr, consts: int, carries: int) -> dict[str, Any]:
    """The parameters of a scan with another body, whose operands are so many constants and carries, then slices."""
    if "ft_in" not in params:
        return params | {"jaxpr": jaxpr, "num_consts": consts, "num_carry": carries}
    slices, stacked = len(jaxpr.in_avals) - consts - carries, len(jaxpr.out_avals) - carries
    pack, nones = flattree.pack, flattree.nones
    return params | {
        "jaxpr": jaxpr,
        "ft_in": pack((nones(consts), nones(carries), nones(slices))),
        "ft_out": pack((nones(carries), nones(stacked))),
    }


def trace_flat(fn: Callable[..., Sequence[Any]], avals: Sequence[Any]) -> ClosedJaxpr:
    """The jaxpr of a function from arrays to a list of arrays. Not cached: each has its own variables.

    Several times as fast as `jax.make_jaxpr`, which goes through `jax.jit`.
    """
    debug_info = core.DebugInfo("trace_flat", "", None, None)
    jaxpr, _, consts = partial_eval.trace_to_jaxpr_dynamic(
        linear_util.wrap_init(fn, debug_info=debug_info), list(avals)
    )
    return ClosedJaxpr(jaxpr, consts)


def remove_dead_code(closed: ClosedJaxpr) -> ClosedJaxpr:
    """`closed` without the equations that no result depends on, in sub-jaxprs as well. All inputs stay."""
    jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    return ClosedJaxpr(jaxpr, closed.consts)


def used_inputs(closed: ClosedJaxpr) -> list[bool]:
    """Which inputs the results depend on."""
    return partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))[1]


def without_references(closed: ClosedJaxpr) -> ClosedJaxpr:
    """A program that makes mutable arrays (`jax.new_ref`) as one that computes new ones, which JAX itself compiles."""
    if not any(isinstance(effect, core.InternalMutableArrayEffect) for effect in closed.effects):
        return closed
    return discharge_state(closed)


def with_equations(closed: ClosedJaxpr, eqns: Sequence[Any]) -> ClosedJaxpr:
    """`closed` with other equations (their effects are not kept: nothing in a model has any)."""
    old = closed.jaxpr
    jaxpr = core.Jaxpr(old.constvars, old.invars, old.outvars, eqns, debug_info=old.debug_info)
    return ClosedJaxpr(jaxpr, closed.consts)


def jaxpr_of(invars: Sequence[Any], outvars: Sequence[Any], eqns: Sequence[Any]) -> ClosedJaxpr:
    """A jaxpr of some equations of another one."""
    debug_info = core.DebugInfo("jax2onnx", "outline", ("",) * len(invars), ("",) * len(outvars))
    return ClosedJaxpr(core.Jaxpr((), invars, outvars, eqns, debug_info=debug_info), ())


def hashable(key: Any) -> Any:
    """`key` as a hashable tree of tuples, or None if something in it cannot be hashed."""
    if isinstance(key, dict):
        key = tuple(sorted(key.items()))
    if isinstance(key, tuple | list):
        parts = tuple(map(hashable, key))
        return None if any(p is None and k is not None for p, k in zip(parts, key, strict=True)) else parts
    return key if getattr(type(key), "__hash__", None) is not None else None
