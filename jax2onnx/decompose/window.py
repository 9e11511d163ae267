"""Reductions over sliding windows: with any computation, dilation, padding, stride, dtype and number of dimensions.

A window is reduced one dimension at a time, the last one first: that keeps the row-major order of its elements. In one
dimension, a window of size 2w is two windows of size w, and one of size w + 1 is a window and an element, so that the
number of operations grows with the logarithm of the size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.export import is_symbolic_dim
from jax.extend.core import ClosedJaxpr, Primitive

from jax2onnx import compat
from jax2onnx.decompose.reduce import MONOIDS, Combine, elementwise, identity, monoid_of
from jax2onnx.decompose.registry import decomposes
from jax2onnx.padding import auto_pad, is_known


class Windows(NamedTuple):
    """How windows lie over an array: one entry per dimension."""

    sizes: Sequence[int]
    strides: Sequence[int]
    padding: Sequence[tuple[int, int]]
    base_dilation: Sequence[int]
    window_dilation: Sequence[int]

    @property
    def pad_config(self) -> list[tuple[int, int, int]]:
        """The padding and the base dilation, as `lax.pad` takes them."""
        return [(low, high, d - 1) for (low, high), d in zip(self.padding, self.base_dilation, strict=True)]


def windows(
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
    **_: Any,
) -> Windows:
    """The windows that the parameters of a primitive describe."""
    ones = (1,) * len(window_dimensions)
    return Windows(window_dimensions, window_strides, padding, base_dilation or ones, window_dilation or ones)


def fold_windows(xs: Sequence[Array], neutral: Sequence[Any], combine: Combine, w: Windows) -> list[Array]:
    """Combine the elements of each window. `neutral` fills the padding and changes nothing when combined."""
    if any(config != (0, 0, 0) for config in w.pad_config):
        xs = _pad(xs, neutral, w.pad_config)
    for axis in reversed(range(xs[0].ndim)):
        size, stride, dilation = w.sizes[axis], w.strides[axis], w.window_dilation[axis]
        extent = (size - 1) * dilation + 1
        n = xs[0].shape[axis]
        if any(is_symbolic_dim(d) for d in (size, stride, dilation)):
            xs = _fold_symbolic_windows_along(axis, xs, neutral, combine, size, stride, dilation)
        elif isinstance(n, int) and n < extent:
            xs = [lax.slice_in_dim(x, 0, 0, axis=axis) for x in xs]
        elif compat.dims.is_positive(n - extent + 1):
            xs = _fold_windows_along(axis, xs, combine, size, stride, dilation)
        else:  # there may be no window at all: make sure of one, and take as many as there are
            longer = _pad(xs, neutral, [(0, extent - 1 if i == axis else 0, 0) for i in range(xs[0].ndim)])
            count = compat.dims.non_negative((n - extent) // stride + 1)
            xs = _fold_windows_along(axis, longer, combine, size, stride, dilation)
            xs = [_take(x, lax.iota(np.int32, count), axis) for x in xs]
    return list(xs)


def _pad(xs: Sequence[Array], values: Sequence[Any], config: Sequence[tuple[int, int, int]]) -> list[Array]:
    return [lax.pad(x, jnp.asarray(value, x.dtype), config) for x, value in zip(xs, values, strict=True)]


def _take(x: Array, places: Array, axis: int) -> Array:
    return x.at[(slice(None),) * axis + (places,)].get(mode="promise_in_bounds")


def _fold_symbolic_windows_along(
    axis: int, xs: Sequence[Array], neutral: Sequence[Any], combine: Combine, size: Any, stride: Any, dilation: Any
) -> Sequence[Array]:
    """The windows in one dimension, if their size is known only when the model runs: bit by bit of that size."""
    count = compat.dims.non_negative((xs[0].shape[axis] - (size - 1) * dilation - 1) // stride + 1)
    xs = _pad(xs, neutral, [(0, int(i == axis), 0) for i in range(xs[0].ndim)])  # there is an element
    last = xs[0].shape[axis] - 1
    bits, apart = jnp.asarray(size, np.int32), jnp.asarray(dilation, np.int32)

    def later(
        xs: Sequence[Array], by: Array
    ) -> list[Array]:  # what is `by` places further on; no window goes beyond the last
        at = jnp.minimum(lax.iota(np.int32, last + 1) + jnp.minimum(by, last), last)
        return [_take(x, at, axis) for x in xs]

    def next_bit(state: tuple[Any, ...]) -> tuple[Any, ...]:
        done, reach, part, power = state  # `part` has combined `done` elements, `power` has combined `reach`
        following = later(power, done * apart)
        longer = combine(part, following)
        part = [
            lax.select((bits & reach) == 0, old, lax.select(done == 0, first, new))
            for old, first, new in zip(part, following, longer, strict=True)
        ]
        return done + (bits & reach), 2 * reach, part, list(combine(power, later(power, reach * apart)))

    start = (jnp.int32(0), jnp.int32(1), list(xs), list(xs))
    *_, part, _ = lax.while_loop(lambda state: state[1] <= bits, next_bit, start)
    return [_take(x, lax.iota(np.int32, count) * stride, axis) for x in part]


def _fold_windows_along(
    axis: int, xs: Sequence[Array], combine: Combine, size: int, stride: int, dilation: int
) -> Sequence[Array]:
    """The windows in one dimension, of which there is at least one."""
    count = (xs[0].shape[axis] - (size - 1) * dilation - 1) // stride + 1

    def strided(xs: Sequence[Array], start: int) -> list[Array]:
        return [_slice(x, axis, start, start + (count - 1) * stride + 1, stride) for x in xs]

    def joined(left: Sequence[Array], right: Sequence[Array], start: int, done: bool) -> Sequence[Array]:
        if done:
            return combine(strided(left, 0), strided(right, start))
        n = right[0].shape[axis] - start
        return combine([_slice(x, axis, 0, n, 1) for x in left], [_slice(x, axis, start, start + n, 1) for x in right])

    if size == 1:
        return strided(xs, 0)
    part, reach = xs, 1  # each element of `part` combines `reach` elements of `xs`
    for bit in bin(size)[3:]:
        part = joined(part, part, reach * dilation, 2 * reach == size)
        reach *= 2
        if bit == "1":
            part = joined(part, xs, reach * dilation, reach + 1 == size)
            reach += 1
    return part


def _slice(x: Array, axis: int, start: int, stop: Any, stride: int) -> Array:
    if isinstance(start, int) and start == 0 and stop == x.shape[axis] and stride == 1:
        return x
    return lax.slice_in_dim(x, start, stop, stride, axis)


def skipping(combine: Combine) -> Combine:
    """`combine` on operands whose last one says which elements exist: others are not combined."""

    def skip(left: Sequence[Array], right: Sequence[Array]) -> list[Array]:
        *left, has_left = left
        *right, has_right = right
        either = [lax.select(has_left, a, b) for a, b in zip(left, right, strict=True)]
        both = zip(combine(left, right), either, strict=True)
        return [*(lax.select(has_left & has_right, c, e) for c, e in both), has_left | has_right]

    return skip


@decomposes(lax.reduce_window_p)
def reduce_window(*args: Array, jaxpr: Any, consts: Sequence, **params: Any) -> list[Array]:
    """Windows with any computation, over one or several operands at once. Padding is skipped, as XLA does."""
    operands, inits = args[: len(args) // 2], args[len(args) // 2 :]
    w = windows(**params)
    computation = ClosedJaxpr(jaxpr, consts)
    combine, monoid = elementwise(computation), monoid_of(computation.jaxpr)
    if monoid is not None:
        return _after(inits, [_monoid_windows(monoid)(operands[0], **params)], combine)
    return fold_windows_from(inits, operands, combine, w)


def fold_windows_from(inits: Sequence[Array], operands: Sequence[Array], combine: Combine, w: Windows) -> list[Array]:
    """Combine the initial values with the elements of each window that are not padding."""
    if all(config == (0, 0, 0) for config in w.pad_config):
        return _after(inits, fold_windows(operands, inits, combine, w), combine)
    exists = lax.full(operands[0].shape, True)
    *folded, any_exists = fold_windows([*operands, exists], [*inits, False], skipping(combine), w)
    starts = [lax.broadcast(init, any_exists.shape) for init in inits]
    return [lax.select(any_exists, *pair) for pair in zip(combine(starts, folded), starts, strict=True)]


def _after(inits: Sequence[Array], folded: Sequence[Array], combine: Combine) -> list[Array]:
    return list(combine([lax.broadcast(i, f.shape) for i, f in zip(inits, folded, strict=True)], folded))


def _elementwise(primitive: Primitive) -> Combine:
    return lambda left, right: [primitive.bind(*left, *right)]


def _monoid_windows(monoid: Primitive) -> Callable[..., Array]:
    def reduction(x: Array, **params: Any) -> Array:
        w = windows(**params)
        if whole := _whole_axes(x.shape, w):
            x = lax.expand_dims(MONOIDS[monoid](x, whole), whole)
            sizes, strides = ([1 if i in whole else d for i, d in enumerate(along)] for along in (w.sizes, w.strides))
            w = w._replace(sizes=sizes, strides=strides)
        return fold_windows([x], [identity(monoid, x.dtype)], _elementwise(monoid), w)[0]

    return reduction


def _whole_axes(shape: Sequence[Any], w: Windows) -> list[int]:
    """The axes of symbolic size that have one window over all of it."""
    along = zip(shape, w.sizes, w.pad_config, w.window_dilation, strict=True)
    return [
        i
        for i, (n, size, pad, dilation) in enumerate(along)
        if is_symbolic_dim(size) and size == n and pad == (0, 0, 0) and dilation == 1
    ]


def is_no_pool(avals: Sequence[Any], params: dict[str, Any]) -> bool:
    """Whether an ONNX pooling operator cannot do it.

    They pool floats over one to three axes, and every window must touch the operand.
    """
    (x,) = avals
    w = windows(**params)
    if not all(isinstance(d, int) and d > 0 for d in w.sizes):
        return True
    pooled = [i for i, (size, stride) in enumerate(zip(w.sizes, w.strides, strict=True)) if (size, stride) != (1, 1)]
    padded = [i for i, pair in enumerate(w.padding) if any(not isinstance(p, int) or p != 0 for p in pair)]
    along = zip(x.shape, w.sizes, w.window_dilation, w.padding, strict=True)
    same = None if is_known(w.padding) else auto_pad(x.shape, w.sizes, w.strides, w.window_dilation, w.padding)
    return not (
        x.dtype in (np.float32, np.float64, np.float16, jnp.bfloat16)
        and 1 <= len(pooled) <= 3
        and set(padded) <= set(pooled)
        and (same is not None or all(_windows_touch(*axis) for axis in along))
        and all(d == 1 for d in w.base_dilation)
    )


def _windows_touch(n: Any, size: int, dilation: int, padding: tuple[Any, Any]) -> bool:
    """Whether there is a window along an axis of size n, and each has an element that is not padding."""
    reach = (size - 1) * dilation
    if not all(isinstance(p, int) and 0 <= p <= reach for p in padding) or (isinstance(n, int) and n == 0):
        return False
    if isinstance(n, int) and n + sum(padding) <= reach:
        return False
    return (
        not any(padding) or dilation == 1 or compat.dims.is_at_least(n, dilation)
    )  # else it could step over the operand


def is_no_average_pool(avals: Sequence[Any], params: dict[str, Any]) -> bool:
    """Whether AveragePool cannot do it: it has no dilation before opset 19, and float64 only with known padding."""
    w = windows(**params)
    if avals[0].dtype == np.float64 and not is_known(w.padding):
        return True
    return is_no_pool(avals, params) or any(d != 1 for d in w.window_dilation)


decomposes(lax.reduce_window_sum_p, when=is_no_average_pool)(_monoid_windows(lax.add_p))
decomposes(lax.reduce_window_max_p, when=is_no_pool)(_monoid_windows(lax.max_p))
decomposes(lax.reduce_window_min_p, when=is_no_pool)(_monoid_windows(lax.min_p))


def _keep(select: Primitive) -> Combine:
    """Of (key, value, extreme key), the left one if its key is selected over all on the right, else the right one.

    Elements are selected one after the other, and no comparison with a NaN holds: what follows a NaN wins over all
    before it. That is why floats have the third entry, the largest or smallest key, or a NaN if there is one.
    """
    extreme = lax.max if select is lax.ge_p else lax.min

    def combine(left: Sequence[Array], right: Sequence[Array]) -> list[Array]:
        keep = select.bind(left[0], right[2 if len(right) == 3 else 0])
        chosen = [lax.select(keep, a, b) for a, b in zip(left[:2], right[:2], strict=True)]
        return [*chosen, *(extreme(a, b) for a, b in zip(left[2:], right[2:], strict=True))]

    return combine


def _candidates(keys: Array, values: Array) -> list[Array]:
    return [keys, values, keys] if jnp.issubdtype(keys.dtype, jnp.floating) else [keys, values]


def _loser(select: Primitive, dtype: Any) -> np.ndarray:
    """The key that every other key is selected over."""
    return identity(lax.max_p if select is lax.ge_p else lax.min_p, dtype)


@decomposes(lax.select_and_gather_add_p)
def select_and_gather_add(tangents: Array, operand: Array, *, select_prim: Primitive, **params: Any) -> Array:
    """The tangent of the element that is selected in each window of the operand; 0 if that is none."""
    candidates = _candidates(operand, tangents)
    loser = _loser(select_prim, operand.dtype)
    none = [jnp.asarray(value, x.dtype) for value, x in zip((loser, 0, loser), candidates, strict=False)]
    return fold_windows_from(none, candidates, _keep(select_prim), windows(**params))[1]


@decomposes(lax.select_and_scatter_add_p)
def select_and_scatter_add(source: Array, operand: Array, *, select_prim: Primitive, **params: Any) -> Array:
    """Add each element of the source to the place of the element that its window of the operand selects."""
    if source.dtype == bool:  # to add is to combine by "or"
        return select_and_scatter_add(source.astype(np.int32), operand, select_prim=select_prim, **params) != 0
    w = windows(**params)
    padded = lax.pad(operand, jnp.asarray(_loser(select_prim, operand.dtype)), w.pad_config)
    size = padded.size
    dtype = np.int32 if not isinstance(size, int) or size < 2**31 else np.int64
    places = lax.reshape(lax.iota(dtype, size), padded.shape)
    inside = w._replace(padding=[(0, 0)] * operand.ndim)
    candidates = _candidates(padded, places)
    _, chosen, *_ = fold_windows(candidates, [0] * len(candidates), _keep(select_prim), inside)
    if chosen.shape != source.shape:  # there are as many windows, which symbolic sizes need not show
        missing = [(0, n - m, 0) for n, m in zip(source.shape, chosen.shape, strict=True)]
        chosen = lax.pad(chosen, jnp.asarray(0, dtype), missing)
    flat = lax.scatter_add(
        lax.full((size,), 0, source.dtype),
        lax.reshape(chosen, (chosen.size, 1)),
        lax.reshape(source, (source.size,)),
        lax.ScatterDimensionNumbers(
            update_window_dims=(), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
        ),
        mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS,
    )
    cut = [(-low, -high, 0) for low, high, _ in w.pad_config]
    return lax.pad(lax.reshape(flat, padded.shape), jnp.asarray(0, source.dtype), cut)
