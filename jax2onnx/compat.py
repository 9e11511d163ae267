"""Everything that differs between JAX releases or is not public in JAX, in one place."""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np
from jax._src import core, linear_util, source_info_util
from jax._src.export.shape_poly import _DimExpr
from jax._src.hijax import call_hi_primitive_p  # noqa: F401  (not public: JAX's own high-level primitives)
from jax._src.interpreters import mlir, partial_eval
from jax._src.lax import lax as lax_definitions
from jax._src.lax import special
from jax._src.lax import utils as lax_utils
from jax._src.lax.scaled_dot import _scaled_dot_impl, scaled_dot_p
from jax._src.literals import TypedNdArray
from jax._src.random import core as random_core
from jax._src.random import philox2x32, philox4x32, prng, threefry2x32, threefry4x32
from jax._src.state.discharge import discharge_state
from jax.extend.core import ClosedJaxpr
from jax.extend.core import primitives as primitives_module

try:
    from jax._src import flattree  # type: ignore[attr-defined]  # since JAX 0.12
except ImportError:
    flattree = None

add_any_p = primitives_module.add_jaxvals_p


def primitives(*names: str) -> list[core.Primitive]:
    """The primitives of these names that this JAX has: some come and go between releases, some are not public."""
    tables = [mlir._lowerings, *mlir._platform_specific_lowerings.values()]
    return list(dict.fromkeys(p for table in tables for p in table if p.name in names))


CALL_PRIMITIVES = frozenset(
    [
        primitives_module.call_p,
        primitives_module.closed_call_p,
        *primitives(
            "jit",
            "remat2",
            "remat_opt",
            "custom_jvp_call",
            "custom_vjp_call",
            "custom_vmap_call",
            "composite",
            "eval_jaxpr",
            "linear_call",
        ),
    ]
)
DIMENSION_PRIMITIVES = frozenset(primitives("dim_as_value"))
PRINTS = primitives("dce_sink", "debug_callback", "debug_print", "inspect_sharding", "shape_assertion")
CHECKS = primitives("check")
CALLBACKS = primitives("pure_callback", "io_callback")


def callee(params: dict[str, Any]) -> ClosedJaxpr:
    """The jaxpr that a call primitive calls. Its parameter has several names, and may be without constants."""
    (jaxpr,) = (params[k] for k in ("jaxpr", "call_jaxpr", "fun_jaxpr", "call", "callee") if k in params)
    return closed_jaxpr(jaxpr)


def closed_jaxpr(jaxpr: Any, consts: Sequence[Any] = ()) -> ClosedJaxpr:
    """A jaxpr with its (possibly no) constants: JAX 0.12 has one class for what used to be two."""
    return jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, consts)


JAXPRS = (ClosedJaxpr, core.Jaxpr)
"""The classes of jaxprs, with and without constants; with a union, `isinstance` takes twice as long."""


_PLAIN = frozenset([bool, int, float, str, type(None), np.dtype, *(type(np.dtype(c)) for c in "?bBhHiIlLefd")])
"""Types of most parameters of equations, which hold no jaxprs. They are asked for that again and again."""


def is_jaxpr(value: Any) -> bool:
    """Whether a parameter is a jaxpr, with or without its constants."""
    return isinstance(value, JAXPRS)


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


def dim_terms(dim: Any) -> list[tuple[list[tuple[Any, int]], int]]:
    """The terms of a symbolic dimension: ([(factor, power), ...], coefficient), the positive ones first.

    Not public: the structure of a `jax.export` dimension expression.
    """
    terms = [(list(term._factors), int(k)) for term, k in dim._sorted_terms]
    return sorted(terms, key=lambda t: t[1] < 0)


def simplest_dim(dim: Any) -> Any:
    """A dimension expression as an int if it is constant (operands inside an expression are always expressions)."""
    constant = _DimExpr._to_constant(dim) if isinstance(dim, _DimExpr) else dim
    return dim if constant is None else constant


def solve_dim(dim: Any) -> tuple[str, int, int] | None:
    """(variable, factor, offset) if `dim` is `factor * variable + offset`, so that the variable can be read off it."""
    variable, factor, offset = None, 1, 0
    for factors, coefficient in dim_terms(dim):
        if not factors:
            offset = coefficient
        elif len(factors) == 1 and factors[0][1] == 1 and factors[0][0].to_var() and variable is None:
            variable, factor = factors[0][0].to_var(), coefficient
        else:
            return None
    return None if variable is None else (variable, factor, offset)


def dim_names(dim: Any) -> set[str]:
    """The names in a symbolic dimension. Not public: its variables."""
    return set(dim._get_vars())


