"""scan, map and associative_scan."""

from __future__ import annotations

import jax
import ml_dtypes
import numpy as np
import onnx
import pytest
from jax import lax
from jax import numpy as jnp

import jax2onnx
from tests.helpers import calls, check, check_run, check_valid
from tests.lower.bodies import bodies, body_counts, count

FLOATS = pytest.mark.parametrize("dtype", [np.float32, np.float64])
LONG = 40
"""Steps of a loop that is too long to be written out."""


def ramp(*shape: int, dtype=np.float32) -> np.ndarray:
    return (np.arange(np.prod(shape), dtype=dtype).reshape(shape) % 7 - 3) / 4


# ------------------------------------------------------------------------------------------------------ what is scanned


@FLOATS
@pytest.mark.parametrize("length", [0, 1, 2, 3, LONG])
@pytest.mark.parametrize("reverse", [False, True])
def test_carry_and_outputs(dtype, length, reverse):
    def fn(c, xs):
        return lax.scan(lambda c, x: (jnp.tanh(c) + x, c * x), c, xs, reverse=reverse)

    check(fn, ramp(3, dtype=dtype), ramp(length, 3, dtype=dtype))


@FLOATS
@pytest.mark.parametrize("length", [0, 1, 3, LONG])
def test_without_xs(dtype, length):
    check(lambda c: lax.scan(lambda c, _: (jnp.cos(c), c), c, length=length), ramp(2, dtype=dtype))


@FLOATS
@pytest.mark.parametrize("length", [0, 1, 3, LONG])
def test_without_outputs(dtype, length):
    check(lambda c, xs: lax.scan(lambda c, x: (c + x, None), c, xs)[0], dtype(1), ramp(length, dtype=dtype))


@pytest.mark.parametrize("length", [0, 1, 3, LONG])
def test_without_carry(length):
    model = check(lambda xs: lax.scan(lambda _, x: (None, (jnp.sin(x), x @ x)), None, xs)[1], ramp(length, 3))
    assert count(model)["Scan"] == (length == LONG)


@pytest.mark.parametrize("unroll", [1, 2, 7, True])
def test_unroll_changes_nothing(unroll):
    check(lambda c, xs: lax.scan(lambda c, x: (c * 0.5 + x, c), c, xs, unroll=unroll), np.float32(1), ramp(LONG))


def test_xs_and_outputs_of_many_shapes_and_dtypes():
    def fn(c, xs):
        def step(c, x):
            i, f, b = x
            return c + i, (i * 2, f + c.astype(f.dtype), ~b, jnp.float16(3))

        return lax.scan(step, c, xs)

    check(fn, np.int8(3), (np.arange(LONG, dtype=np.int8), ramp(LONG, 2, 1), np.arange(LONG) % 3 == 0))


def test_zero_length_axes_inside():
    check(lambda c, xs: lax.scan(lambda c, x: (c + x, x), c, xs), np.zeros((0, 2), np.float32), ramp(LONG, 0, 2))


def test_an_input_that_is_not_used_is_not_scanned():
    model = check(lambda xs, ys: lax.scan(lambda c, xy: (c + xy[0], c), 0.0, (xs, ys)), ramp(LONG), ramp(LONG, 5))
    (scan,) = (node for node in model.graph.node if node.op_type == "Scan")
    assert len(scan.input) == 2


# ------------------------------------------------------------------------------------------------------ carries

DTYPES = ["bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "bfloat16", "float32"]


@pytest.mark.parametrize("dtype", [*DTYPES, "int64", "uint64", "float64"])
@pytest.mark.parametrize("length", [2, LONG])
def test_carry_dtype(dtype, length):
    start = np.asarray([1, 0, 3]).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)

    def fn(c, flips):
        return lax.scan(lambda c, flip: (jnp.where(flip, c[::-1], c), c), c, flips)

    check(fn, start, np.arange(length) % 3 == 0, x64=dtype.endswith("64"))


def test_carries_of_different_dtypes():
    def fn(a, b, c, d):
        def step(carry, _):
            a, b, c, d = carry
            return (a * 2, b + 3, ~c, d * jnp.bfloat16(0.5)), (b, c)

        return lax.scan(step, (a, b, c, d), length=LONG)

    check(fn, np.float32(0.1), np.int32(2**31 - 50), np.asarray([True, False]), np.asarray(3, ml_dtypes.bfloat16))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_key_carry(impl):
    def fn(data):
        def step(key, _):
            key, use = jax.random.split(key)
            return key, jax.random.bits(use, (2,))

        key, bits = lax.scan(step, jax.random.wrap_key_data(data, impl=impl), length=LONG)
        return jax.random.key_data(key), bits

    check(fn, np.arange(2 if impl == "threefry2x32" else 4, dtype=np.uint32))


