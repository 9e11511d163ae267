"""Simulation codes: nested loops with stacks, windows, broadcasts and scatters in their bodies.

Exports of such programs used to fail to load, with widths or dtypes in loop bodies that were not those of the program.
"""

from __future__ import annotations

import jax
import numpy as np
import onnx
import pytest
from jax import lax
from jax import numpy as jnp

from tests.helpers import check, quick
from tests.lower.bodies import bodies

HALO = 6
CELLS = 201


def stacked_fields(steps, repeats):
    """An inner loop that stacks five fields and keeps the last, in an outer loop that collects them."""

    def fn(state):
        def inner(fields, _):
            rho, u, v, w, energy = fields
            new = jnp.stack([rho, rho * u, rho * v, rho * w, energy])
            return new, new

        def outer(fields, _):
            last = lax.scan(inner, fields, length=steps)[1][-1]
            return last, last

        _, collected = lax.scan(outer, state, length=repeats)
        out = collected[-1]
        return jnp.concatenate([jnp.broadcast_to(out[:1], (5, 210, 1, 1)), out])

    return fn


def stacked_fields_with_norm(steps, repeats):
    """The same with a sum over the fields and a broadcast in the body."""

    def fn(state):
        def inner(fields, _):
            rho, velocity, energy = fields[0], fields[1:4], fields[4]
            kinetic = 0.5 * rho * jnp.sum(velocity**2, axis=0)
            pressure = jnp.broadcast_to((energy - kinetic)[None], (3, 210, 1, 1))
            velocity = 0.9 * velocity + 0.1 * jnp.tanh(pressure)
            new = jnp.concatenate([rho[None], velocity, (0.9 * energy + 0.1 * kinetic)[None]])
            return new, new

        def outer(fields, _):
            last = lax.scan(inner, fields, length=steps)[1][-1]
            return last, last

        return lax.scan(outer, state, length=repeats)[1]

    return fn


def flow_solver(state):
    """A shock tube in 1-D: Runge-Kutta stages in a loop over time, windows of width 6, a sensor, halo cells."""
    weights = jnp.asarray([1, -8, 37, 37, -8, 1], state.dtype) / 60
    centre = slice(HALO, HALO + CELLS)

    def boundaries(q):
        q = q.at[:, :HALO].set(q[:, HALO : HALO + 1])
        return q.at[:, HALO + CELLS :].set(q[:, HALO + CELLS - 1 : HALO + CELLS])

    def pressure(q):
        return 0.4 * (q[2] - 0.5 * q[1] ** 2 / q[0])

    def flux(q):
        p = pressure(q)
        u = q[1] / q[0]
        return jnp.stack([q[1], q[1] * u + p, (q[2] + p) * u])

    def right_hand_side(q):
        f = flux(q)
        faces = jnp.arange(CELLS + 1) + HALO - 3
        window = faces[:, None] + jnp.arange(6)  # a gather of windows
        central = jnp.einsum("vfw,w->vf", f[:, window], weights)
        cells = jnp.stack([lax.dynamic_slice_in_dim(q, HALO - 3 + k, CELLS + 1, 1) for k in range(6)], -1)
        p = pressure(q)[window]
        sensor = jnp.abs(p[:, 3] - p[:, 2]) / (p[:, 3] + p[:, 2])
        speed = jnp.sqrt(1.4 * p / q[0][window]).max(-1)
        upwind = 0.5 * (f[:, HALO - 1 : HALO + CELLS] + f[:, HALO : HALO + CELLS + 1])
        upwind = upwind - 0.5 * speed * (cells[..., 3] - cells[..., 2])
        at_faces = jnp.where(sensor > 0.01, upwind, central)
        return -jnp.diff(at_faces, axis=1) * CELLS

    def step(q, dt):
        def stage(carry, coefficients):
            a, b = coefficients
            current = boundaries(carry)
            change = dt * b * right_hand_side(current)
            new = a * q[:, centre] + (1 - a) * current[:, centre] + change
            scattered = jnp.zeros_like(q).at[:, HALO : HALO + CELLS].add(new)
            return jnp.where(jnp.arange(q.shape[1]) < HALO, current, scattered), None

        stages = jnp.asarray([[0.0, 1.0], [0.75, 0.25], [1 / 3, 2 / 3]], q.dtype)
        new, _ = lax.scan(stage, q, (stages[:, 0], stages[:, 1]))
        new = boundaries(new)
        total = (
            jnp.zeros(3, q.dtype).at[jnp.asarray([0, 1, 2, 0])].add(new[:, centre].sum(1)[jnp.asarray([0, 1, 2, 0])])
        )
        return new, (total, pressure(new)[centre].max())

    return lax.scan(step, state, jnp.full(50, 0.0005, state.dtype))


