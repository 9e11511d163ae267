"""Many floats that become integers: the plain conversion where all of them are ordinary numbers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from jax import lax
from jax import numpy as jnp

from tests.helpers import check, check_run

SIZE = 20_000
SPECIAL = [np.nan, np.inf, -np.inf, 2.0**31, 2.0**31 - 128, -(2.0**31), -3e9, 3e38, 2.0**32, -0.0, 127.5, -128.9, 300.7]
FLOATS, INTEGERS = [np.float32, np.float64], [np.int8, np.uint8, np.int16, np.int32, np.uint32]

rng = np.random.default_rng(0)


def numbers(dtype: type, *special: float) -> np.ndarray:
    x = (300 * rng.normal(size=SIZE)).astype(dtype)
    x[: len(special)] = special
    return x


def calls(model: onnx.ModelProto) -> int:
    return sum(node.op_type.startswith("SaturatingCast") for node in model.graph.node)


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.__name__)
@pytest.mark.parametrize("source", FLOATS, ids=lambda d: d.__name__)
def test_all_numbers(source: type, dtype: type) -> None:
    fn = lambda x: lax.convert_element_type(x, dtype)  # noqa: E731
    model = check(fn, numbers(source))
    assert calls(model) == len(model.graph.node) == 1
    for special in ([np.nan], [-(2.0**31)], [2.0**31], SPECIAL):
        check_run(model, fn, numbers(source, *special))


def test_equal_ones_share_the_function() -> None:
    x, y = numbers(np.float32), numbers(np.float32, *SPECIAL)
    fn = lambda x, y: (x.astype(np.int32), jnp.floor(y).astype(np.int32), y.astype(np.int8))  # noqa: E731
    model = check(fn, x, y)
    assert calls(model) == 3
    assert len(model.functions) == 2


@pytest.mark.parametrize("source", FLOATS, ids=lambda d: d.__name__)
def test_numbers_that_are_clipped_before(source: type) -> None:
    fn = lambda x: jnp.clip(jnp.floor(x), -3, 200).astype(np.int32)  # noqa: E731
    model = check(fn, numbers(source))
    assert calls(model) == 1
    assert not any(node.op_type == "Clip" for function in model.functions for node in function.node)
    check_run(model, fn, numbers(source, *SPECIAL))


def test_sizes_that_vary() -> None:
    fn = lambda x: jnp.round(x).astype(np.int32)  # noqa: E731
    x = numbers(np.float32, *SPECIAL).reshape(-1, 500)
    model = check(fn, x, dims=[("B", 500)])
    assert calls(model) == 1
    for rows in (0, 1):
        check_run(model, fn, x[:rows])


@pytest.mark.parametrize("opset", [17, 18])
def test_older_opsets_and_loops(opset: int) -> None:
    def fn(x, xs):
        return lax.scan(lambda c, x: (c + (x * c).astype(np.int32), c[:3]), x.astype(np.int32), xs)

    model = check(fn, numbers(np.float32, *SPECIAL), numbers(np.float32, *SPECIAL)[:3], opset=opset)
    assert len(model.functions) == 1


def test_few_are_converted_as_they_are() -> None:
    assert not check(lambda x: x.astype(np.int32), numbers(np.float32, *SPECIAL)[:100]).functions
