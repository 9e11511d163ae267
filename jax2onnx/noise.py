"""Randomness as an input: each draw of a program becomes an argument, and its keys are not needed any more.

    sample(observation, key)  ->  sample(observation, {"normal_0": ...})

This is done to the jaxpr. A call of `jax.random.normal` becomes an input that is standard normal; the uniform floats
that most other distributions start from (`uniform`, `bernoulli`, `categorical`, `gumbel`, `exponential`, `laplace`,
`truncated_normal`, dropout ...) become an input that is uniform in [0, 1); and bits that are used in any other way
(`randint`, `permutation`, `bits`) unsigned integers of random bits. A draw in a scan has an axis for the steps. Draws
of the same from one key, as of dropout that is computed again for its gradient, are one input.

What draws until it accepts (`gamma`, `beta`, `dirichlet`, `poisson`, `binomial` ...) has no fixed amount of noise: this
is an error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal
from jax.extend.core import primitives as P
from jax.extend.source_info_util import current_name_stack, user_context

from jax2onnx import compat
from jax2onnx.dimensions import is_static
from jax2onnx.errors import InputError, UnsupportedError
from jax2onnx.tracing import argument_names, trace

NOISE = "noise"


class Draw(NamedTuple):
    """Numbers that a program draws at one place."""

    kind: str  # normal, uniform or bits
    shape: tuple[Any, ...]
    dtype: Any
    key: Any  # the variable; of a whole program, what is the same for draws from equal keys


class Noisy(NamedTuple):
    """A function that takes its noise as the last positional argument, and what to call it with."""

    fn: Callable[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]


def noise_as_input(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], kept: int = 0) -> Noisy:
    """`fn` with its draws as an argument, and without the arguments that only decided what is drawn.

    `args` are specs and `kwargs` values, as for `tracing.trace`. The first arguments, as many as are `kept`, stay.
    """
    program = trace(fn, args, kwargs)
    draws = list(_draws_of(program.jaxpr))
    if not draws:
        raise InputError('random="noise" was given, but the program draws no random numbers.')
    name_of = {draw: f"{draw.kind}_{i}" for i, draw in enumerate(dict.fromkeys(draws))}
    names = [name_of[draw] for draw in draws]
    specs = {name: jax.ShapeDtypeStruct(draw.shape, draw.dtype) for draw, name in name_of.items()}
    flat, tree = jax.tree.flatten(program.inputs)
    replaced = compat.programs.trace_flat(
        lambda *leaves: _run(program.jaxpr, leaves[: len(flat)], iter(leaves[len(flat) :])),
        [*program.jaxpr.in_avals, *(jax.core.ShapedArray(d.shape, d.dtype) for d in draws)],
    )
    before, after = (
        jax.tree.unflatten(tree, compat.programs.used_inputs(c)[: len(flat)]) for c in (program.jaxpr, replaced)
    )
    (positional, named), (used, named_used), (still_used, named_still_used) = program.inputs, before, after
    dropped = [_only_for_draws(*uses) for uses in zip(used, still_used, positional, strict=True)]
    left_args = [i < kept or not drop for i, drop in enumerate(dropped)]
    left_kwargs = {k for k in named if not _only_for_draws(named_used[k], named_still_used[k], named[k])}
    baked = {k: jax.tree.map(_zeros, named[k]) if k in named else v for k, v in kwargs.items() if k not in left_kwargs}

    def call(*given: Any, **keywords: Any) -> Any:
        rest, noise = iter(given[:-1]), given[-1]
        whole = tuple(next(rest) if left else jax.tree.map(_zeros, a) for a, left in zip(args, left_args, strict=True))
        closed, out = jax.make_jaxpr(lambda a, k: fn(*a, **k, **baked), return_shape=True)(whole, keywords)
        results = _run(closed, jax.tree.leaves((whole, keywords)), iter([noise[name] for name in names]))
        return jax.tree.unflatten(jax.tree.structure(out), results)

    left_names = [name for name, left in zip(argument_names(fn, len(args)), left_args, strict=True) if left]
    name = NOISE
    while name in left_names:
        name += "_"
    parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_ONLY) for n in (*left_names, name)]
    keywords = inspect.Parameter("keywords_" if "keywords" in left_names else "keywords", inspect.Parameter.VAR_KEYWORD)
    call.__signature__ = inspect.Signature([*parameters, keywords])  # type: ignore[attr-defined]
    left_specs = [arg for arg, left in zip(args, left_args, strict=True) if left]
    return Noisy(call, [*left_specs, specs], {k: v for k, v in kwargs.items() if k in left_kwargs})


def _only_for_draws(before: Any, after: Any, spec: Any) -> bool:
    """Whether an argument, of a fixed shape, was used for draws and is not any more."""
    fixed = is_static(d for leaf in jax.tree.leaves(spec) for d in leaf.shape)
    return fixed and any(jax.tree.leaves(before)) and not any(jax.tree.leaves(after))


def _zeros(spec: Any) -> Any:
    """Something of a type, for an argument that nothing depends on."""
    data = compat.kinds.key_data_type(jax.core.ShapedArray(spec.shape, spec.dtype))
    if data is None:
        return jax.numpy.zeros(spec.shape, spec.dtype)
    return jax.random.wrap_key_data(jax.numpy.zeros(data.shape, data.dtype), impl=spec.dtype._impl.name)


# ------------------------------------------------------------------------------------------------ finding draws


def _draws_of(closed: ClosedJaxpr) -> Iterator[Draw]:
    """The draws of a program, in the order in which `_run` comes by them."""
    numbers = _Numbers()
    return _draws_in(closed, (), numbers, [numbers.of("input", i) for i in range(len(closed.in_avals))])


class _Numbers:
    """Numbers for what is computed: the same number is the same value."""

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}
        self.loops: list[int] = []
        """For each number, how many of the loops around make it another one in each step."""

    def of(self, *key: Any, loops: int = 0) -> int:
        if key not in self._known:
            self._known[key] = len(self._known)
            self.loops.append(loops)
        return self._known[key]

    def results(self, eqn: Any, operands: Sequence[int], loops: int) -> list[int]:
        """Those of an equation, in so many loops: they are equal to those of an equal one, unless it has effects."""
        if eqn.effects:
            return [self.of(object(), loops=loops) for _ in eqn.outvars]
        try:
            what: Any = (eqn.primitive, tuple(sorted(eqn.params.items())))
            hash(what)
        except TypeError:  # a parameter that cannot be hashed
            what = id(eqn)
        loops = max((self.loops[i] for i in operands), default=0)
        return [self.of(what, i, *operands, loops=loops) for i in range(len(eqn.outvars))]


def _draws_in(
    closed: ClosedJaxpr, around: tuple[Any, ...], numbers: _Numbers, inputs: Sequence[int]
) -> Generator[Draw, None, list[int]]:
    """The draws, and in the end the numbers of the results, from those of the inputs."""
    jaxpr = closed.jaxpr
    known = dict(zip(jaxpr.constvars, (numbers.of("constant", id(c)) for c in closed.consts), strict=True))
    known |= zip(jaxpr.invars, inputs, strict=True)

    def number(v: Any) -> int:
        return numbers.of("literal", str(v.aval), str(v.val)) if isinstance(v, Literal) else known[v]

    plan = _plan(jaxpr)
    scans = [id(e) for e in around if e.primitive is P.scan_p]
    for i, eqn in enumerate(jaxpr.eqns):
        operands = list(map(number, eqn.invars))
        results = numbers.results(eqn, operands, len(scans))
        draw = plan.get(i)
        if draw is not None:
            key = number(draw.key)
            if numbers.loops[key] < len(scans):
                where = compat.sources.source_line(eqn, *around)
                raise UnsupportedError(f"{_CANNOT} what each step of a loop draws from the same key, at {where}.")
            yield draw._replace(key=(key, *scans))
        elif i in plan:
            pass
        elif eqn.primitive in _WITHOUT_END:
            raise UnsupportedError(f"{_CANNOT} `{eqn.primitive}`, at {compat.sources.source_line(eqn, *around)}.")
        else:
            for body in compat.programs.sub_jaxprs(eqn.params):
                given = _given(eqn, len(body.in_avals), operands, numbers, len(scans))
                inner_results = yield from _outside(_draws_in(body, (eqn, *around), numbers, given), eqn, around)
                if eqn.primitive in compat.kinds.CALL_PRIMITIVES:
                    results = inner_results
        known.update(zip(eqn.outvars, results, strict=True))
    return list(map(number, jaxpr.outvars))


def _given(eqn: Any, count: int, operands: Sequence[int], numbers: _Numbers, loops: int) -> list[int]:
    """The numbers of what the body of an equation, in so many loops, is given."""
    if eqn.primitive in compat.kinds.CALL_PRIMITIVES and count == len(operands):
        return list(operands)
    if eqn.primitive is P.cond_p:
        return list(operands[1:])
    same = compat.programs.scan_layout(eqn.params)[0] if eqn.primitive is P.scan_p else 0
    given = [numbers.of("given", id(eqn), i, *operands, loops=loops + 1) for i in range(same, count)]
    return [*operands[:same], *given]


def _outside(
    draws: Generator[Draw, None, list[int]], eqn: Any, around: tuple[Any, ...]
) -> Generator[Draw, None, list[int]]:
    """Draws of a body as those of its equation."""
    while True:
        try:
            inner = next(draws)
        except StopIteration as end:
            return end.value
        if eqn.primitive is P.scan_p:
            yield inner._replace(shape=(eqn.params["length"], *inner.shape))
        elif eqn.primitive is P.cond_p or eqn.primitive in compat.kinds.CALL_PRIMITIVES:
            yield inner
        else:
            where = compat.sources.source_line(eqn, *around)
            raise UnsupportedError(f"{_CANNOT} what is drawn inside of `{eqn.primitive}`, at {where}.")


_CANNOT = 'random="noise" cannot replace'
_WITHOUT_END = (P.random_gamma_p, P.rng_bit_generator_p, P.rng_uniform_p)
_CHAIN = (P.shift_right_logical_p, P.or_p, P.convert_element_type_p, P.bitcast_convert_type_p, P.sub_p)


def _plan(jaxpr: Any) -> dict[int, Draw | None]:
    """By the number of an equation: the draw that takes its place, or None if it only leads up to one."""
    users: dict[Any, list[int]] = {}
    for i, eqn in enumerate(jaxpr.eqns):
        for v in eqn.invars:
            if not isinstance(v, Literal):
                users.setdefault(v, []).append(i)
    results = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    plan: dict[int, Draw | None] = {}
    for i, eqn in enumerate(jaxpr.eqns):
        if eqn.primitive is P.jit_p and eqn.params["name"] == "_normal_real" and all(map(_is_key, eqn.invars)):
            plan[i] = _draw("normal", eqn, eqn)
        elif eqn.primitive is P.random_bits_p:
            chain = [i]
            while not _is_unit_float(jaxpr.eqns[chain[-1]]):
                (var,) = jaxpr.eqns[chain[-1]].outvars
                following = users.get(var, [])
                if len(following) != 1 or var in results or jaxpr.eqns[following[0]].primitive not in _CHAIN:
                    break
                if sum(not isinstance(v, Literal) for v in jaxpr.eqns[following[0]].invars) != 1:
                    break
                chain += following
            if _is_uniform([jaxpr.eqns[k] for k in chain]):
                plan |= {**dict.fromkeys(chain), chain[-1]: _draw("uniform", jaxpr.eqns[chain[-1]], eqn)}
            else:
                plan[i] = _draw("bits", eqn, eqn)
    return plan


def _is_unit_float(eqn: Any) -> bool:
    """JAX makes bits a float between 1 and 2, and subtracts 1: the end of a chain that `_plan` follows."""
    return eqn.primitive is P.sub_p and isinstance(eqn.invars[1], Literal) and eqn.invars[1].val == 1.0


def _is_uniform(chain: Sequence[Any]) -> bool:
    """Whether equations make of random bits what JAX makes of them: a float in [0, 1), with all bits that it has."""
    bits, *rest = chain
    if not rest or not _is_unit_float(rest[-1]):
        return False
    dtype, result = bits.outvars[0].aval.dtype, rest[-1].outvars[0].aval.dtype
    with jax.ensure_compile_time_eval():
        found = []
        for x in (jax.numpy.zeros((), dtype), ~jax.numpy.zeros((), dtype)):
            for eqn in rest:
                x = eqn.primitive.bind(*(v.val if isinstance(v, Literal) else x for v in eqn.invars), **eqn.params)
            found.append(float(x))
    return found == [0.0, 1.0 - float(jax.numpy.finfo(result).eps)]


def _draw(kind: str, eqn: Any, source: Any) -> Draw:
    (result,) = eqn.outvars
    return Draw(kind, tuple(result.aval.shape), result.aval.dtype, source.invars[0])


def _is_key(v: Any) -> bool:
    return compat.kinds.key_data_type(v.aval) is not None


# ------------------------------------------------------------------------------------------------ replacing them


def _run(closed: ClosedJaxpr, args: Sequence[Any], noise: Iterator[Any]) -> list[Any]:
    """Compute what a jaxpr computes, with the next of `noise` for each of its draws."""
    jaxpr = closed.jaxpr
    env: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *args], strict=True))

    def read(v: Any) -> Any:
        return v.val if isinstance(v, Literal) else env[v]

    plan = _plan(jaxpr)
    for i, eqn in enumerate(jaxpr.eqns):
        if i in plan:
            if plan[i] is not None:
                env[eqn.outvars[0]] = next(noise)
            continue
        stack = current_name_stack() + eqn.source_info.name_stack
        with user_context(eqn.source_info.traceback, name_stack=stack), eqn.ctx.manager:
            env.update(zip(eqn.outvars, _apply(eqn, list(map(read, eqn.invars)), noise), strict=True))
    return list(map(read, jaxpr.outvars))


def _apply(eqn: Any, operands: list[Any], noise: Iterator[Any]) -> list[Any]:
    bodies = compat.programs.sub_jaxprs(eqn.params)
    counts = [sum(1 for _ in _draws_of(body)) for body in bodies] if bodies else []
    if not any(counts):
        results = eqn.primitive.bind(*operands, **eqn.params)
        return list(results) if eqn.primitive.multiple_results else [results]
    mine = [[next(noise) for _ in range(count)] for count in counts]
    if eqn.primitive is P.scan_p:
        return _scan(eqn.params, operands, bodies[0], mine[0])
    if eqn.primitive is P.cond_p:
        which, *rest = operands
        branches = [lambda rest, mine, body=body, k=k: _run(body, rest, iter(mine[k])) for k, body in enumerate(bodies)]
        return lax.switch(which, branches, rest, mine)
    return _run(compat.programs.callee(eqn.params), operands, iter(mine[0]))


def _scan(params: dict[str, Any], operands: list[Any], body: ClosedJaxpr, noise: list[Any]) -> list[Any]:
    consts, carries = compat.programs.scan_layout(params)

    def step(carry: Any, slices: Any) -> Any:
        results = _run(body, [*operands[:consts], *carry, *slices[0]], iter(slices[1]))
        return results[:carries], results[carries:]

    start, slices = operands[consts : consts + carries], operands[consts + carries :]
    final, stacked = lax.scan(
        step, start, (slices, noise), length=params["length"], reverse=params["reverse"], unroll=params["unroll"]
    )
    return [*final, *stacked]
