"""Long programs: rules look at formulas, not at everything that leads to them."""

from __future__ import annotations

import cProfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2onnx import to_onnx
from tests.helpers import check

X = np.float32([0.5, -1.0, 2.0, 0.25, 1.5, -0.5, 1.0, 0.75])

STEPS: dict[str, tuple[int, Callable[[Any, Any], Any]]] = {
    "squares": (60, lambda y, x: y * y),
    "sums of itself": (60, lambda y, x: y + y),
    "quotients of products": (60, lambda y, x: (y * y) * (y + 1) / (y * 2)),
    "products": (1500, lambda y, x: y * x),
    "sums": (1500, lambda y, x: y + x),
    "negations": (1500, lambda y, x: -y),
    "selections": (300, lambda y, x: jnp.where(y > 0, y, x)),
    "rotations": (200, lambda y, x: jnp.concatenate([y[1:], y[:1]])),
    "neighbours": (200, lambda y, x: jnp.pad(jnp.tanh(y[1:]) * jnp.tanh(y[:-1]), (0, 1))),
    "updates": (200, lambda y, x: y.at[2:4].add(x[:2])),
    "transposes": (300, lambda y, x: y.reshape(4, 2).T.reshape(8)),
    "activations": (100, lambda y, x: jax.nn.gelu(y) + jax.nn.silu(y)),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_chain(name: str) -> None:
    """Found out by hanging, or by Python's limit for recursion."""
    count, step = STEPS[name]

    def fn(x: Any) -> Any:
        y = x
        for _ in range(count):
            y = step(y, x)
        return y

    to_onnx(fn, [X])


def test_a_short_chain_of_each() -> None:
    for _, step in STEPS.values():
        check(lambda x, step=step: step(step(step(x, x), x), x), X, rtol=1e-5, atol=1e-6)


def test_division_by_a_constant_zero() -> None:
    check(lambda x: (x / 0, jax.nn.sigmoid(x / 0.0), x * (x / -0.0)), X)


def test_axes_of_size_1_between_transposes() -> None:
    """A transpose takes the shape in which the reshapes after it end, and the rules come to rest."""

    def fn(x: Any) -> Any:
        y = x.reshape(2, 2, 2).transpose(2, 0, 1).reshape(2, 2, 1, 2).transpose(0, 3, 1, 2)
        return y[..., 0].transpose(0, 2, 1)

    assert [node.op_type for node in check(fn, X).graph.node] == ["Reshape", "Transpose"]


def test_arithmetic_on_numbers_has_no_axes_to_keep() -> None:
    """A quotient of two numbers that are found out late is a number; as an array it was invalid, and came and went."""
    check(lambda x: jnp.argsort(x.reshape(1, 4, 2), axis=0) // 3, X)


MANY: dict[str, tuple[Callable[..., Any], Callable[[int], Any]]] = {
    "outputs that are replaced": (lambda x: [x[i] for i in range(len(x))], lambda n: np.ones((n, 2), np.float32)),
    "outputs that are written out": (lambda x: [jnp.log1p(v) for v in x], lambda n: [X] * n),
    "carries": (
        lambda xs: jax.lax.scan(lambda c, _: ([jnp.sin(x) + i for i, x in enumerate(c)], None), xs, None, length=2)[0],
        lambda n: [X] * n,
    ),
    "carries of which some are dropped": (
        lambda xs: jax.lax.scan(lambda c, _: ([-x if i % 2 else x for i, x in enumerate(c)], None), xs, None, 2)[0],
        lambda n: [X] * n,
    ),
}


@pytest.mark.parametrize("name", MANY)
def test_many_results(name: str) -> None:
    """To find one of them must not mean to look at all the others: the calls of functions are counted."""
    fn, argument = MANY[name]
    check(fn, argument(5))

    def calls(n: int) -> int:
        profile = cProfile.Profile()
        x = argument(n)
        profile.runcall(to_onnx, fn, [x], return_mode="ir")
        return sum(entry.callcount for entry in profile.getstats())

    calls(10)
    assert calls(600) < 2.15 * calls(300)
