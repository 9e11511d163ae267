"""Equations whose operands are all known are evaluated while exporting, as long as the result is small.

So are those whose results are empty, for which no operand matters.

Index arithmetic and masks are mostly of this kind. NumPy computes the operations that are exact in it (compiling each
of them with XLA would take longer than the rest of the export); JAX computes the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp

from jax2onnx import compat
from jax2onnx.dimensions import is_static
from jax2onnx.lower.context import Val
from jax2onnx.lower.dtypes import bit_width, unsigned

MAX_BYTES = 16 * 1024
"""Larger results are computed by the model: a broadcast constant is not blown up."""

MAX_INDEX_BYTES = 4 * 1024 * 1024
"""Of indices that are as large before as after it, arithmetic is not left to the model: they do not grow."""

MAX_LOOPED_BYTES = 1024 * 1024
"""Larger results of what is decomposed into loops are computed by the model."""

MAX_WINDOWS = 1024
"""So many windows are written in less time than compiling that takes."""

MAX_STEPS = 100_000
"""An equation that takes more than so many others, as a loop does, is computed by the model."""


def _select_n(which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    index = np.broadcast_to(which, cases[0].shape).astype(np.intp)  # as np.choose, which takes 64 cases
    return np.take_along_axis(np.stack(cases), index.clip(0, len(cases) - 1)[None], 0)[0]


def _max(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    found = np.maximum(x, y)  # of zeros of both signs, either
    return found if x.dtype.kind in "biu" else np.where((x == 0) & (y == 0), x + y, found)


def _min(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    found = np.minimum(x, y)
    return found if x.dtype.kind in "biu" else np.where((x == 0) & (y == 0), -(-x + -y), found)


def _clamp(low: np.ndarray, x: np.ndarray, high: np.ndarray) -> np.ndarray:
    return _min(_max(x, low), high)


def _broadcast(x: np.ndarray, *, shape: Any, broadcast_dimensions: Any, **_: Any) -> np.ndarray:
    expanded = [1] * len(shape)
    for size, axis in zip(x.shape, broadcast_dimensions, strict=True):
        expanded[axis] = size
    if list(broadcast_dimensions) != sorted(broadcast_dimensions):
        x = x.transpose(np.argsort(broadcast_dimensions))
    x = x.reshape(expanded)
    return x if x.shape == tuple(shape) else np.broadcast_to(x, shape)  # which takes several times as long


def _iota(*, dtype: Any, shape: Any, dimension: int, **_: Any) -> np.ndarray:
    index = np.arange(shape[dimension]).astype(dtype)
    return np.broadcast_to(index.reshape([-1 if i == dimension else 1 for i in range(len(shape))]), shape)


def _reshape(x: np.ndarray, *, new_sizes: Any, dimensions: Any = None, **_: Any) -> np.ndarray:
    return (x if dimensions is None else np.transpose(x, dimensions)).reshape(new_sizes)


def _slice(x: np.ndarray, *, start_indices: Any, limit_indices: Any, strides: Any = None, **_: Any) -> np.ndarray:
    bounds = zip(start_indices, limit_indices, strides or [None] * x.ndim, strict=True)
    return x[tuple(slice(*bound) for bound in bounds)]


def _split(x: np.ndarray, *, sizes: Any, axis: int, **_: Any) -> list[np.ndarray]:
    return np.split(x, np.cumsum(sizes)[:-1], axis)


def _divide_integers(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (x - np.fmod(x, y)) // y  # towards zero


def _flushed(x: np.ndarray) -> np.ndarray:
    """With zeros for the numbers that are so small that XLA takes them for that."""
    return np.where(np.abs(x) < np.finfo(x.dtype).tiny, np.copysign(x.dtype.type(0), x), x)


def _pow(x: np.ndarray, y: np.ndarray, **_: Any) -> np.ndarray:
    """Number by number, by the C library as in XLA: what NumPy does with whole arrays has other last digits."""
    x, y = np.broadcast_arrays(x, y.astype(x.dtype))
    return _flushed(np.asarray([a**b for a, b in zip(x.flat, y.flat, strict=True)], x.dtype).reshape(x.shape))


def _shift_right(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    bits = unsigned(x.dtype)  # zeros come in, also where there is a sign
    return np.right_shift(x.view(bits), y.view(bits)).view(x.dtype)


def _scatter_add(x: np.ndarray, indices: np.ndarray, updates: np.ndarray, **params: Any) -> np.ndarray:
    """Window by window, in the order of the indices, without those that are not in the array, as XLA does it."""
    numbers, result = params["dimension_numbers"], x.copy()
    single = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    axes = [axis for axis in range(x.ndim) if axis not in single]
    sizes = np.ones(x.ndim, np.int64)
    sizes[axes] = [updates.shape[axis] for axis in numbers.update_window_dims]
    windows = np.moveaxis(updates, numbers.update_window_dims, range(-len(axes), 0))
    for place in np.ndindex(indices.shape[:-1]):
        start = np.zeros(x.ndim, np.int64)
        start[list(numbers.scatter_dims_to_operand_dims)] = indices[place]
        start[list(numbers.operand_batching_dims)] = [place[axis] for axis in numbers.scatter_indices_batching_dims]
        if params["mode"] == lax.GatherScatterMode.CLIP:
            start = start.clip(0, x.shape - sizes)
        if (start >= 0).all() and (start + sizes <= x.shape).all():
            result[tuple(map(slice, start, start + sizes))] += windows[place].reshape(sizes)
    return result


def _dot_with_zeros(x: np.ndarray, y: np.ndarray, *, dimension_numbers: Any, **_: Any) -> np.ndarray | None:
    """The first step of a recurrent network multiplies zeros. None if the sign of a zero depends on how it is summed,
    which is that of minus zeros only."""
    axes, batch = dimension_numbers
    if any(batch):
        return None
    signs = np.tensordot(np.copysign(1, x), np.copysign(1, y), axes)
    count = math.prod(x.shape[axis] for axis in axes[0])
    return None if (signs == -count).any() else np.zeros(signs.shape, x.dtype)


def _reduced(fn: np.ufunc) -> Callable:
    return lambda x, *, axes, **_: fn.reduce(x, axes, x.dtype)


def _plain(fn: Any) -> Callable:
    return lambda *xs, **_: fn(*xs)


def _in_double(fn: Any) -> Callable:
    return lambda x, **_: fn(x.astype(np.float64)).astype(np.float32)


NUMPY: dict[Any, Callable[..., np.ndarray]] = {
    **{
        primitive: _plain(fn)
        for primitive, fn in {
            lax.add_p: np.add,
            lax.sub_p: np.subtract,
            lax.mul_p: np.multiply,
            lax.max_p: _max,
            lax.min_p: _min,
            lax.neg_p: np.negative,
            lax.lt_p: np.less,
            lax.le_p: np.less_equal,
            lax.gt_p: np.greater,
            lax.ge_p: np.greater_equal,
            lax.eq_p: np.equal,
            lax.ne_p: np.not_equal,
            lax.and_p: np.bitwise_and,
            lax.or_p: np.bitwise_or,
            lax.xor_p: np.bitwise_xor,
            lax.not_p: np.invert,
            lax.select_n_p: _select_n,
            lax.copy_p: np.asarray,
            **dict.fromkeys(compat.kinds.primitives("pvary"), np.asarray),  # JAX evaluates it only inside a shard_map
        }.items()
    },
    lax.broadcast_in_dim_p: _broadcast,
    lax.iota_p: _iota,
    lax.reshape_p: _reshape,
    lax.squeeze_p: lambda x, *, dimensions, **_: np.squeeze(x, dimensions),
    lax.transpose_p: lambda x, *, permutation, **_: np.transpose(x, permutation),
    lax.concatenate_p: lambda *xs, dimension, **_: np.concatenate(xs, dimension),
    **dict.fromkeys(compat.kinds.primitives("stack"), lambda *xs, axis: np.stack(xs, axis)),
    lax.reduce_or_p: _reduced(np.bitwise_or),
    lax.reduce_and_p: _reduced(np.bitwise_and),
}

PARTS: dict[Any, Callable[..., Any]] = {
    lax.slice_p: _slice,
    lax.split_p: _split,
    lax.rev_p: lambda x, *, dimensions, **_: np.flip(x, dimensions),
}
"""The same, of which large indices are left to the model: their parts would be stored beside them."""

FLOATS = (np.float32, np.float64)
HALVES = (np.float16, jnp.bfloat16)
INDICES = (np.int32, np.int64, np.bool_)

NUMPY_ON_FLOATS: dict[Any, Callable[..., np.ndarray]] = {
    lax.div_p: _plain(np.divide),
    lax.sqrt_p: _plain(np.sqrt),
    lax.rsqrt_p: _plain(lambda x: 1 / np.sqrt(x)),
    lax.square_p: _plain(np.square),
    lax.abs_p: _plain(np.abs),
    lax.floor_p: _plain(np.floor),
    lax.ceil_p: _plain(np.ceil),
    lax.clamp_p: _plain(_clamp),
    lax.is_finite_p: _plain(np.isfinite),
    lax.pow_p: _pow,
}
"""The same, correctly rounded (or nearly) only in NumPy's own floating-point types."""