def evaluate_dim(dim: Any, sizes: Mapping[str, int]) -> int:
    """The value of a dimension for given sizes of its variables. Not public: evaluation of an expression."""
    return int(dim._evaluate(dict(sizes))) if isinstance(dim, _DimExpr) else int(dim)


def scope_constraints(scope: Any) -> list[tuple[Any, bool]]:
    """The constraints of a scope, as (expression, must it be 0): else it must be 0 or more. Not public: the list."""
    return [(c.diff, c.cmp.name == "EQ") for c in scope._explicit_constraints]


def constraint_texts(scope: Any) -> list[str]:
    """The constraints of a scope as they were written. Not public: the list. JAX adds some that it derives."""
    return [c.debug_str for c in scope._explicit_constraints]


def x64(enabled: bool) -> AbstractContextManager:
    """A context in which 64-bit types are on or off, for this thread only."""
    return jax.enable_x64(enabled)


def as_array(constant: Any) -> Any:
    """A constant of a jaxpr as something NumPy understands. JAX wraps some NumPy arrays in a class of its own."""
    return constant.val if isinstance(constant, TypedNdArray) else constant


def remove_dead_code(closed: ClosedJaxpr) -> ClosedJaxpr:
    """`closed` without the equations that no result depends on, in sub-jaxprs as well. All inputs stay."""
    jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    return ClosedJaxpr(jaxpr, closed.consts)


def used_inputs(closed: ClosedJaxpr) -> list[bool]:
    """Which inputs the results depend on."""
    return partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))[1]


WIDE = ("int64", "uint64", "float64", "complex128")
"""The dtypes that JAX only has if they are enabled."""


def evaluate_equation(eqn: Any, operands: Sequence[Any]) -> list[np.ndarray]:
    """What JAX computes for one equation."""
    fresh = [core.Var(v.aval) for v in eqn.invars]
    debug_info = core.DebugInfo("jax2onnx", "evaluate", ("",) * len(fresh), ("",) * len(eqn.outvars))
    jaxpr = core.Jaxpr((), fresh, eqn.outvars, [eqn.replace(invars=fresh)], debug_info=debug_info)
    evaluate = functools.partial(core.eval_jaxpr, jaxpr, ())
    if sub_jaxprs(eqn.params):
        evaluate = jax.jit(evaluate)  # one compilation instead of one per equation inside
    # Decompositions use 64-bit types also where the program does not; JAX would narrow them.
    wide = any(str(v.aval.dtype) in WIDE for v in (*eqn.invars, *eqn.outvars))
    with x64(wide or jax.config.jax_enable_x64):
        return [np.asarray(r) for r in evaluate(*operands)]


def evaluate_program(closed: ClosedJaxpr, operands: Sequence[Any]) -> list[Any]:
    """What JAX, compiled, computes for a program. Its constants are passed, so that weights are not compiled in.

    Not public: evaluation of a jaxpr with constants of one's own.
    """
    return jax.jit(lambda consts, *args: core.eval_jaxpr(closed.jaxpr, consts, *args))(closed.consts, *operands)


def with_equations(closed: ClosedJaxpr, eqns: Sequence[Any]) -> ClosedJaxpr:
    """`closed` with other equations (their effects are not kept: nothing in a model has any)."""
    old = closed.jaxpr
    jaxpr = core.Jaxpr(old.constvars, old.invars, old.outvars, eqns, debug_info=old.debug_info)
    return ClosedJaxpr(jaxpr, closed.consts)


def without_effects(eqn: Any) -> Any:
    """An equation that may be dead code."""
    return eqn.replace(effects=core.no_effects)


def callback_module(params: dict[str, Any]) -> str:
    """The module of the Python function that a callback calls. Not public: how JAX wraps it."""
    return str(getattr(params["callback"].callback_func, "__module__", ""))


def own_definition(primitive: core.Primitive) -> Callable[..., Any] | None:
    """How a primitive says it is computed, in JAX; None if it does not.

    Those of other libraries are executed by a function of theirs. JAX's own, and some of others, are executed by
    compiling them: either a function in JAX says what is compiled, or nothing does. Those for sparse arrays and kernels
    have a definition next to them, which is not public, in a module that is there if they are used.
    """
    name = primitive.name
    sparse = sys.modules.get(f"jax.experimental.sparse.{name.partition('_')[0]}")
    if sparse is not None and vars(sparse).get(f"{name}_p") is primitive:
        return vars(sparse)[f"_{name}_impl"]
    kernels = sys.modules.get("jax._src.pallas.hlo_interpreter")
    if kernels is not None and name == "pallas_call":
        return lambda *args, interpret, **params: kernels.pallas_call_hlo_interpret(*args, **params)
    impl = inner = primitive.__dict__.get("impl")
    while isinstance(inner, functools.partial):
        inner = inner.func
    module = getattr(inner, "__module__", None) or "jax"
    return _compiled_function(primitive) if module.partition(".")[0] == "jax" else impl


