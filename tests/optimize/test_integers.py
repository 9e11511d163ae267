"""Integer arithmetic: exact for all numbers, in few and fast operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import onnx
import pytest
from jax import lax
from jax import numpy as jnp

from jax2onnx.optimize.queries import MANY
from tests.helpers import check, check_run, quick

DIVISORS = [1, 2, 3, 7, 8, 64, 100, -1, -2, -7]
SIGNED = ["int8", "int16", "int32", "int64"]
UNSIGNED = ["uint8", "uint16", "uint32", "uint64"]


def extremes(dtype: str, count: int) -> np.ndarray:
    """The ends of the range of a dtype, zero and its neighbours, and others, `count` numbers in all."""
    info = np.iinfo(dtype)
    edges = [info.min, info.min + 1, info.min + 6, info.max - 1, info.max, 0, 1, 2, 7, 8, 63, 64, 65, 100]
    edges += [e for e in (-1, -2, -7, -8, -9, -63, -64, -65) if e >= info.min]
    rest = np.random.default_rng(0).integers(info.min, info.max, 200, dtype=dtype, endpoint=True)
    return np.resize(np.concatenate([np.array(edges, dtype), rest]), count)


def ops(model: Any) -> list[str]:
    return [node.op_type for node in model.graph.node]


def divided(divisor: int) -> Callable[[Any], Any]:
    return lambda x: (x % divisor, x // divisor, *jnp.divmod(x, divisor), lax.rem(x, jnp.asarray(divisor, x.dtype)))


@pytest.mark.parametrize("dtype", quick(["int32"], SIGNED + UNSIGNED))
@pytest.mark.parametrize("count", [20, MANY])
def test_division_by_constants(dtype: str, count: int) -> None:
    numbers = [n for n in DIVISORS if n >= np.iinfo(dtype).min]
    check(lambda x: [divided(n)(x) for n in numbers], extremes(dtype, count))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_division_by_the_ends_of_the_range(dtype: str) -> None:
    ends = [np.iinfo(dtype).min, np.iinfo(dtype).max, (np.iinfo(dtype).max >> 1) + 1]
    check(lambda x: [(x % n, x // n) for n in ends], extremes(dtype, MANY))


def test_division_by_several_constants() -> None:
    divisors = np.array([3, 7, 8, 100], np.int32)
    check(lambda x: (x % divisors, x // divisors), extremes("int32", MANY).reshape(-1, 4))


@pytest.mark.parametrize("dtype", quick(["int32", "int8"], SIGNED + UNSIGNED))
def test_shifts_by_constants(dtype: str) -> None:
    width = np.iinfo(dtype).bits

    def shifted(x: Any) -> list[Any]:
        amounts = [jnp.asarray(n, dtype) for n in (0, 1, 3, width - 2, width - 1, width)]
        return [f(x, n) for f in (lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic) for n in amounts]

    check(shifted, extremes(dtype, 100))


@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
def test_rotations(dtype: str) -> None:
    width = np.iinfo(dtype).bits

    def rotated(x: Any) -> list[Any]:
        return [(x << n) | (x >> (width - n)) for n in (1, 13, width - 1)] + [(x << 3) | (x >> (width - 4)), x << 3 | x]

    model = check(rotated, extremes(dtype, 100))
    assert ops(model).count("Add") == 3, ops(model)  # the others have bits in common


@pytest.mark.parametrize(
    ("fn", "few", "many"),
    [
        (lambda x: x % 7, ["Mod"], ["Div", "Mul", "Sub", "Less", "Cast", "Mul", "Add"]),
        (lambda x: x % 8, ["BitwiseAnd"], ["BitwiseAnd"]),
        (lambda x: x // 8, ["BitwiseAnd", "Div"], ["BitwiseAnd", "Div"]),
        (lambda x: x // 7, ["Div", "Mod", "Less", "Cast", "Sub"], ["Div", "Mul", "Sub", "Less", "Cast", "Sub"]),
        (lambda x: x << 3, ["Mul"], ["Mul"]),
        (lambda x: x >> 3, ["BitwiseAnd", "Div"], ["BitwiseAnd", "Div"]),
    ],
)
def test_the_form_depends_on_how_many_there_are(fn: Callable, few: list[str], many: list[str]) -> None:
    for count, wanted in ((20, few), (MANY, many)):
        assert ops(check(fn, extremes("int32", count))) == wanted


def test_symbolic_sizes() -> None:
    check(lambda x: (x % 7, x // 7, x % 4, x >> 2), extremes("int32", 2 * MANY).reshape(2, MANY), dims=[("N", MANY)])


@pytest.mark.parametrize(("dtype", "tests"), [("int32", 3), ("uint32", 2)])
def test_unknown_divisors_are_replaced_once_where_they_are_zero(dtype: str, tests: int) -> None:
    """jnp makes them 1. (Those of signed integers must not be -1 either, and all remainders are compared with 0.)"""
    x, by = extremes(dtype, 30)[:, None], np.array([0, 1, 7, -1, 10]).astype(dtype)
    assert ops(check(lambda x, by: x % by, x, by)).count("Equal") == tests
    check(lambda x, by: x % by, x, by, dims=[("N", 1), ("M",)])


def test_sizes_as_divisors() -> None:
    fn = lambda x, n: (jnp.arange(x.shape[1]) + n[:, None]) % x.shape[1]  # noqa: E731
    x = np.ones((2, 3), np.float32)
    model = check(fn, x, np.int32([1, -5]), dims=[("B", "T"), ("B",)])
    assert ops(model).count("Equal") == 1
    check_run(model, fn, x[:, :0], np.int32([1, -5]))


def test_numbers_meet_what_they_were_replaced_in() -> None:
    x, n = np.float32([0, -0.0, np.nan, 1, np.inf]), extremes("int32", 30)
    assert "Equal" not in ops(check(lambda x: jnp.where(x == 0, jnp.nan, x) == 0, x))
    assert "Equal" not in ops(check(lambda n: jnp.where(n == 7, 0, n) == 7, n))
    for number, other, added in ((7, 7, 0), (0, 7, 0), (7, 0, 1)):
        fn = lambda n: jnp.where(n == 7, other, n + added) == number  # noqa: B023, E731
        assert "Equal" in ops(check(fn, n - added))


@pytest.mark.parametrize(("size", "operator"), [(5, "Mod"), (8, "BitwiseAnd")])
def test_an_index_modulo_the_size_needs_no_clipping(size: int, operator: str) -> None:
    model = check(lambda x, i: x[i % size], np.arange(size, dtype=np.float32), extremes("int32", 20))
    assert ops(model) == [operator, "GatherElements"]


def test_branches_that_are_always_taken() -> None:
    """They are not left to ONNX Runtime, which crashes on some that are nested."""

    def fn(i: Any, x: Any) -> Any:
        a = lax.cond(i % 7 < 7, lambda: lax.while_loop(lambda c: c.sum() < 30, lambda c: c * 2 + i, x), lambda: -x)
        inner = (lambda: jnp.full(2, 2)), (lambda: lax.fori_loop(0, 30, lambda k, c: c + k * i, x))
        b = lax.cond(i % 4 >= 0, lambda: lax.cond(i % 5 < 0, *inner), lambda: x)

        def step(c: Any, y: Any) -> Any:
            return lax.cond(i % 3 <= 2, lambda: (c + y, c * y), lambda: (c, c))

        return a, b, lax.scan(step, x, jnp.arange(100).reshape(50, 2))

    for transformed in (fn, jax.vmap(fn, (None, 0))):
        x = np.array([[1, 2], [3, 1]], np.int32)
        assert "If" not in ops(check(transformed, np.int32(5), x if transformed is not fn else x[0]))


def test_inside_a_loop() -> None:
    def fn(x: Any) -> Any:
        return lax.fori_loop(0, 5, lambda i, c: (c * 3 + i) % 1000 // 7 + (c >> 1), x)

    check(jax.vmap(fn), extremes("int32", MANY))


@pytest.mark.parametrize("count", [20, MANY])
def test_division_by_powers_of_two_moves_bits(count: int) -> None:
    model = check(lambda x: (x // 8, lax.rem(x, jnp.uint32(64))), extremes("uint32", count))
    assert ops(model) == ["BitShift", "BitwiseAnd"]
    model = check(lambda x: x // 8, extremes("int32", count))  # negative numbers are rounded down
    assert "BitShift" not in ops(model)


@pytest.mark.parametrize("shape", [(40,), (40, 16)])
def test_unsigned_indices_are_clipped_once(shape: tuple[int, ...]) -> None:
    table = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    index = extremes("uint32", 100)
    read = lambda x, i: jax.vmap(lambda j: lax.dynamic_index_in_dim(x, j, keepdims=False))(i)  # noqa: E731
    model = check(read, table, index)
    assert ops(model) == ["Min", "Cast", "GatherElements" if len(shape) == 1 else "Gather"]
    for dtype in ("uint8", "uint64", "int32"):
        check(read, table, extremes(dtype, 100))


def test_places_and_counts_need_not_be_wrapped() -> None:
    """They are no negative indices, and places are not too large either."""
    x = np.random.default_rng(0).integers(-9, 9, (5, 7)).astype(np.int32)
    table = np.arange(36, dtype=np.float32).reshape(12, 3)

    def read(x: Any, table: Any) -> Any:
        place, best = jnp.argmin(x, 1), lax.top_k(x, 2)[1]
        bits = jnp.sum((x[:, :3] > 0) * jnp.array([1, 2, 4]), 1)
        return table[place], table[best], table[bits], table[(x[:, 0] > 0).astype(np.uint8)]

    for dims in (None, [("B", 7), None]):
        model = check(read, x, table, dims=dims)
        assert not {"Less", "Where"} & set(ops(model))
        assert ops(model).count("Clip") + ops(model).count("Min") <= 1
    check(lambda x: jnp.arange(9)[jnp.sum(x, 0) - 3], extremes("int32", 35).reshape(5, 7))
    check(lambda x: jnp.arange(9)[jnp.sum(x.astype(np.int32) * 2**30, 0)], np.ones((4, 3), bool))


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "int8", "float32"])
def test_conditions_are_counted(dtype: str) -> None:
    def fn(x: Any, n: Any) -> Any:
        one = jnp.ones((), dtype)
        row = x.any()
        return jnp.where(x, n + one, n), jnp.where(x, one + n, n), jnp.where(row, n + one, n), jnp.where(x, n, n + one)

    n = np.float32([-0.0, np.nan, np.inf, 1]) if dtype == "float32" else extremes(dtype, 14)
    x = np.arange(len(n)) % 3 == 1
    model = check(fn, x, n, x64=True)
    wheres = sum(node.op_type == "Where" for node in model.graph.node)
    assert wheres == (1 if dtype in ("int32", "int64", "uint32") else wheres)
    check(fn, x[:0], n[:0], dims=[("N",), ("N",)], x64=True)


def test_steps_that_a_batch_counts() -> None:
    def one(x: Any) -> Any:
        return lax.while_loop(lambda c: (c[0] < 20) & (c[1] < 9), lambda c: (c[0] * 2, c[1] + 1), (x, 0))

    check(jax.vmap(one), np.float32([1, 30, 0, -1, 7, np.nan]))


@pytest.mark.parametrize("axis", [0, 1, (0, 1)])
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8"])
@pytest.mark.parametrize("dims", [None, [("B", 128)]])
def test_many_small_integers_are_added_as_floats(dtype: str, axis: Any, dims: Any) -> None:
    x = np.ones((64, 128), bool) if dtype == "bool" else extremes(dtype, 64 * 128).reshape(64, 128)
    for wide in ("int32", "int64", "uint32"):
        add = lambda x: jnp.sum(x, axis, dtype=wide)  # noqa: B023, E731
        model = check(add, x, x64=True, dims=dims)
        if dims is None and not (wide == "uint32" and dtype == "int8"):  # where negative numbers are large ones
            assert ops(model)[0] == "Cast" and ops(model)[-1] == "Cast"
    check(lambda x: x.astype(jnp.int32).sum(axis, keepdims=True), x, dims=dims)
    check(lambda x: x.astype(jnp.int32).sum(axis), x[:0], dims=dims)


def test_sums_that_floats_do_not_hold_are_of_integers() -> None:
    x = np.full((1024, 1024), 255, np.uint8)  # 255 * 2^20
    x[0, 0] = 254
    check(lambda x: x.astype(jnp.int32).sum(), x)
    check(lambda x: x.astype(jnp.int32).sum((0, 1), keepdims=True), x, dims=[("B", 1024)])


@pytest.mark.parametrize("dims", [None, [("B", "N")], [("B", 40)]])
def test_any_and_all(dims: Any) -> None:
    x = np.random.default_rng(0).random((6, 40)) > 0.9
    x[1], x[2] = True, False
    fn = lambda x: [f(x, axis) for f in (jnp.any, jnp.all) for axis in (0, 1, None)]  # noqa: E731
    model = check(fn, x, dims=dims)
    casts = {a.i for n in model.graph.node if n.op_type == "Cast" for a in n.attribute}
    assert casts <= {onnx.TensorProto.UINT8, onnx.TensorProto.BOOL}  # a quarter of the size of an int32
    check(lambda x: [jnp.argmax(x, 1), jnp.argmin(x, 1)], x, dims=dims)
    if dims is None:
        check(fn, x[:0])
        check(fn, x[:, :0])
    else:
        check_run(check(fn, x, dims=dims), fn, x[:0])


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
def test_one_divided_by_numbers(dtype: str) -> None:
    """ONNX Runtime itself makes 1 / x times y a quotient of y, also of integers."""
    x = extremes(dtype, 40)
    one = np.ones((1, 1), dtype)
    check(
        lambda x, y: [one % x, lax.rem(jnp.ones_like(x), x), lax.div(jnp.ones_like(x), x) * y, one // x * x], x, x[::-1]
    )
    odd = x | 1  # no care for 0
    check(lambda x: [lax.div(jnp.ones_like(x), x) * x, lax.div(jnp.ones_like(x), x | 3) * x], odd)