def while_with_passed_through_input(x, limit):
    def body(carry):
        count, value, same = carry
        return count + 1, value * 2 + limit, same

    return lax.while_loop(lambda carry: carry[1].sum() < limit.sum() * 50, body, (0, x, limit))


def silu_and_scatter_in_branches(x, indices):
    def step(carry, i):
        def one(v):
            return jax.nn.silu(jax.nn.silu(v)).at[i].set(3)

        def other(v):
            return jax.nn.silu(jax.nn.silu(v * 2)).at[i].add(v[0])

        carry = lax.cond(carry.sum() > 0, one, other, carry)
        return carry, carry.sum()

    return lax.scan(step, x, indices)


def gas(dtype):
    grid = (np.arange(210) / 210).reshape(1, 210, 1, 1)
    return np.concatenate([1 + grid, 0.1 * grid, 0.2 - grid, grid**2, 2.5 + grid]).astype(dtype)


def shock_tube(dtype):
    left = np.arange(CELLS + 2 * HALO) < HALO + CELLS // 2
    density, pressure = np.where(left, 1, 0.125), np.where(left, 1, 0.1)
    return np.stack([density, np.zeros_like(density), pressure / 0.4]).astype(dtype)


PROGRAMS = {
    "stacked fields": (stacked_fields(2, 1), lambda dtype: [gas(dtype)]),
    "stacked fields, long": (stacked_fields(20, 30), lambda dtype: [gas(dtype)]),
    "stacked fields with norm": (stacked_fields_with_norm(2, 1), lambda dtype: [gas(dtype)]),
    "stacked fields with norm, long": (stacked_fields_with_norm(20, 30), lambda dtype: [gas(dtype)]),
    "flow solver": (flow_solver, lambda dtype: [shock_tube(dtype)]),
    "while": (while_with_passed_through_input, lambda dtype: [np.arange(3, dtype=dtype), np.ones(3, dtype)]),
    "silu": (
        silu_and_scatter_in_branches,
        lambda dtype: [np.linspace(-1, 2, 8).astype(dtype), (np.arange(40) * 3 % 8).astype(np.int32)],
    ),
}
# After 50 steps, what rounding alone makes of the flow in float32 (JAX itself differs as much from float64).
TOLERANCE = {np.float64: 1e-10, np.float32: 2e-3}


@pytest.mark.parametrize("loosen", [False, True], ids=["exact", "loose"])
@pytest.mark.parametrize("opset", quick([None], [None, 21]))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name, dtype, opset, loosen):
    fn, inputs = PROGRAMS[name]
    tolerance = TOLERANCE[dtype] if name == "flow solver" else None
    options = {} if opset is None else {"opset": opset}
    model = check(fn, *inputs(dtype), rtol=tolerance, atol=tolerance, loosen_internal_shapes=loosen, **options)
    assert_types_stay(model, dtype)
    if loosen:
        assert_loose(model)


def assert_types_stay(model: onnx.ModelProto, dtype: type) -> None:
    """No float leaks into a double model, nor the other way."""
    other = onnx.TensorProto.FLOAT if dtype == np.float64 else onnx.TensorProto.DOUBLE
    graphs = [model.graph, *(body for _, body in bodies(model.graph))]
    values = [v for graph in graphs for v in (*graph.input, *graph.output, *graph.value_info)]
    assert not [v.name for v in values if v.type.tensor_type.elem_type == other]
    assert not [i.name for i in model.graph.initializer if i.data_type == other]


def assert_loose(model: onnx.ModelProto) -> None:
    """Bodies carry no dims; the inputs and outputs of the model do."""
    for _, body in bodies(model.graph):
        for value in (*body.input, *body.output, *body.value_info):
            assert not [d for d in value.type.tensor_type.shape.dim if d.HasField("dim_value") or d.dim_param]
    for value in (*model.graph.input, *model.graph.output):
        assert all(d.HasField("dim_value") for d in value.type.tensor_type.shape.dim)


def test_widths_are_declared_at_every_step():
    fn, inputs = PROGRAMS["stacked fields, long"]
    model = check(fn, *inputs(np.float64))
    scans = [body for op, body in bodies(model.graph) if op == "Scan"]
    assert scans
    for body in scans:
        assert [d.dim_value for d in body.output[0].type.tensor_type.shape.dim] == [5, 210, 1, 1]


def test_loosening_by_the_environment(monkeypatch):
    monkeypatch.setenv("JAX2ONNX_LOOSEN_INTERNAL_SHAPES", "1")
    fn, inputs = PROGRAMS["silu"]
    assert_loose(check(fn, *inputs(np.float32)))
