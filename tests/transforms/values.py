"""Inputs for families: small arrays of every dtype, with and without what hurts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

BF16 = jnp.bfloat16


class Family(NamedTuple):
    """A function, and arguments for it."""

    fn: Callable[..., Any]
    args: Sequence[Any]
    argnums: Sequence[int] = ()
    """The arguments that it is differentiated by."""
    tolerance: float | None = None
    """What error is allowed, relative and absolute; else it is as small as in all tests of single features."""
    beyond_jax: Sequence[str] = ()
    """The transforms that JAX itself does not have for it."""


def floats(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Different numbers of both signs, at random places, none of them at a point where a function breaks off."""
    n = int(np.prod(shape))
    order = np.random.default_rng(n + len(shape)).permutation(n)
    return ((order * 2 + 1.52 - n) * (2.3 / max(n, 1))).reshape(shape).astype(dtype)


def ties(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Small whole numbers, most of them several times."""
    return np.round(floats(*shape)).astype(dtype)


def positive(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return (np.abs(floats(*shape)) + 0.3).astype(dtype)


def hurting(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """NaN, infinities, zeros of both signs, and ties."""
    pool = np.array([0.0, -0.0, 1, np.nan, np.inf, -np.inf, 2.5, -1, 1, 0.0, 3, -2])
    return pool[np.arange(int(np.prod(shape))) * 5 % 12].reshape(shape).astype(dtype)


def whole(*shape: int, dtype: Any = np.int32, low: int | None = None, high: int | None = None) -> np.ndarray:
    """Integers from the whole range of the dtype (its ends among them), or from a part of it."""
    rng = np.random.default_rng(int(np.prod(shape)) + len(shape))
    info = np.iinfo(dtype)
    first, last = info.min if low is None else low, info.max if high is None else high
    x = rng.integers(first, last, shape, dtype=dtype, endpoint=True)
    if x.size > 2 and low is None:
        x.flat[0], x.flat[-1] = first, last
    return x


def bools(*shape: int) -> np.ndarray:
    return whole(*shape, low=0, high=1).astype(bool)


def complexes(*shape: int, dtype: Any = np.complex64) -> np.ndarray:
    return (floats(*shape) + 1j * floats(*shape[::-1]).reshape(shape)).astype(dtype)


def index(*values: Any) -> np.ndarray:
    return np.int32(values[0] if len(values) == 1 else values)
