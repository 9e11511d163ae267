"""Depth to space and back in channels-last code, between convolutions."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax2onnx import runtime, to_onnx
from tests.compare import assert_same
from tests.helpers import check, check_run


def weights(*shape):
    return (np.random.default_rng(len(shape)).normal(size=shape) / 6).astype(np.float32)


def conv(x, kernel):
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def to_space(x, block=2, order=(0, 1, 3, 2, 4, 5)):
    n, h, w, c = x.shape
    x = x.reshape(n, h, w, block, block, c // block**2).transpose(order)
    return x.reshape(n, h * block, w * block, c // block**2)


def to_space_channels_first(x, block=2):
    n, h, w, c = x.shape
    x = x.reshape(n, h, w, c // block**2, block, block).transpose(0, 1, 4, 2, 5, 3)
    return x.reshape(n, h * block, w * block, c // block**2)


def to_depth(x, block=2):
    n, h, w, c = x.shape
    x = x.reshape(n, h // block, block, w // block, block, c).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(n, h // block, w // block, c * block**2)


def ops(model):
    return Counter(node.op_type for node in model.graph.node)


X = np.random.default_rng(0).normal(size=(2, 6, 4, 3)).astype(np.float32)


@pytest.mark.parametrize(
    ("shuffle", "operator"),
    [
        (to_space, "DepthToSpace"),
        (to_space_channels_first, "DepthToSpace"),
        (to_depth, "SpaceToDepth"),
        (lambda x: to_space(x, order=(0, 1, 4, 2, 3, 5)), "Reshape"),  # the blocks are transposed: nothing has that
        (lambda x: x.reshape(2, 6, 4, 2, 2, 2).transpose(0, 1, 3, 2, 4, 5).reshape(2, 8, 12, 2), "Reshape"),
    ],
    ids=["DCR", "CRD", "to depth", "transposed", "another shape"],
)
def test_one_shuffle_after_a_convolution(shuffle, operator):
    model = check(lambda x: shuffle(conv(x, weights(3, 3, 3, 8))), X, rtol=1e-4, atol=1e-5)
    assert ops(model)[operator]


KERNELS = [weights(3, 3, 3, 8), weights(3, 3, 8, 8), weights(3, 3, 8, 12), weights(3, 3, 3, 3)]


def superresolution(x):
    """A residual block, and twice the size."""
    x = jax.nn.relu(conv(x, KERNELS[0]) + 0.1)
    x = x + conv(jax.nn.relu(conv(x, KERNELS[1])), KERNELS[1])
    return jnp.tanh(conv(to_space(conv(x, KERNELS[2])), KERNELS[3]))


@pytest.mark.parametrize("shape", [(2, 6, 4, 3), ("B", "H", "W", 3)])
def test_no_transposes_with_channels_first_outside(shape):
    model = to_onnx(superresolution, [shape], inputs_as_nchw=[0], outputs_as_nchw=["output"], verify=True)
    counts = ops(model)
    assert counts["Transpose"] == 0 and counts["Reshape"] == 0
    assert counts["DepthToSpace"] == 1 and counts["Conv"] == 5
    for node in model.graph.node:
        if node.op_type == "Conv":
            assert [list(a.ints) for a in node.attribute if a.name == "kernel_shape"] == [[3, 3]]
    got = runtime.run(model, [np.moveaxis(X, -1, 1)])
    assert_same(got, [np.moveaxis(np.asarray(jax.jit(superresolution)(X)), -1, 1)], rtol=1e-4, atol=1e-5)


def test_any_size_also_none():
    model = check(superresolution, X, rtol=1e-4, atol=1e-5, dims=[("B", "H", "W", 3)])
    assert ops(model)["Transpose"] == 2  # one at each end
    check_run(model, superresolution, X[:0], rtol=1e-4, atol=1e-5)
    check_run(model, superresolution, X[:1, :1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "uint8", "bool"])
def test_other_dtypes(dtype):
    x = np.arange(2 * 8 * 3 * 2).reshape(2, 8, 3, 2) % 2
    model = check(lambda x: to_space(x.transpose(0, 2, 3, 1)), jnp.asarray(x, dtype), rtol=0, atol=0)
    assert ops(model)["DepthToSpace"] == 1


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_integers_that_no_other_type_holds(dtype):
    x = np.arange(2 * 8 * 4 * 2, dtype=dtype).reshape(2, 8, 4, 2) + np.array(2**53 + 1, dtype)
    for shuffle in (to_space, to_depth):
        check(lambda x, shuffle=shuffle: shuffle(x.transpose(0, 2, 3, 1)), x, dims=[("B", 8, "2*H", "2*W")])
