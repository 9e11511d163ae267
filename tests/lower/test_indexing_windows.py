"""`operand[b, s:s+L] += updates[b]` and its relatives: a window that includes whole axes, at an inner axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import onnx
import pytest
from jax import lax
from jax import numpy as jnp

from jax2onnx import compat, runtime
from tests.compare import assert_same
from tests.helpers import check, quick

LENGTH = 6
SCATTERS: dict[str, Callable] = {
    "add": lax.scatter_add,
    "set": lax.scatter,
    "mul": lax.scatter_mul,
    "min": lax.scatter_min,
    "max": lax.scatter_max,
}
DTYPES = [np.float32, np.float64]


def window_update(kind: str, mode: str) -> Callable:
    """Combine the whole window into `operand[:, start : start + length]`."""
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=(0, 1, 2, 3), inserted_window_dims=(), scatter_dims_to_operand_dims=(1,)
    )
    return lambda x, u, start: SCATTERS[kind](x, start[None], u, numbers, mode=mode)


def arrays(batch: int, length: int, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(batch * 10 + length)
    x = rng.normal(size=(batch, LENGTH, 3, 2)).astype(dtype)
    return x, rng.normal(size=(batch, length, 3, 2)).astype(dtype)


def check_starts(model: onnx.ModelProto, fn: Callable, x: np.ndarray, u: np.ndarray, starts: list[int]) -> None:
    """The same model with other starts."""
    with compat.evaluation.x64(x.dtype == np.float64):
        expected = jax.jit(fn)
        for start in map(np.int32, starts):
            assert_same(runtime.run(model, [x, u, start]), [expected(x, u, start)])


def index_shapes(model: onnx.ModelProto) -> list[list[int]]:
    """The shape of the indices of each ScatterND."""
    inferred = onnx.shape_inference.infer_shapes(model)
    types = {v.name: v.type.tensor_type.shape for v in [*inferred.graph.value_info, *inferred.graph.input]}
    shapes = {name: [d.dim_value for d in shape.dim] for name, shape in types.items()}
    shapes |= {t.name: list(t.dims) for t in model.graph.initializer}
    return [shapes[n.input[1]] for n in model.graph.node if n.op_type == "ScatterND"]


@pytest.mark.parametrize("kind", SCATTERS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("opset", quick([None], [21, None]))
@pytest.mark.parametrize("batch", quick([5], [1, 2, 5]))
@pytest.mark.parametrize("length", quick([3], [1, 3]))
def test_traced_start(kind: str, dtype: Any, opset: int | None, batch: int, length: int) -> None:
    """One ScatterND whose indices are pairs, for every start: at both ends, in between, out of range."""
    x, u = arrays(batch, length, dtype)
    for mode in ("clip", "fill"):
        fn = window_update(kind, mode)
        model = check(fn, x, u, np.int32(1), opset=opset)
        assert index_shapes(model) == [[batch, length, 2]]
        check_starts(model, fn, x, u, [0, LENGTH - length, LENGTH, -1, 100, -100])


@pytest.mark.parametrize("kind", SCATTERS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("opset", quick([None], [21, None]))
def test_window_as_long_as_the_axis(kind: str, dtype: Any, opset: int | None) -> None:
    """Nothing to index: the window can only be everything, or outside."""
    x, u = arrays(2, LENGTH, dtype)
    for mode in ("clip", "fill"):
        fn = window_update(kind, mode)
        model = check(fn, x, u, np.int32(0), opset=opset)
        assert "ScatterND" not in {n.op_type for n in model.graph.node}
        check_starts(model, fn, x, u, [1, -1, 100])


@pytest.mark.parametrize("kind", SCATTERS)
@pytest.mark.parametrize("start", [0, 2, LENGTH - 3, LENGTH, -1])
def test_known_start(kind: str, start: int) -> None:
    """At most one ScatterND and what combines, nothing computes indices."""
    x, u = arrays(5, 3, np.float32)
    for mode in ("clip", "fill"):
        fn = window_update(kind, mode)
        model = check(lambda x, u, fn=fn: fn(x, u, jnp.int32(start)), x, u)
        allowed = {"ScatterND", "GatherND", "Min", "Max", "Identity"}
        assert {n.op_type for n in model.graph.node} <= allowed


@pytest.mark.parametrize("kind", ["add", "set", "multiply", "min", "max"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("opset", quick([None], [21, None]))
@pytest.mark.parametrize("batch", quick([5], [1, 2, 5]))
def test_own_start_for_each(kind: str, dtype: Any, opset: int | None, batch: int) -> None:
    """`operand[b, s[b]:s[b]+L] += updates[b]`, by vmap."""
    x, u = arrays(batch, 3, dtype)
    starts = np.int32([3, 0, -1, 99, -99])[:batch]

    def one(x: jax.Array, u: jax.Array, start: jax.Array) -> jax.Array:
        return getattr(x.at[start + jnp.arange(3)], kind)(u)

    check(jax.vmap(one), x, u, starts, opset=opset)

    def slices(x: jax.Array, u: jax.Array, start: jax.Array) -> jax.Array:
        old = lax.dynamic_slice_in_dim(x, start, 3)
        combine = {"add": jnp.add, "set": lambda a, b: b, "multiply": jnp.multiply}
        new = combine.get(kind, {"min": jnp.minimum, "max": jnp.maximum}.get(kind))(old, u)  # type: ignore[misc]
        return lax.dynamic_update_slice_in_dim(x, new, start, 0)

    model = check(jax.vmap(slices), x, u, starts, opset=opset)
    if batch > 1:
        assert index_shapes(model) == [[batch, 3, 2]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("opset", quick([None], [21, None]))
def test_halo_cells(dtype: Any, opset: int | None) -> None:
    """Boundaries of a simulation: both ends of an axis are filled from inside, stencils are read as windows."""
    x = np.random.default_rng(0).normal(size=(5, 21, 1, 1)).astype(dtype)

    def step(x: jax.Array, shift: jax.Array) -> jax.Array:
        x = x.at[:, :3].set(x[:, 3:6][:, ::-1]).at[:, -3:].set(x[:, -6:-3])
        stencil = jnp.stack([lax.dynamic_slice_in_dim(x, shift + k, 15, axis=1) for k in range(6)])
        windows = jax.vmap(lambda i: lax.dynamic_slice_in_dim(x, i, 6, axis=1))(jnp.arange(15) + shift)
        flux = jnp.tensordot(jnp.arange(6.0).astype(x.dtype), stencil, 1) + windows[:, :, 2].transpose(1, 0, 2, 3)
        return x.at[:, 3:-4].add(-jnp.diff(flux, axis=1))

    check(step, x, np.int32(1), opset=opset, rtol=1e-5 if dtype == np.float32 else 1e-12, atol=1e-5)


@pytest.mark.parametrize("shape", [(1000,), (1, 1000), (2, 500)])
def test_overlapping_frames_are_read_in_blocks_or_element_by_element(shape: tuple[int, ...]) -> None:
    """In ONNX Runtime, GatherElements is ten times as fast as a Gather of single elements."""
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)

    def frames(x: Any, shift: Any = 0) -> Any:
        return jax.vmap(lambda i: lax.dynamic_slice_in_dim(x, i, 64, axis=-1))(32 * jnp.arange(12) + shift)

    model = check(frames, x)
    assert "GatherElements" not in [n.op_type for n in model.graph.node]
    model = check(frames, x, np.int32(70))
    assert "Gather" not in [n.op_type for n in model.graph.node]
