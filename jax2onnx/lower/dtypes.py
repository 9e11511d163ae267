"""NumPy (and ml_dtypes) dtypes on the JAX side, `onnx_ir.DataType` on the ONNX side."""

from __future__ import annotations

import functools

import jax
import numpy as np
import onnx_ir as ir
from jax import numpy as jnp

from jax2onnx.errors import UnsupportedError

BOOL = np.dtype(np.bool_)
UINT8 = np.dtype(np.uint8)
INT32 = np.dtype(np.int32)
INT64 = np.dtype(np.int64)
FLOAT32 = np.dtype(np.float32)
FLOAT64 = np.dtype(np.float64)
BFLOAT16 = np.dtype(jnp.bfloat16)


@functools.cache
def onnx_dtype(dtype: np.dtype) -> ir.DataType:
    """The ONNX element type that stores `dtype`. A float0 (the tangent of an integer) carries nothing: a bool."""
    if dtype == jax.dtypes.float0:
        return ir.DataType.BOOL
    try:
        return ir.DataType.from_numpy(dtype)
    except TypeError:
        raise UnsupportedError(f"ONNX has no element type {dtype}.") from None


@functools.cache
def tensor_type(dtype: np.dtype) -> ir.TensorType:
    """The ONNX tensor type with elements of `dtype`."""
    return ir.TensorType(onnx_dtype(dtype))


@functools.cache
def is_float(dtype: np.dtype) -> bool:
    """Is `dtype` a real floating-point type (bfloat16 and float8 included)?"""
    return bool(jnp.issubdtype(dtype, jnp.floating))


@functools.cache
def is_integer(dtype: np.dtype) -> bool:
    """Is `dtype` a signed or unsigned integer type (int4 included, bool not)?"""
    return bool(jnp.issubdtype(dtype, jnp.integer))


@functools.cache
def is_unsigned(dtype: np.dtype) -> bool:
    """Is `dtype` an unsigned integer type?"""
    return bool(jnp.issubdtype(dtype, jnp.unsignedinteger))


@functools.cache
def bit_width(dtype: np.dtype) -> int:
    """The number of bits of one element of a numeric `dtype` (4 for int4, though NumPy stores it in a byte)."""
    if is_integer(dtype):
        return int(jnp.iinfo(dtype).bits)
    if is_float(dtype):
        return int(jnp.finfo(dtype).bits)
    return dtype.itemsize * 8


def unsigned(dtype: np.dtype) -> np.dtype:
    """The unsigned integer type as wide as `dtype`."""
    return np.dtype(f"uint{bit_width(dtype)}")


def signed(dtype: np.dtype) -> np.dtype:
    """The signed integer type as wide as `dtype`."""
    return np.dtype(f"int{bit_width(dtype)}")


def lowest(dtype: np.dtype) -> np.ndarray:
    """The neutral element of max: -inf, the smallest integer, or False."""
    if dtype == BOOL:
        return np.asarray(False)
    return np.asarray(-np.inf if is_float(dtype) else jnp.iinfo(dtype).min, dtype)


def highest(dtype: np.dtype) -> np.ndarray:
    """The neutral element of min: inf, the largest integer, or True."""
    if dtype == BOOL:
        return np.asarray(True)
    return np.asarray(np.inf if is_float(dtype) else jnp.iinfo(dtype).max, dtype)
