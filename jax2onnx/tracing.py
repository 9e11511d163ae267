"""The trace stage: a callable and its input specs become a jaxpr, with names for what goes in and out."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr

from jax2onnx import compat, valueless
from jax2onnx.dimensions import is_static
from jax2onnx.errors import InputError
from jax2onnx.inconclusive import Inconclusive, explain, is_about_dimensions, users_line
from jax2onnx.paths import tree_paths

log = logging.getLogger("jax2onnx")


@dataclass(frozen=True)
class Program:
    """A traced program."""

    jaxpr: ClosedJaxpr
    input_names: list[str]
    output_names: list[str]
    inputs: Any  # (positional, keyword) arguments as pytrees of specs
    outputs: Any  # a pytree of specs


def trace(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Program:
    """Trace `fn` on argument specs and keyword arguments.

    Keyword arguments that `fn` cannot take as traced values (it branches on them, say) are baked in.
    """
    _check_arity(fn, args, kwargs)
    try:
        return _trace_or_bake(fn, args, kwargs)
    except valueless.NEEDS_A_VALUE as error:
        raise InputError(valueless.explain(error)) from error


def _trace_or_bake(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Program:
    traced = {name: value for name, value in kwargs.items() if _can_be_input(value)}
    baked = {name: value for name, value in kwargs.items() if name not in traced}
    try:
        return _trace(fn, args, traced, baked)
    except Exception:  # the function says in its own way what it does not take: assertions, type checkers, ...
        if not traced:
            raise
    # Find out which of them have to be known: bake in those that fail when they are traced alone.
    for name in list(traced):
        others = {k: v for k, v in kwargs.items() if k != name}
        try:
            _trace(fn, args, {name: kwargs[name]}, others)
        except Exception:
            log.info("input_params[%r] is baked into the model: the function needs its value while it is traced", name)
            baked[name] = traced.pop(name)
    return _trace(fn, args, traced, baked)


def _can_be_input(value: Any) -> bool:
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(
        isinstance(v, bool | int | float | complex | np.generic | np.ndarray | jax.Array | jax.ShapeDtypeStruct)
        for v in leaves
    )


def _trace(fn: Callable[..., Any], args: Sequence[Any], traced: Mapping[str, Any], baked: Mapping[str, Any]) -> Program:
    def flat_fn(args: Any, kwargs: Any) -> Any:
        outputs = fn(*args, **kwargs, **baked)
        _check_outputs(fn, outputs)
        return outputs

    specs = (tuple(args), dict(traced))
    specs = jax.tree.map(spec_of, specs)
    try:
        jaxpr, out_shape = jax.make_jaxpr(flat_fn, return_shape=True)(*specs)
    except Inconclusive as error:
        raise InputError(explain(error, users_line(error))) from error
    except (TypeError, ValueError, AttributeError, NotImplementedError, IndexError, AssertionError) as error:
        some_are_symbolic = not is_static(d for spec in jax.tree.leaves(specs) for d in spec.shape)
        if not is_about_dimensions(error, some_are_symbolic=some_are_symbolic):
            raise
        raise InputError(explain(error, users_line(error))) from error
    _check_constants(jaxpr)
    if not jaxpr.out_avals:
        raise InputError("The function returns no arrays, and a model without outputs cannot be run.")
    return Program(
        jaxpr=jaxpr,
        input_names=_input_names(fn, specs[0], specs[1]),
        output_names=_output_names(out_shape),
        inputs=specs,
        outputs=out_shape,
    )


def _check_constants(closed: ClosedJaxpr) -> None:
    """A traced value of another program is none of this one, and JAX does not notice where it becomes a constant."""
    for var, constant in zip(closed.jaxpr.constvars, closed.consts, strict=True):
        if isinstance(constant, jax.core.Tracer):
            lines = [compat.sources.source_line(eqn) for eqn in closed.eqns if any(v is var for v in eqn.invars)]
            where = f" at {lines[0]}" if lines else " as a result"
            raise InputError(
                f"The function uses a traced array{where} ({var.aval.str_short()}) that was put aside where another"
                " program was traced: in an earlier call, or in the body of a scan, a cond or a jit. Outside of that"
                " it has no value: return it from there, and do not keep it in a list, an attribute or a global."
            )


def spec_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """The type of a value. A Python number is weakly typed: what it is combined with keeps its dtype."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    dtype, weak_type = jax.dtypes.result_type(leaf, return_weak_type_flag=True)
    return jax.ShapeDtypeStruct(np.shape(leaf), dtype, weak_type=weak_type)


def _check_outputs(fn: Callable[..., Any], outputs: Any) -> None:
    for path, leaf in zip(tree_paths("", outputs), jax.tree.leaves(outputs), strict=True):
        try:
            jax.typeof(leaf)
        except (TypeError, ValueError):
            where = f" at {path}" if path else ""
            raise InputError(
                f"{_name_of(fn)} returns {leaf!r}{where}, a {type(leaf).__name__}. A model has arrays and numbers as"
                " outputs: return those alone."
            ) from None


def _name_of(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__name__", type(fn).__name__))


def _check_arity(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    if not callable(fn):
        raise InputError(f"fn is not callable: it is a {type(fn).__name__}.")
    signature = _signature(fn)
    if signature is None:
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InputError(
            f"{_name_of(fn)}{signature} cannot be called with {len(args)} inputs"
            f"{' and the input_params ' + ', '.join(kwargs) if kwargs else ''}: {error}."
            " Give one entry of inputs for each positional argument."
        ) from None


def _signature(fn: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):  # a builtin without a signature
        return None


def _input_names(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """The names of the inputs: the arguments' names and the paths inside them, `batch/image`."""
    named = [*zip(argument_names(fn, len(args)), args, strict=True), *sorted(kwargs.items())]
    return [path for name, tree in named for path in tree_paths(name, tree)]


def argument_names(fn: Callable[..., Any], count: int) -> list[str]:
    """The names of the first positional arguments of a function, `args_2` for those of `*args`."""
    signature = _signature(fn)
    parameters = list(signature.parameters.values()) if signature else []
    star = next((p.name for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL), "in")
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [names[i] if i < len(names) else f"{star}_{i}" for i in range(count)]


def _output_names(out: Any) -> list[str]:
    names = tree_paths("", out)
    return [_number(name) for name in names]


def _number(path: str) -> str:
    if not path:
        return "output"
    return f"output_{path}" if path.split("/")[0].isdigit() else path
