"""Transposes around matrix products."""

import itertools

import numpy as np

from tests.helpers import check

X, Y = (np.random.default_rng(i).standard_normal((3, 3, 3)).astype(np.float32) for i in (0, 1))
SWAP = (0, 2, 1)
ORDERS = list(itertools.product([None, SWAP, (1, 0, 2)], itertools.permutations(range(3))))


def transposes(model):
    return sum(node.op_type == "Transpose" for node in model.graph.node)


def turned(x, y, left, outer):
    return ((x if left is None else x.transpose(left)) @ y.transpose(SWAP)).transpose(outer)


def test_a_transposed_product_of_transposed_operands():
    """No more transposes than are written, and the rules come to rest (a test in which they do not fails)."""
    model = check(lambda x, y: [turned(x + i, y - i, *o) for i, o in enumerate(ORDERS)], X, Y, rtol=1e-4, atol=1e-4)
    written = [1 + (left is not None) + (outer != (0, 1, 2)) for left, outer in ORDERS]
    needless = [left == SWAP and outer != (0, 1, 2) for left, outer in ORDERS]
    assert transposes(model) <= sum(written) - sum(needless)
    assert transposes(check(lambda x, y: turned(x, y, SWAP, SWAP), X, Y, rtol=1e-5, atol=1e-5)) == 0
