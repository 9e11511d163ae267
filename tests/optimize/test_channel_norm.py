"""Normalizations over the channels of images, between convolutions: there are no Transposes around them."""

from __future__ import annotations

from collections import Counter

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from tests.helpers import check

RNG = np.random.default_rng(0)


def array(*shape) -> np.ndarray:
    return (RNG.normal(size=shape) / 2).astype(np.float32)


KERNEL, DEPTHWISE, PATCHES = array(3, 3, 8, 8), array(3, 3, 1, 8), array(2, 2, 8, 8)
UP, DOWN, WIDE, SCALE, BIAS = array(8, 20), array(20, 8), array(20), array(8), array(8)


def conv(x, kernel, groups=1, padding="SAME", strides=(1, 1)):
    dimensions = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, kernel, strides, padding, dimension_numbers=dimensions, feature_group_count=groups
    )


def layer_norm(x):
    normal = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
    return normal * SCALE + BIAS


def rms_norm(x):
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * SCALE


def counts(fn, *args, **options) -> Counter[str]:
    model = check(fn, *args, rtol=1e-4, atol=1e-4, **options)
    return Counter(node.op_type for node in model.graph.node)


def block(x):
    y = jax.nn.gelu(layer_norm(conv(x, DEPTHWISE, 8)) @ UP + WIDE) @ DOWN + 1
    return x + y * SCALE


@pytest.mark.parametrize("dims", [None, [("B", "2*H", "2*W", 8)]])
@pytest.mark.parametrize("opset", [17, 23])
def test_blocks_with_a_norm_between(dims, opset):
    """The scale and the bias of a norm become part of the layer behind it."""

    def fn(x):
        x = layer_norm(conv(x, KERNEL))
        for _ in range(4):
            x = block(x)
        return conv(layer_norm(x), PATCHES, padding="VALID", strides=(2, 2)).max((1, 2))

    found = counts(fn, array(2, 6, 4, 8), dims=dims, opset=opset)
    assert found["Transpose"] == 1 and found["Conv"] == 14 and not found["LayerNormalization"] + found["MatMul"]
    assert found["Sub"] == found["Sqrt"] == 6 and found["ReduceMean"] == 12


def test_norms_at_the_end():
    """What comes last has its channels last, and is between no two convolutions."""
    found = counts(lambda x: layer_norm(block(block(conv(x, KERNEL)))), array(2, 5, 4, 8))
    assert found["Transpose"] == 2 and found["LayerNormalization"] == 1 and found["Conv"] == 7
    found = counts(lambda x: layer_norm(block(block(conv(x, KERNEL))).mean((1, 2))), array(2, 5, 4, 8))
    assert found["Transpose"] == 1 and found["LayerNormalization"] == 1 and found["Conv"] == 7
    found = counts(lambda x: layer_norm(conv(x, KERNEL)), array(2, 5, 4, 8))
    assert found["Transpose"] == 2 and found["LayerNormalization"] == 1


def test_norms_without_a_mean():
    found = counts(lambda x: conv(jax.nn.relu(rms_norm(conv(x, KERNEL))), KERNEL), array(2, 5, 4, 8), opset=23)
    assert found["Transpose"] == 2 and not found["RMSNormalization"] and found["ReduceMean"] == 1


def test_those_who_prefer_the_operator_get_it():
    for mode, norms in (("prefer_native", 2), ("auto", 0), ("force_decomposed", 0)):
        options = {"normalization_mode": mode}
        found = counts(lambda x: conv(block(block(conv(x, KERNEL))), KERNEL), array(2, 5, 4, 8), **options)
        assert found["LayerNormalization"] == norms and found["Transpose"] == 2 + 2 * norms


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("groups", [1, 8])
def test_the_bias_is_not_padded(padding, groups):
    kernel = DEPTHWISE if groups == 8 else KERNEL
    check(lambda x: conv(layer_norm(conv(x, KERNEL)), kernel, groups, padding), array(2, 5, 4, 8), rtol=1e-4, atol=1e-4)


def test_parameters_that_are_used_twice():
    """By a norm whose result is wanted before its scale is part of anything, and by two convolutions."""

    def fn(x):
        normal = layer_norm(conv(x, KERNEL))
        return conv(normal, KERNEL) + conv(normal, DEPTHWISE, 8), normal.sum((1, 2))

    assert counts(fn, array(2, 5, 4, 8))["Transpose"] == 2


def test_numbers_that_hurt():
    x = array(2, 5, 4, 8)
    x[0, 0, 0, 0], x[0, 1, 0, 1], x[1, 2, 3, 4], x[1, 4] = np.nan, np.inf, -np.inf, 0
    one = array(1, 1, 8, 8)
    for norm in (layer_norm, rms_norm, lambda x: layer_norm(x) * jnp.float32(np.inf)):
        check(lambda x, norm=norm: conv(norm(conv(x, one)), one), x, rtol=1e-4, atol=1e-4)
        check(lambda x, norm=norm: conv(norm(conv(x, one)), one), x[:0], rtol=1e-4, atol=1e-4)
