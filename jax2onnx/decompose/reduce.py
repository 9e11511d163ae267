"""Reductions with any computation, also over several operands at once.

JAX asks of a reduction that its computation is associative and its initial value an identity. So elements can be
combined in any grouping, but they keep their order: the computation need not be commutative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array, lax
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun

from jax2onnx.decompose.cumulative import greatest, least, shifts
from jax2onnx.decompose.registry import decomposes

Combine = Callable[[Sequence[Array], Sequence[Array]], Sequence[Array]]

# The computations that have a reduction of their own.
MONOIDS: dict[Primitive, Callable] = {
    lax.add_p: lax.reduce_sum,
    lax.mul_p: lax.reduce_prod,
    lax.max_p: lax.reduce_max,
    lax.min_p: lax.reduce_min,
    lax.and_p: lax.reduce_and,
    lax.or_p: lax.reduce_or,
    lax.xor_p: lax.reduce_xor,
}


def identity(monoid: Primitive, dtype: Any) -> np.ndarray:
    """The value that changes nothing when combined by `monoid`."""
    if monoid is lax.mul_p:
        return np.ones((), dtype)
    if monoid is lax.and_p:
        return np.invert(np.zeros((), dtype))
    if monoid is lax.max_p:
        return np.array(least(dtype), dtype)
    if monoid is lax.min_p:
        return np.array(greatest(dtype), dtype)
    return np.zeros((), dtype)


def monoid_of(jaxpr: Any) -> Primitive | None:
    """The primitive that this computation consists of, if it combines its two arguments by a single one of MONOIDS."""
    if len(jaxpr.eqns) != 1 or len(jaxpr.invars) != 2:
        return None
    [eqn], arguments = jaxpr.eqns, list(jaxpr.invars)
    plain = list(eqn.invars) in (arguments, arguments[::-1]) and list(eqn.outvars) == list(jaxpr.outvars)
    return eqn.primitive if plain and eqn.primitive in MONOIDS else None


def elementwise(computation: ClosedJaxpr) -> Combine:
    """A computation on scalars, applied to arrays element by element."""

    def combine(left: Sequence[Array], right: Sequence[Array]) -> Sequence[Array]:
        fn = jaxpr_as_fun(computation)
        for _ in range(left[0].ndim):
            fn = jax.vmap(fn)
        return fn(*left, *right)

    return combine


def fold(xs: Sequence[Array], combine: Combine) -> list[Array]:
    """Combine the rows of `xs` (arrays with equal, known, positive length) pair by pair, until one is left."""
    xs, n = list(xs), xs[0].shape[0]
    while n > 1:
        even, odd = ([lax.slice_in_dim(x, i, n - n % 2, 2) for x in xs] for i in (0, 1))
        pairs = list(combine(even, odd))
        if n % 2:
            pairs = [lax.concatenate([p, lax.slice_in_dim(x, n - 1, n)], 0) for p, x in zip(pairs, xs, strict=True)]
        xs, n = pairs, n - n // 2
    return [lax.squeeze(x, (0,)) for x in xs]


def fold_by_doubling(xs: Sequence[Array], combine: Combine) -> list[Array]:
    """As `fold`, for a length that is not known: after step i each row has combined the 2^i rows up to it."""
    n = xs[0].shape[0]

    def step(distance: Array, xs: Sequence[Array]) -> list[Array]:
        before = [lax.dynamic_slice_in_dim(lax.concatenate([x, x], 0), n - distance, n) for x in xs]
        row = lax.iota(np.int32, n)
        both = combine(before, xs)
        keep = [lax.broadcast_in_dim(row >= distance, x.shape, (0,)) for x in xs]
        return [lax.select(k, b, x) for k, b, x in zip(keep, both, xs, strict=True)]

    xs = shifts(n, step, list(xs))
    return [lax.squeeze(lax.slice_in_dim(x, n - 1, n), (0,)) for x in xs]


def reduce_axes(
    operands: Sequence[Array], inits: Sequence[Array], axes: Sequence[int], combine: Combine
) -> list[Array]:
    """`inits` combined with all elements along `axes`, in row-major order."""
    kept = [i for i in range(operands[0].ndim) if i not in axes]
    shape = operands[0].shape
    rest = tuple(shape[i] for i in kept)
    n = math.prod(shape[i] for i in sorted(axes))
    inits = [lax.broadcast(init, rest) for init in inits]
    if isinstance(n, int) and n == 0:
        return inits
    rows = [lax.reshape(lax.transpose(x, (*sorted(axes), *kept)), (n, *rest)) for x in operands]
    if isinstance(n, int):
        return list(combine(inits, fold(rows, combine)))
    first = [lax.expand_dims(init, (0,)) for init in inits]
    return fold_by_doubling([lax.concatenate([i, x], 0) for i, x in zip(first, rows, strict=True)], combine)


@decomposes(lax.reduce_p)
def reduce(*args: Array, jaxpr: ClosedJaxpr, dimensions: Sequence[int], **_) -> list[Array]:
    """A standard reduction if the computation is one, else a fold over the reduced elements."""
    operands, inits = args[: len(args) // 2], args[len(args) // 2 :]
    monoid = monoid_of(jaxpr.jaxpr)
    if monoid is not None:
        out = MONOIDS[monoid](operands[0], dimensions)
        return [monoid.bind(lax.broadcast(inits[0], out.shape), out)]
    return reduce_axes(operands, inits, dimensions, elementwise(jaxpr))
