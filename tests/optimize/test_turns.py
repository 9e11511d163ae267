"""Products that are turned around, or their operands, so that Transposes are fast."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from jax import lax

from tests.helpers import check

rng = np.random.default_rng(0)


def orders(model: onnx.ModelProto) -> list[list[int]]:
    return [list(node.attribute[0].ints) for node in model.graph.node if node.op_type == "Transpose"]


def arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    found = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    found[0].flat[:2] = np.nan, np.inf
    return found


@pytest.mark.parametrize(
    ("formula", "a", "b", "order"),
    [
        ("btkgh,bskh->btkgs", (1, 24, 2, 3, 40), (1, 32, 2, 40), [0, 2, 1, 3, 4]),
        ("btkgs,bskh->btkgh", (2, 24, 2, 3, 32), (2, 32, 2, 40), [0, 2, 1, 3, 4]),
        ("ikc,jkc->ijc", (24, 32, 16), (20, 32, 16), [1, 2, 0]),
    ],
)
def test_rows_stay_rows(formula: str, a: tuple[int, ...], b: tuple[int, ...], order: list[int]) -> None:
    """As in attention with groups of heads: the last axis of what is moved stays the last one, or all axes of one
    matrix are exchanged."""
    model = check(lambda a, b: jnp.tanh(jnp.einsum(formula, jnp.sin(a), b)), *arrays(a, b), rtol=1e-5, atol=1e-5)
    assert orders(model)[-1] == order
    known = rng.normal(size=b).astype(np.float32)
    check(lambda a: jnp.tanh(jnp.einsum(formula, jnp.sin(a), known)), *arrays(a), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [8, 40])
def test_only_if_that_is_faster(size: int) -> None:
    """Not what is small, and not where others would have to be moved."""
    a, b = arrays((4, 2, size, 30), (4, 2, 30, size))
    small = check(lambda a, b: (a @ b).transpose(0, 3, 1, 2), a, b, rtol=1e-5, atol=1e-5)
    assert orders(small) == [[0, 3, 1, 2]]


def test_of_one_row_or_column() -> None:
    """What is moved has its matrices as they are then, and still becomes others."""
    a, b = arrays((33, 1, 33, 8), (1, 33, 16, 33))

    def fn(a):
        product = jnp.einsum("cdbe,bead->ecda", a.transpose(3, 0, 1, 2), b)
        return jnp.tanh(product.transpose(2, 1, 0, 3).transpose(0, 2, 1, 3))

    check(fn, a, rtol=1e-5, atol=1e-5)


def test_unknown_sizes_stay() -> None:
    a, b = arrays((1, 24, 2, 3, 40), (1, 32, 2, 40))
    dims = [("B", "T", 2, 3, 40), ("B", "S", 2, 40)]
    check(lambda a, b: jnp.einsum("btkgh,bskh->btkgs", a, b), a, b, dims=dims, rtol=1e-5, atol=1e-5)


def test_products_with_vectors() -> None:
    (a,) = arrays((64, 1, 128))
    check(lambda a: jnp.einsum("lik,min->kl", a, a), a, rtol=1e-5, atol=1e-4)
    check(lambda a, b: (a @ b).reshape(64, 128).T, *arrays((8192, 3), (3,)), rtol=1e-5, atol=1e-4)
    check(lambda a, b: (b @ a).reshape(64, 128).T, *arrays((3, 8192), (3,)), rtol=1e-5, atol=1e-4)


def moved_sizes(model: onnx.ModelProto) -> list[int]:
    """The ranks of what is transposed."""
    ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in model.graph.value_info}
    return [ranks[node.output[0]] for node in model.graph.node if node.op_type == "Transpose"]


@pytest.mark.parametrize("dims", [None, [("B", "T", 24), ("B", "T", 6)]])
def test_factors_of_outer_products_are_moved(dims: list[tuple[str | int, ...]] | None) -> None:
    """As what a state space model scans: einsum puts the axis of both in front, and the loop that of the steps."""
    x, y = map(abs, arrays((3, 40, 24), (3, 40, 6)))
    rates = -abs(rng.normal(size=(24, 6)).astype(np.float32))  # states that decay, as they do

    def fn(x, y):
        factors, inputs = jnp.exp(jnp.einsum("btd,dn->btdn", x, rates)), jnp.einsum("btd,btn->btdn", x, y)
        steps = factors.swapaxes(0, 1), inputs.swapaxes(0, 1)
        return lax.scan(lambda h, a: (a[0] * h + a[1],) * 2, jnp.zeros((x.shape[0], 24, 6)), steps)

    model = check(fn, x, y, dims=dims, rtol=1e-5, atol=1e-5)
    assert set(moved_sizes(model)) <= {3}


def test_operands_of_any_rank_are_moved() -> None:
    x, y, z = arrays((40, 1, 30), (20, 1), (1, 1, 1))

    def fn(x, y, z):
        chosen = jnp.where(x > y, jnp.clip(x * y, -1, 2), np.float32([[[-0.0], [np.nan]]]).repeat(10, 1)) + z
        return jnp.exp(chosen).transpose(2, 1, 0), (x == y).transpose(1, 2, 0)

    model = check(fn, x, y, z)
    assert orders(model) == [[2, 1, 0], [1, 2, 0]]
    check(fn, x[:0], y, z)


def test_what_is_needed_anyway_is_moved_as_it_is() -> None:
    """So is what is as large as the result, and what is small."""
    x, y = arrays((20, 1, 30), (1, 40, 1))
    both = check(lambda x, y: (x * y, (x * y).transpose(2, 1, 0)), x, y)
    large = check(lambda x, y: (x * y).transpose(2, 1, 0), rng.normal(size=(20, 40, 30)).astype(np.float32), y)
    small = check(lambda x, y: (x * y).transpose(2, 1, 0), x[:4, :, :4], y.transpose(0, 2, 1)[:, :, :4])
    assert orders(both) == orders(large) == [[2, 1, 0]] and len(orders(small)) == 1
