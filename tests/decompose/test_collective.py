"""Collectives under `vmap` are reductions over the mapped axis."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from tests.helpers import check


@pytest.mark.parametrize("collective", [jax.lax.psum, jax.lax.pmean, jax.lax.pmax, jax.lax.pmin])
@pytest.mark.parametrize("x", [np.float32([[1, -0.0, np.nan], [-2, np.inf, 3]]), np.int32([[3, -4], [5, 6]])])
def test_collectives_under_vmap(collective: Any, x: np.ndarray) -> None:
    check(jax.vmap(lambda v: collective(v, "batch"), axis_name="batch"), x)
    check(jax.vmap(lambda v: collective(v, "batch"), axis_name="batch", in_axes=1, out_axes=None), x)


def test_a_collective_over_two_axes_and_a_symbolic_size() -> None:
    def inner(v: Any) -> Any:
        return v - jax.lax.pmean(v, ("rows", "columns"))

    both = jax.vmap(jax.vmap(inner, axis_name="columns"), axis_name="rows")
    check(both, np.float32([[1, 2, 3], [4, 5, 9]]))
    check(jax.vmap(lambda v: jax.lax.psum(v, "rows"), axis_name="rows"), np.float32([[1, 2], [4, 5]]), dims=[("B", 2)])
