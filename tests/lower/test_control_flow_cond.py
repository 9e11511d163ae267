"""cond, switch, platform_dependent, select by vmap."""

from __future__ import annotations

import jax
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from tests.helpers import check, check_run, quick
from tests.lower.bodies import bodies, count

FLOATS = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@FLOATS
def test_both_ways(dtype):
    def fn(p, x):
        return lax.cond(p, lambda x: x * 2, lambda x: jnp.sin(x), x)

    model = check(fn, np.asarray(True), dtype([1, 2]))
    check_run(model, fn, np.asarray(False), dtype([1, 2]))
    assert count(model) == {"If": 1, "Mul": 1, "Sin": 1}, "the predicate is used as it is"


@pytest.mark.parametrize("n", quick([7], [1, 2, 3, 4, 7]))
@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.int64])
def test_switch_clamps(n, dtype):
    def fn(i, x):
        return lax.switch(i, [lambda x, k=k: x * k + k for k in range(n)], x)

    model = check(fn, dtype(0), np.float32(3))
    for i in (1, n - 1, n, 100, -1, -100):
        check_run(model, fn, np.asarray(i).astype(dtype), np.float32(3))


def test_many_branches_are_a_balanced_tree():
    model = check(lambda i, x: lax.switch(i, [lambda x, k=k: x + k for k in range(16)], x), np.int32(11), np.float32(1))
    assert count(model)["If"] == 15
    assert not {"Max", "Min", "Clip"} & set(count(model)), "comparing clamps by itself"

    def depth(graph):
        inner = [a.g for node in graph.node for a in node.attribute if node.op_type == "If"]
        return max((1 + depth(g) for g in inner), default=0)

    assert depth(model.graph) == 4


@FLOATS
def test_branches_that_return_inputs_constants_or_nothing_new(dtype):
    def fn(p, x, y):
        same = lax.cond(p, lambda: (x, y, 1), lambda: (x, x, 1))
        nothing = lax.cond(p, lambda: (), lambda: ())
        constants = lax.cond(p, lambda: (jnp.ones(3), 2), lambda: (jnp.zeros(3), 3))
        twice = lax.cond(p, lambda: (x, x, y), lambda: (y * 2, y * 2, y))
        return same, nothing, constants, twice

    model = check(fn, np.asarray(True), dtype([1, 2]), dtype([3, 4]))
    check_run(model, fn, np.asarray(False), dtype([1, 2]), dtype([3, 4]))


def test_no_if_where_all_branches_agree():
    model = check(lambda p, x: lax.cond(p > 0, lambda: (x, 1.0), lambda: (x, 1.0)), np.int32(1), np.float32(1))
    assert "If" not in count(model)


def test_different_captured_values_per_branch():
    def fn(i, a, b, c):
        s = a + b
        return lax.switch(i, [lambda: s * a, lambda: b, lambda: c.sum() + s, lambda: jnp.float32(7)])

    model = check(fn, np.int32(0), *np.float32([1, 2]), np.float32([3, 4]))
    for i in (1, 2, 3):
        check_run(model, fn, np.int32(i), *np.float32([1, 2]), np.float32([3, 4]))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "uint32", "float16", "bfloat16", "float32"])
def test_operands_of_every_dtype(dtype):
    x = np.asarray([1, 0, 3]).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)

    def fn(p, x):
        return lax.cond(p, lambda x: x[::-1], lambda x: x, x)

    model = check(fn, np.asarray(True), x)
    check_run(model, fn, np.asarray(False), x)


def test_operands_of_64_bits():
    def fn(p, x, y):
        return lax.cond(p, lambda x, y: (x + 1, y - 1), lambda x, y: (x, y), x, y)

    check(fn, np.asarray(True), np.int64(2**60), np.uint64(2**63))


def test_key_operands():
    def fn(p, data):
        key = jax.random.wrap_key_data(data)
        return jax.random.key_data(lax.cond(p, lambda k: jax.random.split(k)[1], lambda k: k, key))

    model = check(fn, np.asarray(True), np.uint32([1, 2]))
    check_run(model, fn, np.asarray(False), np.uint32([1, 2]))


def test_a_known_predicate_takes_its_branch():
    def fn(x):
        return lax.cond(jnp.asarray(3) > 2, jnp.sin, jnp.cos, x) + lax.switch(jnp.asarray(9), [jnp.tan, jnp.exp], x)

    assert count(check(fn, np.float32(0.5))) == {"Sin": 1, "Exp": 1, "Add": 1}


