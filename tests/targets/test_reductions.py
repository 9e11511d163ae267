"""Reductions, cumulative sums, sorting, scattering: integers wrap, large ones keep all bits, halves round once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jax2onnx import runtime
from jax2onnx.errors import UnsupportedError
from tests import helpers
from tests.targets.one_node import BOOL, F32, FLOATS, HALVES, INTEGERS, build, check, checked, extreme, hard, mild
from tests.targets.test_elementwise import cases, widely

# The truth overflows and meets NaN on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

I64 = np.dtype("i8")


def wrapped(fn: Callable) -> Callable:
    """A reduction in exact integers, wrapped to the dtype at the end; in float64 for floats."""

    def truth(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        if x.dtype in INTEGERS:
            bits = x.dtype.itemsize * 8
            exact = np.asarray(fn(x.astype(object), axes), object) % 2**bits
            return np.asarray(exact, object).astype(f"u{x.dtype.itemsize}").astype(x.dtype)
        wide = x.astype(np.float64)
        return np.asarray(fn(wide, axes)).astype(x.dtype)

    return truth


SUMS: dict[str, Callable] = {
    "ReduceSum": wrapped(lambda x, a: np.sum(x, a)),
    "ReduceProd": wrapped(lambda x, a: np.prod(x, a)),
    "ReduceSumSquare": wrapped(lambda x, a: np.sum(x * x, a)),
    "ReduceL1": wrapped(lambda x, a: np.sum(np.abs(x), a)),
}
EXTREMES: dict[str, Callable] = {
    "ReduceMax": lambda x, a: x.astype(F32).max(a).astype(x.dtype) if x.dtype in HALVES else x.max(a),
    "ReduceMin": lambda x, a: x.astype(F32).min(a).astype(x.dtype) if x.dtype in HALVES else x.min(a),
}
FLOAT_REDUCTIONS: dict[str, Callable] = {
    "ReduceMean": lambda x, a: x.mean(a),
    "ReduceL2": lambda x, a: np.sqrt((x * x).sum(a)),
    "ReduceLogSum": lambda x, a: np.log(np.abs(x).sum(a)),
    "ReduceLogSumExp": lambda x, a: np.log(np.exp(x).sum(a)),
}
AXES = [(0,), (1,), (2,), (0, 2), (0, 1), (1, 2), (0, 1, 2)]


@pytest.mark.parametrize(("op", "dtype", "opset"), cases({**SUMS, **EXTREMES}))
@pytest.mark.parametrize("axes", AXES, ids=str)
def test_reduce(op: str, dtype: np.dtype, opset: int, axes: tuple[int, ...]) -> None:
    x = extreme(dtype, (3, 4, 5))
    if dtype in INTEGERS and op in EXTREMES:
        x = np.resize(np.concatenate([hard(dtype), x.ravel()]), (3, 4, 5))
    want = np.asarray({**SUMS, **EXTREMES}[op](x, axes))
    check(op, [x, np.array(axes)], [want], {"keepdims": 0}, opset, exact=dtype in INTEGERS or op in EXTREMES)
    check(op, [x, np.array(axes)], [np.expand_dims(want, axes)], {"keepdims": 1}, opset, exact=False)


@pytest.mark.parametrize(("op", "dtype", "opset"), cases(FLOAT_REDUCTIONS, only=lambda op, dtype, _: dtype in FLOATS))
def test_float_reduce(op: str, dtype: np.dtype, opset: int) -> None:
    x = mild(dtype, (3, 5))
    x = np.abs(x) if op == "ReduceLogSum" else x
    want = FLOAT_REDUCTIONS[op](x.astype(np.float64), 1).astype(dtype)
    check(op, [x, np.array([1])], [want], {"keepdims": 0}, opset, exact=False)


@pytest.mark.parametrize("op", FLOAT_REDUCTIONS)
def test_a_mean_of_uint64_is_impossible(op: str) -> None:
    x = np.ones((3, 5), np.uint64)
    with pytest.raises(UnsupportedError, match=f"{op}.*uint64"):
        checked(build(op, [x, np.array([1])], [x[:, 0]], {"keepdims": 0}, 23))


NEUTRAL = ["ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin"]


@pytest.mark.parametrize(("op", "dtype", "opset"), cases(NEUTRAL, (23,), only=lambda op, dtype, _: dtype != BOOL))
def test_reduce_nothing(op: str, dtype: np.dtype, opset: int) -> None:
    """Over an empty axis a reduction is its neutral element; an empty batch stays empty. (Not for bool: FACTS.md.)"""
    x = np.zeros((3, 0), dtype)
    limits = (-np.inf, np.inf) if dtype in FLOATS else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    neutral = {"ReduceSum": 0, "ReduceProd": 1, "ReduceMax": limits[0], "ReduceMin": limits[1]}[op]
    check(op, [x, np.array([1])], [np.full(3, neutral, dtype)], {"keepdims": 0}, opset)
    check(op, [x, np.array([0])], [np.zeros((0,), dtype)], {"keepdims": 0}, opset)
    check(op, [x.T, np.array([1])], [np.zeros((0, 1), dtype)], {"keepdims": 1}, opset)


def test_small_sums_stay() -> None:
    """Counting a mask cannot overflow: the kernel is kept."""
    import onnx_ir as ir

    from tests.targets.one_node import value

    mask = value("mask", np.zeros((4, 5), bool))
    wide = value("wide", np.zeros((4, 5), np.int32))
    total = value("total", np.zeros(4, np.int32))
    axes = ir.Value(
        name="axes", shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.INT64), const_value=ir.tensor(np.array([1]))
    )
    nodes = [
        ir.Node("", "Cast", [mask], [ir.AttrInt64("to", 6)], outputs=[wide]),
        ir.Node("", "ReduceSum", [wide, axes], [ir.AttrInt64("keepdims", 0)], outputs=[total]),
    ]
    graph = ir.Graph([mask], [total], nodes=nodes, initializers=[axes], opset_imports={"": 23}, name="g")
    proto = checked(ir.Model(graph, ir_version=10))
    assert [n.op_type for n in proto.graph.node] == ["Cast", "ReduceSum"]


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", [(1,), (0, 1)])
def test_many_sums_are_columns(axes: tuple[int, ...], keepdims: bool) -> None:
    """A product with a column of ones, which wraps as well."""
    x = np.resize(hard(np.dtype("i4")), (300, 6))
    model = helpers.check(lambda x: x.sum(axes, keepdims=keepdims), x)
    first = model.graph.node[0]
    assert first.op_type == "MatMul"
    assert [list(t.dims) for t in model.graph.initializer if t.name == first.input[1]] == [[6, 1]]
    assert len(model.graph.node) == (2 - keepdims if len(axes) == 1 else 3 + keepdims)


@pytest.mark.parametrize(("op", "dtype", "opset"), cases(["ArgMax", "ArgMin"]))
def test_arg_extreme(op: str, dtype: np.dtype, opset: int) -> None:
    x = np.resize(hard(dtype, nan=False), (4, 7))
    truth = np.argmax if op == "ArgMax" else np.argmin
    wide = x.astype(F32) if dtype in HALVES else x
    for axis in (0, 1):
        check(op, [x], [truth(wide, axis).astype(I64)], {"axis": axis, "keepdims": 0}, opset)


@pytest.mark.parametrize(("op", "dtype", "opset"), cases(["TopK"]))
@pytest.mark.parametrize("largest", [0, 1])
def test_top_k(op: str, dtype: np.dtype, opset: int, largest: int) -> None:
    x = hard(dtype, nan=False)
    wide = x.astype(F32) if dtype in HALVES else x
    order = np.argsort(wide, kind="stable")
    if largest:
        order = np.arange(len(x))[::-1][np.argsort(wide[::-1], kind="stable")[::-1]]
        order = np.concatenate([np.sort(order[wide[order] == v]) for v in sorted(set(wide.tolist()), reverse=True)])
    k = 5
    check(op, [x, np.array([k])], [x[order[:k]], order[:k].astype(I64)], {"largest": largest}, opset)


@pytest.mark.parametrize(("op", "dtype", "opset"), cases(["CumSum", "CumProd"]))
@pytest.mark.parametrize("reverse", [0, 1])
def test_cumulative(op: str, dtype: np.dtype, opset: int, reverse: int) -> None:
    x = extreme(dtype, (3, 6))
    step = slice(None, None, -1 if reverse else 1)
    wide = x.astype(np.float64) if dtype in FLOATS else x
    run = np.cumsum if op == "CumSum" else np.cumprod
    want = run(wide[:, step], 1, dtype=wide.dtype)[:, step].astype(dtype)
    check(op, [x, np.array(1)], [want], {"reverse": reverse}, opset, exact=dtype in INTEGERS)


SCATTERS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


SCATTER_OPS = ["ScatterElements", "ScatterND"]


def scatter_cases() -> list[Any]:
    """(op, dtype, opset, reduction) that the standard defines: sums of numbers, and from opset 18 on extremes."""
    return [
        pytest.param(*case.values, reduction, id=f"{case.id}-{reduction}")
        for case in cases(SCATTER_OPS)
        for reduction in SCATTERS
        if (case.values[2] >= 18 if reduction in ("max", "min") else case.values[1] != BOOL)
    ]


@pytest.mark.parametrize(("op", "dtype", "opset", "reduction"), scatter_cases())
def test_scatter_reduce(op: str, dtype: np.dtype, opset: int, reduction: str) -> None:
    x, updates = extreme(dtype, (4, 3)), extreme(dtype, (5, 3), 1)
    rows = np.array([0, 2, 2, 0, 3])
    want = x.astype(F32) if dtype in HALVES else x.copy()
    with np.errstate(all="ignore"):
        SCATTERS[reduction].at(want, rows, updates.astype(want.dtype))
    index = np.broadcast_to(rows[:, None], (5, 3)) if op == "ScatterElements" else rows[:, None]
    exact = dtype in INTEGERS or reduction in ("max", "min")
    check(
        op,
        [x, np.ascontiguousarray(index), updates],
        [want.astype(dtype)],
        {"reduction": reduction},
        opset,
        exact=exact,
    )


@pytest.mark.parametrize(("op", "dtype", "opset"), cases(["Range"]))
def test_range(op: str, dtype: np.dtype, opset: int) -> None:
    start, limit, delta = (np.array(v, dtype) for v in (3, 20, 4))
    check(op, [start, limit, delta], [np.arange(3, 20, 4).astype(dtype)], {}, opset)


@pytest.mark.parametrize(("op", "dtype", "opset"), cases(["Hardmax", "Softmax", "LogSoftmax"]))
def test_softmax(op: str, dtype: np.dtype, opset: int) -> None:
    x = mild(dtype, (3, 5))
    if op == "Hardmax" and dtype == np.dtype("f8"):
        with pytest.raises(UnsupportedError, match=r"Hardmax.*double"):
            checked(build(op, [x], [x], {}, opset))
        return

    def truth(v: np.ndarray) -> np.ndarray:
        v = v.astype(np.float64)
        if op == "Hardmax":
            return (np.arange(5) == v.argmax(1)[:, None]).astype(np.float64)
        e = np.exp(v - v.max(1, keepdims=True))
        soft = e / e.sum(1, keepdims=True)
        return np.log(soft) if op == "LogSoftmax" else soft

    check(op, [x], [widely(truth, x)], {"axis": 1}, opset, exact=False)


@pytest.mark.parametrize("op", [*SUMS, *EXTREMES])
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_every_integer_can_be_reduced(op: str, dtype: np.dtype) -> None:
    """Also the narrow ones that the standard leaves out: a rule need not know."""
    x = extreme(dtype, (3, 4, 5))
    model = build(op, [x, np.array([0, 2])], [x[0, :, 0]], {"keepdims": 0}, 23)
    (got,) = runtime.run(checked(model), [x])
    np.testing.assert_array_equal(got, {**SUMS, **EXTREMES}[op](x, (0, 2)))