def test_carry_that_passes_through():
    # Wrapped in a call, so that JAX does not see that it is the same value.
    def step(c, x):
        same, new = jax.jit(lambda a, b: (a, b + x))(*c)
        return (same, new), same

    model = check(lambda a, b, xs: lax.scan(step, (a, b), xs), ramp(2), ramp(2), ramp(LONG, 2))
    (scan,) = (node for node in model.graph.node if node.op_type == "Scan")
    assert len(scan.input) == 2, "the value that never changes is no carry"


def test_carries_that_change_places():
    check(lambda a, b: lax.scan(lambda c, _: ((c[1], c[0]), c[0]), (a, b), length=LONG + 1), ramp(2), ramp(2) + 9)


def test_carry_that_becomes_an_input_or_a_constant():
    def fn(c, outer, xs):
        return lax.scan(lambda c, x: ((x, outer, jnp.ones(2)), c), (c, c, c), xs)

    check(fn, ramp(2), ramp(2) + 9, ramp(LONG, 2))


# ------------------------------------------------------------------------------------------------------ outputs


def test_outputs_that_are_carries_inputs_constants_and_captured_values():
    def fn(c, xs, outer):
        def step(c, x):
            new = c + x
            return new, (c, new, new, x, outer, jnp.zeros(3), 5, outer * 2)

        return lax.scan(step, c, xs)

    model = check(fn, np.float32(1), ramp(LONG), ramp(2))
    assert body_counts(model, "Scan")[0] == {"Add": 1, "Identity": 2}
    check(lambda *args: jax.tree.map(lambda x: x[::-1], fn(*args)[1]), np.float32(1), ramp(3), ramp(2))


@pytest.mark.parametrize("length", [3, LONG])
def test_outputs_in_reverse(length):
    def fn(c, xs, outer):
        return lax.scan(lambda c, x: (c + 1, (c, x, outer, c * x)), c, xs, reverse=True)

    check(fn, np.int32(5), np.arange(length, dtype=np.int32), ramp(2))


def test_nothing_is_left_of_a_loop_that_repeats_constants():
    model = check(lambda x: lax.scan(lambda c, _: (c, x * 2), None, length=LONG)[1], ramp(3))
    assert "Scan" not in count(model)


# ------------------------------------------------------------------------------------------------------ counters


@pytest.mark.parametrize("start", [0, 3, -20])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.int8])
def test_counter_is_read_from_a_vector(start, dtype):
    def fn(x):
        def step(carry, _):
            i, x = carry
            return (i + 7, x + i.astype(x.dtype)), i

        first = jnp.asarray(start % 256, dtype) if dtype == np.uint8 else jnp.asarray(start, dtype)
        return lax.scan(step, (first, x), length=LONG)

    model = check(fn, np.float32(1), x64=dtype == np.int64)  # 7 * 40 does not fit in eight bits: it wraps around
    assert body_counts(model, "Scan")[0]["Add"] == 1


def test_counter_beyond_the_integers_of_double():
    start, by = np.uint64(2**63 + 12345), np.uint64(0x9E3779B97F4A7C15)
    check(lambda xs: lax.scan(lambda i, x: (i + by, i ^ x), start, xs), np.arange(LONG, dtype=np.uint64))


def test_counter_with_a_traced_start_and_a_long_way():
    def fn(i, x):
        return lax.scan(lambda c, _: ((c[0] + 2, c[1] + c[0]), None), (i, x), length=5000)[0]

    model = check(fn, np.int32(-11), np.int32(3))
    assert len(model.SerializeToString()) < 2000


@pytest.mark.parametrize("reverse", [False, True])
def test_counter_as_an_output(reverse):
    def fn(x, xs):
        return lax.scan(lambda c, y: ((c[0] + 1, c[1] * y), (c[0], c[0] + 1)), (4, x), xs, reverse=reverse)

    check(fn, np.float32(1), ramp(LONG))


def test_float_counter_is_summed_step_by_step():
    check(lambda x: lax.scan(lambda c, _: (c + 0.1, c), x, length=LONG), np.float32(0.3), rtol=0, atol=0)


def test_carry_that_counts_by_another_carry():
    check(lambda x: lax.scan(lambda c, _: ((c[0] + c[1], c[1] + 1), c[0]), (x, x), length=LONG), np.int32(3))


@pytest.mark.parametrize("bounds", [(0, 0), (0, 1), (2, 4), (0, 50), (5, 0), (-20, 30)])
def test_fori_loop_with_static_bounds(bounds):
    check(lambda x: lax.fori_loop(*bounds, lambda i, x: x * 0.5 + i, x), ramp(3))


# ------------------------------------------------------------------------------------------------------ captured values


