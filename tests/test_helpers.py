"""`check` accepts what is right, in every form an argument can have, and finds what is not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, shape_inference

from tests.helpers import check, check_run, check_valid


def types_of(model):
    return [value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)]


def test_arguments_of_every_kind():
    def fn(tree, number, z, key):
        return {"sum": tree["x"] + tree["y"][0] * number, "z": z * 2j, "key": key}

    tree = {"x": np.float32([1, np.nan, -np.inf]), "y": [np.float32(3)]}
    model = check(fn, tree, 2, np.complex64([1 + 2j]), jax.random.key(1))
    assert len(model.graph.input) == 5
    check(lambda: jnp.arange(3))
    check(lambda x: x + 1, jnp.ones((2, 3), jnp.bfloat16))


def test_x64_follows_the_arguments_unless_said_otherwise():
    assert types_of(check(jnp.sin, np.ones(3))) == [TensorProto.DOUBLE] * 2
    assert types_of(check(jnp.sin, np.ones(3), x64=False)) == [TensorProto.FLOAT] * 2
    assert types_of(check(jnp.sin, 1.0)) == [TensorProto.FLOAT] * 2
    assert types_of(check(jnp.sin, 1.0, x64=True)) == [TensorProto.DOUBLE] * 2
    assert jnp.ones(()).dtype == np.float32


def test_symbolic_dimensions_and_options():
    def fn(x):
        return x - 1

    model = check(fn, np.ones((4, 3), np.float32), dims=[("B", 3)], opset=21, input_names=["it"])
    assert [d.dim_param or d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == ["B", 3]
    assert model.opset_import[0].version == 21
    assert model.graph.input[0].name == "it"
    check_run(model, fn, np.ones((0, 3), np.float32))
    tree = {"a": np.ones((2, 3), np.float32), "b": np.ones(3, np.float32)}
    check(lambda t: t["a"] + t["b"], tree, dims=[{"a": ("N", 3), "b": None}])


def test_differences_are_found():
    model = check(lambda x: x + 1, np.float32([1]))
    with pytest.raises(AssertionError, match="off by"):
        check_run(model, lambda x: x + 1.01, np.float32([1]))
    with pytest.raises(AssertionError, match="dtype float32 instead of int32"):
        check_run(model, lambda x: x.astype(int), np.float32([1]))
    check_run(model, lambda x: x + 1.01, np.float32([1]), rtol=0.1)


def outer_product(rows, columns, shape):
    """A model of the product of two constant vectors, the first one as a column; and the shape that it declares."""
    constants = {"rows": rows, "columns": columns, "axis": np.array([1])}
    nodes = [
        helper.make_node("Unsqueeze", ["rows", "axis"], ["column"]),
        helper.make_node("Mul", ["column", "columns"], ["y"]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.INT64, shape)]
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", [], outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


def test_the_known_fault_of_data_propagation_is_not_held_against_a_model():
    model = outer_product(np.arange(3), np.arange(4), [3, 4])
    shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    with pytest.raises(shape_inference.InferenceError, match=r"Invalid rank for Mul broadcasting: \(3\) vs \(4\)"):
        shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    check_valid(model)
    with pytest.raises(shape_inference.InferenceError, match="differ"):
        check_valid(outer_product(np.arange(3), np.arange(4), [3, 5]))
    with pytest.raises(shape_inference.InferenceError, match="differ"):
        check_valid(outer_product(np.arange(3), np.arange(3), [3]))


def test_nor_that_it_takes_a_row_of_a_matrix_for_one_number():
    constants = {"front": [0], "row": 0, "second": 1}
    nodes = [
        helper.make_node("Unsqueeze", ["x", "front"], ["matrix"]),
        helper.make_node("Gather", ["matrix", "row"], ["vector"]),
        helper.make_node("Gather", ["vector", "second"], ["y"]),
    ]
    types = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name, shape in (("x", [2]), ("y", []))]
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", types[:1], types[1:], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    with pytest.raises(shape_inference.InferenceError, match="indices must be in"):
        shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    check_valid(model)
