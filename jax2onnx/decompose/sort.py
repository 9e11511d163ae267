"""Sorting and top-k, reduced to one operation: put the first k of a key in order.

ONNX Runtime's TopK is stable (of equal elements the lower index comes first), but undefined as soon as one element is
NaN. So each operand that is sorted by is mapped to keys without NaN in the same order, and what remains for the
lowering is `ordered_p` on int32, int64, float32 and float64 keys, which is ONNX's TopK exactly. (And `sign_bit_p`: in
`top_k`, a NaN is greater than everything or less, as its sign says.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jax2onnx import compat
from jax2onnx.decompose.registry import decomposes
from jax2onnx.decompose.special_elementary import real_operands


def with_64_bits(fn: Callable) -> Callable:
    """Let a definition use 64-bit types whatever the program does."""

    @wraps(fn)
    def wide(*args: Any, **params: Any) -> Any:
        with compat.evaluation.x64(True):
            return fn(*args, **params)

    return wide


ordered_p = Primitive("ordered")
ordered_p.multiple_results = True


def ordered(key: Array, *, k: Any, axis: int, descending: bool = False) -> list[Array]:
    """The first `k` elements of `key` along `axis` in ascending (or descending) order, and their int32 indices.

    Stable. `key` has no NaN, and one of the dtypes int32, int64, float32, float64.
    """
    return ordered_p.bind(key, k=k, axis=axis, descending=descending)


@ordered_p.def_abstract_eval
def _ordered_abstract_eval(key: ShapedArray, *, k: Any, axis: int, descending: bool) -> list[ShapedArray]:
    shape = (*key.shape[:axis], k, *key.shape[axis + 1 :])
    return [ShapedArray(shape, key.dtype), ShapedArray(shape, np.dtype(np.int32))]


@ordered_p.def_impl
def _ordered_in_jax(key: Array, *, k: Any, axis: int, descending: bool) -> list[Array]:
    order = jnp.argsort(key, axis=axis, stable=True, descending=descending).astype(np.int32)
    order = lax.slice_in_dim(order, 0, k, axis=axis)
    return [take_along(key, order, axis), order]


mlir.register_lowering(ordered_p, mlir.lower_fun(_ordered_in_jax, multiple_results=True))


sign_bit_p = Primitive("sign_bit")


def sign_bit(x: Array) -> Array:
    """Whether the sign bit of a float32 that is zero or NaN is set."""
    return sign_bit_p.bind(x)


@sign_bit_p.def_abstract_eval
def _sign_bit_abstract_eval(x: ShapedArray) -> ShapedArray:
    return ShapedArray(x.shape, np.dtype(np.bool_))


sign_bit_p.def_impl(jnp.signbit)
mlir.register_lowering(sign_bit_p, mlir.lower_fun(jnp.signbit, multiple_results=False))


def take_along(x: Array, indices: Array, axis: int) -> Array:
    """The elements of `x` at `indices` along `axis`, all in bounds: ONNX's GatherElements."""
    others = tuple(i for i in range(x.ndim) if i != axis)
    shape = indices.shape
    # JAX wants to know that there is something to take: where it cannot tell, one more makes sure.
    more = [int(not compat.dims.is_positive(n)) if not isinstance(n, int) else 0 for n in x.shape]
    if any(more):
        x = lax.pad(x, jnp.zeros((), x.dtype), [(0, n, 0) for n in more])
        indices = lax.pad(
            indices, np.zeros((), indices.dtype), [(0, more[i] if i != axis else 0, 0) for i in range(x.ndim)]
        )
    dimensions = lax.GatherDimensionNumbers(
        offset_dims=(),
        collapsed_slice_dims=(axis,),
        start_index_map=(axis,),
        operand_batching_dims=others,
        start_indices_batching_dims=others,
    )
    starts = lax.expand_dims(indices, (x.ndim,))
    taken = lax.gather(x, starts, dimensions, (1,) * x.ndim, mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS)
    return lax.slice(taken, (0,) * x.ndim, shape) if any(more) else taken


def sort_keys(x: Array, nan_is_first: bool = False) -> list[Array]:
    """Keys for `ordered`, the most significant first, in the order of `x`: NaN last (or first, of few bits), and -0.0
    equal to 0.0."""
    if x.dtype == bool or jnp.issubdtype(x.dtype, np.integer):
        return [_integer_key(x)]
    nan = x != x
    if x.dtype == np.float64:  # no wider float exists: a second key tells NaN from infinity
        return [lax.select(nan, lax.full_like(x, np.inf), x), nan.astype(np.int32)]
    wide = np.float64 if x.dtype == np.float32 else np.float32
    # A wider float has room above all finite values: infinity moves there, and NaN becomes infinite.
    y = x.astype(wide)
    end = -np.inf if nan_is_first else np.inf
    return [lax.select(nan, lax.full_like(y, end), lax.min(y, jnp.finfo(wide).max))]


def _has_nan_first(x: Array) -> bool:
    """Is the NaN that JAX makes of all of them, before it sorts, one whose sign bit is set? The only one of fnuz is."""
    return _has_nan(x) and bool(np.signbit(np.asarray(np.nan, x.dtype)))