@FLOATS
def test_closed_over_arrays_and_tracers_from_any_level(dtype):
    table = ramp(3, 3, dtype=dtype)

    def fn(a, b, xs):
        outermost = jnp.sin(a)

        def outer(c, x):
            middle = c @ table + outermost

            def inner(d, y):
                return jnp.tanh(d + y * middle + b), d.sum() + outermost.sum() + x.sum()

            return lax.scan(inner, x, jnp.stack([x, c, x] * 14))

        return lax.scan(outer, a, xs)

    check(fn, ramp(3, dtype=dtype), dtype(0.25), ramp(LONG, 3, dtype=dtype))


def test_invariant_work_is_done_outside():
    def fn(w, x):
        def outer(c, x):
            def inner(d, _):
                return d @ (w.T * 2) + jnp.exp(c) + jnp.arange(3.0), None

            return lax.scan(inner, x, length=LONG)[0], None

        return lax.scan(outer, x, jnp.stack([x] * LONG))[0]

    model = check(fn, ramp(3, 3) / 9, ramp(3) / 9)
    _, (_, inner) = bodies(model.graph)
    assert sorted(node.op_type for node in inner.node) == ["Add", "Add", "MatMul"]
    assert {"Transpose", "Mul"} <= {node.op_type for node in model.graph.node}


def test_invariant_loop_is_run_once():
    def fn(w, xs):
        def step(c, x):
            power = lax.scan(lambda p, _: (p @ w, None), w, length=LONG)[0]
            return c + power @ x, None

        return lax.scan(step, jnp.zeros(3), xs)[0]

    model = check(fn, ramp(3, 3) / 2, ramp(LONG, 3))
    assert [node.op_type for node in model.graph.node].count("Scan") == 2


def test_large_constants_of_bodies_are_initializers_of_the_model_once():
    table = ramp(64, 64)

    def fn(x):
        def step(c, _):
            return lax.scan(lambda d, _: (jnp.tanh(d @ table), None), c @ table, length=LONG)[0], c @ table

        return lax.scan(step, x, length=LONG)

    model = check(fn, ramp(64) / 99)
    assert not any(body.initializer for _, body in bodies(model.graph))
    assert [i.dims for i in model.graph.initializer].count([64, 64]) == 1


# ------------------------------------------------------------------------------------------------------ symbolic sizes


@FLOATS
def test_symbolic_length_and_batch(dtype):
    def fn(c, xs):
        return lax.scan(lambda c, x: (jnp.tanh(c + x), (c * x, jnp.ones_like(x))), c, xs)

    model = check(fn, ramp(2, 3, dtype=dtype), ramp(5, 2, 3, dtype=dtype), dims=[("B", 3), ("T", "B", 3)])
    for t, b in ((1, 1), (2, 7), (9, 3)):
        check_run(model, fn, ramp(b, 3, dtype=dtype), ramp(t, b, 3, dtype=dtype))


def test_symbolic_length_that_may_be_zero():
    def fn(xs):
        return lax.scan(lambda c, x: (c + x, (c, c * x, 3)), 0.0, xs[1:], reverse=True)

    model = check(fn, ramp(5), dims=[("T",)])
    for t in (1, 2, 9):
        check_run(model, fn, ramp(t))


def test_symbolic_length_of_unused_xs():
    def fn(x):
        return lax.scan(lambda c, _: ((c[0] + 1, c[1] * 0.5 + c[0]), c[0]), (0, x), x)

    model = check(fn, ramp(5), dims=[("T",)])
    check_run(model, fn, ramp(1))
    check_run(model, fn, ramp(44))


def test_symbolic_carry_in_nested_loops():
    def fn(x):
        def outer(c, row):
            def inner(d, i):
                return d + row * i + jnp.arange(x.shape[1]), (d.sum(),)

            return lax.scan(inner, c, jnp.arange(LONG))

        return lax.scan(outer, jnp.zeros(x.shape[1]), x)

    model = check(fn, ramp(3, 4), dims=[("N", "M")])
    check_run(model, fn, ramp(1, 1))
    check_run(model, fn, ramp(5, 2))


# ------------------------------------------------------------------------------------------------------ built on scan


@FLOATS
@pytest.mark.parametrize("batch_size", [None, 1, 3, 7, 40, 50])
def test_map_with_batch_size(dtype, batch_size):
    check(lambda xs: lax.map(lambda x: jnp.tanh(x).sum() * x, xs, batch_size=batch_size), ramp(LONG, 3, dtype=dtype))


@FLOATS
@pytest.mark.parametrize("length", [1, 2, 5, 16])
@pytest.mark.parametrize("reverse", [False, True])
def test_associative_scan(dtype, length, reverse):
    def combine(a, b):
        return a[0] * b[0], b[0] * a[1] + b[1]

    def fn(x, y):
        return lax.associative_scan(combine, (x, y), reverse=reverse)

    check(fn, ramp(length, 2, dtype=dtype), ramp(length, 2, dtype=dtype))


