"""Convolutions over elements with gaps between them are ConvTranspose, with any padding."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import lax

from tests.helpers import check, check_run

PADS = {
    ((0, 0), (1, 2)): [],
    ((2, 2), (2, 2)): [],
    ((2, 3), (2, 3)): [],  # windows beyond the last element, fewer than a stride: `output_padding`
    ((2, 2), (3, 2)): ["Pad"],
    ((4, 6), (0, 5)): ["Pad"],
}


@pytest.mark.parametrize("pads", PADS)
@pytest.mark.parametrize("groups", [1, 2])
def test_windows_beyond_all_elements(pads: tuple, groups: int) -> None:
    rng = np.random.default_rng(0)
    x, w, bias = (rng.standard_normal(s).astype(np.float32) for s in ((2, 4, 5, 3), (6, 4 // groups, 3, 3), (6, 1, 1)))

    def fn(x: jax.Array) -> jax.Array:
        return bias + lax.conv_general_dilated(x, w, (1, 1), pads, lhs_dilation=(2, 2), feature_group_count=groups)

    model = check(fn, x, dims=[("B", 4, "H", "W")], rtol=1e-5, atol=1e-5)
    check_run(model, fn, x[:1, :, :2], rtol=1e-5, atol=1e-5)
    assert [n.op_type for n in model.graph.node if n.op_type != "Add"] == ["ConvTranspose", *PADS[pads]]


@pytest.mark.parametrize("pads", [(-4, 3), (3, -4), (7, -6), (-3, 4), (-3, 1)])
def test_no_window_reaches_an_element(pads: tuple[int, int]) -> None:
    x, w = np.ones((1, 2, 2), np.float32), np.ones((3, 2, 1), np.float32)

    def fn(x: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(x, w, (1,), [pads], lhs_dilation=(2,))

    check(fn, x)
