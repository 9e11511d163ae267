"""Hold values of a type that ONNX lacks in values of types it has, everywhere in a jaxpr.

Complex numbers become pairs of reals, typed PRNG keys become their uint32 data. Both are the same rewrite; what differs
is a `Representation`: how one value is held, and what a primitive does to values that are held that way.

A run of neighbouring equations that touch such values is traced again, with JAX functions in place of the primitives.
All other equations, and whole sub-jaxprs without such values, stay the objects they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.core import ShapedArray, eval_jaxpr
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive, Var, jaxprs_in_params
from jax.extend.core import primitives as P
from jax.extend.source_info_util import user_context

from jax2onnx.compat.kinds import CALL_PRIMITIVES
from jax2onnx.compat.programs import Inventory, callee, hashable, scan_layout, scan_with_layout, trace_flat
from jax2onnx.compat.programs import inventory as take_inventory
from jax2onnx.compat.sources import source_line
from jax2onnx.errors import UnsupportedError
from jax2onnx.inconclusive import Inconclusive, explain

Atom = Any  # a Var or a Literal
Parts = tuple[Atom, ...]
Env = dict[Var, Parts]


class Representation(NamedTuple):
    """How values of some types are held in several arrays (the parts) of ordinary types."""

    kind: str
    """What is represented, for error messages."""
    parts_of: Callable[[Any], tuple[ShapedArray, ...] | None]
    """The types of the parts of a value of the given type; None for a type that stays as it is."""
    hold: Callable[..., tuple]
    """The parts as one object (a named tuple), the form in which rules get and return represented values."""
    split: Callable[[Any, Any], tuple]
    """The parts of a constant, given its value and its type."""
    packed: Callable[[Any], ShapedArray]
    """The type of the one array that holds a value at the boundary of the program."""
    pack_constant: Callable[[Any, Any], Any]
    pack: Callable[..., Any]
    unpack: Callable[[Any], tuple]
    """From and to that one array: of a constant, of the parts, and back."""
    rule: Callable[[JaxprEqn], Callable[..., Any] | None]
    """What an equation does: a JAX function of its operands and parameters, or None if there is no such function."""


def eliminate(representation: Representation, closed: ClosedJaxpr, inventory: Inventory | None = None) -> ClosedJaxpr:
    """The same program without values of the represented types.

    Each such input, output and constant of the program becomes one array, its packed form. There are no types in it
    that its `inventory` has not, if that is given.
    """
    if not any(map(representation.parts_of, (inventory or take_inventory(closed)).types.values())):
        return closed  # as most are, which is found out in a third of the time
    return _Rewriter(representation).program(closed)


class _Rewriter:
    def __init__(self, representation: Representation):
        self.rep = representation
        # Both keyed by identity: equal bodies of repeated layers are one object, and stay one. The jaxpr is kept alive
        # so that its id is not given to another.
        self.touched_jaxprs: dict[int, tuple[Any, bool]] = {}
        self.bodies: dict[int, tuple[Any, Any]] = {}
        self.traced: dict[Any, ClosedJaxpr] = {}

    def touched(self, eqn: JaxprEqn) -> bool:
        """Whether an equation has represented values among its operands or results, or anywhere inside."""
        parts_of = self.rep.parts_of
        return (
            any(parts_of(v.aval) for v in eqn.invars)
            or any(parts_of(v.aval) for v in eqn.outvars)
            or any(self.contains(sub) for sub in jaxprs_in_params(eqn.params))
        )

    def contains(self, jaxpr: Any) -> bool:
        jaxpr = jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
        if id(jaxpr) not in self.touched_jaxprs:
            boundary = (*jaxpr.constvars, *jaxpr.invars, *jaxpr.outvars)
            answer = any(self.rep.parts_of(v.aval) for v in boundary) or any(map(self.touched, jaxpr.eqns))
            self.touched_jaxprs[id(jaxpr)] = jaxpr, answer
        return self.touched_jaxprs[id(jaxpr)][1]

    def program(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        """Rewrite a whole program: represented values are packed into one array at its boundary."""
        if not self.contains(closed):
            return closed
        rep, jaxpr = self.rep, closed.jaxpr
        env: Env = {}
        eqns: list[JaxprEqn] = []

        def enter(v: Var) -> Var:
            if not rep.parts_of(v.aval):
                return v
            packed = Var(rep.packed(v.aval))
            env[v] = self.trace(rep.unpack, [packed], eqns)
            return packed

        def leave(v: Atom) -> Atom:
            parts = self.read(env, v)
            return self.trace(lambda *parts: [rep.pack(*parts)], parts, eqns)[0] if rep.parts_of(v.aval) else parts[0]

        consts = [
            rep.pack_constant(c, v.aval) if rep.parts_of(v.aval) else c
            for v, c in zip(jaxpr.constvars, closed.consts, strict=True)
        ]
        constvars, invars = [enter(v) for v in jaxpr.constvars], [enter(v) for v in jaxpr.invars]
        eqns += self.eqns(jaxpr.eqns, env)
        outvars = [leave(v) for v in jaxpr.outvars]
        new = Jaxpr(constvars, invars, outvars, eqns, jaxpr.effects, jaxpr.debug_info)
        return ClosedJaxpr(new, consts)

    def body(self, jaxpr: Any) -> Any:
        """Rewrite the body of a higher-order primitive: what is represented at its boundary becomes its parts."""
        if not self.contains(jaxpr):
            return jaxpr
        if id(jaxpr) not in self.bodies:
            closed = isinstance(jaxpr, ClosedJaxpr)
            inner, values = (jaxpr.jaxpr, jaxpr.consts) if closed else (jaxpr, ())
            env: Env = {}
            constvars = [part for v in inner.constvars for part in self.fresh(env, v)]
            consts = [part for v, c in zip(inner.constvars, values, strict=True) for part in self.split(c, v.aval)]
            invars = [part for v in inner.invars for part in self.fresh(env, v)]
            eqns = self.eqns(inner.eqns, env)
            outvars = [part for v in inner.outvars for part in self.read(env, v)]
            debug_info = inner.debug_info.with_unknown_names()
            new = Jaxpr(constvars, invars, outvars, eqns, inner.effects, debug_info)
            self.bodies[id(jaxpr)] = jaxpr, ClosedJaxpr(new, consts) if closed else new
        return self.bodies[id(jaxpr)][1]

    def fresh(self, env: Env, v: Var) -> Parts:
        """The variables for the parts of a binder."""
        parts = self.rep.parts_of(v.aval)
        env[v] = (v,) if parts is None else tuple(Var(aval) for aval in parts)
        return env[v]

    def split(self, value: Any, aval: Any) -> tuple:
        return (value,) if self.rep.parts_of(aval) is None else self.rep.split(value, aval)

    def read(self, env: Env, v: Atom) -> Parts:
        """The atoms for the parts of a value."""
        if isinstance(v, Var):
            return env.get(v, (v,))
        parts = self.rep.parts_of(v.aval)
        return (v,) if parts is None else tuple(map(Literal, self.rep.split(v.val, v.aval), parts))

    def eqns(self, eqns: Iterable[JaxprEqn], env: Env) -> list[JaxprEqn]:
        """The rewritten equations; adds to `env` the parts of what they define."""
        new: list[JaxprEqn] = []
        for eqn in eqns:
            if self.touched(eqn):
                new += self.rewritten(eqn, env)
                continue
            invars = [self.read(env, v)[0] for v in eqn.invars]
            same = all(old is v for old, v in zip(eqn.invars, invars, strict=True))
            new.append(eqn if same else eqn.replace(invars=invars))
        return new

    def rewritten(self, eqn: JaxprEqn, env: Env) -> list[JaxprEqn]:
        """The equations of the rule that takes the place of a primitive."""
        info = eqn.source_info
        free = list(dict.fromkeys(v for v in eqn.invars if isinstance(v, Var)))
        atoms = [self.read(env, v) for v in free]

        def traced(*arrays: Any) -> list[Any]:
            rest = iter(arrays)
            values = {v: self.held([next(rest) for _ in parts], v.aval) for v, parts in zip(free, atoms, strict=True)}
            operands = [self.constant(v) if isinstance(v, Literal) else values[v] for v in eqn.invars]
            with user_context(None, name_stack=info.name_stack), eqn.ctx.manager:
                return _flat(self.apply(eqn, operands))

        operands = [(v.aval, _bytes(v) if isinstance(v, Literal) else free.index(v)) for v in eqn.invars]
        key = hashable((eqn.primitive, operands, eqn.params, info.name_stack, eqn.ctx))
        new: list[JaxprEqn] = []
        results = iter(self.trace(traced, [atom for parts in atoms for atom in parts], new, key))
        for v in eqn.outvars:
            env[v] = tuple(next(results) for _ in self.rep.parts_of(v.aval) or (v,))
        # Only now do they get the traceback: JAX caches functions that rules call, and those would carry it into the
        # next program.
        return [e.replace(source_info=e.source_info.replace(traceback=info.traceback)) for e in new]

    def held(self, parts: Sequence[Any], aval: Any) -> Any:
        """One operand for a rule: the array itself, or the parts of a represented value."""
        return parts[0] if self.rep.parts_of(aval) is None else self.rep.hold(*parts)

    def constant(self, v: Literal) -> Any:
        """One operand for a rule that is known: always an array, never a Python number."""
        return self.held(self.split(np.asarray(v.val, v.aval.dtype), v.aval), v.aval)

    def apply(self, eqn: JaxprEqn, operands: list[Any]) -> list[Any]:
        """Do what an equation does to operands that are held in parts."""
        primitive, params = eqn.primitive, eqn.params
        if primitive in REBOUND:
            counts = [len(self.rep.parts_of(v.aval) or (v,)) for v in eqn.invars]
            new_params = REBOUND[primitive](
                self.body, params, counts, [len(self.rep.parts_of(v.aval) or (v,)) for v in eqn.outvars]
            )
            return self.grouped(primitive.bind(*_flat(operands), **new_params), eqn.outvars)
        if primitive in CALLED:
            body, operands = CALLED[primitive](params, operands)
            body = self.body(body)
            return self.grouped(eval_jaxpr(body.jaxpr, body.consts, *_flat(operands)), eqn.outvars)
        rule = self.rep.rule(eqn)
        if rule is None:
            raise UnsupportedError(f"`{primitive}` on {self.rep.kind} is not supported, at {source_line(eqn)}")
        try:
            results = rule(*operands, **params)
        except Inconclusive as error:
            message = explain(error, source_line(eqn))
            raise UnsupportedError(f"`{primitive}` of these symbolic sizes: {message}") from error
        return list(results) if primitive.multiple_results else [results]

    def grouped(self, arrays: Iterable[Any], outvars: Sequence[Var]) -> list[Any]:
        rest = iter(arrays)
        return [self.held([next(rest) for _ in self.rep.parts_of(v.aval) or (v,)], v.aval) for v in outvars]

    def trace(self, fn: Callable, atoms: Sequence[Atom], new: list[JaxprEqn], key: Any = None) -> Parts:
        """Append the equations of `fn` applied to `atoms` to `new`, and return its results.

        Functions with the same key, if they have one, are the same, and are traced once.
        """
        closed = self.traced.get(key) or trace_flat(fn, [atom.aval for atom in atoms])
        if key is not None:
            self.traced[key] = closed
        jaxpr = closed.jaxpr
        env: dict[Var, Atom] = dict(zip(jaxpr.invars, atoms, strict=True))
        env.update((v, Literal(c, v.aval)) for v, c in zip(jaxpr.constvars, closed.consts, strict=True))
        env.update((v, Var(v.aval)) for eqn in jaxpr.eqns for v in eqn.outvars)

        def read(v: Atom) -> Atom:
            return env.get(v, v) if isinstance(v, Var) else v

        new += [
            eqn.replace(invars=[read(v) for v in eqn.invars], outvars=[env[v] for v in eqn.outvars])
            for eqn in jaxpr.eqns
        ]
        return tuple(read(v) for v in jaxpr.outvars)


def _bytes(v: Literal) -> bytes:
    return np.asarray(v.val).tobytes()


def _flat(operands: Iterable[Any]) -> list[Any]:
    return [part for x in operands for part in (x if isinstance(x, tuple) else (x,))]


# Calls whose body simply takes the place of the call: what they say about derivatives is of no use any more.


def _solve(params: dict[str, Any], operands: list[Any]) -> tuple[Any, list[Any]]:
    """custom_linear_solve: the body that solves, its constants, and the right-hand sides."""
    lengths = params["const_lengths"]
    start = lengths.matvec + lengths.vecmat
    consts = operands[start : start + lengths.solve]
    return params["jaxprs"].solve, [*consts, *operands[sum(lengths) :]]


def _callee(params: dict[str, Any], operands: list[Any]) -> tuple[Any, list[Any]]:
    return callee(params), operands


CALLED = dict.fromkeys(CALL_PRIMITIVES, _callee) | {P.linear_solve_p: _solve}

# Higher-order primitives that are bound again, on the parts: their parameters, given how to rewrite a body and the
# number of parts of each operand and result.


def _repeat(per_value: Sequence[Any], counts: Sequence[int]) -> tuple:
    return tuple(x for x, count in zip(per_value, counts, strict=True) for _ in range(count))


def _jit(body: Callable, params: dict[str, Any], ins: list[int], outs: list[int]) -> dict[str, Any]:
    per_input = {k: _repeat(params[k], ins) for k in ("in_shardings", "in_layouts", "donated_invars")}
    per_output = {k: _repeat(params[k], outs) for k in ("out_shardings", "out_layouts")}
    return params | per_input | per_output | {"jaxpr": body(params["jaxpr"])}


def _scan(body: Callable, params: dict[str, Any], ins: list[int], outs: list[int]) -> dict[str, Any]:
    consts, carries = scan_layout(params)
    carry_end = consts + carries
    return scan_with_layout(params, body(params["jaxpr"]), sum(ins[:consts]), sum(ins[consts:carry_end]))


def _while(body: Callable, params: dict[str, Any], ins: list[int], outs: list[int]) -> dict[str, Any]:
    cond_consts, body_consts = params["cond_nconsts"], params["body_nconsts"]
    return params | {
        "cond_nconsts": sum(ins[:cond_consts]),
        "body_nconsts": sum(ins[cond_consts : cond_consts + body_consts]),
        "cond_jaxpr": body(params["cond_jaxpr"]),
        "body_jaxpr": body(params["body_jaxpr"]),
    }


def _cond(body: Callable, params: dict[str, Any], ins: list[int], outs: list[int]) -> dict[str, Any]:
    return params | {"branches": tuple(body(branch) for branch in params["branches"])}


def _reduce(body: Callable, params: dict[str, Any], ins: list[int], outs: list[int]) -> dict[str, Any]:
    return params | {"jaxpr": body(params["jaxpr"])}


REBOUND: dict[Primitive, Callable[..., dict[str, Any]]] = {
    P.jit_p: _jit,
    P.scan_p: _scan,
    P.while_p: _while,
    P.cond_p: _cond,
    P.reduce_p: _reduce,
    P.reduce_window_p: _reduce,
}
