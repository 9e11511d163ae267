"""Random gathers, scatters and slices agree with JAX: any dimension numbers, shapes, modes, dtypes and indices.

`FUZZ_EXAMPLES=10000 pytest tests/fuzz` for a long run.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import hypothesis
import jax
import numpy as np
from hypothesis import strategies as st
from jax import lax
from jax import numpy as jnp

from tests.helpers import check, check_run

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "40"))
DTYPES = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
]
INDEX_DTYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
SCATTERS: dict[str, Callable] = {
    "set": lax.scatter,
    "add": lax.scatter_add,
    "sub": lax.scatter_sub,
    "mul": lax.scatter_mul,
    "min": lax.scatter_min,
    "max": lax.scatter_max,
}

settings = hypothesis.settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="FUZZ_EXAMPLES" not in os.environ,
    suppress_health_check=list(hypothesis.HealthCheck),
    print_blob=True,
)


@dataclasses.dataclass(frozen=True)
class Case:
    """Where the windows are, with the sizes of all axes and with the names of those that are symbolic."""

    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    batch: tuple[int, ...]
    starts: tuple[int, ...]
    batching: dict[int, int]
    collapsed: tuple[int, ...]
    layout: tuple[int, ...]
    index_dtype: str
    names: dict[int, str]  # operand axes `a` and batch axes `~i` that are symbolic
    seed: int

    @property
    def kept(self) -> list[int]:
        return [a for a in range(len(self.shape)) if a not in self.collapsed and a not in self.batching]

    def is_whole(self, axis: int) -> bool:
        """Do windows cover this axis of the operand?"""
        return self.sizes[axis] == self.shape[axis]

    def resized(self) -> Case:
        """The same with other sizes of the symbolic axes."""
        rng = np.random.default_rng(self.seed)
        extent = {name: int(rng.integers(1, 6)) for name in self.names.values()}
        # What is not also an axis of the operand may be empty.
        extent |= {
            n: 0 for a, n in self.names.items() if a < 0 and ~a not in self.batching.values() and rng.random() < 0.3
        }
        shape = tuple(extent[self.names[a]] if a in self.names else d for a, d in enumerate(self.shape))
        batch = tuple(extent[self.names[~i]] if ~i in self.names else d for i, d in enumerate(self.batch))
        follows = [a in self.names and a in self.kept and self.is_whole(a) for a in range(len(shape))]
        sizes = tuple(shape[a] if follows[a] else size for a, size in enumerate(self.sizes))
        return dataclasses.replace(self, shape=shape, batch=batch, sizes=sizes)

    def windows(self, dims: bool) -> tuple[Any, ...]:
        """The shape of the array of windows, with sizes or with names."""
        kept, batch = iter(self.kept), iter(range(len(self.batch)))
        axes = [next(kept) if i in self.layout else ~next(batch) for i in range(len(self.kept) + len(self.batch))]

        def size(axis: int) -> Any:
            if dims and axis in self.names and (axis < 0 or self.is_whole(axis)):
                return self.names[axis]
            return self.sizes[axis] if axis >= 0 else self.batch[~axis]

        return tuple(map(size, axes))

    def operand(self, dims: bool) -> tuple[Any, ...]:
        return tuple(self.names.get(a, d) if dims else d for a, d in enumerate(self.shape))

    def index_shape(self, dims: bool) -> tuple[Any, ...]:
        batch = (self.names.get(~i, d) if dims else d for i, d in enumerate(self.batch))
        return (*batch, len(self.starts))

    def indices(self) -> np.ndarray:
        """Indices inside, at the borders and far outside."""
        rng = np.random.default_rng(self.seed)
        limits = np.iinfo(self.index_dtype)
        index = np.zeros(self.index_shape(False), object)
        for k, axis in enumerate(self.starts):
            last = self.shape[axis] - self.sizes[axis]
            index[..., k] = rng.integers(-1, last + 2, self.batch) if rng.random() < 0.5 else rng.integers(0, last + 1)
            is_far = rng.random(self.batch) < 0.1
            far = np.asarray([limits.min, limits.max, 2**32 + last, -(2**32), 2**63 + 1], object)
            index[..., k] = np.where(is_far, far[rng.integers(0, len(far), self.batch)], index[..., k])
        return np.clip(index, limits.min, limits.max).astype(self.index_dtype)

    def scatter_numbers(self) -> lax.ScatterDimensionNumbers:
        return lax.ScatterDimensionNumbers(
            update_window_dims=self.layout,
            inserted_window_dims=self.collapsed,
            scatter_dims_to_operand_dims=self.starts,
            operand_batching_dims=tuple(self.batching),
            scatter_indices_batching_dims=tuple(self.batching.values()),
        )

    def gather_numbers(self) -> lax.GatherDimensionNumbers:
        return lax.GatherDimensionNumbers(
            offset_dims=self.layout,
            collapsed_slice_dims=self.collapsed,
            start_index_map=self.starts,
            operand_batching_dims=tuple(self.batching),
            start_indices_batching_dims=tuple(self.batching.values()),
        )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any valid dimension numbers."""
    size = st.sampled_from([1, 2, 2, 3, 4, 5, 0])
    shape = draw(st.lists(size, max_size=4).map(tuple))
    batch = draw(st.lists(size, max_size=3).map(list))
    roles = [draw(st.sampled_from(["window", "window", "collapsed", "batching"])) for _ in shape]
    free = draw(st.permutations(range(len(batch))))
    batching = {}
    for axis, role in enumerate(roles):
        if role == "batching" and free:
            batching[axis] = free.pop()
            batch[batching[axis]] = shape[axis]
    sizes = [1 if d else 0 for d in shape]
    collapsed = []
    for axis, role in enumerate(roles):
        if axis in batching:
            continue
        if role == "collapsed" and shape[axis]:
            collapsed.append(axis)
        else:
            sizes[axis] = draw(st.sampled_from([shape[axis], *range(shape[axis] + 1)]))
    indexable = [a for a in range(len(shape)) if a not in batching]
    starts = draw(st.permutations(indexable))[: draw(st.integers(0, len(indexable)))]
    kept = len(shape) - len(collapsed) - len(batching)
    layout = sorted(draw(st.permutations(range(len(batch) + kept)))[:kept])
    names = {}
    if draw(st.booleans()):
        for axis in range(-len(batch), len(shape)):
            extent = shape[axis] if axis >= 0 else batch[~axis]
            whole = axis < 0 or axis in batching or sizes[axis] in (extent, min(1, extent))
            if whole and extent and draw(st.booleans()):
                names[axis] = f"b{~axis}" if axis < 0 else f"n{axis}"
        for axis, i in batching.items():
            names.pop(axis, None)
            if ~i in names:
                names[axis] = names[~i]
    return Case(
        shape=tuple(shape),
        sizes=tuple(sizes),
        batch=tuple(batch),
        starts=tuple(starts),
        batching=batching,
        collapsed=tuple(collapsed),
        layout=tuple(layout),
        index_dtype=draw(st.sampled_from(INDEX_DTYPES)),
        names=names,
        seed=draw(st.integers(0, 2**32 - 1)),
    )


