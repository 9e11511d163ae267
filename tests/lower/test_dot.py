"""Products of small integers: exact, also where all of them are as large as they can be."""

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