def _integer_key(x: Array) -> Array:
    if x.dtype == np.uint64:
        return (x ^ np.uint64(1 << 63)).astype(np.int64)
    return x if x.dtype in (np.int32, np.int64) else x.astype(np.int64 if x.dtype == np.uint32 else np.int32)


def total_order_keys(x: Array) -> list[Array]:
    """Like `sort_keys` for floats, but -0.0 is less than 0.0, and a NaN whose sign bit is set less than everything."""
    nan, negative = x != x, sign_bit(x.astype(np.float32))
    if x.dtype == np.float64:
        first = jnp.where(nan, jnp.where(negative, -np.inf, np.inf), x)
        second = (nan | (x == 0)).astype(np.int32)  # tells apart what is equal otherwise
        return [first, jnp.where(negative, -second, second)]
    # A wider float has room beyond all finite values, and between zero and the next value.
    limits = jnp.finfo(np.float64)
    special = jnp.where(nan, np.inf, limits.tiny)
    special = jnp.where(negative, -special, special)
    return [jnp.where(nan | (x == 0), special, jnp.clip(x.astype(np.float64), limits.min, limits.max))]


def order_by(keys: Sequence[Array], axis: int, k: Any, descending: bool = False) -> Array:
    """The indices that put the first `k` elements in lexicographic order.

    That is a stable sort by each key, the last one first.
    """
    *others, last = keys
    _, order = ordered(last, k=last.shape[axis] if others else k, axis=axis, descending=descending)
    if not others:
        return order
    others = [take_along(key, order, axis) for key in others]
    return take_along(order, order_by(others, axis, k, descending), axis)


@decomposes(lax.sort_p, when=real_operands)
@with_64_bits
def sort(*operands: Array, dimension: int, num_keys: int, **_) -> list[Array]:
    """Sort all operands by the first `num_keys` of them."""
    n = operands[0].shape[dimension]
    keys = [key for x in operands[:num_keys] for key in sort_keys(x, _has_nan_first(x))]
    if len(operands) == 1 and keys[0] is operands[0]:
        return ordered(keys[0], k=n, axis=dimension)[:1]
    order = order_by(keys, dimension, n)
    return [take_along(x, order, dimension) for x in operands]


@decomposes(lax.top_k_p)
@with_64_bits
def top_k(x: Array, *, k: Any, axis: int, **_) -> list[Array]:
    """The `k` greatest, in the order of `total_order_keys`.

    That takes time, and only arrays with zeros of both signs or NaN need it.
    """
    if not jnp.issubdtype(x.dtype, np.floating):
        return _top_k_by([_integer_key(x)], x, k, axis)
    key = x if x.dtype == np.float64 else x.astype(np.float32)
    inverses = lax.div(lax.full_like(key, 1), key)  # infinite for zeros, with their sign
    special = jnp.isnan(lax.reduce_sum(inverses, tuple(range(x.ndim))))
    careful, plain = (lambda: _top_k_by(total_order_keys(key), x, k, axis)), (lambda: _top_k_by([key], x, k, axis))
    return lax.cond(special, careful, plain)


def _top_k_by(keys: list[Array], x: Array, k: Any, axis: int) -> list[Array]:
    if len(keys) == 1 and keys[0].dtype in (x.dtype, np.float32, np.int32):  # which hold all values of x
        values, order = ordered(keys[0], k=k, axis=axis, descending=True)
        return [values.astype(x.dtype), order]
    order = order_by(keys, axis, k, descending=True)
    return [take_along(x, order, axis), order]


@decomposes(lax.approx_top_k_p)
@with_64_bits
def approx_top_k(x: Array, *, reduction_dimension: int, is_max_k: bool, **params) -> list[Array]:
    """The exact top k, as XLA on CPU: as many as the result has, which are more than k if they are not aggregated."""
    axis = reduction_dimension % x.ndim
    values, _ = jax.eval_shape(
        lambda x: lax.approx_top_k_p.bind(x, reduction_dimension=axis, is_max_k=is_max_k, **params), x
    )
    order = order_by(sort_keys(x), axis, values.shape[axis], descending=is_max_k)
    return [take_along(x, order, axis), order]


# Comparisons in the order of `sort`. JAX compares with them only what it has made canonical: no -0.0, and one NaN.


def _has_nan(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, np.floating)


@decomposes(lax.lt_to_p)
def lt_to(x: Array, y: Array) -> Array:
    """Whether x comes before y, where NaN is at the end of the order."""
    if not _has_nan(x):
        return x < y
    at_end, inside = (x, y) if _has_nan_first(x) else (y, x)
    return (x < y) | ((at_end != at_end) & (inside == inside))


@decomposes(lax.le_to_p)
def le_to(x: Array, y: Array) -> Array:
    """Whether x does not come after y, where NaN is at the end of the order."""
    if not _has_nan(x):
        return x <= y
    at_end = x if _has_nan_first(x) else y
    return (x <= y) | (at_end != at_end)


@decomposes(lax.eq_to_p)
def eq_to(x: Array, y: Array) -> Array:
    """Whether x and y are at the same place in the order: NaN equals NaN."""
    return (x == y) | ((x != x) & (y != y)) if _has_nan(x) else x == y