def values(shape: tuple[int, ...], dtype: str, kind: str, seed: int) -> np.ndarray:
    """Numbers whose sums and products are exact, NaN, infinities and both zeros for floats, extremes for integers."""
    rng = np.random.default_rng(seed)
    kind = "mul" if kind == "mul" else "any"
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)
        pool = np.asarray([0, 1, 2, 3, limits.max, limits.min], dtype)
    elif kind == "mul":
        pool = np.asarray([-0.0, 0.0, -1, 0.5, 1, 2, np.nan, np.inf], dtype)
    else:
        pool = np.asarray([-3, -1, -0.0, 0.0, 1, 2, 5, np.nan, np.inf, -np.inf], dtype)
    return pool[rng.integers(0, len(pool), shape)]


MODES = st.sampled_from(["clip", "fill", "promise_in_bounds"])
OPSETS = st.sampled_from([17, 23, 23])


def assume_xla_can(case: Case) -> None:
    """XLA cannot compile a scatter into a scalar, and takes one without index components for "replace everything"."""
    for sized in (case, case.resized()):
        hypothesis.assume(sized.shape and (sized.starts or sized.windows(False) != sized.shape))
        # Without an index, XLA applies only the last of several updates; the sum of all is what the operation means.
        hypothesis.assume(sized.starts or np.prod(sized.batch, dtype=int) <= 1)


@settings
@hypothesis.given(cases(), MODES, st.sampled_from(DTYPES), st.sampled_from([None, 0, 1]), st.booleans())
def test_gather(case: Case, mode: str, dtype: str, fill: Any, is_known: bool) -> None:
    """Reading windows."""

    def fn(x: jax.Array, i: jax.Array) -> jax.Array:
        sizes = tuple(x.shape[a] if case.is_whole(a) and a in case.kept else size for a, size in enumerate(case.sizes))
        return lax.gather(x, i, case.gather_numbers(), sizes, mode=mode, fill_value=fill)

    run(fn, case, lambda c: [values(c.shape, dtype, "any", c.seed)], is_known=is_known)