NUMPY_IN_DOUBLE: dict[Any, Callable[..., np.ndarray]] = {
    primitive: _in_double(fn)
    for primitive, fn in {
        lax.exp_p: np.exp,
        lax.log_p: np.log,
        lax.sin_p: np.sin,
        lax.cos_p: np.cos,
        lax.tanh_p: np.tanh,
    }.items()
}
"""Of float32: rounded from double precision, which is what `jax.jit` makes of known operands, to the bit. (What it
compiles for others is right to a few units in the last place.) Not log1p, expm1, exp2, atan or sinh."""

NUMPY_ON_INTEGERS: dict[Any, Callable[..., np.ndarray]] = {
    lax.abs_p: _plain(np.abs),
    lax.sign_p: _plain(np.sign),
    lax.clamp_p: _plain(_clamp),
    lax.div_p: _plain(_divide_integers),
    lax.rem_p: _plain(np.fmod),
    lax.shift_left_p: _plain(np.left_shift),
    lax.shift_right_logical_p: _plain(_shift_right),
    lax.reduce_sum_p: _reduced(np.add),
}
"""The same in NumPy's own integers."""


def evaluate(eqn: Any, operands: Sequence[Val]) -> list[np.ndarray] | None:
    """The results of an equation if its operands are known and its results small, or have no elements; else None.

    Not of a call: its equations are evaluated one by one, most of them without compiling anything. But what is
    decomposed into loops (the factors of a matrix, say) is computed by JAX, as it was.
    """
    if _all_empty(eqn.outvars) and not eqn.effects:
        return [np.zeros(v.aval.shape, v.aval.dtype) for v in eqn.outvars]
    for operand in operands:
        if operand.const is None:
            return None
    limit = MAX_BYTES
    if eqn.primitive in compat.kinds.CALL_PRIMITIVES:
        original = compat.equations.decomposed(eqn)
        if original is None or _ends_soon(eqn):
            return None
        eqn, limit = original, MAX_LOOPED_BYTES
    arrays = [o.const for o in operands]
    if eqn.effects or not (all(_is_small(v.aval, limit) for v in eqn.outvars) or _is_on_indices(eqn, arrays)):
        return None
    if not _ends_soon(eqn):
        return None
    rule = numpy_rule(eqn.primitive, arrays)
    result = None
    if rule is not None and not any(a.dtype.hasobject for a in arrays if a is not None):
        with np.errstate(all="ignore"):
            result = rule(*arrays, **eqn.params)
    if result is not None:
        results = result if isinstance(result, list) else [result]
    elif eqn.primitive is lax.convert_element_type_p and _is_exact(arrays[0], eqn.params["new_dtype"]):
        with np.errstate(over="ignore"):
            results = [arrays[0].astype(eqn.params["new_dtype"])]  # type: ignore[union-attr]
    elif eqn.primitive is lax.bitcast_convert_type_p and _is_as_wide(arrays[0], eqn.params["new_dtype"]):
        results = [arrays[0].view(eqn.params["new_dtype"])]  # type: ignore[union-attr]
    else:
        results = compat.evaluation.evaluate_equation(eqn, arrays)
    return [np.asarray(r, v.aval.dtype) for r, v in zip(results, eqn.outvars, strict=True)]