def _compiled_function(primitive: core.Primitive) -> Callable[..., Any] | None:
    """The function in JAX that a primitive is compiled as, if it is one. Not public: where such rules are kept."""
    for rules in (mlir._platform_specific_lowerings["cpu"], mlir._lowerings):
        rule = getattr(rules.get(primitive), "rule", None)
        if getattr(rule, "__qualname__", "").startswith(mlir.lower_fun.__qualname__ + "."):
            return inspect.getclosurevars(rule).nonlocals.get("fun")  # type: ignore[arg-type]
    return None


DECOMPOSED = "jax2onnx:"
"""The names of calls that stand for a decomposed equation start with this."""


def call_equation(eqn: Any, closed: ClosedJaxpr) -> Any:
    """An equation that calls `closed` in the place of `eqn`."""
    return eqn.replace(
        primitive=primitives_module.closed_call_p,
        params={"call_jaxpr": closed, "name": DECOMPOSED + eqn.primitive.name},
        effects=frozenset(),
    )


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


def hashable(key: Any) -> Any:
    """`key` as a hashable tree of tuples, or None if something in it cannot be hashed."""
    if isinstance(key, dict):
        key = tuple(sorted(key.items()))
    if isinstance(key, tuple | list):
        parts = tuple(map(hashable, key))
        return None if any(p is None and k is not None for p, k in zip(parts, key, strict=True)) else parts
    return key if getattr(type(key), "__hash__", None) is not None else None


_OWN_FOLDER = os.path.dirname(__file__) + os.sep


def _frames(eqn: Any) -> list[Any]:
    """The frames an equation comes from, innermost first, without JAX's own and without those outside the export."""
    frames = itertools.takewhile(
        lambda f: not f.file_name.startswith(_OWN_FOLDER), source_info_util.user_frames(eqn.source_info.traceback)
    )
    return list(frames)


def source_line(eqn: Any, *around: Any) -> str:
    """The user's own file:line that an equation comes from: the innermost one that is not in an installed library.

    If the equation itself knows of none, that of the equations `around` it, innermost first, whose bodies it is in.
    """
    frames = [frame for e in (eqn, *around) for frame in _frames(e)]
    own = [f for f in frames if f"{os.sep}site-packages{os.sep}" not in f.file_name]
    frame = next(iter(own or frames), None)
    return f"{frame.file_name}:{frame.start_line}" if frame else "unknown"


def source_stack(eqn: Any, *around: Any) -> str:
    """All the frames that an equation comes from, innermost first.

    JAX cuts off what is outside of a function that it traces by itself; the equations `around`, innermost first, know.
    """
    frames = [f"{f.file_name}:{f.start_line} ({f.function_name})" for e in (eqn, *around) for f in _frames(e)]
    return "\n".join(dict.fromkeys(frames))


def is_positive(dim: Any) -> bool:
    """Is a dimension, which may be symbolic, known to be 1 or more?"""
    try:
        return bool(dim >= 1)
    except core.InconclusiveDimensionOperation:
        return False


def is_at_least(dim: Any, low: int) -> bool:
    """Is a dimension, which may be symbolic, known to be `low` or more?"""
    try:
        return bool(dim >= low)
    except core.InconclusiveDimensionOperation:
        return False


def index_dtype(shape: Any) -> np.dtype:
    """The dtype that JAX converts the indices into an array of this shape to, in a gather that fills. Not public.

    Sizes that vary are small: JAX at such a size is what a model must agree with.
    """
    known = [d for d in shape if isinstance(d, int)]
    return np.dtype(lax_utils.int_dtype_for_shape(known, signed=True))


def non_negative(dim: Any) -> Any:
    """max(dim, 0) for a dimension that may be symbolic."""
    return max(dim, 0) if isinstance(dim, int) else core.max_dim(dim, 0)


def is_undecided(a: Any, b: Any) -> bool:
    """Is it unknown which of two dimensions, which may be symbolic, is the smaller one?"""
    try:
        bool(a < b)
    except core.InconclusiveDimensionOperation:
        return True
    return False


