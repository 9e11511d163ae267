"""Arrays with parts of themselves around them: one Pad, whichever way it is written, and only where it is that."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from flax import nnx
from jax import lax

from tests.helpers import check, check_run

X = np.arange(2 * 5 * 6 * 3, dtype=np.float32).reshape(2, 5, 6, 3)
X[0, 0, 0], X[1, -1, -1] = (-0.0, np.nan, np.inf), (np.inf, -0.0, -np.inf)
TWO_AXES = ((0, 0), (2, 3), (1, 0), (0, 0))


def ops(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_several_axes(mode: str) -> None:
    def fn(x: Any) -> Any:
        return jnp.pad(x, TWO_AXES, mode=mode)

    assert ops(check(fn, X, rtol=0, atol=0)) == {"Pad": 1}
    model = check(fn, X, dims=[("B", 5, 6, 3)])
    check_run(model, fn, X[:0])
    assert (ops(model) == {"Pad": 1}) == (mode != "wrap")  # ONNX Runtime does not wrap what is empty
    check(fn, X[:0])
    assert ops(check(fn, X, opset=17))["Pad"] == (mode != "wrap")


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "uint64", "float16", "float64"])
def test_all_types(mode: str, dtype: str) -> None:
    check(lambda x: jnp.pad(x, ((1, 2), (0, 3)), mode=mode), np.arange(12).reshape(3, 4).astype(dtype))


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap", "symmetric"])
@pytest.mark.parametrize("shape", [(1, 4), (4, 1), (2, 2)])
def test_more_than_there_is(mode: str, shape: tuple[int, int]) -> None:
    check(lambda x: jnp.pad(x, ((3, 2), (0, 5)), mode=mode), np.arange(4, dtype=np.float32).reshape(shape))


def test_written_by_hand() -> None:
    def part(x: Any) -> Any:
        inner = x[:, 1:4]
        return jnp.concatenate([inner[:, -1:], inner, inner[:, :1]], 1)

    forms = [
        lambda x: jnp.concatenate([x[:, -2:], x, x[:, :1]], 1),
        lambda x: jnp.concatenate([x[:, 2:0:-1], x, x[:, 3:1:-1]], 1),
        lambda x: jnp.concatenate([x[:, 1:2], x, x[:, -2:-1]], 1),
        lambda x: jnp.concatenate([jnp.repeat(x[:, :1], 4, 1), x], 1),
        lambda x: jnp.concatenate([x[:, :1], x[:, :1], x], 1),
        lambda x: jnp.concatenate([x, lax.rev(x, (1,))[:, 1:]], 1),
    ]
    for fn in forms:
        assert ops(check(fn, X)) == {"Pad": 1}
    assert ops(check(part, X)) == {"Slice": 1, "Pad": 1}


def test_what_is_not_that() -> None:
    for fn in [
        lambda x: jnp.concatenate([x[:, 1:3], x], 1),
        lambda x: jnp.concatenate([x[:, :1], x, x[:, :1]], 1),
        lambda x: jnp.concatenate([x[:, 1:2], x, x[:, -1:]], 1),  # of two modes
        lambda x: jnp.concatenate([x[:, :1, ::-1], x], 1),
        lambda x: jnp.concatenate([x[:, -1:] + 1, x], 1),
        lambda x: jnp.concatenate([x, x], 1),
        lambda x: jnp.concatenate([x[:, :1]] * 3, 1),
        lambda x: jnp.concatenate([x[:, 2:], x[:, :2]], 1),
        lambda x: jnp.pad(x, ((0, 0), (2, 3), (0, 0), (0, 0)), mode="symmetric"),
    ]:
        assert not ops(check(fn, X))["Pad"]
    square = X[:, :2, :2]  # rows are repeated, not columns
    check(lambda x: jnp.concatenate([jnp.broadcast_to(x[:, 0], (2, 2, 2, 3)), x], 1), square)
    check(lambda x: jnp.concatenate([jnp.broadcast_to(x[0, :1], (2, 2, 2, 3)), x], 1), square)


def test_cut_again() -> None:
    for mode in ("edge", "reflect", "wrap"):
        padded = [lambda x, s=s, mode=mode: jnp.pad(x, TWO_AXES, mode=mode)[s] for s in (
            np.s_[:, 1:-1], np.s_[:, 2:-3], np.s_[:, :5], np.s_[:, 4:, 1:], np.s_[:, 1:, 3:]
        )]  # fmt: skip
        for fn in padded:
            check(fn, X, rtol=0, atol=0)
        assert ops(check(padded[0], X)) == {"Pad": 1}
        check(lambda x, mode=mode: jnp.pad(jnp.pad(x, TWO_AXES, mode=mode), TWO_AXES, mode=mode), X, rtol=0, atol=0)
    check(lambda x: jnp.pad(jnp.pad(x, TWO_AXES), TWO_AXES, mode="edge"), X)


def test_many_short_runs_are_not_wrapped_one_by_one() -> None:
    x = np.ones((64, 256), np.float32)
    assert ops(check(lambda x: jnp.pad(x, ((0, 0), (3, 3)), mode="wrap"), x)) == {"Pad": 1}
    assert not ops(check(lambda x: jnp.pad(x, ((0, 0), (32, 32)), mode="wrap"), x))["Pad"]


@pytest.mark.parametrize("padding", ["CIRCULAR", "REFLECT"])
def test_before_convolutions_and_pools(padding: str) -> None:
    first, second = (nnx.Conv(3, 3, (3, 3), padding=padding, rngs=nnx.Rngs(i)) for i in range(2))

    def fn(x: Any) -> Any:
        y = second(nnx.relu(first(x)))
        return y, nnx.avg_pool(jnp.pad(y, TWO_AXES, mode="reflect"), (2, 2))

    found = ops(check(fn, np.nan_to_num(X, posinf=1, neginf=1), rtol=1e-4, atol=1e-3))
    assert found["Pad"] == 3 and not found["Slice"] and found["Transpose"] <= 3


@pytest.mark.parametrize(("size", "step"), [(2, 3), (3, 4), (3, 3), (4, 3)])
def test_windows_that_step_over_all_but_padding(size: int, step: int) -> None:
    def fn(x):
        padded = jnp.pad(x, ((0, 0), (0, 0), (1, 1)), constant_values=-jnp.inf)
        return lax.reduce_window(padded, -np.inf, lax.max, (1, 1, 2), (1, 1, 1), "VALID", window_dilation=(1, 1, step))

    check(fn, np.arange(2 * size, dtype=np.float32).reshape(1, 2, size))
