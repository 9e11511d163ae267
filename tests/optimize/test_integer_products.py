"""Products of small integers: exact floats, also where all of them are as large as they can be."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

from tests.helpers import check, quick

BYTES = [("int8", "int8"), ("uint8", "uint8"), ("int8", "uint8")]
CASES = [*BYTES, ("int16", "int16"), ("uint16", "int8"), ("bool", "bool")]


def extremes(dtype: str, *shape: int) -> np.ndarray:
    """Rows of the smallest number, of the largest, and of any."""
    if dtype == "bool":
        return np.random.default_rng(0).random(shape) < 0.5
    info = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    x[0], x[1] = info.min, info.max
    return x


@pytest.mark.parametrize("types", quick([CASES[0], *CASES[-2:]], CASES))
@pytest.mark.parametrize("terms", [3, 1024, 1025])
def test_no_digit_is_lost(types: tuple[str, str], terms: int) -> None:
    a, b = (extremes(dtype, 5, terms) for dtype in types)
    wider = np.bool_ if types[0] == "bool" else np.int32

    def products(a: Any, b: Any) -> list[Any]:
        contract = (((1,), (1,)), ((), ()))
        plain = [lax.dot_general(x, x, contract) for x in (a, b)]  # wraps around in the type of the operands
        return [lax.dot_general(a, b, contract, preferred_element_type=wider), *plain]

    check(products, a, b)


def test_large_products_are_of_floats() -> None:
    model = check(lambda a, b: lax.dot(a, b, preferred_element_type=np.int32), *[extremes("int8", 64, 64)] * 2)
    assert [node.op_type for node in model.graph.node] == ["Cast", "Cast", "MatMul", "Cast"]
    assert {node.attribute[0].i for node in model.graph.node[:2]} == {1}


@pytest.mark.parametrize("dims", [None, [("B", 8, 64), ("B", 64, 9)]], ids=["static", "symbolic"])
def test_numbers_that_are_known_to_be_small(dims: Any) -> None:
    def products(a: Any, b: Any) -> list[Any]:
        wide = a.astype(np.int32) - 3, b.astype(np.int32)
        return [wide[0] @ wide[1], (a > 5).astype(np.int32) @ (b > 5).astype(np.int32)]

    model = check(products, extremes("int8", 4, 8, 64), extremes("int16", 4, 64, 9), dims=dims)
    outputs = {output.name for output in model.graph.output}
    (last,) = {node.op_type for node in model.graph.node if outputs.intersection(node.output)}
    assert last == "Cast"
    large = check(lambda a: a @ a, extremes("int32", 16, 16))  # wraps around
    assert "Cast" not in {node.op_type for node in large.graph.node}


FEATURES = [(dtype, features) for dtype in ("int8", "uint8", "int16", "uint16") for features in (3, 300)]


@pytest.mark.parametrize("case", quick([("int8", 3), ("uint8", 300), ("uint16", 3)], FEATURES))
def test_convolutions_of_all_features_and_of_some(case: tuple[str, int]) -> None:
    dtype, features = case
    x, kernel = extremes(dtype, 2, features, 6, 5), extremes(dtype, 4, features, 3, 2)
    x[:, :, :3] = kernel[0] = np.iinfo(dtype).min or np.iinfo(dtype).max

    def convolve(x: Any, kernel: Any) -> list[Any]:
        wide = lax.conv_general_dilated(x, kernel, (2, 1), "SAME", preferred_element_type=np.int32)
        swapped = lax.conv_general_dilated(
            x.transpose(0, 2, 3, 1),
            kernel.transpose(2, 3, 1, 0),
            (1, 1),
            [(1, 0), (-1, 2)],
            rhs_dilation=(1, 2),
            lhs_dilation=(2, 1),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            preferred_element_type=np.int32,
        )
        same = [lax.conv_general_dilated(v, v[:, :, :3, :3], (1, 1), "VALID") for v in (x, kernel)]  # wraps around
        return [wide, swapped, *same]

    model = check(convolve, x, kernel)
    assert ("MatMul" in {node.op_type for node in model.graph.node}) == ("16" in dtype)


def test_convolutions_in_groups() -> None:
    def convolve(x: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", feature_group_count=6, preferred_element_type=np.int32
        )

    model = check(convolve, extremes("int8", 2, 6, 5, 5), extremes("int8", 6, 1, 3, 3), dims=[("B", 6, 5, 5), None])
    assert [node.op_type for node in model.graph.node] == ["Cast", "Cast", "Conv", "Cast"]


def test_convolutions_of_no_features() -> None:
    check(
        lambda x, kernel: lax.conv(x, kernel, (1, 1), "SAME"),
        np.ones((2, 0, 5, 5), "int8"),
        np.ones((4, 0, 3, 3), "int8"),
    )


@pytest.mark.parametrize("dtype", ["int8", "int32"])
def test_convolutions_of_each_example_with_its_own_kernel(dtype: str) -> None:
    operands = extremes(dtype, 3, 1, 2, 5, 5), extremes(dtype, 3, 4, 2, 3, 3)
    convolve = jax.vmap(lambda x, kernel: lax.conv(x, kernel, (1, 1), "SAME"))
    check(convolve, *operands, dims=[("B", 1, 2, 5, 5), ("B", 4, 2, 3, 3)])


@pytest.mark.parametrize("dtype", ["int8", "int64"])
@pytest.mark.parametrize("shapes", [((1, 2, 3), (4, 2, 5)), ((0, 2, 5), (4, 2, 3)), ((1, 2, 5), (0, 2, 3))])
def test_convolutions_without_results(shapes: tuple[tuple[int, ...], ...], dtype: str) -> None:
    """No window fits into the array, or there are no arrays, or no kernels."""
    check(lambda x, k: lax.conv_general_dilated(x, k, (2,), [(0, -1)]), *(np.ones(shape, dtype) for shape in shapes))


def test_convolutions_of_conditions() -> None:
    x, kernel = extremes("bool", 2, 3, 6, 5), extremes("bool", 4, 3, 3, 2)
    check(lambda x, kernel: lax.conv(x, kernel, (1, 2), "SAME"), x, kernel)
