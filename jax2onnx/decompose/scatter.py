"""Scatter with any computation: `x.at[i].apply(f)`, and what has no ONNX operator."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp
from jax.extend.core import jaxpr_as_fun

from jax2onnx import compat
from jax2onnx.decompose.registry import decomposes

Combine = Callable[[Array, Array], Array]


def _is_special(_: Any, params: dict[str, Any]) -> bool:
    """Does the scatter do something else than to put the updates in place?"""
    jaxpr = params["update_jaxpr"]
    return jaxpr is not None and bool(jaxpr.eqns or jaxpr.outvars[0] is not jaxpr.invars[1])


@decomposes(lax.scatter_p, when=_is_special)
def scatter(x: Array, indices: Array, updates: Array, *, update_jaxpr: Any, update_consts: Any, **params: Any) -> Array:
    """Each update is combined with the element at its place by any computation on scalars."""
    function = jaxpr_as_fun(compat.programs.closed_jaxpr(update_jaxpr, update_consts))

    def combine(old: Array, new: Array) -> Array:
        (results,) = jax.vmap(function)(old.ravel(), new.ravel())
        return results.reshape(old.shape)

    del params["indices_are_sorted"]
    return scatter_windows_in_order(combine, x, indices, updates, **params)


def scatter_windows_in_order(
    combine: Combine,
    x: Array,
    indices: Array,
    updates: Array,
    *,
    dimension_numbers: lax.ScatterDimensionNumbers,
    mode: Any,
    unique_indices: bool,
) -> Array:
    """`x` with all updates combined into it, one after the other where several are for one element.

    Round after round, each element takes the next one of its updates. Most programs need one round.
    """
    if 0 in x.shape or 0 in updates.shape:
        return x
    numbers = dimension_numbers
    batch = [d for i, d in enumerate(indices.shape[:-1]) if i not in numbers.scatter_indices_batching_dims]
    read = functools.partial(
        lax.gather,
        dimension_numbers=lax.GatherDimensionNumbers(
            offset_dims=tuple(numbers.update_window_dims),
            collapsed_slice_dims=tuple(numbers.inserted_window_dims),
            start_index_map=tuple(numbers.scatter_dims_to_operand_dims),
            operand_batching_dims=tuple(numbers.operand_batching_dims),
            start_indices_batching_dims=tuple(numbers.scatter_indices_batching_dims),
        ),
        slice_sizes=_window(x.shape, updates.shape, numbers),
    )
    if unique_indices or all(isinstance(d, int) and d == 1 for d in batch):
        new = combine(read(x, indices, mode="clip"), updates)
        return lax.scatter(x, indices, new, numbers, mode=mode, unique_indices=True)

    # What is not inside goes to a place behind the last one: far behind, where no size, which may be symbolic, reaches.
    size, count = x.size, updates.size
    places = lax.iota(jnp.int32, size).reshape(x.shape)
    outside = "clip" if mode == lax.GatherScatterMode.CLIP else "fill"
    place = read(places, _in_32_bits(indices), mode=outside, fill_value=np.iinfo(np.int32).max).ravel()
    values = updates.ravel()
    turn = lax.iota(jnp.int32, count)

    def next_round(state: tuple[Array, Array]) -> tuple[Array, Array]:
        x, waits = state
        # Written backwards, the first one that waits for a place is the last one written to it.
        target = jnp.where(waits, place, size)
        first = jnp.full(size, count, jnp.int32).at[target[::-1]].set(turn[::-1], mode="drop")
        acts = waits & (first.at[place].get(mode="clip") == turn)
        new = combine(x.at[place].get(mode="clip"), values)
        x = x.at[jnp.where(acts, place, size)].set(new, mode="drop", unique_indices=True)
        return x, waits & ~acts

    flat, _ = lax.while_loop(lambda state: state[1].any(), next_round, (x.ravel(), place < size))
    return flat.reshape(x.shape)


def _window(shape: Any, updates_shape: Any, numbers: lax.ScatterDimensionNumbers) -> tuple[Any, ...]:
    """The sizes of the windows."""
    dropped = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    places = iter(numbers.update_window_dims)
    return tuple(1 if a in dropped else updates_shape[next(places)] for a in range(len(shape)))


def _in_32_bits(indices: Array) -> Array:
    """The nearest indices of 32 bits: a gather that fills would cut off the upper bits of wider ones."""
    if indices.dtype.itemsize < 4 or indices.dtype == jnp.int32:
        return indices
    limits = np.iinfo(np.int32)
    low = 0 if jnp.issubdtype(indices.dtype, jnp.unsignedinteger) else limits.min
    return jnp.clip(indices, low, limits.max).astype(jnp.int32)
