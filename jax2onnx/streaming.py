"""Weights as pieces: arrays of a few megabytes whose bytes, one after the other, are those of the weight.

What is written to a file, rearranged or rounded needs no second copy of a weight in memory, and a weight that is spread
over several devices is taken from them shard by shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import onnx_ir as ir

from jax2onnx.errors import InputError
from jax2onnx.graphs import static_shape

PIECE_BYTES = 1 << 22
"""How much of a tensor is read at a time."""

TILE = 64
"""How many elements along two axes are transposed at a time: as many as stay in the nearest cache."""

Pieces = Callable[[], Iterator[np.ndarray]]


class StreamedTensor(ir.LazyTensor):
    """A tensor that gives its content in pieces, and as a whole only to those who ask for it."""

    def __init__(self, pieces: Pieces, read: Callable[[], np.ndarray], dtype: np.dtype, shape: Any) -> None:
        super().__init__(lambda: ir.Tensor(read()), ir.DataType.from_numpy(dtype), static_shape(tuple(shape)))
        self.pieces = pieces


def pieces_of(tensor: ir.TensorProtocol) -> Iterator[np.ndarray]:
    """The content of a tensor in pieces."""
    if isinstance(tensor, StreamedTensor):
        yield from tensor.pieces()
    else:
        yield from pieces(tensor.numpy())


def pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    """An array, however its elements lie in memory, in contiguous pieces."""
    if array.flags.c_contiguous:
        array = array.reshape(-1)
    if array.nbytes <= PIECE_BYTES:
        yield contiguous(array)
        return
    rows = PIECE_BYTES // array[0].nbytes
    if rows == 0:
        for row in array:
            yield from pieces(row)
        return
    for start in range(0, len(array), rows):
        yield contiguous(array[start : start + rows])


def contiguous(array: np.ndarray) -> np.ndarray:
    """`np.ascontiguousarray`, for what is transposed two to three times as fast."""
    axes = [axis for axis, size in enumerate(array.shape) if size > 1]
    near = min(axes, key=lambda axis: abs(array.strides[axis]), default=0)
    if array.nbytes < 1 << 16 or len(axes) < 2 or near == axes[-1]:
        return np.ascontiguousarray(array)
    far = max((axis for axis in axes if axis != near), key=lambda axis: array.shape[axis])
    result = np.empty(array.shape, array.dtype)
    target, source = (np.moveaxis(a, (near, far), (0, 1)) for a in (result, array))
    for i in range(0, array.shape[near], TILE):
        for j in range(0, array.shape[far], TILE):
            target[i : i + TILE, j : j + TILE] = source[i : i + TILE, j : j + TILE]
    return result


def is_elsewhere(array: Any) -> bool:
    """Is an array spread over several devices, or on one whose memory NumPy cannot look at?"""
    if not isinstance(array, jax.Array) or isinstance(array, jax.core.Tracer):
        return False
    return len(array.devices()) > 1 or next(iter(array.devices())).platform != "cpu"


def from_devices(array: jax.Array) -> StreamedTensor:
    """A weight that is on other devices, taken from them when it is written."""
    if not (array.is_fully_addressable or array.is_fully_replicated):
        raise InputError("A weight is spread over several processes. Gather it first: each process sees only its part.")

    def whole() -> np.ndarray:
        result = np.empty(array.shape, array.dtype)
        for shard in array.addressable_shards:
            result[shard.index] = _to_host(shard.data)
        return result

    return StreamedTensor(lambda: _pieces_of_shards(array), whole, array.dtype, array.shape)


def _pieces_of_shards(array: jax.Array) -> Iterator[np.ndarray]:
    """First the shards that have the first rows, then those that have the next, and so on."""
    if array.ndim == 0 or array.is_fully_replicated:
        yield from pieces(_to_host(array.addressable_shards[0].data))
        return
    bands: dict[tuple[int, int], dict[str, Any]] = {}
    for shard in array.addressable_shards:
        start, stop, _ = shard.index[0].indices(array.shape[0])
        bands.setdefault((start, stop), {})[str(shard.index)] = shard  # the same part may be on several devices
    for (start, stop), shards in sorted(bands.items()):
        parts = [(shard.index[1:], _to_host(shard.data)) for shard in shards.values()]
        if len(parts) == 1:
            yield from pieces(parts[0][1])
            continue
        rows = max(1, PIECE_BYTES // max(1, array.nbytes // array.shape[0]))
        for first in range(0, stop - start, rows):
            band = np.empty((min(rows, stop - start - first), *array.shape[1:]), array.dtype)
            for index, part in parts:
                band[:, *index] = part[first : first + rows]
            yield band


def _to_host(data: jax.Array) -> np.ndarray:
    """An array of one device for NumPy. JAX keeps the copy with the array that was asked: here, one of our own."""
    return np.asarray(jax.make_array_from_single_device_arrays(data.shape, data.sharding, [data]))
