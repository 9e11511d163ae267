"""How axes of one array are read as those of another."""

from __future__ import annotations

import pytest

from jax2onnx.optimize.views import _quotient


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (12, 4, 3),
        (12, 5, None),
        ("B", 1, "B"),
        ("2*B", "B", 2),
        ("2*B", 2, "B"),
        ("B", "H", None),
        (4, 0, None),
        (0, 4, 0),
    ],
)
def test_quotients_of_sizes(a, b, expected):
    assert _quotient(a, b) == expected
