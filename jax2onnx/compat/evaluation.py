"""What JAX computes for a program or one of its equations, and with which types."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np
from jax._src import core
from jax._src.literals import TypedNdArray
from jax.extend.core import ClosedJaxpr

from jax2onnx.compat.programs import sub_jaxprs


def x64(enabled: bool) -> AbstractContextManager:
    """A context in which 64-bit types are on or off, for this thread only."""
    return jax.enable_x64(enabled)


@contextlib.contextmanager
def lenient() -> Iterator[None]:
    """A context in which JAX is as it is by default, however strict its user is with programs of their own: with what
    these are rewritten in, and what they give for numbers that nobody has chosen. For this thread only."""
    with (
        jax.numpy_rank_promotion("allow"),
        jax.numpy_dtype_promotion("standard"),
        jax.enable_checks(False),
        jax.debug_nans(False),
        jax.debug_infs(False),
    ):
        yield


WIDE = ("int64", "uint64", "float64", "complex128")
"""The dtypes that JAX only has if they are enabled."""


def as_array(constant: Any) -> Any:
    """A constant of a jaxpr as something NumPy understands. JAX wraps some NumPy arrays in a class of its own."""
    return constant.val if isinstance(constant, TypedNdArray) else constant


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
    with lenient():
        return jax.jit(lambda consts, *args: core.eval_jaxpr(closed.jaxpr, consts, *args))(closed.consts, *operands)
