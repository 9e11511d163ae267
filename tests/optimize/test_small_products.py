"""Products of many small matrices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from jax import numpy as jnp

from tests.helpers import check

rng = np.random.default_rng(0)


def arrays(*shapes: tuple[int, ...], dtype: type = np.float32) -> list[np.ndarray]:
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def turned(x):
    return jnp.swapaxes(x, -1, -2)


PRODUCTS: dict[str, tuple[Callable, list[tuple[int, ...]]]] = {
    "square": (lambda a, b: a @ b, [(600, 3, 3), (600, 3, 3)]),
    "oblong": (lambda a, b: a @ b, [(600, 2, 5), (600, 5, 3)]),
    "left turned": (lambda a, b: turned(a) @ b, [(600, 5, 2), (600, 5, 3)]),
    "right turned": (lambda a, b: a @ turned(b), [(600, 2, 5), (600, 3, 5)]),
    "vectors": (lambda a, x: jnp.einsum("bij,bj->bi", a, x), [(600, 4, 3), (600, 3)]),
    "rows": (lambda x, a: jnp.einsum("bi,bij->bj", x, a), [(600, 3), (600, 3, 4)]),
    "two axes": (lambda a, b: a @ b, [(30, 20, 3, 2), (30, 20, 2, 4)]),
    "itself": (lambda a: turned(a) @ a, [(600, 3, 2)]),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_many_small_products(name: str) -> None:
    fn, shapes = PRODUCTS[name]
    for dtype in (np.float32, np.float64):
        model = check(fn, *arrays(*shapes, dtype=dtype), rtol=1e-5, atol=1e-5)
        known = {i.name for i in model.graph.initializer}  # sums may be products with ones
        assert all(node.input[0] in known for node in model.graph.node if node.op_type == "MatMul")


def test_products_of_products_stay_turned() -> None:
    chain = arrays(*[(600, 3, 3)] * 4)
    model = check(lambda a, b, c, d: a @ b @ c @ d, *chain, rtol=1e-4, atol=1e-4)
    assert operators(model).count("Transpose") == 5
    assert "MatMul" not in operators(model)


def test_numbers_that_are_not_finite() -> None:
    a, b = arrays((600, 3, 3), (600, 3, 3))
    a[0, 0, 0], a[1, 2, 1], b[2, 0, 2], b[3, 1, 1], a[3, 1, 1] = np.inf, np.nan, -np.inf, np.inf, 0
    check(lambda a, b: a @ b, a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [0, 1, 5, 70])
def test_symbolic_sizes(size: int) -> None:
    a, b = arrays((size, 40, 3, 3), (size, 40, 3, 1))
    dims = [("B", 40, 3, 3), ("B", 40, 3, 1)]
    assert "MatMul" not in operators(check(lambda a, b: a @ b, a, b, dims=dims, rtol=1e-5, atol=1e-5))
    two = [("B", "N", 3, 3), ("B", "N", 3, 1)]
    check(lambda a, b: a @ b, a, b, dims=two, rtol=1e-5, atol=1e-5)


def test_few_or_large_ones_are_matrix_products() -> None:
    for shapes in ([(100, 3, 3), (100, 3, 3)], [(600, 5, 5), (600, 5, 5)], [(600, 3, 3), (3, 3)]):
        assert "MatMul" in operators(check(lambda a, b: a @ b, *arrays(*shapes), rtol=1e-4, atol=1e-5))
    whole = [rng.integers(-9, 9, (600, 3, 3)).astype(np.int32) for _ in range(2)]
    assert "MatMul" in operators(check(lambda a, b: a @ b, *whole))
