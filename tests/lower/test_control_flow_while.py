"""while_loop and fori_loop."""

from __future__ import annotations

import jax
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import jax2onnx
from jax2onnx import runtime
from tests.helpers import check, check_run, check_valid
from tests.lower.bodies import body_counts, count

FLOATS = pytest.mark.parametrize("dtype", [np.float32, np.float64])


# ------------------------------------------------------------------------------------------------------ captured values


@FLOATS
def test_the_same_outer_value_in_condition_and_body(dtype):
    def fn(x, limit):
        scaled = limit * 2
        return lax.while_loop(lambda c: c.sum() < scaled, lambda c: c + scaled / 9, x)

    model = check(fn, dtype([0.5, 1]), dtype(5))
    check_run(model, fn, dtype([50, 1]), dtype(5))


@FLOATS
def test_an_input_that_passes_through_untouched(dtype):
    def fn(x, y):
        return lax.while_loop(lambda c: c[0] < 10, lambda c: (c[0] + c[1], c[1], c[2] * 2), (x, y, y))

    model = check(fn, dtype(1), dtype(2))
    assert len(next(node for node in model.graph.node if node.op_type == "Loop").input) == 4


@FLOATS
def test_a_value_that_is_used_only_inside(dtype):
    def fn(x, y):
        inside = jnp.sin(y)
        return lax.while_loop(lambda c: c < 10, lambda c: c * 1.5 + inside.sum(), x)

    check(fn, dtype(1), dtype([2, 3]))


def test_captured_as_array_constant():
    table = np.float32([1, 2, 3])
    check(lambda x: lax.while_loop(lambda c: c.sum() < table.sum() * 9, lambda c: c + table, x), np.float32([0, 0, 0]))


# ------------------------------------------------------------------------------------------------------ carries


def test_carries_that_never_change():
    def same(c):
        return jax.jit(lambda a, b: (a * 2, b))(*c)

    model = check(lambda x, y: lax.while_loop(lambda c: c[0] < c[1], same, (x, y)), np.float32(1), np.float32(9))
    assert body_counts(model, "Loop") == [{"Mul": 1, "Less": 1}]


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "uint32", "float16", "bfloat16", "float32"])
def test_carry_dtypes(dtype):
    start = np.asarray([1, 0, 3]).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)

    def fn(c, n):
        return lax.while_loop(lambda s: s[1] > 0, lambda s: (s[0][::-1], s[1] - 1), (c, n))

    model = check(fn, start, np.int32(3))
    check_run(model, fn, start, np.int32(0))


def test_carries_that_change_places_or_become_constants():
    def fn(a, b, c):
        return lax.while_loop(lambda s: s[3] < 7, lambda s: (s[1], s[0], jnp.float32(5), s[3] + 2), (a, b, c, 0))

    check(fn, np.float32(1), np.float32(2), np.float32(3))


def test_key_carry():
    def fn(data):
        def step(state):
            key, _, n = state
            key, use = jax.random.split(key)
            return key, jax.random.uniform(use), n + 1

        key, _, n = lax.while_loop(lambda s: s[1] < 0.9, step, (jax.random.wrap_key_data(data), 0.0, 0))
        return jax.random.key_data(key), n

    check(fn, np.uint32([3, 7]))


# ------------------------------------------------------------------------------------------------------ trip counts


@FLOATS
@pytest.mark.parametrize("x", [1, 1e3, 1e30])
def test_data_dependent(dtype, x):
    check(lambda x: lax.while_loop(lambda s: s[0] < 1e6, lambda s: (s[0] * s[0] + 1, s[1] + 1), (x, 0)), dtype(x))


def test_a_condition_that_is_known_to_be_false():
    model = check(lambda x: lax.while_loop(lambda s: s[1] > 3, lambda s: (s[0] * 2, s[1] + 1), (x, 0)), np.float32(3))
    assert "Loop" not in count(model)


