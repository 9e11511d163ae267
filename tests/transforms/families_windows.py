"""Sorting, reductions, windows and cumulative functions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.transforms.values import BF16, Family, bools, complexes, floats, hurting, ties, whole

WINDOW = {"window_dimensions": (2, 3), "window_strides": (1, 2), "padding": ((1, 0), (2, 1))}
DILATED = WINDOW | {"base_dilation": (2, 1), "window_dilation": (1, 2)}
CUT = WINDOW | {"padding": ((-1, 1), (0, -1))}


def windows(computation: Any, init: float, **params: Any) -> Any:
    return lambda x: lax.reduce_window(x, np.asarray(init, x.dtype), computation, **(params or WINDOW))


def larger(a: Any, b: Any) -> Any:
    """Of pairs of a number and its name, the one with the larger number."""
    return lax.max(a[0], b[0]), lax.select(a[0] >= b[0], a[1], b[1])


def cumulative(axis: int = 0, *, reverse: bool = False, logs: bool = False) -> Any:
    functions = [lax.cumsum, lax.cumprod, lax.cummax, lax.cummin, *[lax.cumlogsumexp] * logs]
    return lambda x: [f(x, axis, reverse) for f in functions]


SORTS = {
    "sort": Family(lambda x: (lax.sort(x), lax.sort(x, dimension=0)), [floats(3, 4)], [0]),
    "sort with NaN": Family(lambda x: (lax.sort(x), jnp.argsort(x, 0)), [hurting(3, 4, dtype=np.float64)], [0]),
    "sort by two keys": Family(
        lambda x, y, z: lax.sort((x, y, z), dimension=0, num_keys=2),
        [ties(4, 3), whole(4, 3, low=0, high=1), floats(4, 3, dtype=np.float64)],
        [0, 2],
    ),
    "sort bfloat16 and uint8": Family(
        lambda x, y: lax.sort((x, y), num_keys=2, is_stable=False), [ties(6, dtype=BF16), whole(6, dtype=np.uint8)], [0]
    ),
    "sort bool and uint64": Family(
        lambda x, y: (lax.sort((x, y), num_keys=1), lax.sort(y)), [bools(2, 5), whole(2, 5, dtype=np.uint64)]
    ),
    "sort complex": Family(lambda x: (lax.sort(x), jnp.argsort(x)), [complexes(5)]),
    "sort nothing": Family(lambda x: (lax.sort(x, dimension=0), lax.sort((x, x), num_keys=2)), [floats(0, 3)], [0]),
    "sort one": Family(lambda x: (lax.sort(x), jnp.argsort(x)), [floats(3, 1)], [0]),
    "sort downwards": Family(
        lambda x: (jnp.sort(x, descending=True), jnp.argsort(x, axis=0, descending=True)), [ties(4, 3, dtype=BF16)], [0]
    ),
    "lexsort": Family(lambda x, y: jnp.lexsort((x, y)), [whole(6, low=0, high=2), ties(6)]),
    "top_k": Family(lambda x: (lax.top_k(x, 3), lax.top_k(x, 0)), [ties(3, 6)], [0]),
    "top_k of NaN": Family(lambda x: lax.top_k(x, 4), [hurting(2, 6)]),
    "top_k of integers": Family(lambda x: lax.top_k(x, 2), [whole(3, 6, dtype=np.uint64)]),
    "approximate top_k": Family(
        lambda x: (lax.approx_max_k(x, 2), lax.approx_min_k(x, 2, reduction_dimension=0)), [floats(3, 6)], [0]
    ),
    "quantiles": Family(
        lambda x, q: (jnp.quantile(x, q, 0), jnp.median(x, 1), jnp.percentile(x, 30, 0, method="nearest")),
        [floats(5, 4, dtype=np.float64), np.array([0.1, 0.5])],
        [0, 1],
    ),
    "partition": Family(lambda x: jnp.partition(x, 2), [floats(3, 6)], [0]),
}

WINDOWS = {
    "sums of windows": Family(windows(lax.add, 0), [floats(4, 6)], [0]),
    "sums of dilated windows": Family(windows(lax.add, 0, **DILATED), [floats(4, 6)], [0]),
    "sums of windows, padded negatively": Family(windows(lax.add, 0, **CUT), [floats(5, 6, dtype=np.float64)], [0]),
    "sums of no windows": Family(windows(lax.add, 0), [floats(0, 6)], [0]),
    "sums of windows of int8": Family(windows(lax.add, 0), [whole(4, 6, dtype=np.int8)]),
    "sums of windows of bfloat16": Family(windows(lax.add, 0), [floats(4, 6, dtype=BF16)], [0], 0.1),
    "maxima of windows": Family(windows(lax.max, -np.inf), [floats(4, 6)], [0]),
    "maxima of windows with NaN": Family(windows(lax.max, -np.inf), [hurting(4, 6)]),
    "maxima of dilated windows": Family(windows(lax.max, -np.inf, **DILATED), [floats(4, 6)]),
    "maxima of windows, padded negatively": Family(windows(lax.max, -np.inf, **CUT), [floats(5, 6)]),
    "maxima of windows of int64": Family(windows(lax.max, -(2**63)), [whole(4, 6, dtype=np.int64)]),
    "minima of windows": Family(windows(lax.min, np.inf), [floats(4, 6, dtype=np.float64)], [0]),
    "windows of other computations": Family(
        lambda x: [
            windows(lax.mul, 1)(x),
            windows(jnp.logaddexp, -np.inf)(x),
            windows(lambda a, b: a + b + a * b, 0, **DILATED)(x),
            windows(lax.max, 1.0)(x),
        ],
        [floats(4, 6)],
    ),
    "windows of bits": Family(
        lambda x: [windows(lax.bitwise_and, -1)(x), windows(lax.bitwise_xor, 0, **DILATED)(x)], [whole(4, 6)]
    ),
    "windows of pairs": Family(
        lambda x, i: lax.reduce_window((x, i), (np.float32(-np.inf), np.int32(0)), larger, (2,), (1,), "VALID"),
        [floats(6), whole(6)],
    ),
    "average pooling": Family(
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "SAME") / 4, [floats(1, 5, 4, 2)], [0]
    ),
    "max pooling": Family(
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 2, 1), (1, 2, 2, 1), "SAME"), [floats(1, 5, 4, 2)], [0]
    ),
    "max pooling of ties": Family(
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (3,), (1,), "SAME"), [ties(9, dtype=np.float64)], [0]
    ),
}

REDUCTIONS = {
    "sums and products": Family(
        lambda x: (x.sum(0), x.prod(1), x.mean(), jnp.var(x, 0, ddof=1), jax.nn.logsumexp(x, 1)), [floats(3, 4)], [0]
    ),
    "sums and products of nothing": Family(lambda x: (x.sum(0), x.prod(1), x.sum()), [floats(3, 0)], [0]),
    "maxima and minima of ties": Family(lambda x: (x.max(0), x.min(1)), [ties(3, 4, dtype=np.float64)], [0]),
    "reductions of NaN": Family(
        lambda x: (x.max(0), x.min(1), x.sum(0), x.prod(1), jnp.argmax(x, 1), jnp.argmin(x, 0), jnp.nansum(x, 0)),
        [hurting(3, 4)],
    ),
    "reductions of bfloat16": Family(lambda x: (x.max(0), x.min(1), x.sum(0)), [floats(3, 4, dtype=BF16)], [0], 0.05),
    "reductions of uint64": Family(
        lambda x: (x.sum(0), x.prod(1), x.max(0), jnp.argmax(x, 1)), [whole(3, 4, dtype=np.uint64)]
    ),
    "reductions of int8": Family(
        lambda x: (
            lax.reduce(x, np.int8(0), lax.add, (0,)),
            lax.reduce(x, np.int8(1), lax.mul, (1,)),
            lax.reduce(x, np.int8(0), lax.bitwise_xor, (0, 1)),
            lax.argmin(x, 0, np.uint8),
        ),
        [whole(3, 4, dtype=np.int8)],
    ),
    "reductions of bool": Family(lambda x: (x.all(0), x.any(1), x.sum(0), jnp.argmax(x, 0)), [bools(3, 4)]),
    "any computation": Family(
        lambda x: (
            lax.reduce(x, np.float32(0), lambda a, b: a + b + a * b, (1,)),
            lax.reduce(x, np.float32(-np.inf), jnp.logaddexp, (0, 1)),
        ),
        [floats(3, 4)],
    ),
    "several operands": Family(
        lambda x, i: lax.reduce((x, i), (np.float32(-np.inf), np.int32(0)), larger, (1,)), [ties(3, 5), whole(3, 5)]
    ),
    "reduce_precision": Family(
        lambda x: (lax.reduce_precision(x, 4, 3), lax.reduce_precision(x, 8, 10)), [floats(3, 4, dtype=np.float64)], [0]
    ),
    "cumulative": Family(cumulative(logs=True), [floats(5, 3)], [0]),
    "cumulative, backwards": Family(cumulative(1, reverse=True, logs=True), [floats(2, 4, dtype=np.float64)], [0]),
    "cumulative, with NaN": Family(cumulative(1, logs=True), [hurting(2, 6)]),
    "cumulative, of nothing": Family(cumulative(logs=True), [floats(0, 2)], [0]),
    "cumulative, of one": Family(cumulative(logs=True), [floats(1, 2)], [0]),
    "cumulative, of bfloat16": Family(lambda x: [lax.cumsum(x), lax.cummax(x)], [floats(5, 2, dtype=BF16)], [0], 0.1),
    "cumulative, of int8": Family(cumulative(1), [whole(3, 5, dtype=np.int8)]),
    "cumulative, of uint64": Family(cumulative(1, reverse=True), [whole(3, 5, dtype=np.uint64)]),
    "associative scan": Family(lambda x: lax.associative_scan(lambda a, b: a + b + a * b, x), [floats(5, 2)], [0]),
}

FAMILIES = SORTS | WINDOWS | REDUCTIONS
