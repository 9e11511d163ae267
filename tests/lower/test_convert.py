"""Conversions to types of one byte and less, where ONNX saturates or rounds and JAX does neither; and conditions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax2onnx
from tests.helpers import check

FLOAT8 = [jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.float8_e4m3fnuz, jnp.float8_e5m2fnuz]
LIMITS = [448, 463, 464, 465, 479, 480, 481, 240, 248, 249, 256, 57344, 61439, 61440, 61441, 65504, 1e5, 1e30]
SMALL = [0, 2**-10, 2**-11, 1.001 * 2**-11, 3 * 2**-11, 2**-17, 2**-18, 1.5 * 2**-17, 0.3, 1.06, np.inf, np.nan]


@pytest.mark.parametrize("dtype", FLOAT8, ids=lambda d: d.__name__)
def test_float8_does_not_saturate(dtype):
    """Also where arithmetic ends beyond the largest number."""
    x = np.float32([*LIMITS, *SMALL])
    x = np.concatenate([x, -x])
    integers = np.array([0, 1, 3, 255, 449, 465, 60000, 61440, 2**31 - 1, -500, -70000])

    def fn(x, i):
        sources = [x, x.astype(jnp.float16), x.astype(jnp.bfloat16), x.astype(np.float64), i, i > 2, i.astype(np.uint8)]
        narrow = x.astype(dtype)
        results = [source.astype(dtype) for source in sources] + [narrow * narrow, (narrow + narrow)[1:]]
        return [narrow, *(r.astype(np.float32) for r in results)]

    check(fn, x, integers, rtol=0, atol=0)


def test_the_nearest_power_of_two():
    """NaN where there is none: of zero, of negative numbers, and beyond the largest."""
    top = 2.0**127
    x = np.float64([1, 1.4999999999, 1.5, 2.5, 3, 5, 6, 0, -0.0, -1, top, 1.4 * top, 1.5 * top, 1e300, np.inf, np.nan])

    def fn(x, i):
        sources = [x, x.astype(np.float32), x.astype(jnp.float16), x.astype(jnp.bfloat16), i, i > 2, i.astype(np.uint8)]
        return [source.astype(jnp.float8_e8m0fnu).astype(np.float32) for source in sources]

    check(fn, x, np.array([0, 1, 3, 5, 255, -2]), rtol=0, atol=0, opset=25)
    powers = jnp.asarray([1, 2, 4, 2.0**120], jnp.float8_e8m0fnu)
    check(lambda x: [x * x, x + x, x * x[::-1]], powers, opset=25)


@pytest.mark.parametrize("dtype", [jnp.int4, jnp.uint4], ids=lambda d: d.__name__)
def test_to_four_bits_truncates(dtype):
    x = np.float32([0.5, 0.99, 1.5, 2.5, -0.5, -1.5, 6.9, 100, -100, np.inf, np.nan])
    check(lambda x: [lax.convert_element_type(v, dtype) for v in (x, x.astype(np.float16), x.astype(np.int32))], x)


@pytest.mark.parametrize("target", ["onnx", "onnxruntime"])
@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fn, jnp.float8_e5m2], ids=lambda d: d.__name__)
def test_there_is_no_float8_in_old_opsets(dtype, target):
    check(lambda x: x.astype(dtype), np.float32([0.3, -448, 1e6, np.nan]), opset=19, target=target)
    with pytest.raises(jax2onnx.UnsupportedError, match=r"Cast with float and float8.*opset 18"):
        jax2onnx.to_onnx(lambda x: x.astype(dtype), [(3,)], opset=18, target=target)


@pytest.mark.parametrize("other", [jnp.int2, jnp.float4_e2m1fn, jnp.float8_e8m0fnu], ids=lambda d: d.__name__)
@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fn, jnp.float8_e5m2], ids=lambda d: d.__name__)
def test_types_that_the_runtime_does_not_cast(dtype, other):
    """Neither in one step nor by way of float32: at opset 23 it has no kernel for them."""
    for source, result in [(dtype, other), (other, dtype)]:
        with pytest.raises(jax2onnx.UnsupportedError, match=r"no kernel for Cast.*target='onnx'"):
            jax2onnx.to_onnx(lambda x, result=result: x.astype(result), [jax.ShapeDtypeStruct((3,), source)])


def test_types_that_onnx_does_not_have():
    with pytest.raises(jax2onnx.UnsupportedError, match="float8_e3m4"):
        jax2onnx.to_onnx(lambda x: x.astype(jnp.float8_e3m4).astype(np.float32), [(3,)])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_product_with_a_condition_chooses(dtype):
    """XLA takes (x > 0) * y for a choice, so that a y that does not count may be NaN; not where it is repeated."""
    x = dtype([np.nan, np.inf, -2, 0.5, -np.inf, 0])
    rows = np.stack([x, x[::-1]])
    check(lambda x, rows: ((x > 0) * jnp.log(x), x * (x < 1).astype(x.dtype), rows * (x > 0)), x, rows)
    check(lambda x: jax.jvp(lambda x: (jnp.nanmax(x), jnp.min(x[1:])), (x,), (x,)), x)


@pytest.mark.parametrize("dtype", FLOAT8, ids=lambda d: d.__name__)
def test_what_is_finite_in_types_without_infinity(dtype):
    check(jnp.isfinite, np.float32([0, -0.0, 1, -240, 0.3, 1e30, np.inf, -np.inf, np.nan]).astype(dtype))
