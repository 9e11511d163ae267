"""diffrax and optimistix: fixed and adaptive steps, gradients, noise; root finding, least squares, minimisation."""

from __future__ import annotations

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import lineax
import numpy as np
import optimistix as optx
import pytest

import jax2onnx
from jax2onnx import runtime
from tests.frameworks.layers import normal
from tests.helpers import check, quick

pytestmark = pytest.mark.filterwarnings("ignore:The model does without:UserWarning")


def pendulum(t: Any, y: Any, args: Any) -> Any:
    angle, speed = y
    return jnp.stack([speed, -jnp.sin(angle) - 0.1 * speed + 0.1 * jnp.cos(t)])


def solve(y0: Any, solver: Any = None, field: Any = pendulum, **kwargs: Any) -> Any:
    kwargs = {"t0": 0.0, "t1": 2.0, "dt0": 0.1, "max_steps": 256} | kwargs
    terms = diffrax.ODETerm(field)
    return diffrax.diffeqsolve(terms, solver or diffrax.Tsit5(), y0=y0, args=kwargs.pop("args", None), **kwargs)


START = np.float32([0.5, -0.3])
SOLVERS = ["Euler", "Midpoint", "Ralston", "Bosh3", "Dopri5"]  # others below, with adaptive steps
ADAPTIVE = {"stepsize_controller": diffrax.PIDController(rtol=1e-4, atol=1e-6)}


@pytest.mark.parametrize("name", quick(list(SOLVERS)[::2], SOLVERS))
def test_fixed_steps(name: str) -> None:
    check(lambda y: solve(y, getattr(diffrax, name)()).ys, START)


@pytest.mark.parametrize("name", quick(["Tsit5", "Kvaerno3"], ["Heun", "Tsit5", "Dopri8", "Kvaerno3"]))
def test_adaptive_steps(name: str) -> None:
    """The same number of steps as JAX, too."""

    def run(y: Any) -> Any:
        solution = solve(y, getattr(diffrax, name)(), **ADAPTIVE)
        return solution.ys, solution.stats["num_steps"]

    check(run, START, rtol=1e-4)


@pytest.mark.slow
def test_saving_at_times() -> None:
    check(lambda y: solve(y, saveat=diffrax.SaveAt(ts=jnp.linspace(0, 2, 5)), **ADAPTIVE).ys, START, rtol=1e-4)
    check(lambda y: solve(y, saveat=diffrax.SaveAt(t0=True, steps=True), max_steps=32).ys, START)


def test_a_batch_of_starts() -> None:
    run = jax.vmap(lambda y: solve(y, **ADAPTIVE).ys)
    check(run, normal(3, 2), rtol=1e-4)


def test_gradients() -> None:
    def loss(y: Any) -> Any:
        return (solve(y, diffrax.Euler(), max_steps=32).ys ** 2).sum()

    check(jax.grad(loss), START, rtol=1e-4)


def test_an_event() -> None:
    """In double precision: after a small step, the error in single precision is noise, and so is the next step."""
    event = diffrax.Event(lambda t, y, args, **_: y[0])

    def run(y: Any) -> Any:
        solution = solve(y, t1=10.0, event=event, **ADAPTIVE)
        return solution.ts, solution.ys

    check(run, START.astype(np.float64), rtol=1e-9)


def test_a_neural_differential_equation() -> None:
    field = eqx.nn.MLP(2, 2, 8, 1, jnp.tanh, key=jax.random.key(0))
    run = jax.jit(lambda y: solve(y, field=lambda t, y, args: field(y), **ADAPTIVE).ys)
    model = jax2onnx.to_onnx(run, [(2,)])
    for seed in range(3):
        (got,) = runtime.run(model, [normal(2, seed=seed)])
        np.testing.assert_allclose(got, run(normal(2, seed=seed)), rtol=1e-4)


