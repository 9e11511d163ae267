"""Cumulative products, maxima, minima and log-sum-exps.

ONNX has a cumulative sum only. These take log2(n) steps on the whole array: after step i, each element has combined
the 2^i elements up to it. That is n log n operations, but few and wide ones; a step per element would be far slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jax2onnx.decompose.registry import decomposes

T = TypeVar("T")


def shifts(n: Any, step: Callable[[Array, T], T], state: T) -> T:
    """Apply `step` with the distances 1, 2, 4, ... below `n`, as a loop."""
    length = jnp.asarray(n, np.int32)

    def body(carry: tuple[Array, T]) -> tuple[Array, T]:
        distance, state = carry
        return distance * 2, step(distance, state)

    return lax.while_loop(lambda carry: carry[0] < length, body, (jnp.int32(1), state))[1]


def accumulate(x: Array, axis: int, reverse: bool, combine: Callable, neutral: Any, unroll: bool = True) -> Array:
    """Combine each element with all before it (after it, if `reverse`). The result of the earlier ones comes first.

    A loop is used if the length is not known, or to keep the graph small if `combine` is long (`unroll=False`).
    """
    n = x.shape[axis]
    neutral = lax.full((), neutral, x.dtype)
    if isinstance(n, int) and (unroll or n <= 2):
        distance = 1
        while distance < n:
            config = [(0, 0, 0)] * x.ndim
            config[axis] = (-distance, distance, 0) if reverse else (distance, -distance, 0)
            x = combine(lax.pad(x, neutral, config), x)
            distance *= 2
        return x

    def step(distance: Array, x: Array) -> Array:
        fill = lax.broadcast(neutral, x.shape)
        padded = lax.concatenate([x, fill] if reverse else [fill, x], axis)
        return combine(lax.dynamic_slice_in_dim(padded, distance if reverse else n - distance, n, axis), x)

    return shifts(n, step, x)


def least(dtype: Any) -> Any:
    """The smallest value of a dtype."""
    if jnp.issubdtype(dtype, np.integer):
        return jnp.iinfo(dtype).min
    return False if np.dtype(dtype) == np.bool_ else -np.inf


def greatest(dtype: Any) -> Any:
    """The greatest value of a dtype."""
    if jnp.issubdtype(dtype, np.integer):
        return jnp.iinfo(dtype).max
    return True if np.dtype(dtype) == np.bool_ else np.inf


@decomposes(lax.cumprod_p)
def cumprod(x: Array, *, axis: int, reverse: bool) -> Array:
    return accumulate(x, axis, reverse, lax.mul, 1)


@decomposes(lax.cummax_p)
def cummax(x: Array, *, axis: int, reverse: bool) -> Array:
    return accumulate(x, axis, reverse, lax.max, least(x.dtype))


@decomposes(lax.cummin_p)
def cummin(x: Array, *, axis: int, reverse: bool) -> Array:
    return accumulate(x, axis, reverse, lax.min, greatest(x.dtype))


@decomposes(lax.cumlogsumexp_p)
def cumlogsumexp(x: Array, *, axis: int, reverse: bool) -> Array:
    return accumulate(x, axis, reverse, jnp.logaddexp, -np.inf, unroll=False)
