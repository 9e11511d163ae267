"""Elements that are only moved, to known places: rolled, or written around what is inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from jax import lax

from jax2onnx.graphs import all_nodes
from tests.helpers import check

RNG = np.random.default_rng(0)
EXACT = {"rtol": 0, "atol": 0}
DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int8, np.int64, np.bool_, np.uint16]


def ops(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in all_nodes(ir.from_proto(model).graph))


def grid(*shape: int, dtype: Any = np.float64) -> np.ndarray:
    x = RNG.normal(size=shape) * 10
    if dtype not in (np.int8, np.int64, np.uint16, np.bool_):
        x.reshape(-1)[:4] = np.nan, np.inf, -np.inf, -0.0
    return abs(x).astype(dtype) if dtype == np.uint16 else x.astype(dtype)


# ------------------------------------------------------------------------------------------------------------- rolls


@pytest.mark.parametrize("dtype", DTYPES)
def test_rolled_arrays_are_gathered(dtype: Any) -> None:
    x = grid(6, 7, dtype=dtype)
    model = check(lambda x: (jnp.roll(x, 1, 0), jnp.roll(x, -2, 0), jnp.roll(x, 1, 1), jnp.roll(x, 3)), x, **EXACT)
    found = ops(model)
    assert found["Concat"] == found["Slice"] == 0
    assert found["Gather"] == 2 and found["GatherElements"] == 2


def test_in_the_middle_and_with_sizes_that_vary() -> None:
    found = ops(check(lambda x: jnp.roll(x, 1, 1), grid(4, 5, 40), dims=[("B", 5, 40)], **EXACT))
    assert found["Gather"] == 1 and found["Concat"] == 0
    check(lambda x: jnp.roll(x, 1, 1), grid(4, 5), dims=[("B", 5)], **EXACT)
    check(lambda x: jnp.roll(x, 1, 1), grid(4, 5, 3), dims=[(4, "N", 3)], constraints=["N >= 2"], **EXACT)
    check(lambda x: jnp.roll(x, 1, 1), grid(4, 5)[:0], **EXACT)


def test_parts_in_any_order_and_more_than_once() -> None:
    found = ops(check(lambda x: jnp.concatenate([x[3:], x[:2], x[1:3]]), grid(6), **EXACT))
    assert found["GatherElements"] == 1 and found["Concat"] == 0
    check(lambda x: jnp.concatenate([x[:, 3:], x[:, :2], x[:, 1:3]], 1), grid(6, 4), **EXACT)


def test_not_parts_of_several_arrays_nor_many_elements() -> None:
    found = ops(check(lambda x, y: jnp.concatenate([x[3:], y[:2]]), grid(6), grid(6), **EXACT))
    assert found["Concat"] == 1
    for x in (grid(64, 64), grid(4000, 2)):
        axis = int(x.shape[1] == 64)
        assert ops(check(lambda x, axis=axis: jnp.roll(x, 1, axis), x, **EXACT))["Concat"] == 1


# ------------------------------------------------------------------------------------------------ writing and padding


def mirrored(x: Any) -> Any:
    x = x.at[:, -1].set(x[:, -2])
    x = x.at[0, :].set(x[1, :])
    x = x.at[:, 0].set(x[:, 1])
    return x.at[-1, :].set(0)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != np.bool_])
def test_an_edge_and_a_row_of_zeros(dtype: Any) -> None:
    def fn(x: Any, new: Any) -> Any:
        return mirrored(x.at[1:-1, 1:-1].set(new))

    found = ops(check(fn, grid(20, 21, dtype=dtype), grid(18, 19, dtype=dtype), **EXACT))
    assert found["Pad"] == found["ScatterND"] == 1 and found["ScatterElements"] == found["Gather"] == 0


def test_known_numbers_all_around() -> None:
    def fn(x: Any, new: Any) -> Any:
        x = x.at[1:-1, 1:-1].set(new)
        return x.at[0, :].set(-0.0).at[:, 0].set(-0.0).at[:, -1].set(-0.0).at[-1, :].set(1)

    found = ops(check(fn, grid(20, 21), grid(18, 19), **EXACT))
    assert found["Pad"] == found["ScatterND"] == 1 and found.total() == 2


WRITES: dict[str, tuple[Callable[..., Any], int]] = {
    "rows and columns": (lambda x: x.at[0].set(0).at[-1].set(0).at[:, 0].set(1).at[:, -1].set(2), 1),
    "rows": (lambda x: x.at[0].set(jnp.arange(21.0)).at[3].set(-0.0).at[0].set(7), 1),
    "one over the other": (lambda x: x.at[0, 0].set(3).at[0, 0].set(4).at[1, 1].set(jnp.nan), 1),
    "nothing is left": (lambda x: x.at[0].set(3).at[0].set(x[0]), 0),
    "not what is added": (lambda x: x.at[0].add(3).at[0].add(x[0]), 2),
    "what is not known": (lambda x: x.at[0].set(x[5, 5]).at[1].set(x[6, 6]), 2),
    "used in between": (lambda x: (lambda y: jnp.sin(y) + y.at[1].set(0))(x.at[0].set(0)), 2),
}


@pytest.mark.parametrize("name", WRITES)
def test_known_numbers_are_written_at_once(name: str) -> None:
    fn, writes = WRITES[name]
    found = ops(check(fn, grid(20, 21)))
    assert found["ScatterND"] == writes


def test_a_relaxation_in_a_loop() -> None:
    def fn(p: Any, b: Any) -> Any:
        def step(p: Any, _: Any) -> Any:
            inside = 0.25 * (p[1:-1, 2:] + p[1:-1, :-2] + p[2:, 1:-1] + p[:-2, 1:-1]) - b[1:-1, 1:-1]
            return mirrored(p.at[1:-1, 1:-1].set(inside)), None

        return lax.scan(step, p, None, length=20)[0]

    p, b = np.nan_to_num(grid(24, 24), posinf=1, neginf=2), np.nan_to_num(grid(24, 24), posinf=1, neginf=2)
    found = ops(check(fn, p, b))
    assert found["Pad"] == found["ScatterND"] == 1 and found["Gather"] == found["Reshape"] == 0


# ------------------------------------------------------------------------------------------------- parts of an array


def test_parts_that_follow_each_other_are_one() -> None:
    x, y = grid(6, 5), grid(2, 5)
    assert ops(check(lambda x: jnp.concatenate([x[:2], x[2:5], x[5:]]) + 1, x)) == {"Add": 1}
    assert ops(check(lambda x: jnp.concatenate([x[:, :2], x[:, 2:3]], 1), x)) == {"Slice": 1}
    found = ops(check(lambda x, y: jnp.concatenate([x[:2], x[2:3], y, x[3:]]), x, y))
    assert found == {"Split": 1, "Concat": 1}


def test_cuts_of_one_of_several_parts() -> None:
    found = ops(check(lambda x, y: jnp.concatenate([x * 2, y + 1])[6:8, 1:3] * 3, grid(6, 5), grid(2, 5)))
    assert found == {"Slice": 1, "Add": 1, "Mul": 1}


def test_a_known_table_is_turned_instead_of_what_is_taken_out_of_it() -> None:
    table = jnp.asarray(grid(4, 3, 2), jnp.float32)
    order = np.int32([3, 0, 1, 1, 2])
    found = ops(check(lambda i: table[:, :2][i].transpose(1, 2, 0).reshape(2, 2, 5) * 2, order))
    assert found["Transpose"] == 0
    found = ops(check(lambda i: jnp.take(table, i, 1, mode="clip").transpose(1, 2, 0).reshape(5, 8) * 2, order))
    assert found["Transpose"] == found["Reshape"] == 0


def test_what_is_cut_anyway_is_cut_before_arithmetic() -> None:
    def fn(x: Any) -> Any:
        a, b, c = x[:-2], x[1:-1], x[2:]
        return (b - a) * (c - b) + (1.5 * b - 0.5 * a) / (1.5 * c - 0.5 * b)

    found = ops(check(fn, grid(40)[4:]))
    assert found["Slice"] == 3
    found = ops(check(lambda x: jnp.exp(x)[1:] - jnp.exp(x)[:-1], grid(40)[4:]))
    assert found["Exp"] == 1 and found["Slice"] == 2
