"""Transposes in two steps."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest

from tests.helpers import check


def transposes(model: onnx.ModelProto) -> int:
    return sum(node.op_type == "Transpose" for node in model.graph.node)


@pytest.mark.parametrize("shape", [(24, 16, 20), (8, 6, 12, 16), (1, 24, 1, 16, 20), (4, 8, 6, 4, 8)])
def test_all_orders(shape: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    orders = list(itertools.permutations(range(len(shape))))[:: 1 if len(shape) < 5 else 4]
    model = check(lambda x: [x.transpose(order) for order in orders], x, rtol=0, atol=0)
    assert transposes(model) <= 2 * len(orders)


@pytest.mark.parametrize(
    ("shape", "order", "count"),
    [
        ((64, 4, 32, 64), (1, 0, 3, 2), 2),
        ((64, 4, 32, 64), (0, 2, 1, 3), 1),
        ((64, 4, 32, 64), (0, 3, 1, 2), 1),
        ((64, 4, 32, 64), (2, 3, 0, 1), 1),
        ((64, 1, 32, 64), (3, 0, 2, 1), 1),
        ((64, 48, 32), (2, 1, 0), 2),
        ((6, 4, 3), (2, 1, 0), 1),
    ],
)
def test_only_slow_ones(shape: tuple[int, ...], order: tuple[int, ...], count: int) -> None:
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    assert transposes(check(lambda x: x.transpose(order), x, rtol=0, atol=0)) == count


def test_unknown_sizes_stay() -> None:
    x = np.arange(24 * 16 * 20, dtype=np.float32).reshape(24, 16, 20)
    assert transposes(check(lambda x: x.transpose(2, 1, 0), x, dims=[("B", 16, 20)], rtol=0, atol=0)) == 1
