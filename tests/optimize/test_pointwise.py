"""Products with the channels of images are convolutions by one pixel, where that spares Transposes."""

from __future__ import annotations

from collections import Counter

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from tests.helpers import check

RNG = np.random.default_rng(0)
LAYOUTS = {2: ("NHWC", "HWIO", "NHWC"), 3: ("NDHWC", "DHWIO", "NDHWC")}


def array(*shape) -> np.ndarray:
    return (RNG.normal(size=shape) / 2).astype(np.float32)


def conv(x, kernel, groups=1):
    rank = x.ndim - 2
    return lax.conv_general_dilated(
        x, kernel, (1,) * rank, "SAME", dimension_numbers=LAYOUTS[rank], feature_group_count=groups
    )


UP, DOWN, BIAS, SCALE = array(8, 20), array(20, 8), array(20), array(8)


def counts(fn, *args, **options) -> Counter[str]:
    model = check(fn, *args, rtol=1e-4, atol=1e-4, **options)
    return Counter(node.op_type for node in model.graph.node)


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("dims", [None, "BDHW"])
def test_layers_between_convolutions(rank, dims):
    kernel, x = array(*[3] * rank, 8, 8), array(2, *(5, 4, 6)[:rank], 8)

    def fn(x):
        y = jax.nn.gelu(conv(x, kernel) @ UP + BIAS) @ DOWN
        return conv(x + y * SCALE, kernel)

    found = counts(fn, x, dims=[(*dims[: rank + 1], 8)] if dims else None)
    assert found == {"Transpose": 2, "Conv": 4, "Gelu": 1, "Add": 1}


def test_what_stays_a_product():
    """It is of few pixels, with an unknown matrix, wanted channels-last, or would have more to be
    transposed."""
    kernel, x = array(3, 3, 8, 8), array(2, 5, 4, 8)
    assert counts(lambda x: conv(x.mean((1, 2), keepdims=True) @ UP @ DOWN * x, kernel), x)["MatMul"] == 2
    assert counts(lambda x, w: conv(conv(x, kernel) @ w, kernel), x, SCALE * array(8, 8))["MatMul"] == 1
    assert counts(lambda x: conv(x, kernel) @ UP, x)["MatMul"] == 1
    assert counts(lambda x: conv(jnp.sort(x, -1) @ DOWN, kernel), array(2, 5, 4, 20))["MatMul"] == 1
    assert counts(lambda x: conv(x, kernel) @ UP @ UP.T, x)["Transpose"] == 2


def test_numbers_that_hurt():
    kernel, x = array(1, 1, 8, 8), array(2, 5, 4, 8)
    x[0, 0, 0, 0], x[0, 1, 0, 1], x[1, 2, 3, 4] = np.nan, np.inf, -np.inf
    assert counts(lambda x: conv(jax.nn.relu(conv(x, kernel) @ UP) @ DOWN, kernel), x)["Conv"] == 4
    check(lambda x: conv(conv(x, kernel) @ UP @ DOWN, kernel), x[:0])
