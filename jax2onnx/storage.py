"""Weights stored in half precision and computed with in float32: half the size on disk, the same graph after a Cast.

This is the last step before the model is written, so that nothing folds the Casts away again. (A runtime may do so when
it loads the model; ONNX Runtime does.)
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import onnx_ir as ir

from jax2onnx.errors import InputError
from jax2onnx.naming import NAME
from jax2onnx.streaming import StreamedTensor, pieces_of

DTYPES = ("float16", "bfloat16")


def storage_dtype(given: Any) -> np.dtype | None:
    """What the caller gave as `weights_dtype`, checked."""
    if given is None:
        return None
    try:
        dtype = jax.numpy.dtype(given)
    except TypeError:
        dtype = None
    if dtype is None or dtype.name not in DTYPES:
        raise InputError(f"weights_dtype is {given!r}; it must be one of {', '.join(DTYPES)}, or None.")
    return dtype


def store_weights(model: ir.Model, dtype: np.dtype) -> None:
    """Let each float32 weight of `model` be stored as `dtype`. Constants of the program's text stay as they are."""
    graph = model.graph
    weights = [v for v in graph.initializers.values() if NAME in v.meta and v.dtype == ir.DataType.FLOAT]
    casts = []
    for weight in weights:
        assert weight.const_value is not None
        stored = ir.Value(
            name=weight.name,
            shape=weight.shape,
            type=ir.TensorType(ir.DataType.from_numpy(dtype)),
            const_value=_rounded(weight.const_value, dtype, weight.meta[NAME]),
        )
        stored.meta[NAME] = weight.meta[NAME]
        cast = ir.node("Cast", [stored], {"to": ir.DataType.FLOAT}, name=f"{weight.meta[NAME]}/Cast")
        cast.outputs[0].shape, cast.outputs[0].type = weight.shape, weight.type
        weight.replace_all_uses_with(cast.outputs[0], replace_graph_outputs=True)
        del graph.initializers[weight.name]  # type: ignore[arg-type]
        graph.register_initializer(stored)
        casts.append(cast)
    if casts:
        graph.insert_before(graph[0], casts) if len(graph) else graph.extend(casts)


def _rounded(tensor: ir.TensorProtocol, dtype: np.dtype, name: str) -> ir.TensorProtocol:
    """The tensor in another dtype, read when the model is written."""

    def rounded(array: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            result = array.astype(dtype)
        if np.isinf(result.astype(np.float32)).sum() != np.isinf(array).sum():
            raise InputError(
                f"The weight {name!r} has values that {dtype.name} cannot hold; use another weights_dtype."
            )
        return result

    return StreamedTensor(
        lambda: map(rounded, pieces_of(tensor)), lambda: rounded(tensor.numpy()), dtype, tuple(tensor.shape)
    )