def smaller(a: Any, b: Any) -> Any:
    """min(a, b) of dimensions that may be symbolic."""
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else core.min_dim(a, b)


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


def trace_flat(fn: Callable[..., Sequence[Any]], avals: Sequence[Any]) -> ClosedJaxpr:
    """The jaxpr of a function from arrays to a list of arrays. Not cached: each has its own variables.

    Several times as fast as `jax.make_jaxpr`, which goes through `jax.jit`.
    """
    debug_info = core.DebugInfo("trace_flat", "", None, None)
    jaxpr, _, consts = partial_eval.trace_to_jaxpr_dynamic(
        linear_util.wrap_init(fn, debug_info=debug_info), list(avals)
    )
    return ClosedJaxpr(jaxpr, consts)


def key_data_type(aval: Any) -> core.ShapedArray | None:
    """The type of the integers behind an array of typed PRNG keys; None for any other type."""
    if isinstance(aval, core.ShapedArray) and isinstance(aval.dtype, prng.KeyTy):
        return core.physical_aval(aval)
    return None


random_clone_p = random_core.random_clone_p
iota_2x32_shape_p = prng.iota_2x32_shape_p


def gamma_sampler(keys: Any, a: Any, *, log_space: bool) -> Any:
    """JAX's definition of the primitive `random_gamma`, for all samples at once."""
    return random_core._gamma_impl(keys, a, log_space=log_space, use_vmap=True)


def threefry(key1: Any, key2: Any, x1: Any, x2: Any) -> tuple[Any, Any]:
    """JAX's definition of the primitive `threefry2x32`, without a loop: its shifts are by constants then."""
    return threefry2x32._threefry2x32_lowering(key1, key2, x1, x2, use_rolled_loops=False)


def generator_definitions() -> dict[core.Primitive, Callable[..., Any]]:
    """JAX's own definitions of the newer bit generators."""
    return {
        philox2x32.philox2x32_p: philox2x32._philox2x32_lowering,
        philox4x32.philox4x32_p: philox4x32._philox4x32_lowering,
        threefry4x32.threefry4x32_p: threefry4x32._threefry4x32_lowering,
    }


def without_references(closed: ClosedJaxpr) -> ClosedJaxpr:
    """A program that makes mutable arrays (`jax.new_ref`) as one that computes new ones, which JAX itself compiles."""
    if not any(isinstance(effect, core.InternalMutableArrayEffect) for effect in closed.effects):
        return closed
    return discharge_state(closed)


# XLA's digamma had no value at 0 before JAX 0.11.
DIGAMMA_OF_ZERO = np.nan if jax.__version_info__ < (0, 11) else -np.inf


def special_definitions() -> dict[core.Primitive, Callable[..., Any]]:
    """JAX's own definitions of special functions, which iterate until they converge: of the operands and `dtype`."""
    return {
        special.igamma_p: special.igamma_impl,
        special.igammac_p: special.igammac_impl,
        special.igamma_grad_a_p: special.igamma_grad_a_impl,
        special.regularized_incomplete_beta_p: special.regularized_incomplete_beta_impl,
    }


def product_definitions() -> dict[core.Primitive, Callable[..., Any]]:
    """JAX's own definitions, in terms of `dot_general`, of products that only some devices have as such."""
    return {
        lax_definitions.ragged_dot_general_p: lax_definitions._ragged_dot_general_impl,
        scaled_dot_p: _scaled_dot_impl,
    }


def jaxpr_of(invars: Sequence[Any], outvars: Sequence[Any], eqns: Sequence[Any]) -> ClosedJaxpr:
    """A jaxpr of some equations of another one."""
    debug_info = core.DebugInfo("jax2onnx", "outline", ("",) * len(invars), ("",) * len(outvars))
    return ClosedJaxpr(core.Jaxpr((), invars, outvars, eqns, debug_info=debug_info), ())


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
    primitive: Any, body: ClosedJaxpr, eqns: Sequence[Any], invars: Sequence[Any], outvars: Sequence[Any]
) -> Any:
    """An equation that does what `eqns` do, which are a copy of those of `body`."""
    return eqns[0].replace(
        primitive=primitive,
        params={"body": body, "equations": eqns},
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


def marked_call(name: str, body: ClosedJaxpr, invars: Sequence[Any], outvars: Sequence[Any], like: Any) -> Any:
    """An equation that calls `body`, in the place of the equation `like`."""
    return like.replace(
        primitive=primitives_module.closed_call_p,
        params={"call_jaxpr": body, "name": name},
        invars=list(invars),
        outvars=list(outvars),
        effects=frozenset(),
    )
