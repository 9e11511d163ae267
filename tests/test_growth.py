"""What an export costs grows with the program as tracing does, whatever the program is made of."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax2onnx import to_onnx
from tests.helpers import calls, quick

Program = tuple[Callable[..., Any], list[Any]]


def scans(n: int) -> Program:
    def fn(x: Any) -> Any:
        for i in range(n):
            x = lax.scan(lambda c, a: (jnp.sin(c) + a, None), x, jnp.full((4, 8), i % 7, jnp.float32))[0] * 2
        return x

    return fn, ["f32[8]"]


def conditions(n: int) -> Program:
    def fn(x: Any) -> Any:
        for i in range(n):
            x = lax.cond(x[0] > i, lambda y: jnp.sin(y) + 1, lambda y: y * 2.0, x)
        return x

    return fn, ["f32[8]"]


def scatters(n: int) -> Program:
    def fn(x: Any, index: Any) -> Any:
        for i in range(n):
            x = x.at[index[i % 16]].add(1.0 + i)
        return x

    return fn, ["f32[64]", "i32[16]"]


def outputs(n: int) -> Program:
    return lambda x: [jnp.sin(x * (i + 1.5)) for i in range(n)], ["f32[8]"]


def inputs(n: int) -> Program:
    def fn(*xs: Any) -> Any:
        y = xs[0]
        for x in xs[1:]:
            y = jnp.sin(y) + x
        return y

    return fn, ["f32[8]"] * n


def uses(n: int) -> Program:
    def fn(x: Any) -> Any:
        y, total = jnp.sin(x), x
        for i in range(n):
            total = total + y * (i + 0.5)
        return total

    return fn, ["f32[8]"]


def unrolled_steps(n: int) -> Program:
    wi, wh = np.random.default_rng(0).standard_normal((2, 16, 16)).astype(np.float32)

    def fn(xs: Any) -> Any:
        h, seen = jnp.zeros((1, 16)), []
        for t in range(n):
            h = jnp.tanh(xs[t] @ wi + h @ wh)
            seen.append(h)
        return jnp.concatenate(seen)

    return fn, [f"f32[{n},1,16]"]


def convolutions(n: int) -> Program:
    kernels = np.random.default_rng(0).standard_normal((n, 3, 3, 4, 4)).astype(np.float32)

    def fn(x: Any) -> Any:
        for kernel in kernels:
            x = jax.nn.relu(
                x + lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            )
        return x

    return fn, ["f32[1,8,8,4]"]


def complex_numbers(n: int) -> Program:
    def fn(x: Any) -> Any:
        z = lax.complex(x, x * 0.5)
        for _ in range(n):
            z = z * z + z
        return z.real

    return fn, ["f32[8]"]


def rolled_arrays(n: int) -> Program:
    def fn(x: Any) -> Any:
        for i in range(n):
            x = x + jnp.roll(x, i % 5 + 1, 0) * 0.5
        return x

    return fn, ["f32[16,8]"]


def choices(n: int) -> Program:
    def fn(x: Any) -> Any:
        for i in range(n):
            x = jnp.where(x > i, jnp.clip(x, -i - 1.0, i + 1.0), x * 0.5)
        return x

    return fn, ["f32[8]"]


def stacks(n: int) -> Program:
    return lambda x: jnp.stack([jax.nn.relu(x * (i + 1.5)) for i in range(n)]), ["f32[8]"]


def means_of_symbolic_sizes(n: int) -> Program:
    def fn(x: Any) -> Any:
        for _ in range(n):
            x = jnp.tanh(x) + x.mean(axis=0, keepdims=True)
        return x

    return fn, ["f32[B,8]"]


PROGRAMS = [
    scans,
    conditions,
    scatters,
    outputs,
    inputs,
    uses,
    unrolled_steps,
    convolutions,
    complex_numbers,
    rolled_arrays,
    choices,
    stacks,
    means_of_symbolic_sizes,
]
LITTLE, TIMES = 40, 8


def work(program: Callable[[int], Program], n: int) -> int:
    fn, specs = program(n)
    return calls(lambda: to_onnx(fn, specs, return_mode="ir"))


@pytest.mark.parametrize("program", quick([choices, convolutions, scans, stacks], PROGRAMS), ids=lambda p: p.__name__)
def test_work_of_an_export_is_linear(program: Callable[[int], Program]) -> None:
    work(program, 4)  # what is loaded and compiled once
    assert work(program, LITTLE * TIMES) < 1.1 * TIMES * work(program, LITTLE)


def seconds(program: Callable[[int], Program], n: int) -> float:
    fn, specs = program(n)
    best = float("inf")
    for _ in range(2):
        gc.collect()  # what other tests have left is not to be collected now
        start = time.process_time()
        to_onnx(fn, specs, return_mode="ir")
        best = min(best, time.process_time() - start)
    return best


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_export_time_of_long_programs_is_linear(program: Callable[[int], Program]) -> None:
    """Seconds, too: a call may take longer the longer the program is."""
    seconds(program, 4)
    few = LITTLE * TIMES
    assert seconds(program, few * TIMES) < 2 * TIMES * seconds(program, few)
