"""Reductions over axes, cumulative operations and the position of an extreme value."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import Array, lax

from jax2onnx.lower.context import Builder, Val
from jax2onnx.lower.dtypes import BOOL, INT64, UINT8, highest, is_float, lowest
from jax2onnx.lower.registry import lowers


def _may_be_empty(x: Val, axes: Sequence[int]) -> bool:
    return any(isinstance(x.shape[a], int) and x.shape[a] == 0 for a in axes)


def _reduce(g: Builder, op_type: str, x: Val, axes: Sequence[int]) -> Val:
    """`x` without `axes`. What is repeated along others is reduced once."""
    once = x.small
    own = [a - x.rank + once.rank for a in axes] if once else []
    if once and all(a >= 0 and once.shape[a] == x.shape[b] for a, b in zip(own, axes, strict=True)):
        reduced = g.op(op_type, once, axes=tuple(own), keepdims=0)
        return g.expand(reduced, [d for i, d in enumerate(x.shape) if i not in axes])
    return g.op(op_type, x, axes=tuple(axes), keepdims=0)


def _reduction(op_type: str, neutral: Callable[[np.dtype], Any]) -> Callable[..., Val]:
    def rule(g: Builder, x: Val, *, axes: Sequence[int], **_: Any) -> Val:
        if not axes:
            return x
        if _may_be_empty(x, axes):
            return g.full(g.avals_out[0].shape, neutral(x.dtype), x.dtype)
        return _reduce(g, op_type, x, axes)

    return rule


def _on_bools(op_type: str, neutral: bool) -> Callable[..., Val]:
    """Any and all: the extreme of 0 and 1. Of nothing, where a symbolic size turns out to be 0, it is 0 or 255."""

    def rule(g: Builder, x: Val, *, axes: Sequence[int], **_: Any) -> Val:
        if not axes:
            return x
        if _may_be_empty(x, axes):
            return g.full(g.avals_out[0].shape, neutral, BOOL)
        return g.cast(_reduce(g, op_type, g.cast(x, UINT8), axes), BOOL)

    return rule


_SUM = _reduction("ReduceSum", lambda dtype: 0)
_PROD = _reduction("ReduceProd", lambda dtype: 1)
_MAX = _reduction("ReduceMax", lowest)
_MIN = _reduction("ReduceMin", highest)
_ANY = _on_bools("ReduceMax", False)
_ALL = _on_bools("ReduceMin", True)


def _by_dtype(on_numbers: Callable[..., Val], on_bools: Callable[..., Val]) -> Callable[..., Val]:
    return lambda g, x, **params: (on_bools if x.dtype == BOOL else on_numbers)(g, x, **params)


lowers(lax.reduce_sum_p)(_SUM)
lowers(lax.reduce_prod_p)(_PROD)
lowers(lax.reduce_max_p)(_by_dtype(_MAX, _ANY))
lowers(lax.reduce_min_p)(_by_dtype(_MIN, _ALL))


def _fold_steps(combine: Callable[[Array, Array], Array], axis: int, neutral: int, x: Array) -> Array:
    """Combine the elements along an axis one by one."""
    rows = lax.transpose(x, (axis, *(i for i in range(x.ndim) if i != axis)))
    start = lax.full(rows.shape[1:], np.asarray(neutral, np.int64).astype(x.dtype))
    return lax.scan(lambda folded, row: (combine(folded, row), None), start, rows)[0]


def _fold_bits(op_type: str, neutral: int, combine: Callable[[Array, Array], Array]) -> Callable[..., Val]:
    """A bitwise operator over an axis: halves are combined until one element is left, so that the graph grows with the
    logarithm of the size."""

    def rule(g: Builder, x: Val, *, axes: Sequence[int], **_: Any) -> Val:
        for axis in sorted(axes, reverse=True):
            size = x.shape[axis]
            if not isinstance(size, int):
                x = g.call_jax(functools.partial(_fold_steps, combine, axis, neutral), x)
                continue
            if size == 0:
                shape = (*x.shape[:axis], *x.shape[axis + 1 :])
                x = g.full(shape, np.asarray(neutral, np.int64).astype(x.dtype), x.dtype)
                continue
            while size > 1:
                half = size // 2
                combined = g.op(op_type, g.slice_axis(x, axis, 0, half), g.slice_axis(x, axis, half, 2 * half))
                x = combined if size % 2 == 0 else g.Concat(combined, g.slice_axis(x, axis, 2 * half, size), axis=axis)
                size = x.shape[axis]
            x = g.squeeze(x, [axis])
        return x

    return rule


lowers(lax.reduce_and_p)(_by_dtype(_fold_bits("BitwiseAnd", -1, lax.bitwise_and), _ALL))
lowers(lax.reduce_or_p)(_by_dtype(_fold_bits("BitwiseOr", 0, lax.bitwise_or), _ANY))


@lowers(lax.reduce_xor_p)
def reduce_xor(g: Builder, x: Val, *, axes: Sequence[int], **params: Any) -> Val:
    """Parity: of bools, whether the number of True is odd."""
    if x.dtype != BOOL:
        return _fold_bits("BitwiseXor", 0, lax.bitwise_xor)(g, x, axes=axes)
    count = _SUM(g, g.cast(x, INT64), axes=axes)
    return g.cast(g.Mod(count, 2), BOOL)


def _is_without_nan(x: Val) -> bool:
    """Is NaN replaced by a known number?"""
    where = x.value.producer()
    if where is None or where.op_type != "Where":
        return False
    condition, number, other = where.inputs
    known = number.const_value if number is not None else None
    is_nan = condition.producer() if condition is not None else None
    if is_nan is None or is_nan.op_type != "IsNaN" or is_nan.inputs[0] is not other:
        return False
    return known is not None and known.size == 1 and not np.isnan(known.numpy()).any()


def _arg_extreme(op_type: str) -> Callable[..., Val]:
    def rule(g: Builder, x: Val, *, axes: Sequence[int], index_dtype: Any, **_: Any) -> Val:
        """The first position of the extreme; a NaN is more extreme than anything."""
        (axis,) = axes
        if x.dtype == BOOL:
            x = g.cast(x, UINT8)
        index = g.op(op_type, x, axis=axis, keepdims=0)
        if is_float(x.dtype) and not _is_without_nan(x):
            is_nan = g.cast(g.IsNaN(x), UINT8)
            first_nan = g.ArgMax(is_nan, axis=axis, keepdims=0)
            has_nan = g.cast(g.ReduceMax(is_nan, axes=(axis,), keepdims=0), BOOL)
            index = g.Where(has_nan, first_nan, index)
        return g.cast(index, index_dtype)

    return rule


lowers(lax.argmax_p)(_arg_extreme("ArgMax"))
lowers(lax.argmin_p)(_arg_extreme("ArgMin"))


@lowers(lax.cumsum_p)
def cumsum(g: Builder, x: Val, *, axis: int, reverse: bool) -> Val:
    """Running sums along an axis, from its end if reversed."""
    return g.CumSum(x, axis=axis, reverse=1 if reverse else None)
