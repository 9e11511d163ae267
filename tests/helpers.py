"""`check`: export a function, prove the model valid, run it in ONNX Runtime, compare it with JAX.

def test_softplus():
    check(jax.nn.softplus, np.float32([-200, -0.0, 3, np.inf, np.nan]))

model = check(lambda x: x.sum(0), np.ones((4, 3)), dims=[("B", 3)])      # symbolic dimensions, run with B = 4
check_run(model, lambda x: x.sum(0), np.ones((0, 3)))                    # the same model with B = 0
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
import onnx
import pytest

import jax2onnx
from jax2onnx import compat, runtime
from tests.compare import assert_same


def check(
    fn: Callable[..., Any],
    *args: Any,
    rtol: float | None = None,
    atol: float | None = None,
    to_scale: bool = False,
    x64: bool | None = None,
    opset: int | None = None,
    dims: Sequence[Any] | None = None,
    **options: Any,
) -> onnx.ModelProto:
    """Export `fn` for inputs like `args`, check the model, compare its outputs with `jax.jit(fn)(*args)`; the model.

    `args` are arrays, Python numbers, typed keys, or pytrees of them. `dims` gives for each argument None or its
    symbolic shape ("B", 3), for a pytree the same tree of those. x64 is as `x64` says; else on if it is on in JAX or
    an array has 64 bits. The tolerances default to `tests.compare.TIGHT`; zero for both means bit for bit; `to_scale`
    is for errors relative to the largest element of each output. `options` go to `to_onnx`.
    """
    wide = x64 if x64 is not None else _x64_is_on() or _has_64_bits(args)
    with compat.evaluation.x64(wide):
        arrays = jax.tree.map(_as_array, args)
        inputs = list(arrays) if dims is None else [_with_dims(a, d) for a, d in zip(arrays, dims, strict=True)]
        if opset is not None:
            options["opset"] = opset
        model = jax2onnx.to_onnx(fn, inputs, enable_double_precision=wide, return_mode="proto", **options)
    assert isinstance(model, onnx.ModelProto)
    check_valid(model)
    check_run(model, fn, *args, rtol=rtol, atol=atol, to_scale=to_scale, x64=wide)
    return model


def check_valid(model: onnx.ModelProto) -> None:
    """The model follows the standard, and every declared type is the one that shape inference finds."""
    onnx.checker.check_model(model, full_check=True)
    try:
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        if _NESTED.sub("", _FALSE_ALARM.sub("", str(error))).strip():
            raise
    assert not unused(model), f"nothing uses {unused(model)}"


def unused(model: onnx.ModelProto) -> list[str]:
    """The initializers and the nodes that nothing uses: ONNX Runtime warns of them when it loads a model."""
    left: list[str] = []
    for root in (model.graph, *model.functions):
        graphs = _graphs(root)
        used = {name for graph in graphs for node in graph.node for name in node.input}
        used.update(name for graph in graphs for name in _outputs(graph))
        left += [i.name for i in getattr(root, "initializer", ()) if i.name not in used]
        left += [f"{n.op_type} {n.name}" for graph in graphs for n in graph.node if used.isdisjoint(n.output)]
    return left


def _graphs(root: onnx.GraphProto | onnx.FunctionProto) -> list[Any]:
    bodies = [a.g for node in root.node for a in node.attribute if a.HasField("g")]
    return [root, *(graph for body in bodies for graph in _graphs(body))]


def _outputs(graph: onnx.GraphProto | onnx.FunctionProto) -> list[str]:
    return [output if isinstance(output, str) else output.name for output in graph.output]


# When it propagates data, onnx takes the values of an unsqueezed vector for a vector, and then finds that [3, 1] and
# [4] do not broadcast, or that a row of [[3, 4]] is not long enough to take its second element
# (tests/test_helpers.py has the models). Without data it is right, and full_check has done that.
_FALSE_ALARM = re.compile(
    r"\(op_type:(Add|Sub|Mul)[^)]*\): \[ShapeInferenceError\] Invalid rank for \1 broadcasting: \(\d+\) vs \(\d+\)\."
    r"|\(op_type:Gather[^)]*\): \[ShapeInferenceError\] indices must be in \[-rank, rank-1\]\."
)
_NESTED = re.compile(r"(\(op_type:(If|Loop|Scan)[^)]*\): )?\[ShapeInferenceError\] Inference error\(s\):")


def check_run(
    model: runtime.Model,
    fn: Callable[..., Any],
    *args: Any,
    rtol: float | None = None,
    atol: float | None = None,
    to_scale: bool = False,
    x64: bool | None = None,
) -> None:
    """The model gives for `args` what JAX gives."""
    wide = x64 if x64 is not None else _x64_is_on() or _has_64_bits(args)
    with compat.evaluation.x64(wide):
        arrays = jax.tree.map(_as_array, args)
        feeds = [runtime.at_boundary(leaf) for leaf in jax.tree.leaves(arrays)]
        want = jax.tree.leaves(jax.jit(lambda *arguments: fn(*arguments))(*arrays))
        assert_same(runtime.run(model, feeds), want, rtol=rtol, atol=atol, to_scale=to_scale)


def _as_array(leaf: Any) -> jax.Array:
    """`jnp.asarray`, without its compilation of a copy for each new shape."""
    return jax.device_put(leaf) if isinstance(leaf, np.ndarray) else jax.numpy.asarray(leaf)


def _x64_is_on() -> bool:
    return jax.dtypes.canonicalize_dtype(np.float64) == np.float64


def _has_64_bits(args: Any) -> bool:
    """Whether an array (not a Python number, which has no width) is of a type that JAX only has with x64 on."""
    wide = {np.dtype(name) for name in ("int64", "uint64", "float64", "complex128")}
    arrays = (np.ndarray, np.generic, jax.Array)
    return any(isinstance(leaf, arrays) and leaf.dtype in wide for leaf in jax.tree.leaves(args))


def _with_dims(argument: Any, dims: Any) -> Any:
    """The argument's specs with the shapes of `dims` (a tree of shapes, or None for the argument as it is)."""
    if dims is None:
        return argument
    return jax.tree.map(lambda x, shape: x if shape is None else jax.ShapeDtypeStruct(shape, x.dtype), argument, dims)


def quick(chosen: Sequence[Any], values: Iterable[Any]) -> list[Any]:
    """`values` for parametrize, of which only those `chosen` run in `make test`, the others in `make slow`."""
    return [v if v in chosen else pytest.param(v, marks=pytest.mark.slow) for v in values]


def calls(work: Callable[[], object]) -> int:
    """The number of calls, of Python and of C functions, that `work` makes: what it costs, however busy the machine."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count
