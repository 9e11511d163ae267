"""The pass on whole models: bodies, functions, names, constants, casts that meet, cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from onnx import defs

import jax2onnx
from jax2onnx import runtime
from jax2onnx.errors import InputError, UnsupportedError
from jax2onnx.targets import double, integers, lacks, legalize, reductions, table, windows
from jax2onnx.targets.carriers import MODE, MODE_DEFAULT
from jax2onnx.targets.plans import plan_for
from tests.helpers import calls, check
from tests.targets.graphs import chain_model
from tests.targets.one_node import BF16, F16, F32, checked, hard, mild, value

# The truth overflows and meets NaN on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

EXPANDING = (double, integers, reductions, windows)  # imported for plan_for: they register the expansions


def ops(model: ir.Model) -> list[str]:
    return [n.op_type for n in model.graph.all_nodes()]


def constant(name: str, array: np.ndarray) -> ir.Value:
    result = value(name, array)
    result.const_value = ir.tensor(array)
    return result


def node(op: str, inputs: list[Any], output: ir.Value, **attributes: Any) -> ir.Node:
    return ir.Node("", op, inputs, ir.convenience.convert_attributes(attributes), outputs=[output], name=f"scope/{op}")


# ------------------------------------------------------------------------------------------------ casts that meet


def test_moves_in_a_row_stay_in_the_carrier() -> None:
    """Nothing is rounded between nodes that only move or compare elements, so no casts are needed between them."""
    x = hard(BF16)
    model = chain_model([("Max", "x", "x"), ("Min", "", "x"), ("Neg", ""), ("Abs", "")], {"x": x})
    proto = checked(model)
    assert ops(model) == ["Cast", "Max", "Min", "Neg", "Abs", "Cast"]
    np.testing.assert_array_equal(runtime.run(proto, [x])[0].astype(F32), np.abs(x.astype(F32)))


def test_arithmetic_rounds_between_nodes() -> None:
    model = chain_model([("Mul", "x", "x"), ("Add", "", "x")], {"x": hard(BF16)})
    legalize(model, "onnxruntime")
    assert ops(model) == ["Cast", "Mul", "Cast", "Cast", "Add", "Cast"]


def test_a_cast_of_the_program_is_reused() -> None:
    x = value("x", hard(BF16))
    low, high = value("low", hard(BF16)), value("high", hard(F32))
    out = value("out", hard(F32))
    nodes = [node("Max", [x, x], low), node("Cast", [low], high, to=1), node("Exp", [high], out)]
    model = ir.Model(ir.Graph([x], [out], nodes=nodes, opset_imports={"": 23}, name="g"), ir_version=10)
    proto = checked(model)
    assert ops(model) == ["Cast", "Max", "Exp"]
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(runtime.run(proto, [hard(BF16)])[0], np.exp(hard(BF16).astype(F32)), rtol=1e-6)


# ------------------------------------------------------------------------------------------------ constants


def test_small_constants_are_converted_and_large_ones_cast() -> None:
    small, large = np.full((3,), 1.5, BF16), mild(BF16, (1000, 3))
    x, a, b = value("x", large), constant("small", small), constant("large", large)
    y, z = value("y", large), value("z", large)
    nodes = [node("Mul", [x, a], y), node("Add", [y, b], z)]
    graph = ir.Graph([x], [z], nodes=nodes, initializers=[a, b], opset_imports={"": 23}, name="g")
    model = ir.Model(graph, ir_version=10)
    proto = checked(model)
    kept = {v.const_value.dtype: list(v.shape) for v in graph.initializers.values()}
    assert kept == {ir.DataType.BFLOAT16: [1000, 3], ir.DataType.FLOAT: [3]}  # the small original is gone
    want = ((large * small).astype(BF16) + large).astype(BF16)
    np.testing.assert_array_equal(runtime.run(proto, [large])[0], want)


def test_outputs_keep_their_names_and_types() -> None:
    x = np.arange(6, dtype=np.int16).reshape(2, 3)
    model = chain_model([("Max", "x", "x")], {"x": x})
    model.graph.outputs[0].name = "result"
    checked(model)
    (out,) = model.graph.outputs
    assert (out.name, out.dtype, out.shape) == ("result", ir.DataType.INT16, [2, 3])
    assert out.producer().name.startswith("Cast")


def test_an_output_that_is_used_inside() -> None:
    """The same value is an output of the model and an operand of another node that needs a carrier."""
    x, y, z = (value(n, np.zeros(4, BF16)) for n in "xyz")
    nodes = [node("Add", [x, x], y), node("Add", [y, x], z)]
    model = ir.Model(ir.Graph([x], [y, z], nodes=nodes, opset_imports={"": 23}, name="g"), ir_version=10)
    data = mild(BF16, (4,))
    first, second = runtime.run(checked(model), [data])
    np.testing.assert_array_equal(first, data + data)
    np.testing.assert_array_equal(second, (data + data) + data)


# ------------------------------------------------------------------------------------------------ bodies


def loop_model(dtype: np.dtype) -> ir.Model:
    """y = x; 3 times: y = y * w + y, with w from outside the body; all y are collected."""
    like = np.zeros(4, dtype)
    x, w, last = value("x", like), value("w", like), value("last", like)
    ys = value("ys", np.zeros((3, 4), dtype))
    trips = constant("trips", np.array(3))
    i, keep, y = value("i", np.array(0)), value("keep", np.array(True)), value("y", like)
    product, total, again = value("product", like), value("total", like), value("again", np.array(True))
    copy = value("copy", like)
    body = ir.Graph(
        [i, keep, y],
        [again, total, copy],
        nodes=[
            node("Identity", [keep], again),
            node("Mul", [y, w], product),
            node("Add", [product, y], total),
            node("Identity", [total], copy),
        ],
        name="body",
    )
    loop = ir.Node("", "Loop", [trips, None, x], [ir.AttrGraph("body", body)], outputs=[last, ys], name="Loop")
    graph = ir.Graph([x, w], [last, ys], nodes=[loop], initializers=[trips], opset_imports={"": 23}, name="g")
    return ir.Model(graph, ir_version=10)


@pytest.mark.parametrize("dtype", [BF16, F16, F32, np.dtype("u1")], ids=str)
def test_loop_body(dtype: np.dtype) -> None:
    model = loop_model(dtype)
    proto = checked(model)
    x, w = mild(dtype, (4,)), mild(dtype, (4,), 1)
    last, ys = runtime.run(proto, [x, w])
    want = []
    y = x
    for _ in range(3):
        y = ((y * w).astype(dtype) + y).astype(dtype)
        want.append(y)
    np.testing.assert_array_equal(ys, np.stack(want))
    np.testing.assert_array_equal(last, y)


def test_what_a_loop_only_uses_is_cast_outside_of_it() -> None:
    model = loop_model(BF16)
    legalize(model, "onnxruntime")
    assert [n.op_type for n in model.graph] == ["Cast", "Loop"]


def test_branches() -> None:
    like = np.zeros(4, BF16)
    x, which, out = value("x", like), value("which", np.array(True)), value("out", like)

    def branch(op: str) -> ir.Graph:
        result = value(f"{op}_result", like)
        return ir.Graph([], [result], nodes=[node(op, [x, x], result)], name=op)

    branches = [ir.AttrGraph("then_branch", branch("Add")), ir.AttrGraph("else_branch", branch("Mul"))]
    choice = ir.Node("", "If", [which], branches, outputs=[out], name="If")
    model = ir.Model(ir.Graph([x, which], [out], nodes=[choice], opset_imports={"": 23}, name="g"), ir_version=10)
    proto = checked(model)
    data = mild(BF16, (4,))
    np.testing.assert_array_equal(runtime.run(proto, [data, np.array(True)])[0], data + data)
    np.testing.assert_array_equal(runtime.run(proto, [data, np.array(False)])[0], data * data)


def test_functions() -> None:
    """A function body is legalized in itself; its constants are nodes."""
    like = np.zeros(4, np.float64)
    a, b = value("a", like), value("b", like)
    body = ir.Graph([a], [b], nodes=[node("Atan", [a], b)], opset_imports={"": 23}, name="f")
    function = ir.Function("own", "f", graph=body, attributes=[])
    x, y = value("x", like), value("y", like)
    call = ir.Node("own", "f", [x], outputs=[y], name="f")
    graph = ir.Graph([x], [y], nodes=[call], opset_imports={"": 23, "own": 1}, name="g")
    model = ir.Model(graph, ir_version=10, functions=[function])
    proto = checked(model)
    data = mild(np.dtype("f8"), (4,))
    np.testing.assert_allclose(runtime.run(proto, [data])[0], np.arctan(data), rtol=1e-15)
    assert not graph.initializers


# ------------------------------------------------------------------------------------------------ int64 in order


def test_index_arithmetic_stays_cheap() -> None:
    """Numbers that fit int32 are compared correctly by the runtime, so a clamped index costs one node."""
    start, wide, low = value("start", np.array(3, np.int32)), value("wide", np.array(3)), constant("low", np.array(0))
    high, clamped = constant("high", np.array(7)), value("clamped", np.array(3))
    nodes = [node("Cast", [start], wide, to=7), node("Clip", [wide, low, high], clamped)]
    graph = ir.Graph([start], [clamped], nodes=nodes, initializers=[low, high], opset_imports={"": 23}, name="g")
    model = ir.Model(graph, ir_version=10)
    proto = checked(model)
    assert ops(model) == ["Cast", "Clip"]
    assert [runtime.run(proto, [np.array(v, np.int32)])[0] for v in (-5, 4, 2**31 - 1)] == [0, 4, 7]


# ------------------------------------------------------------------------------------------------ targets and errors


def test_the_standard_is_left_alone() -> None:
    model = chain_model([("Add", "x", "x")], {"x": hard(BF16)})
    legalize(model, "onnx")
    assert ops(model) == ["Add"]


def test_the_standard_does_not_allow_all_dtypes() -> None:
    """Not small integers in products and sums, nor float8 in anything: ONNX itself computes in other dtypes then."""
    x = np.arange(-60, 60, dtype=np.int8).reshape(8, 15)
    sums = lambda x: (x @ x.T, jnp.cumsum(x, 0, dtype=x.dtype), jnp.sum(x, 1, dtype=x.dtype))  # noqa: E731
    check(sums, x, target="onnx", opset=17)
    check(lambda x: (x.max(0), x[:, ::-1]), x.astype(np.uint16), target="onnx")
    check(lambda x: (x[1:] * x[:-1], x.T, x > 2), x.astype(ml_dtypes.float8_e5m2), target="onnx")
    with pytest.raises(UnsupportedError, match=r"ONNX does not allow Mul with float.*opset 18\).*a later opset"):
        jax2onnx.to_onnx(lambda x: x * 2, [x.astype(ml_dtypes.float8_e5m2)], target="onnx", opset=18)


def test_unknown_target() -> None:
    with pytest.raises(InputError, match=r"Unknown target 'tensorrt'.*onnxruntime"):
        legalize(chain_model([("Add", "x", "x")], {"x": hard(F32)}), "tensorrt")
    with pytest.raises(InputError, match="Unknown target"):
        lacks("tensorrt", "Add", F32, 23)


def test_an_error_names_operator_dtype_and_node() -> None:
    x, y = value("x", np.zeros((2, 2))), value("y", np.zeros(()))
    model = ir.Model(ir.Graph([x], [y], nodes=[node("Det", [x], y)], opset_imports={"": 23}, name="g"), ir_version=10)
    with pytest.raises(UnsupportedError, match=r"onnxruntime has no kernel for Det with double .* 'scope/Det'"):
        legalize(model, "onnxruntime")


# What nothing can run: no kernel, no exact carrier, and nothing that JAX programs are lowered or fused to without
# asking `lacks` first. Everything else that the standard allows must have a plan.
IMPOSSIBLE = {
    "Col2Im": "b8 f64 i16 i32 i64 i8 u16 u32 u64 u8",
    "Det": "f64",
    "GRU": "f64",
    "GlobalLpPool": "bf16 f16 f32 f64",
    "GridSample": "b8 f64 i16 i32 i64 i8 u16 u32 u64 u8",
    "Hardmax": "f64",
    "LRN": "f64",
    "LSTM": "f64",
    "LpPool": "f64",
    "MaxUnpool": "f64",
    "MeanVarianceNormalization": "f64",
    "Pow": "u64",  # as the exponent
    "RNN": "f64",
    "ReduceL2": "u64",
    "ReduceLogSum": "u64",
    "ReduceLogSumExp": "u64",
    "ReduceMean": "u64",
    "Resize": "f64 i64 u64",
    "Unique": "u64",
}
PACKED = {"f4e2m1", "f6e2m3", "f6e3m2", "f8e8m0", "i2", "u2"}  # not even a Cast in most opsets


@pytest.mark.parametrize("opset", range(17, 27))
def test_the_table_has_the_type_variables_of_the_standard(opset: int) -> None:
    for op in table.operators("onnxruntime"):
        for count in (1, 2, 3, 7):
            in_standard = table.variables("onnx", op, opset, count, count)
            assert table.variables("onnxruntime", op, opset, count, count) == in_standard, op


@pytest.mark.parametrize("opset", range(17, 27))
def test_every_operator_and_dtype_has_a_plan(opset: int) -> None:
    names = {f"tensor({t.name.lower()})": t for t in ir.DataType if t and t.short_name()[0] not in "sc"}
    for op in table.operators("onnxruntime"):
        if not defs.has(op, opset) or op == "BitCast" or (op == "GroupNormalization" and opset < 21):
            continue  # both its types have the same width; an early version with other operands, deprecated
        schema = defs.get_schema(op, opset)
        allowed = {
            c.type_param_str: [names[t] for t in c.allowed_type_strs if t in names] for c in schema.type_constraints
        }
        for variable, dtypes in allowed.items():
            for dtype in dtypes:
                short = dtype.short_name()
                errors = [error for error in map(str, attempts(schema, opset, allowed, variable, dtype)) if error]
                if len(errors) == len(BASES):
                    assert short in IMPOSSIBLE.get(op, "").split() or short in PACKED, (op, short)
                    assert any(op in error and dtype.name.lower() in error for error in errors)


# What the other type variables of the operator are meanwhile: the first of these that they may be.
BASES = [[ir.DataType.INT64, ir.DataType.FLOAT], [ir.DataType.FLOAT, ir.DataType.INT64]]


def attempts(schema: Any, opset: int, allowed: Any, variable: str, dtype: ir.DataType) -> Iterator[str]:
    """The error for each base, empty if there is a plan."""
    op = schema.name
    for base in BASES:
        types = {v: next((d for d in base if d in choices), choices[0]) for v, choices in allowed.items()}
        types[variable] = dtype

        def of(formals: Any, types: Any = types) -> tuple[ir.DataType | None, ...]:
            return tuple(types.get(f.type_str, ir.DataType.INT64) for f in formals)

        mode = MODE_DEFAULT.get(MODE[op], "LEFT") if op in MODE else ""
        try:
            plan_for("onnxruntime", op, mode, opset, of(schema.inputs), of(schema.outputs[: schema.min_output]))
        except UnsupportedError as error:
            yield str(error)
        else:
            yield ""


# ------------------------------------------------------------------------------------------------ cost


@pytest.mark.parametrize(("dtype", "limit"), [(F32, 0.8), (BF16, 6)], ids=["float32", "bfloat16"])
def test_cost_is_linear_and_small(dtype: np.dtype, limit: float) -> None:
    """Compared with the cost of making the nodes in the first place."""

    def costs(n: int) -> tuple[int, int]:
        steps = [("Add", "x", "x"), *[("Mul", "", "x")] * n]
        model = chain_model(steps, {"x": hard(dtype)})
        return calls(lambda: chain_model(steps, {"x": hard(dtype)})), calls(lambda: legalize(model, "onnxruntime"))

    costs(1)  # what is looked up once
    (_, short), (made, long) = costs(400), costs(4000)
    assert long < 1.1 * 10 * short
    assert long < limit * made