def numpy_rule(primitive: Any, arrays: Sequence[Any]) -> Callable[..., Any] | None:
    """What computes an equation of these operands in NumPy, to the bit as JAX does, or gives None where it cannot."""
    rule = NUMPY.get(primitive) or PARTS.get(primitive)
    if rule is not None:
        return rule
    if primitive is lax.pow_p and any(map(_has_subnormals, arrays)):
        return None
    if primitive in NUMPY_IN_DOUBLE and arrays[0].dtype == np.float32:
        return NUMPY_IN_DOUBLE[primitive]
    if primitive is lax.pow_p and arrays[0].dtype in FLOATS and arrays[1].dtype.kind in "iu":
        return _pow
    if primitive is lax.scatter_add_p and arrays[0].dtype in (*FLOATS, *INDICES[:2]):
        return _scatter_add if arrays[1].size <= MAX_WINDOWS else None
    if primitive is lax.dot_general_p:
        return _dot_with_zeros if _are_zeros_and_finite(arrays) else None
    if all(a.dtype in FLOATS for a in arrays):
        return NUMPY_ON_FLOATS.get(primitive)
    if all(a.dtype.kind in "iu" for a in arrays):
        divides = primitive is lax.div_p or primitive is lax.rem_p
        return None if divides and not arrays[1].all() else NUMPY_ON_INTEGERS.get(primitive)
    return None


