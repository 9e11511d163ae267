"""`check_at_sizes`: export once with symbolic dimensions, run the one model at many sizes, compare each with JAX.

    check_at_sizes(lambda x: x.reshape(-1, 4), "f32[B,T,4]")

Each symbol takes the sizes 1, 2 and 5, in each run another one than the other symbols; then 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import onnx

import jax2onnx
from jax2onnx import compat, runtime
from jax2onnx.dimensions import names_in
from jax2onnx.sampling import sample_arrays, with_sizes
from jax2onnx.specs import input_specs, needs_x64
from tests.helpers import check_run, check_valid

PLENTY = (2, 1, 5)

Sizes = dict[str, int]


def check_at_sizes(
    fn: Callable[..., Any],
    *inputs: Any,
    empty: str = "first",
    sizes: Sequence[Sizes] | None = None,
    constraints: Sequence[str] = (),
    args: Callable[[Any], Any] = lambda arrays: arrays,
    rtol: float | None = None,
    atol: float | None = None,
    **options: Any,
) -> onnx.ModelProto:
    """Export `fn` for `inputs` (see `jax2onnx.specs`), check the model, run it at all sizes; the model.

    `empty` names the symbols that are also tried with the size 0, such as "B T"; "" where JAX has no result or
    the program needs more. `sizes` replaces the usual sizes. `args` changes the sampled arguments.
    """
    specs = input_specs(inputs, constraints=constraints)
    wide = needs_x64(specs)
    with compat.evaluation.x64(wide):
        model = jax2onnx.to_onnx(fn, specs, enable_double_precision=wide, return_mode="proto", **options)
        assert isinstance(model, onnx.ModelProto)
        check_valid(model)
        session = runtime.session(model)
        for at in sizes or usual_sizes(names_of(specs), empty):
            arrays = args(sample_arrays(with_sizes(specs, at), seed=1))
            try:
                check_run(session, fn, *arrays, rtol=rtol, atol=atol, x64=wide)
            except (AssertionError, *runtime.ERRORS) as error:
                raise AssertionError(f"at {at}: {error}") from error
    return model


def names_of(specs: Any) -> list[str]:
    """The symbols in the shapes of `specs`, in the order in which they appear."""
    dims = [dim for spec in jax.tree.leaves(specs) for dim in spec.shape if not isinstance(dim, int)]
    return list(dict.fromkeys(name for dim in dims for name in sorted(names_in(str(dim)))))


def usual_sizes(names: Sequence[str], empty: str = "first") -> Iterator[Sizes]:
    """1, 2 and 5 for each symbol, different from the others; then 0 for each of the `empty` symbols."""
    for row in range(len(PLENTY)):
        yield {name: PLENTY[(row + i) % len(PLENTY)] for i, name in enumerate(names)}
    for name in names[:1] if empty == "first" else empty.split():
        yield {n: 0 if n == name else PLENTY[i % len(PLENTY)] + 1 for i, n in enumerate(names)}


def count_nodes(model: onnx.ModelProto) -> int:
    """The nodes of a model, those in bodies and functions too."""
    graphs = [model.graph, *model.functions]
    count = 0
    while graphs:
        graph = graphs.pop()
        count += len(graph.node)
        graphs += [a.g for node in graph.node for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    return count


def output_shapes(model: onnx.ModelProto) -> list[list[int | str]]:
    """The declared shapes of the outputs."""
    shapes = [output.type.tensor_type.shape.dim for output in model.graph.output]
    return [[d.dim_param or d.dim_value for d in shape] for shape in shapes]


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    """Weights for the programs of the tests."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)
