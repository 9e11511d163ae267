"""Compare a program that was rewritten without some types with the original."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.core import eval_jaxpr
from jax.extend.core import ClosedJaxpr, subjaxprs


def packed(x: Any) -> np.ndarray:
    """A value as it crosses the boundary of a model: complex numbers as pairs, keys as their data."""
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(x))
    x = np.asarray(x)
    return np.stack([x.real, x.imag], -1) if np.iscomplexobj(x) else x


def types_in(jaxpr: Any) -> set[Any]:
    """The dtypes of all values of a jaxpr, in sub-jaxprs too."""
    jaxpr = jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
    variables = [*jaxpr.constvars, *jaxpr.invars, *jaxpr.outvars]
    variables += [v for eqn in jaxpr.eqns for v in (*eqn.invars, *eqn.outvars)]
    found = {v.aval.dtype for v in variables}
    return found.union(*map(types_in, subjaxprs(jaxpr)))


def evaluate(closed: ClosedJaxpr, *args: Any) -> list[np.ndarray]:
    """The results of a rewritten program for the original arguments."""
    return compiled(closed)(*args)


def compiled(closed: ClosedJaxpr) -> Callable[..., list[np.ndarray]]:
    """A rewritten program that takes the original arguments."""
    quick = {"xla_backend_optimization_level": 0}  # compiling takes longer than running
    program = jax.jit(lambda *xs: eval_jaxpr(closed.jaxpr, closed.consts, *xs), compiler_options=quick)

    def run(*args: Any) -> list[np.ndarray]:
        return [np.asarray(x) for x in program(*(packed(x) for x in jax.tree.leaves(args)))]

    return run


def assert_same(rewrite: Callable, fn: Callable, *args: Any, rtol: float = 0, atol: float = 0) -> ClosedJaxpr:
    """The rewritten program computes what `fn` computes, without the types that the rewrite takes out."""
    closed = rewrite(jax.make_jaxpr(fn)(*args))
    assert not any(jax.dtypes.issubdtype(t, jax.dtypes.extended) or np.dtype(t).kind == "c" for t in types_in(closed))
    expected = [packed(x) for x in jax.tree.leaves(jax.jit(fn)(*args))]
    actual = evaluate(closed, *args)
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        assert (a.shape, a.dtype) == (e.shape, e.dtype)
        np.testing.assert_allclose(a, e, rtol=rtol, atol=atol)
    return closed