def _has_subnormals(array: np.ndarray) -> bool:
    """Are there numbers so small that XLA may take them for zeros?"""
    return array.dtype in FLOATS and bool(np.any((array != 0) & (np.abs(array) < np.finfo(array.dtype).tiny)))


def _are_zeros_and_finite(arrays: Sequence[np.ndarray]) -> bool:
    """Are these floats of one type, and one of them all zeros?"""
    if arrays[0].dtype not in FLOATS or arrays[0].dtype != arrays[1].dtype:
        return False
    return not all(map(np.any, arrays)) and all(np.isfinite(a).all() for a in arrays)


def _is_exact(array: np.ndarray | None, to: Any) -> bool:
    """Does NumPy convert an array as JAX does? Not floats to types that it does not know, nor to integers that they are
    too large for, or might be."""
    assert array is not None
    if array.dtype in FLOATS and to in INDICES[:2]:
        return bool(np.all(np.abs(array) < 2**31))  # not of NaN
    if array.dtype == np.float32 and to in HALVES:
        return not np.isnan(array).any()
    return array.dtype.kind in "biu" or (array.dtype in (*FLOATS, *HALVES) and to in FLOATS)


def _is_as_wide(array: np.ndarray | None, to: Any) -> bool:
    """Has a type as many bits as those of an array, which have bytes of their own?"""
    assert array is not None
    return 8 <= bit_width(array.dtype) == bit_width(to)


def _ends_soon(eqn: Any) -> bool:
    """Is an equation sure to be evaluated in a moment? Nobody knows about a while loop."""
    return _steps(eqn) <= MAX_STEPS


def _steps(eqn: Any) -> float:
    """How many equations are evaluated for one. Never ending: what depends on the size of a symbolic dimension."""
    if eqn.primitive is lax.while_p or eqn.primitive in compat.kinds.DIMENSION_PRIMITIVES:
        return np.inf
    if not is_static(d for v in eqn.outvars for d in getattr(v.aval, "shape", ())):
        return np.inf
    length = eqn.params["length"] if eqn.primitive is lax.scan_p else 1
    inner = sum(_steps(e) for sub in compat.programs.sub_jaxprs(eqn.params) for e in sub.jaxpr.eqns)
    return 1 + length * inner if isinstance(length, int) else np.inf


def _all_empty(variables: Sequence[Any]) -> bool:
    """Have arrays no elements, whatever they are computed from? Runtimes are not at their best there."""
    for v in variables:  # loops are faster, and this is asked of every equation
        size = 1
        for dim in v.aval.shape:
            if not isinstance(dim, int):
                return False
            size *= dim
        if size:
            return False
    return True


def _is_small(aval: Any, limit: int = MAX_BYTES) -> bool:
    size = 1
    for dim in aval.shape:
        if not isinstance(dim, int):
            return False
        size *= dim
    return size * getattr(aval.dtype, "itemsize", 8) <= limit


def _is_on_indices(eqn: Any, arrays: Sequence[Any]) -> bool:
    """Is it a step on the way from known indices to others? (Integers of fewer bits may be weights.)"""
    if eqn.primitive not in NUMPY or any(a.dtype not in INDICES for a in arrays):
        return False
    limit = min(max((a.nbytes for a in arrays), default=0), MAX_INDEX_BYTES)
    return all(v.aval.dtype in INDICES and _is_small(v.aval, limit) for v in eqn.outvars)