def test_nan_ends_the_loop():
    check(lambda x: lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + jnp.nan, s[1] + 1), (x, 0)), np.float32(1))


@FLOATS
@pytest.mark.parametrize("bounds", [(0, 0), (0, 5), (3, 4), (5, 2), (-7, -2), (-2147483648, -2147483645)])
def test_fori_loop_with_traced_bounds(dtype, bounds):
    def fn(lower, upper, x):
        return lax.fori_loop(lower, upper, lambda i, x: x * 0.5 + i, x)

    model = check(fn, *map(np.int32, bounds), dtype(1))
    assert "Loop" not in count(model), "a loop that counts is a Scan"
    assert body_counts(model, "Scan")[0]["Less"] == 0


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint32, np.int64, np.uint64])
@pytest.mark.parametrize("bounds", [(0, 4), (4, 0), (2, 2), (100, 120)])
def test_counter_dtypes(dtype, bounds):
    def fn(lower, upper):
        return lax.while_loop(
            lambda s: s[0] < upper, lambda s: (s[0] + 1, s[1] + s[0] * 2, upper), (lower, lower, upper)
        )

    check(fn, *map(dtype, bounds))


def test_counter_at_the_end_of_its_range():
    def fn(lower, upper):
        return lax.while_loop(lambda s: s[0] < upper, lambda s: (s[0] + 1, s[1] + 1), (lower, 0))

    check(fn, np.uint64(2**63 - 2), np.uint64(2**63 + 1))
    check(fn, np.int64(2**63 - 4), np.int64(2**63 - 1))
    check(fn, np.int8(-128), np.int8(127))
    check(fn, np.uint32(2**32 - 3), np.uint32(2**32 - 1))


def test_counter_that_nothing_uses():
    check(lambda n, x: lax.fori_loop(0, n, lambda i, x: x * 2, x), np.int32(5), np.float32(1))


def test_counter_alone():
    model = check(lambda n: lax.while_loop(lambda i: i < n, lambda i: i + 1, 0), np.int32(5))
    check_run(model, lambda n: jnp.maximum(n, 0), np.int32(-5))


def test_counter_up_to_a_number():
    check(
        lambda i, x: lax.while_loop(lambda s: s[0] < 9, lambda s: (s[0] + 1, s[1] * 2), (i, x)),
        np.int32(5),
        np.float32(1),
    )


def test_counters_that_are_not_plain():
    def by_two(i, n):
        return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 2, s[1] + 1), (i, 0))

    def downwards(i, n):
        return lax.while_loop(lambda s: s[0] > n, lambda s: (s[0] - 1, s[1] + s[0]), (i, 0))

    def to_a_moving_end(i, n):
        return lax.while_loop(lambda s: s[0] < s[1], lambda s: (s[0] + 1, s[1] - 1), (i, n))

    def with_a_second_condition(i, n):
        return lax.while_loop(lambda s: (s[0] < n) & (s[1] < 7), lambda s: (s[0] + 1, s[1] + s[0]), (i, 0))

    def reset_inside(i, n):
        return lax.while_loop(
            lambda s: s[0] < n, lambda s: (jnp.where(s[1] == 2, s[0] - 1, s[0] + 1), s[1] + 1), (i, 0)
        )

    for fn in (by_two, downwards, to_a_moving_end, with_a_second_condition, reset_inside):
        for args in ((1, 6), (6, 1)):
            check(fn, *map(np.int32, args))


def test_fori_loop_up_to_a_symbolic_size():
    def fn(x):
        return lax.fori_loop(0, x.shape[0], lambda i, c: c + x.sum() * i, 0.0)

    model = check(fn, np.ones(4, np.float32), dims=[("N",)])
    check_run(model, fn, np.ones(1, np.float32))
    check_run(model, fn, np.ones(50, np.float32))