def test_the_work_of_a_branch_stays_in_it():
    def fn(p, w, x):
        return lax.scan(
            lambda c, y: (lax.cond(c > p, lambda: (w @ w).sum() * c, lambda: c + y), None), x, jnp.ones(40)
        )[0]

    model = check(fn, np.float32(30), np.float32([[0.1, 0.2], [0.3, 0.4]]), np.float32(1))
    assert "MatMul" not in {node.op_type for node in model.graph.node}


@FLOATS
def test_cond_in_loops_and_loops_in_cond(dtype):
    def fn(i, x):
        def looped(x):
            return lax.scan(
                lambda c, y: (lax.cond(c.sum() > y, lambda: c - y, lambda: c * 2), c), x, jnp.arange(40.0, dtype=dtype)
            )

        def other(x):
            return lax.fori_loop(
                0, i, lambda k, x: lax.switch(k % 3, [jnp.sin, lambda x: x + k, lambda x: x], x), x
            ), jnp.zeros((40, 2), dtype)

        return lax.cond(i > 2, looped, other, x)

    model = check(fn, np.int32(3), dtype([1, 2]))
    for i in (-1, 0, 2):
        check_run(model, fn, np.int32(i), dtype([1, 2]))


def test_nested_cond_captures_from_every_level():
    def fn(a, b, x):
        y = x * 2

        def outer():
            z = y + 1
            return lax.cond(b, lambda: z * y * x, lambda: lax.cond(a != b, lambda: z, lambda: x))

        return lax.cond(a, outer, lambda: y)

    model = check(fn, np.asarray(True), np.asarray(True), np.float32(3))
    for a, b in ((True, False), (False, True), (False, False)):
        check_run(model, fn, np.asarray(a), np.asarray(b), np.float32(3))


def test_a_branch_captures_from_a_loop_further_out_than_its_predicate():
    def fn(x, n):
        def outer(c, row):
            def inner(i, v):
                return lax.switch(i, [lambda: v, lambda: lax.cond(i > 0, lambda: row, lambda: v)])

            return c, lax.fori_loop(0, n, inner, x[0])

        return lax.scan(outer, 0, x)[1]

    check(fn, np.arange(6, dtype=np.int32).reshape(3, 2), np.int32(2))


def test_vmap_becomes_a_selection():
    def fn(p, x):
        return jax.vmap(lambda p, x: lax.cond(p, lambda x: x * 2, lambda x: x - 1, x))(p, x)

    model = check(fn, np.asarray([True, False, True]), np.float32([1, 2, 3]))
    assert "If" not in count(model)

    def switch(i, x):
        return jax.vmap(lambda i, x: lax.switch(i, [jnp.sin, jnp.cos, lambda x: x], x))(i, x)

    check(switch, np.int32([0, 1, 2, 9, -3]), np.float32([1, 2, 3, 4, 5]))


@FLOATS
def test_gradient(dtype):
    def fn(p, x):
        return jax.value_and_grad(lambda x: lax.cond(p, lambda x: jnp.sin(x).sum(), lambda x: (x**2).sum(), x))(x)

    model = check(fn, np.asarray(True), dtype([1, 2]))
    check_run(model, fn, np.asarray(False), dtype([1, 2]))


def test_symbolic_shapes():
    def fn(p, x):
        return lax.cond(p, lambda: (x + jnp.arange(x.shape[0]), x.sum()), lambda: (x, jnp.float32(x.shape[0])))

    model = check(fn, np.asarray(True), np.ones(3, np.float32), dims=[None, ("N",)])
    check_run(model, fn, np.asarray(False), np.ones(5, np.float32))


def test_the_code_for_the_cpu_is_taken():
    def fn(x):
        a = lax.platform_dependent(x, cpu=jnp.sin, tpu=jnp.cos, default=jnp.tan)
        b = lax.platform_dependent(x, cuda=lambda x: jax.pure_callback(np.cos, x, x), default=jnp.exp)
        return lax.scan(
            lambda c, y: (lax.platform_dependent(c, tpu=jnp.cos, default=lambda c: c * y), None), a + b, jnp.ones(40)
        )

    model = check(fn, np.float32(0.5))
    assert {"Sin", "Exp"} <= set(count(model))
    assert not [body for op, body in bodies(model.graph) if op == "If"]
