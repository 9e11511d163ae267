"""Rows that are taken out of an array, and stacked again behind some arithmetic, keep their axis in between."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from jax import lax

from jax2onnx.graphs import all_nodes
from tests.helpers import check, check_run

RNG = np.random.default_rng(0)


def ops(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in all_nodes(ir.from_proto(model).graph))


def state(*shape: int) -> np.ndarray:
    return RNG.uniform(1, 2, shape)


def flux(s: Any) -> Any:
    rho, u, e = s[0], s[1] / s[0], s[2]
    p = 0.4 * (e - 0.5 * rho * u * u)
    return jnp.stack([rho * u, rho * u * u + p, (e + p) * u])


@pytest.mark.parametrize("shape", [(3, 8), (3, 4, 5), (3, 8, 1, 1), (3, 1)], ids=str)
def test_rows_that_are_stacked(shape: tuple[int, ...]) -> None:
    found = ops(check(lambda s: flux(s) * 2, state(*shape)))
    assert found["Gather"] == 3 and found["Reshape"] == found["Unsqueeze"] == found["Squeeze"] == 0


def test_cut_in_between_and_combined_with_what_has_more_axes() -> None:
    def step(s: Any) -> Any:
        speed = jnp.abs(s[1] / s[0])
        f = flux(s)
        return 0.5 * (f[:, 1:] + f[:, :-1]) - jnp.maximum(speed[1:], speed[:-1]) * (s[:, 1:] - s[:, :-1])

    found = ops(check(step, state(3, 9)))
    assert found["Reshape"] == found["Unsqueeze"] == found["Squeeze"] == 0
    found = ops(
        check(
            lambda s: lax.scan(lambda s, _: (s.at[:, 1:].add(0.01 * step(s)), None), s, None, length=40)[0], state(3, 9)
        )
    )
    assert found["Scan"] == 1 and found["Reshape"] == found["Squeeze"] == 0


def test_a_row_that_is_also_something_else() -> None:
    check(lambda s: (flux(s) * 2, jnp.cumsum(s[0] * s[1]), s[2].sum(), s[1]), state(3, 8))
    check(lambda s: (flux(s) * 2, s[1] + 1, jnp.sort(s[0] / s[1])), state(3, 8))
    check(lambda s, y: flux(s) + flux(s * y)[:, ::-1] + (s[0] + y), state(3, 8), state(8))
    check(lambda s: lax.map(lambda k: k * s[0] + flux(s)[1], s[:, 0]), state(3, 8))
    check(lambda s: jnp.stack([s[0] @ s[1], s[1] @ s[2], s[0] @ s[0]]), state(3, 8))


def test_sizes_that_are_known_only_when_the_model_runs() -> None:
    model = check(lambda s: flux(s) * 2, state(3, 8), dims=[(3, "N")])
    for size in (1, 0, 5):
        check_run(model, lambda s: flux(s) * 2, state(3, size))


def test_not_where_nothing_is_saved() -> None:
    found = ops(check(lambda s: jnp.cumsum(s[0] * s[1]) + jnp.cumsum(s[1] * s[2]), state(3, 8)))
    assert found["Squeeze"] == 0
