"""Matrix products whose result is of another kind than the operands."""

import numpy as np
import pytest
from jax import lax

from tests.helpers import check


@pytest.mark.parametrize(
    ("operands", "result"),
    [("float32", "int32"), ("float16", "uint8"), ("float32", "complex64"), ("int8", "complex128"), ("int8", "float32")],
)
def test_the_sum_is_converted_not_its_terms(operands, result):
    a, b = np.random.default_rng(0).uniform(-6, 6, (2, 2, 5, 5)).astype(operands)
    dims = (((2,), (1,)), ((0,), (0,)))
    check(lambda a, b: lax.dot_general(a, b, dims, preferred_element_type=result), a, b, x64=True, atol=1e-5)
