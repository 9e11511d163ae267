"""Products of small integers: exact floats, also where all of them are as large as they can be."""

from __future__ import annotations

from typing import Any

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