@settings
@hypothesis.given(cases(), MODES, st.sampled_from(DTYPES), st.sampled_from(list(SCATTERS)), st.booleans(), OPSETS)
def test_scatter(case: Case, mode: str, dtype: str, kind: str, is_known: bool, opset: int) -> None:
    """Writing windows."""
    assume_xla_can(case)
    hypothesis.assume(dtype != "bool" or kind in ("set", "min", "max"))

    def fn(x: jax.Array, i: jax.Array, u: jax.Array) -> jax.Array:
        return SCATTERS[kind](x, i, u, case.scatter_numbers(), mode=mode)

    def arrays(case: Case) -> list[np.ndarray]:
        shapes = case.shape, case.windows(False)
        return [values(shape, dtype, kind, case.seed + i) for i, shape in enumerate(shapes)]

    run(fn, case, arrays, is_known=is_known, opset=opset)


@settings
@hypothesis.given(cases(), MODES, st.sampled_from(["int32", "float32", "bfloat16"]))
def test_scatter_apply(case: Case, mode: str, dtype: str) -> None:
    """A function applied at each index, as often as it occurs."""
    assume_xla_can(case)
    case = dataclasses.replace(case, names={})
    shape = case.windows(False)

    def fn(x: jax.Array, i: jax.Array) -> jax.Array:
        return lax.scatter_apply(x, i, lambda v: 2 - v, case.scatter_numbers(), update_shape=shape, mode=mode)

    run(fn, case, lambda c: [values(c.shape, dtype, "any", c.seed)])


@settings
@hypothesis.given(cases(), st.sampled_from(DTYPES), st.booleans(), st.sampled_from(["read", "write"]))
def test_dynamic_slices(case: Case, dtype: str, is_known: bool, kind: str) -> None:
    """One window, with its start in scalars."""
    axes = tuple(range(len(case.shape)))
    names = {a: n for a, n in case.names.items() if a >= 0}
    case = dataclasses.replace(case, batch=(), starts=axes, batching={}, collapsed=(), layout=axes, names=names)

    def read(x: jax.Array, i: jax.Array) -> jax.Array:
        sizes = tuple(x.shape[a] if case.is_whole(a) else size for a, size in enumerate(case.sizes))
        return lax.dynamic_slice(x, list(i), sizes, allow_negative_indices=False)

    def write(x: jax.Array, i: jax.Array, u: jax.Array) -> jax.Array:
        return lax.dynamic_update_slice(x, u, list(i), allow_negative_indices=False)

    def arrays(case: Case) -> list[np.ndarray]:
        shapes = [case.shape] if kind == "read" else [case.shape, case.windows(False)]
        return [values(shape, dtype, "any", case.seed + i) for i, shape in enumerate(shapes)]

    run(read if kind == "read" else write, case, arrays, is_known=is_known)


def run(
    fn: Callable, case: Case, arrays: Callable[[Case], list[np.ndarray]], *, is_known: bool = False, **options: Any
) -> None:
    """Compare bit for bit, signs of zeros apart: indices as an input or a constant, symbolic axes at two sizes."""
    function = fn
    if is_known:  # a constant has no symbolic axes
        names = {a: name for a, name in case.names.items() if a >= 0 and a not in case.batching}
        case = dataclasses.replace(case, names=names)
        # XLA takes large unsigned constants for negative numbers.
        largest = np.iinfo(case.index_dtype.removeprefix("u")).max
        indices = np.minimum(case.indices(), largest).astype(case.index_dtype)

        def function(x: jax.Array, *rest: jax.Array) -> jax.Array:
            return fn(x, jnp.asarray(indices), *rest)

    def inputs(case: Case) -> list[np.ndarray]:
        x, *rest = arrays(case)
        return [x, *rest] if is_known else [x, case.indices(), *rest]

    dims: list[Any] = [case.operand(True), case.index_shape(True), case.windows(True)]
    if is_known:
        del dims[1]
    feeds = inputs(case)
    # ONNX Runtime's Where loses the sign of a zero from its first choice; any tolerance at all lets the zeros be equal.
    exact = {"rtol": 0, "atol": np.finfo(np.float64).smallest_subnormal, "x64": True}
    model = check(function, *feeds, dims=dims[: len(feeds)] if case.names else None, **exact, **options)
    if case.names:
        check_run(model, function, *inputs(case.resized()), **exact)