def test_a_stochastic_differential_equation() -> None:
    def run(key: Any, y: Any) -> Any:
        path = diffrax.VirtualBrownianTree(0.0, 1.0, tol=1e-2, shape=(2,), key=key)
        noise = diffrax.ControlTerm(lambda t, y, args: 0.1 * jnp.eye(2), path)
        terms = diffrax.MultiTerm(diffrax.ODETerm(pendulum), noise)
        return diffrax.diffeqsolve(terms, diffrax.EulerHeun(), 0.0, 1.0, 0.1, y, max_steps=16).ys

    check(run, jax.random.key(2), START, rtol=1e-4)


@pytest.mark.slow
def test_interpolated_controls() -> None:
    times = np.linspace(0, 2, 6).astype(np.float32)

    def run(controls: Any, y: Any) -> Any:
        path = diffrax.LinearInterpolation(times, controls)
        return solve(y, field=lambda t, y, args: pendulum(t, y, args) + path.evaluate(t)).ys

    check(run, normal(6), START, rtol=1e-4)


@pytest.mark.parametrize("solver", [optx.Newton(1e-5, 1e-5), optx.Chord(1e-5, 1e-5)], ids=["Newton", "Chord"])
def test_root_finding(solver: Any) -> None:
    def equations(y: Any, a: Any) -> Any:
        return jnp.stack([y[0] ** 2 + y[1] - a, y[0] - jnp.tanh(y[1])])

    check(lambda a: optx.root_find(equations, solver, jnp.ones(2), a, max_steps=64).value, np.float32(2), rtol=1e-4)


@pytest.mark.slow
def test_bisection_and_a_fixed_point() -> None:
    bounds = {"lower": 0.0, "upper": 2.0}
    bisect = optx.Bisection(1e-5, 1e-5)
    check(
        lambda a: optx.root_find(lambda y, a: y**3 - a, bisect, 1.0, a, options=bounds).value, np.float32(2), rtol=1e-4
    )
    iterate = optx.FixedPointIteration(1e-6, 1e-6)
    check(lambda a: optx.fixed_point(lambda y, a: jnp.cos(y) * a, iterate, 0.5, a).value, np.float32(0.7), rtol=1e-4)


@pytest.mark.parametrize("name", quick(["LevenbergMarquardt"], ["LevenbergMarquardt", "GaussNewton", "Dogleg"]))
def test_least_squares(name: str) -> None:
    xs = np.linspace(0, 1, 8).astype(np.float32)

    def fit(ys: Any) -> Any:
        residual = lambda p, ys: p[0] * jnp.exp(-p[1] * xs) - ys  # noqa: E731
        solver = getattr(optx, name)(rtol=1e-5, atol=1e-5)
        return optx.least_squares(residual, solver, jnp.ones(2), ys, max_steps=64, throw=False).value

    check(fit, (2 * np.exp(-1.5 * xs)).astype(np.float32), rtol=1e-3)


@pytest.mark.parametrize("name", ["BFGS", "NonlinearCG"])
def test_minimisation(name: str) -> None:
    def minimise(a: Any) -> Any:
        cost = lambda y, a: ((y - a) ** 2).sum() + (y[0] * y[1]) ** 2  # noqa: E731
        solver = getattr(optx, name)(rtol=1e-4, atol=1e-4)
        return optx.minimise(cost, solver, jnp.zeros(2), a, max_steps=64, throw=False).value

    check(minimise, np.float32([1, -0.5]), rtol=1e-3, atol=1e-4)


def test_linear_solves_with_their_checks() -> None:
    def solve(a: Any, b: Any) -> Any:
        spd = lineax.MatrixLinearOperator(a @ a.T + jnp.eye(4), lineax.positive_semidefinite_tag)
        general = lineax.MatrixLinearOperator(a)
        return (
            lineax.linear_solve(general, b).value,
            lineax.linear_solve(general, b, lineax.QR()).value,
            lineax.linear_solve(spd, b, lineax.CG(rtol=1e-6, atol=1e-6)).value,
        )

    with pytest.warns(UserWarning, match="run-time checks"):
        check(solve, normal(4, 4) + 3 * np.eye(4, dtype=np.float32), normal(4), rtol=1e-4, atol=1e-5)
