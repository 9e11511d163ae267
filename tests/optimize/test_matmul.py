"""Transposes around matrix products."""

import itertools

import numpy as np

from tests.helpers import check

X, Y = (np.random.default_rng(i).standard_normal((3, 3, 3)).astype(np.float32) for i in (0, 1))
PERMUTATIONS = list(itertools.permutations(range(3)))


def transposes(model):
    return sum(node.op_type == "Transpose" for node in model.graph.node)


def test_a_transposed_product_of_transposed_operands():
    """Never more of them than were written, and the rules come to rest (a test in which they do not fails)."""
    swap = (0, 2, 1)
    for outer in PERMUTATIONS:
        for left in (None, swap, (1, 0, 2)):

            def f(x, y, left=left, outer=outer):
                return ((x if left is None else x.transpose(left)) @ y.transpose(swap)).transpose(outer)

            written = 1 + (left is not None) + (outer != (0, 1, 2))
            assert transposes(check(f, X, Y, rtol=1e-5, atol=1e-5)) <= written - (left == swap and outer != (0, 1, 2))
    assert transposes(check(lambda x, y: (x.mT @ y.mT).mT, X, Y, rtol=1e-5, atol=1e-5)) == 0
