"""Convolutions that ONNX's Conv does not have.

Those of integers are convolutions of floats that hold all sums exactly, or matrix products. Those in a symbolic number
of groups are one convolution after the other.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from jax2onnx import compat
from jax2onnx.decompose.registry import decomposes
from jax2onnx.dimensions import is_static

MOST_PARTS = 32
"""So many convolutions of floats take less time than the product of matrices of integers that is the same."""


def _is_no_conv(avals: Sequence[Any], params: Any) -> bool:
    groups = params["feature_group_count"], params["batch_group_count"]
    return not all(isinstance(g, int) for g in groups) or not jnp.issubdtype(avals[0].dtype, jnp.inexact)


@decomposes(lax.conv_general_dilated_p, when=_is_no_conv)
def conv(lhs: jax.Array, rhs: jax.Array, **params: Any) -> jax.Array:
    """Of integers, or in groups whose number is symbolic."""
    if jnp.issubdtype(lhs.dtype, jnp.inexact):
        return conv_by_groups(lhs, rhs, **params)
    result = jax.eval_shape(functools.partial(lax.conv_general_dilated_p.bind, **params), lhs, rhs)
    if any(0 in x.shape for x in (lhs, rhs, result)):  # nothing to sum, or no place for a window
        return jnp.zeros(result.shape, result.dtype)
    at_once = _features_at_once(lhs, rhs, params)
    return conv_as_matmul(lhs, rhs, **params) if not at_once else conv_as_floats(lhs, rhs, at_once, **params)


def _features_at_once(lhs: jax.Array, rhs: jax.Array, params: Any) -> int:
    """Over how many features float32 holds the sums of products of integers; 0 if that would be too many parts."""
    features, *window = (rhs.shape[axis] for axis in params["dimension_numbers"].rhs_spec[1:])
    if not is_static((features, *window)) or features == 0:
        return 0
    if jnp.issubdtype(params["preferred_element_type"] or lhs.dtype, jnp.inexact):
        return 0
    largest = math.prod((*window, _largest(lhs.dtype), _largest(rhs.dtype)))
    at_once = 2**24 // max(largest, 1)
    is_grouped = params["feature_group_count"] != 1 or params["batch_group_count"] != 1
    return at_once if at_once * (1 if is_grouped else MOST_PARTS) >= features else 0


def _largest(dtype: np.dtype) -> int:
    """The largest size of an integer, or of a boolean."""
    return 1 if dtype == np.bool_ else -int(jnp.iinfo(dtype).min) or int(jnp.iinfo(dtype).max)


def conv_as_floats(
    lhs: jax.Array, rhs: jax.Array, at_once: int, *, dimension_numbers: Any, preferred_element_type: Any, **params: Any
) -> jax.Array:
    """The sum of convolutions of some features each."""
    dtype = np.dtype(preferred_element_type) if preferred_element_type is not None else lhs.dtype
    sums = dtype if dtype.itemsize > 4 else np.dtype(np.int32)  # which wraps around in a smaller type
    axes = dimension_numbers.lhs_spec[1], dimension_numbers.rhs_spec[1]
    features = rhs.shape[axes[1]]

    def convolve(begin: int) -> jax.Array:
        ends = begin, min(begin + at_once, features)
        parts = (lax.slice_in_dim(x, *ends, axis=axis) for x, axis in zip((lhs, rhs), axes, strict=True))
        operands = (lhs, rhs) if at_once >= features else parts
        as_floats = (x.astype(np.float32) for x in operands)
        kind = {"dimension_numbers": dimension_numbers, "preferred_element_type": None}
        return lax.conv_general_dilated_p.bind(*as_floats, **kind, **params).astype(np.int32).astype(sums)

    return functools.reduce(lax.add, map(convolve, range(0, features, at_once))).astype(dtype)


def conv_by_groups(
    lhs: jax.Array,
    rhs: jax.Array,
    *,
    dimension_numbers: Any,
    feature_group_count: Any,
    batch_group_count: Any,
    **params: Any,
) -> jax.Array:
    """One convolution after the other, as when images and kernels are mapped over at once: gradients of each example.

    Groups do not know of each other, so that as many as are known to be neighbours (C in C * B) are one convolution.
    """
    lhs_spec, rhs_spec, out_spec = dimension_numbers
    name = "feature_group_count" if isinstance(batch_group_count, int) else "batch_group_count"
    groups = feature_group_count if name == "feature_group_count" else batch_group_count
    together = math.gcd(*(factor for _, factor in compat.dims.dim_terms(groups)))
    counts = {"feature_group_count": 1, "batch_group_count": 1, name: together}
    parts = groups // together

    def convolve(parts: tuple[jax.Array, jax.Array]) -> jax.Array:
        return lax.conv_general_dilated_p.bind(*parts, dimension_numbers=dimension_numbers, **counts, **params)

    split = lhs_spec[1 if name == "feature_group_count" else 0]
    mapped = lax.map(convolve, (_split(lhs, split, parts), _split(rhs, rhs_spec[0], parts)))
    return _joined(mapped, out_spec[1])


def _split(x: jax.Array, axis: int, parts: Any) -> jax.Array:
    """(parts, ...) of an axis whose size is a multiple of `parts`."""
    shape = (*x.shape[:axis], parts, x.shape[axis] // parts, *x.shape[axis + 1 :])
    return jnp.moveaxis(x.reshape(shape), axis, 0)


def _joined(x: jax.Array, axis: int) -> jax.Array:
    """The inverse of `_split`."""
    shape = x.shape[1:]
    return jnp.moveaxis(x, 0, axis).reshape(*shape[:axis], x.shape[0] * shape[axis], *shape[axis + 1 :])


def conv_as_matmul(
    lhs: jax.Array,
    rhs: jax.Array,
    *,
    window_strides: Sequence[int],
    padding: Sequence[tuple[Any, Any]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    dimension_numbers: Any,
    feature_group_count: int,
    batch_group_count: int,
    preferred_element_type: Any,
    **_: Any,
) -> jax.Array:
    """Gather the window of every output position along each spatial axis, then contract with the kernel."""
    lhs_spec, rhs_spec, out_spec = dimension_numbers
    dtype = np.dtype(preferred_element_type) if preferred_element_type is not None else lhs.dtype
    x = lax.transpose(lax.convert_element_type(lhs, dtype), lhs_spec)
    kernel = lax.transpose(lax.convert_element_type(rhs, dtype), rhs_spec)
    config = [(0, 0, 0), (0, 0, 0), *((lo, hi, d - 1) for (lo, hi), d in zip(padding, lhs_dilation, strict=True))]
    x = lax.pad(x, jnp.zeros((), dtype), config)
    n, features = x.shape[:2]
    if batch_group_count != 1:
        groups, n = batch_group_count, n // batch_group_count
        x = x.reshape(groups, n, features, *x.shape[2:])
    else:
        groups, features = feature_group_count, features // feature_group_count
        x = jnp.moveaxis(x.reshape(n, groups, features, *x.shape[2:]), 1, 0)
    sizes = []
    for i, (stride, dilation) in enumerate(zip(window_strides, rhs_dilation, strict=True)):
        axis, window = 3 + 2 * i, kernel.shape[2 + i]
        size = (x.shape[axis] - (window - 1) * dilation - 1) // stride + 1 if window else x.shape[axis] // stride + 1
        index = lax.iota(np.int32, size)[:, None] * stride + lax.iota(np.int32, window)[None, :] * dilation
        x = jnp.take(x, index, axis=axis, mode="clip")
        sizes.append(size)
    rank = len(sizes)
    places, windows = [3 + 2 * i for i in range(rank)], [4 + 2 * i for i in range(rank)]
    rows = x.transpose(0, 1, *places, 2, *windows).reshape(groups, n * math.prod(sizes), -1)
    weights = kernel.reshape(groups, kernel.shape[0] // groups, -1)
    product = lax.dot_general(rows, weights, (((2,), (2,)), ((0,), (0,))), preferred_element_type=dtype)
    y = product.reshape(groups, n, *sizes, -1)
    y = jnp.moveaxis(y, (0, -1), (1, 2)).reshape(n, kernel.shape[0], *sizes)
    return lax.transpose(y, [out_spec.index(i) for i in range(len(out_spec))])
