"""Every dtype that ONNX Runtime has goes in and comes out of `runtime.run` with its bits."""

import jax
import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

from jax2onnx import runtime

# Whole bytes: ONNX Runtime has Identity for these.
BYTES = [np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
BYTES += [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz]
BYTES += [ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz]


def model_of(op, output_type, input_type, shape, **attributes):
    node = helper.make_node(op, ["x"], ["y"], **attributes)
    of = [helper.make_tensor_value_info(n, t, shape) for n, t in (("x", input_type), ("y", output_type))]
    graph = helper.make_graph([node], "g", of[:1], of[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


def element_type(dtype):
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 0, 3), (3, 2)], ids=str)
@pytest.mark.parametrize("dtype", BYTES, ids=lambda d: np.dtype(d).name)
def test_identity_keeps_bits(dtype, shape):
    dtype = np.dtype(dtype)
    model = model_of("Identity", element_type(dtype), element_type(dtype), shape)
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    (y,) = runtime.run(model, [x])
    assert y.dtype == dtype
    assert y.shape == shape
    assert y.tobytes() == x.tobytes()


@pytest.mark.parametrize("size", [0, 1, 2, 5])
@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4], ids=lambda d: np.dtype(d).name)
def test_four_bits_are_packed_and_unpacked(dtype, size):
    dtype, int8 = np.dtype(dtype), onnx.TensorProto.INT8
    x = np.arange(size, dtype=np.int8) + (-2 if dtype == ml_dtypes.int4 else 9)
    narrow = model_of("Cast", element_type(dtype), int8, (size,), to=element_type(dtype))
    (packed,) = runtime.run(narrow, [x])
    assert packed.dtype == dtype
    np.testing.assert_array_equal(packed.astype(np.int8), x)
    (wide,) = runtime.run(model_of("Cast", int8, element_type(dtype), (size,), to=int8), [packed])
    np.testing.assert_array_equal(wide, x)


def test_feeds_by_name_by_order_and_from_a_file(tmp_path):
    model = model_of("Neg", onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT, (2, 3))
    x = np.arange(6, dtype=np.float32).reshape(3, 2).T  # not contiguous
    path = tmp_path / "neg.onnx"
    onnx.save(model, path)
    for given in (model, model.SerializeToString(), path, str(path), runtime.session(model)):
        for feeds in ([x], {"x": x}, (jax.numpy.asarray(x),)):
            np.testing.assert_array_equal(runtime.run(given, feeds)[0], -x)
    with pytest.raises(ValueError, match="1 inputs"):
        runtime.run(model, [x, x])


def test_at_boundary():
    z = np.array([1 + 2j, complex(np.nan, -0.0)], np.complex64)
    np.testing.assert_array_equal(runtime.at_boundary(z), np.array([[1, 2], [np.nan, -0.0]], np.float32))
    key = jax.random.key(3)
    np.testing.assert_array_equal(runtime.at_boundary(key), np.asarray(jax.random.key_data(key)))
    assert runtime.at_boundary(jax.numpy.ones(2, jax.numpy.bfloat16)).dtype == ml_dtypes.bfloat16
    assert runtime.at_boundary(np.float64(1)).dtype == np.float32  # a scalar is what JAX makes of it
    assert runtime.at_boundary(np.ones(2)).dtype == np.float64
