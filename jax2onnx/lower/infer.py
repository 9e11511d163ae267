"""The shape and dtype of each ONNX operator's results, computed while the graph is built.

This is what lets a rule write `g.Mul(g.Exp(x), 2.0)` and always know what it holds. Operators that are not here need
`out=(shape, dtype)` from the rule that emits them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from jax2onnx.lower.dtypes import BOOL, INT64

Type = tuple[tuple[Any, ...], np.dtype]
Infer = Callable[..., Type | list[Type]]

INFER: dict[str, Infer] = {}


def broadcast(*shapes: Sequence[Any]) -> tuple[Any, ...]:
    """The shape that ONNX (NumPy) broadcasting gives."""
    if len(shapes) == 2 and shapes[0] == shapes[1]:  # mostly
        return tuple(shapes[0])
    rank = max(map(len, shapes))
    result: list[Any] = [1] * rank
    for shape in shapes:
        for i, dim in enumerate(shape, rank - len(shape)):
            if isinstance(dim, int) and dim == 1:
                continue
            if isinstance(result[i], int) and result[i] == 1:
                result[i] = dim
            elif not (result[i] is dim or result[i] == dim):
                raise ValueError(f"cannot broadcast {shapes}")
    return tuple(result)


def _infers(names: str) -> Callable[[Infer], Infer]:
    def register(fn: Infer) -> Infer:
        for name in names.split():
            INFER[name] = fn
        return fn

    return register


def _shape(x: Any) -> tuple[Any, ...]:
    return getattr(x, "shape", ())


@_infers(
    "Abs Neg Exp Log Sin Cos Tan Asin Acos Atan Sinh Cosh Tanh Asinh Acosh Atanh Sqrt Reciprocal Floor Ceil Round Sign"
    " Erf Sigmoid Relu Not BitwiseNot Identity CumSum CumProd Softmax LogSoftmax Softplus Softsign Elu Selu LeakyRelu"
    " HardSigmoid HardSwish Gelu Mish Swish Celu ThresholdedRelu Trilu ScatterElements ScatterND ReverseSequence"
    " LayerNormalization RMSNormalization InstanceNormalization GroupNormalization BatchNormalization Clip"
)
def _same(x: Any, *_: Any, **__: Any) -> Type:
    return x.shape, x.dtype


@_infers("Add Sub Mul Div Mod Pow Max Min Sum Mean BitwiseAnd BitwiseOr BitwiseXor BitShift And Or Xor PRelu")
def _broadcasting(*xs: Any, **_: Any) -> Type:
    return broadcast(*map(_shape, xs)), next(x.dtype for x in xs if hasattr(x, "dtype"))


@_infers("Equal Less LessOrEqual Greater GreaterOrEqual")
def _comparison(*xs: Any) -> Type:
    return broadcast(*map(_shape, xs)), BOOL


@_infers("IsNaN IsInf")
def _predicate(x: Any, **_: Any) -> Type:
    return x.shape, BOOL


@_infers("Where")
def _where(which: Any, a: Any, b: Any) -> Type:
    return broadcast(which.shape, _shape(a), _shape(b)), a.dtype if hasattr(a, "dtype") else b.dtype


@_infers("Cast")
def _cast(x: Any, *, to: np.dtype, **_: Any) -> Type:
    return x.shape, to


@_infers("BitCast")
def _bitcast(x: Any, *, to: np.dtype) -> Type:
    return x.shape, to


@_infers("ReduceSum ReduceMax ReduceMin ReduceProd ReduceMean ReduceL1 ReduceL2 ReduceLogSumExp ReduceSumSquare")
def _reduction(x: Any, *, axes: Sequence[int] | None = None, keepdims: int = 1, **_: Any) -> Type:
    rank = len(x.shape)
    reduced = range(rank) if axes is None else [a % rank for a in axes]
    if keepdims:
        return tuple(1 if i in reduced else d for i, d in enumerate(x.shape)), x.dtype
    return tuple(d for i, d in enumerate(x.shape) if i not in reduced), x.dtype


@_infers("ArgMax ArgMin")
def _arg_reduction(x: Any, *, axis: int = 0, keepdims: int = 1, **_: Any) -> Type:
    return _reduction(x, axes=(axis,), keepdims=keepdims)[0], INT64


@_infers("Transpose")
def _transpose(x: Any, *, perm: Sequence[int] | None = None) -> Type:
    perm = range(len(x.shape))[::-1] if perm is None else perm
    return tuple(x.shape[i] for i in perm), x.dtype


@_infers("Reshape")
def _reshape(x: Any, shape: Sequence[Any], *, allowzero: int = 0) -> Type:
    # A rule always says the full shape: -1 and 0 are chosen when the shape operand is built.
    return tuple(shape), x.dtype


@_infers("Expand")
def _expand(x: Any, shape: Sequence[Any]) -> Type:
    return broadcast(x.shape, tuple(shape)), x.dtype


@_infers("Squeeze")
def _squeeze(x: Any, *, axes: Sequence[int]) -> Type:
    removed = {a % len(x.shape) for a in axes}
    return tuple(d for i, d in enumerate(x.shape) if i not in removed), x.dtype


@_infers("Unsqueeze")
def _unsqueeze(x: Any, *, axes: Sequence[int]) -> Type:
    rank = len(x.shape) + len(axes)
    added = {a % rank for a in axes}
    old = iter(x.shape)
    return tuple(1 if i in added else next(old) for i in range(rank)), x.dtype


@_infers("Concat")
def _concat(*xs: Any, axis: int) -> Type:
    shape = list(xs[0].shape)
    shape[axis] = sum((x.shape[axis] for x in xs[1:]), shape[axis])
    return tuple(shape), xs[0].dtype


@_infers("Split")
def _split(x: Any, sizes: Sequence[Any], *, axis: int = 0, **_: Any) -> list[Type]:
    return [((*x.shape[:axis], s, *x.shape[axis + 1 :]), x.dtype) for s in sizes]


@_infers("Slice")
def _slice(x: Any, starts: Sequence[Any], ends: Sequence[Any], axes: Sequence[int], steps: Sequence[int] = ()) -> Type:
    """Only for bounds that are known to lie inside the axis: 0 <= start <= end <= size (or start > end >= -size-1
    with a negative step, or an end of +-2**63)."""
    shape = list(x.shape)
    for start, end, axis, step in zip(starts, ends, axes, steps or [1] * len(axes), strict=True):
        size = shape[axis]
        if isinstance(start, int) and start < 0:
            start = size + start
        if step > 0:
            end = size if isinstance(end, int) and end > 2**62 else end
            end = size + end if isinstance(end, int) and end < 0 else end
            shape[axis] = (end - start + step - 1) // step if step != 1 else end - start
        else:
            end = -1 if isinstance(end, int) and end < -(2**62) else end
            shape[axis] = (start - end - step - 1) // -step if step != -1 else start - end
    return tuple(shape), x.dtype


@_infers("Pad")
def _pad(x: Any, pads: Sequence[Any], *_: Any, **__: Any) -> Type:
    rank = len(x.shape)
    return tuple(d + lo + hi for d, lo, hi in zip(x.shape, pads[:rank], pads[rank:], strict=True)), x.dtype


@_infers("Tile")
def _tile(x: Any, repeats: Sequence[Any]) -> Type:
    return tuple(d * r for d, r in zip(x.shape, repeats, strict=True)), x.dtype


@_infers("Gather")
def _gather(x: Any, indices: Any, *, axis: int = 0) -> Type:
    return (*x.shape[:axis], *_shape(indices), *x.shape[axis + 1 :]), x.dtype


@_infers("GatherElements")
def _gather_elements(x: Any, indices: Any, **_: Any) -> Type:
    return indices.shape, x.dtype


@_infers("GatherND")
def _gather_nd(x: Any, indices: Any, *, batch_dims: int = 0) -> Type:
    depth = indices.shape[-1]
    return (*indices.shape[:-1], *x.shape[batch_dims + depth :]), x.dtype


@_infers("MatMul")
def _matmul(a: Any, b: Any) -> Type:
    batch = broadcast(a.shape[:-2], b.shape[:-2])
    rows = a.shape[-2:-1] if len(a.shape) > 1 else ()
    columns = b.shape[-1:] if len(b.shape) > 1 else ()
    return (*batch, *rows, *columns), a.dtype


@_infers("Gemm")
def _gemm(a: Any, b: Any, c: Any = None, *, transA: int = 0, transB: int = 0, **_: Any) -> Type:
    return (a.shape[1 if transA else 0], b.shape[0 if transB else 1]), a.dtype


@_infers("Shape")
def _shape_op(x: Any, *, start: int = 0, end: int | None = None) -> Type:
    return (len(x.shape[start:end]),), INT64


@_infers("TopK")
def _top_k(x: Any, k: Sequence[int], *, axis: int = -1, **_: Any) -> list[Type]:
    axis %= len(x.shape)
    shape = (*x.shape[:axis], k[0], *x.shape[axis + 1 :])
    return [(shape, x.dtype), (shape, INT64)]


@_infers("ConstantOfShape")
def _constant_of_shape(shape: Sequence[Any], *, value: np.ndarray) -> Type:
    return tuple(shape), value.dtype


@_infers("OneHot")
def _one_hot(indices: Any, depth: Any, values: Any, *, axis: int = -1) -> Type:
    axis %= len(indices.shape) + 1
    return (*indices.shape[:axis], depth, *indices.shape[axis:]), values.dtype


def data_type(dtype: np.dtype) -> int:
    """The value of a `to` or `dtype` attribute."""
    return int(ir.DataType.from_numpy(dtype))