def test_symbolic_carry():
    def fn(x):
        return lax.while_loop(lambda c: c.sum() < 100, lambda c: c * 2 + jnp.arange(x.shape[0]), x)

    model = check(fn, np.ones(4, np.float32), dims=[("N",)])
    check_run(model, fn, np.ones(7, np.float32))


# ------------------------------------------------------------------------------------------------------ vmap


@FLOATS
def test_batched_condition(dtype):
    def one(x, limit):
        return lax.while_loop(lambda s: s[0] < limit, lambda s: (s[0] * 2, s[1] + 1, s[2]), (x, 0, limit))

    check(jax.vmap(one), dtype([1, 3, 100, 0.1]), dtype([50, 50, 50, 2]))
    check(jax.vmap(one, in_axes=(0, None)), dtype([1, 3, 100, 0.1]), dtype(50))
    check(jax.vmap(one), np.zeros(0, dtype), np.zeros(0, dtype))


def test_batched_condition_with_carries_of_other_ranks():
    def one(x, m):
        return lax.while_loop(lambda s: jnp.linalg.norm(s[0]) < 9, lambda s: (s[0] @ m, s[1] + 1, ~s[2]), (x, 0, x > 1))

    check(jax.vmap(one), np.float32([[1, 2], [0.1, 0], [30, 1]]), np.float32([[[2, 0], [0, 2]]] * 3))


def test_doubly_batched_condition():
    def one(n, x):
        return lax.fori_loop(0, n, lambda i, x: x + i, x)

    check(jax.vmap(jax.vmap(one)), np.int32([[0, 1], [5, 2], [3, 3]]), np.float32([[0, 1], [5, 2], [3, 3]]))


def test_batched_body_with_an_unbatched_condition():
    check(
        jax.vmap(lambda x, n: lax.fori_loop(0, n, lambda i, x: x * 2 + i, x), in_axes=(0, None)),
        np.float32([1, 2]),
        np.int32(4),
    )


# ------------------------------------------------------------------------------------------------------ nesting


@FLOATS
def test_nested_in_scan_and_cond_and_while(dtype):
    def fn(x, n):
        def step(c, y):
            def inside(v):
                return lax.while_loop(
                    lambda w: w < y, lambda w: lax.while_loop(lambda u: u < w, lambda u: u * 2, c) + w, v
                )

            return lax.cond(c > n, inside, lambda v: v + y, c), c

        return lax.scan(step, x, jnp.arange(20.0, dtype=x.dtype))

    check(fn, dtype(0.5), dtype(3))


def test_a_loop_that_does_not_end_is_not_run_unless_the_program_runs_it():
    def fn(x, n):
        def body(s):
            forever = lax.while_loop(lambda v: v < jnp.inf, lambda v: v * 0.5, x)  # an invariant of the outer loop
            return s[0] + 1, s[1] + forever, s[2]

        return lax.while_loop(lambda s: s[0] * 2 < s[2], body, (0, x, n))

    # XLA moves the inner loop out, and hangs; the model does not.
    model = jax2onnx.to_onnx(fn, [jax.ShapeDtypeStruct((), np.float32), jax.ShapeDtypeStruct((), np.int32)])
    check_valid(model)
    assert [float(x) for x in runtime.run(model, [np.float32(1), np.int32(0)])] == [0, 1, 0]


def test_a_loop_over_constants_that_does_not_end_is_not_evaluated_while_exporting():
    def fn(x):
        forever = lax.while_loop(lambda i: i < 3.0, lambda i: i * 0.5, jnp.float32(1))
        return x + forever

    model = jax2onnx.to_onnx(fn, [()])
    check_valid(model)
    assert count(model)["Loop"] == 1


def test_gradient_through_a_while_of_forward_mode():
    def fn(x):
        return lax.while_loop(lambda s: s[0] < 50, lambda s: (s[0] * s[0] + x, s[1] * x), (x, x))

    check(lambda x: jax.jvp(fn, (x,), (jnp.ones_like(x),)), np.float32(1.5))
