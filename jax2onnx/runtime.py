"""Run a model in ONNX Runtime with arrays of any dtype, bfloat16, float8 and 4-bit types included.

    from jax2onnx import runtime
    (y,) = runtime.run(model, [x])                # inputs in the model's order
    (y,) = runtime.run("model.onnx", {"x": x})    # or by name

`at_boundary` gives a JAX value the form it has at a model's boundary: complex numbers are pairs of reals, typed PRNG
keys are their key data.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import ArrayLike
from onnx import helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from jax2onnx.boundary import at_boundary as at_boundary

_ERRORS_ONLY = 3  # onnxruntime's log severities: verbose, info, warning, error, fatal

# What ONNX Runtime raises when it does not load or run a model. The classes have no common base.
ERRORS = (
    ort_state.EPFail,
    ort_state.EngineError,
    ort_state.Fail,
    ort_state.InvalidArgument,
    ort_state.InvalidGraph,
    ort_state.InvalidProtobuf,
    ort_state.NoModel,
    ort_state.NoSuchFile,
    ort_state.NotImplemented,
    ort_state.RuntimeException,
)
INVALID_ARGUMENT = ort_state.InvalidArgument

Model: TypeAlias = onnx.ModelProto | bytes | str | os.PathLike[str] | ort.InferenceSession


def session(model: Model, options: ort.SessionOptions | None = None) -> ort.InferenceSession:
    """An ONNX Runtime CPU session of `model`: a proto, its bytes, or the path of its file (a session stays itself)."""
    if isinstance(model, ort.InferenceSession):
        return model
    if options is None:
        options = ort.SessionOptions()
        options.log_severity_level = _ERRORS_ONLY
    if isinstance(model, onnx.ModelProto):
        model = model.SerializeToString()
    elif not isinstance(model, bytes):
        model = os.fspath(model)
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run(model: Model, feeds: Mapping[str, ArrayLike] | Sequence[ArrayLike]) -> list[np.ndarray]:
    """The outputs of `model` for the inputs `feeds`, given by name or in the model's order."""
    sess = session(model)
    names = [value.name for value in sess.get_inputs()]
    if not isinstance(feeds, Mapping):
        if len(feeds) != len(names):
            raise ValueError(f"the model has {len(names)} inputs ({', '.join(names)}), but {len(feeds)} were given")
        feeds = dict(zip(names, feeds, strict=True))
    values = {name: _to_ort(np.asarray(x)) for name, x in feeds.items()}
    outputs = [value.name for value in sess.get_outputs()]
    return [_from_ort(value) for value in sess.run_with_ort_values(outputs, values)]


def _to_ort(array: np.ndarray) -> ort.OrtValue:
    """An OrtValue of `array`. The plain way, `session.run`, knows only numpy's own dtypes."""
    element_type = helper.np_dtype_to_tensor_dtype(array.dtype)
    if not _is_packed(array.dtype):
        # The OrtValue reads the array's memory and keeps the array alive.
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.require(array, requirements="C"), element_type)
    contents = numpy_helper.from_array(array).raw_data
    value = ort.OrtValue.ortvalue_from_shape_and_type(array.shape, element_type)
    ctypes.memmove(value.data_ptr(), contents, len(contents))
    return value


def _from_ort(value: ort.OrtValue) -> np.ndarray:
    dtype = helper.tensor_dtype_to_np_dtype(value.element_type())
    if dtype.isbuiltin == 1:  # numpy's own; 2 is a registered extension, as all of ml_dtypes
        return value.numpy()
    contents = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    tensor = onnx.TensorProto(data_type=value.element_type(), dims=value.shape(), raw_data=contents)
    return numpy_helper.to_array(tensor)


def _is_packed(dtype: np.dtype) -> bool:
    """Whether ONNX stores several elements of `dtype` in a byte (numpy never does)."""
    return dtype.name in {"int4", "uint4", "int2", "uint2", "float4_e2m1fn"}