@FLOATS
def test_checkpoint_inside(dtype):
    def fn(c, xs):
        step = jax.checkpoint(lambda c, x: (jnp.sin(c * x), c))
        return jax.grad(lambda c: lax.scan(step, c, xs)[1].sum())(c)

    check(fn, dtype(0.3), ramp(LONG, dtype=dtype))


@FLOATS
def test_custom_vjp_inside(dtype):
    @jax.custom_vjp
    def clipped(x):
        return x * 2

    clipped.defvjp(lambda x: (x * 2, x), lambda x, ct: (jnp.clip(ct, -1, 1) * x,))

    def fn(c, xs):
        return jax.value_and_grad(lambda c: lax.scan(lambda c, x: (clipped(c) * x, c), c, xs)[1].sum())(c)

    check(fn, dtype(0.3), ramp(LONG, dtype=dtype))


@FLOATS
def test_gradient_with_stored_residuals(dtype):
    def loss(w, x, ys):
        def step(h, y):
            h = jnp.tanh(w @ h + y)
            return h, (h - y) ** 2

        return lax.scan(step, x, ys)[1].mean()

    def fn(w, x, ys):
        return jax.value_and_grad(loss, argnums=(0, 1, 2))(w, x, ys)

    check(fn, ramp(3, 3, dtype=dtype), ramp(3, dtype=dtype), ramp(LONG, 3, dtype=dtype))


@FLOATS
def test_second_derivative_through_a_bounded_loop(dtype):
    def energy(x):
        return lax.fori_loop(0, LONG, lambda i, y: y * 0.9 + jnp.sin(y) / (i + 1), x).sum()

    check(jax.hessian(energy), ramp(3, dtype=dtype))


def test_forward_mode_through_a_loop_with_integers():
    def fn(x):
        return lax.scan(lambda c, i: ((c[0] * x, c[1] + i), c[0]), (x, 0), jnp.arange(LONG))

    check(lambda x: jax.jvp(lambda x: fn(x)[1], (x,), (x,)), np.float32(0.9))


def test_vmap():
    def fn(c, xs, w):
        return jax.vmap(lambda c, xs: lax.scan(lambda c, x: (c * w + x, c), c, xs), in_axes=(0, 1))(c, xs)

    check(fn, ramp(4), ramp(LONG, 4, 2).sum(-1), np.float32(0.5))


# ------------------------------------------------------------------------------------------------------ size and time


def nested(x, depth, length):
    if depth == 0:
        return jnp.sin(x) * 0.5
    return lax.fori_loop(0, length, lambda _, x: nested(x, depth - 1, length), x)


def test_cost_does_not_depend_on_the_number_of_steps():
    models = []

    def export(length):
        return calls(lambda: models.append(jax2onnx.to_onnx(lambda x: nested(x, 4, length), [(3,)])))

    export(5_000)  # what is loaded and compiled once
    assert export(10_000) < 1.01 * export(5_000)
    assert count(models[0]) == count(models[1])
    check_valid(models[1])


def test_work_is_linear_in_the_equations_of_a_body():
    models = []

    def export(n):
        def step(c, x):
            for i in range(n):
                c = c * x if i % 2 else c + x
            return c, None

        return calls(lambda: models.append(jax2onnx.to_onnx(lambda c, xs: lax.scan(step, c, xs)[0], [(3,), (LONG, 3)])))

    export(3)
    assert export(3000) < 1.1 * 10 * export(300)
    assert sum(body_counts(models[1], "Scan")[0].values()) == 3000


def test_names_are_unique_in_the_whole_model():
    def fn(x):
        def step(c, y):
            d = lax.scan(lambda d, z: (d + z * c, d), c, jnp.ones(LONG))[0]
            return lax.cond(d > y, lambda: d + y, lambda: d * y), d

        return lax.scan(step, x, jnp.ones(LONG)), lax.scan(step, x, jnp.ones(LONG))

    model = check(fn, np.float32(0.5))
    graphs = [model.graph, *(body for _, body in bodies(model.graph))]
    names = [name for graph in graphs for node in graph.node for name in node.output]
    names += [i.name for graph in graphs for i in (*graph.input, *graph.initializer)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("opset", [17, 18, 21, 23, onnx.defs.onnx_opset_version()])
def test_opsets(opset):
    def fn(c, xs):
        return lax.scan(lambda c, x: (c + x.sum(), c), c, xs, reverse=True)

    check(fn, np.float32(1), ramp(LONG, 3), opset=min(opset, 26))
