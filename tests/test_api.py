"""The promises of the interface: signatures, names, bad input, determinism, and that nothing else is touched."""

from __future__ import annotations

import functools
import json
import threading

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from jax import lax

import jax2onnx
from jax2onnx import InputError, UnsupportedError, compat, to_onnx
from tests.helpers import check, check_run, check_valid


def inputs_of(model: onnx.ModelProto) -> list[str]:
    return [i.name for i in model.graph.input]


def outputs_of(model: onnx.ModelProto) -> list[str]:
    return [o.name for o in model.graph.output]


def shape_of(value: onnx.ValueInfoProto) -> list:
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]


# ------------------------------------------------------------------------------------------------------ callables


class Affine:
    def __init__(self):
        self.weight = np.float32([[1, 2], [3, 4]])

    def __call__(self, x):
        return x @ self.weight

    def twice(self, x):
        return self(self(x))


@pytest.mark.parametrize(
    "fn",
    [
        Affine(),
        Affine().twice,
        jax.jit(lambda x: jnp.sin(x)),
        functools.partial(lambda scale, x: scale * x, 3.0),
        lambda x, y=2.0: x * y,
    ],
    ids=["object", "method", "jitted", "partial", "default argument"],
)
def test_any_callable(fn):
    check(fn, np.float32([[1, 2], [3, 4]]))


def test_no_arguments():
    check(lambda: jnp.arange(5) * 2)


def test_unused_inputs_stay_in_order():
    model = check(lambda a, b, c: b + 1, np.float32([1]), np.float32([2]), np.int32([3]))
    assert inputs_of(model) == ["a", "b", "c"]


def test_outputs_may_be_inputs_constants_and_repeated():
    check(lambda x, y: (x, x, y, jnp.float32(3), x + y, x), np.float32([1, 2]), np.float32([2, 3]))


def test_unused_random_key_is_no_obstacle():
    check(lambda x: (jax.random.key(0), x + 1)[1], np.float32([1.0]))


# ------------------------------------------------------------------------------------------------------ input specs


def test_same_name_is_the_same_dimension():
    model = to_onnx(lambda a, b: a + b, [("B", 3), jax.ShapeDtypeStruct(("B", 3), jnp.float32)])
    assert [shape_of(i) for i in model.graph.input] == [["B", 3], ["B", 3]]
    assert shape_of(model.graph.output[0]) == ["B", 3]
    for size in (1, 4):
        x = np.ones((size, 3), np.float32)
        check_run(model, lambda a, b: a + b, x, x)


def test_pytree_inputs_and_outputs_are_named_by_their_paths():
    def fn(batch, scale):
        return {"image": batch["image"] * scale, "sizes": (batch["sizes"][0], scale)}

    model = to_onnx(fn, [{"image": (2, 3), "sizes": [jax.ShapeDtypeStruct((4,), jnp.int32)]}, ()])
    assert inputs_of(model) == ["batch/image", "batch/sizes/0", "scale"]
    assert outputs_of(model) == ["image", "sizes/0", "sizes/1"]


def test_names_of_the_caller_win():
    model = to_onnx(lambda x, y: x + y, [(2,), (2,)], input_names=["left", "right"], output_names=["sum"])
    assert inputs_of(model) == ["left", "right"]
    assert outputs_of(model) == ["sum"]


def test_double_precision_is_for_shapes_and_an_explicit_dtype_is_kept():
    model = to_onnx(lambda x, y: x * y, [(2,), jax.ShapeDtypeStruct((2,), jnp.float32)], enable_double_precision=True)
    assert [i.type.tensor_type.elem_type for i in model.graph.input] == [
        onnx.TensorProto.DOUBLE,
        onnx.TensorProto.FLOAT,
    ]
    model = to_onnx(lambda x: x * 2, [np.ones(2, np.float16)])
    assert model.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT16


def test_keyword_arguments_become_inputs_where_they_can_be_traced():
    def fn(x, *, scale, negate, mode):
        y = x * scale
        return -y if negate else y if mode == "plain" else y + 1

    model = to_onnx(fn, [(3,)], input_params={"scale": 2.0, "negate": True, "mode": "plain"})
    assert inputs_of(model) == ["x", "scale"]
    assert shape_of(model.graph.input[1]) == []


def test_keyword_arguments_that_are_numbers_are_weakly_typed():
    model = to_onnx(lambda x, *, scale: x * scale, ["bf16[3]"], input_params={"scale": 2.0}, verify=True)
    assert model.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16
    model = to_onnx(lambda x, *, scale: x * scale, ["i8[3]"], input_params={"scale": 2}, verify=True)
    assert model.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.INT8
    model = to_onnx(lambda x, *, scale: x * scale, ["bf16[3]"], input_params={"scale": np.float32(2)}, verify=True)
    assert model.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT


def test_keyword_arguments_that_a_function_asserts_to_be_python_values_are_baked_in():
    def fn(x, *, train, steps, scale):
        assert isinstance(train, bool)
        if not isinstance(steps, int):
            raise NotImplementedError(steps)
        return x * steps * scale if train else x

    model = to_onnx(fn, [(3,)], input_params={"train": True, "steps": 3, "scale": 2.0}, verify=True)
    assert inputs_of(model) == ["x", "scale"]


def test_arguments_of_star_args_do_not_get_the_names_of_keywords():
    model = to_onnx(lambda *xs, scale: xs[0] - xs[1] * scale, [(3,), (3,)], {"scale": 2.0})
    assert inputs_of(model) == ["xs_0", "xs_1", "scale"]
    model = to_onnx(lambda a, *xs, scale: a - xs[0] * xs[1] * scale, [(3,), (3,), (3,)], {"scale": 2.0})
    assert inputs_of(model) == ["a", "xs_1", "xs_2", "scale"]


# ------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize("opset", [16, 27, "23", True])
def test_bad_opset(opset):
    with pytest.raises(InputError, match="opset is"):
        to_onnx(jnp.sin, [(2,)], opset=opset)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"return_mode": "file"}, "output_path"),
        ({"return_mode": "text"}, "return_mode"),
        ({"export_mode": "phone"}, "export_mode"),
        ({"normalization_mode": "never"}, "normalization_mode"),
        ({"target": "toaster"}, "target"),
        ({"input_names": ["a", "b"]}, "2 names"),
        ({"input_names": [1]}, "1 cannot be the name"),
        ({"output_names": [""]}, "cannot be the name"),
        ({"output_names": []}, "0 names"),
        ({"input_names": ["y"], "output_names": ["y"]}, "'y' is used twice"),
        ({"inputs_as_nchw": ["z"]}, "'z'"),
        ({"inputs_as_nchw": [0]}, "four axes"),
        ({"inputs_as_nchw": [False]}, "names False"),
        ({"weights_as_inputs": True}, "^weights_as_inputs is True, but it is about weights"),
        ({"load_weight": np.load}, "^load_weight is .* but it is about weights"),
        ({"weights": {"a": "hello"}}, "^weights/a is 'hello'; a weight is an array"),
        ({"weights": [np.array(["a"])]}, "^weights/0 is array.*; a weight is an array"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InputError, match=message):
        to_onnx(jnp.sin, [(2,)], **options)


@pytest.mark.parametrize("nothing", [(), None, {"a": []}])
def test_functions_that_return_nothing(nothing):
    with pytest.raises(InputError, match="returns no arrays"):
        to_onnx(lambda x: nothing, [(2,)])


@pytest.mark.parametrize("what", ["text", len, np.array(["a"]), np.datetime64("2020-01-01")])
def test_what_is_no_array_is_no_output(what):
    def fn(x):
        return {"y": x, "kind": what}

    with pytest.raises(InputError, match=r"^fn returns .* at kind, a "):
        to_onnx(fn, [(2,)])


@pytest.mark.parametrize("inputs", [[], [(2,), (2,)]])
def test_wrong_number_of_inputs(inputs):
    def fn(x):
        return x

    with pytest.raises(InputError, match=r"fn\(x\) cannot be called with"):
        to_onnx(fn, inputs)


def test_not_callable():
    with pytest.raises(InputError, match="not callable"):
        to_onnx(3, [])


def test_unwritable_path(tmp_path):
    with pytest.raises(InputError, match="missing"):
        to_onnx(jnp.sin, [(2,)], return_mode="file", output_path=tmp_path / "missing" / "model.onnx")


def test_failed_export_keeps_the_old_file(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"precious")
    with pytest.raises(UnsupportedError):
        to_onnx(_calls_back, [(2,)], return_mode="file", output_path=path)
    assert path.read_bytes() == b"precious"
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


def _calls_back(x):
    y = jax.pure_callback(lambda a: a, jax.ShapeDtypeStruct((2,), jnp.float32), x)
    return lax.psum(y, "devices") if x.ndim > 9 else y


def test_unsupported_primitives_are_listed_with_their_lines():
    with pytest.raises(UnsupportedError, match=r"pure_callback \(1x\), first at .*test_api\.py:\d+") as caught:
        to_onnx(_calls_back, [(2,)])
    assert "lowerings=" in str(caught.value)


def test_unsupported_primitives_in_functions_of_jax_itself_are_at_the_line_that_calls_those():
    exported = jax.export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((2,), np.float32))
    with pytest.raises(UnsupportedError, match=r"call_exported \(1x\), first at .*test_api\.py:\d+"):
        to_onnx(lambda x: exported.call(x), [(2,)])


# ------------------------------------------------------------------------------------------------------ own rules


@pytest.mark.parametrize("provenance", [None, "source"])
def test_an_operator_without_a_kernel_is_at_the_line_that_needs_it(provenance):
    def fn(x):
        return -(x * x)

    line = fn.__code__.co_firstlineno + 1
    with pytest.raises(UnsupportedError, match=rf"no kernel for Mul with float4.*, at .*test_api\.py:{line}\."):
        to_onnx(fn, [jax.ShapeDtypeStruct((3,), jnp.float4_e2m1fn)], provenance=provenance)


def test_own_lowering_for_one_call_only():
    called = []

    def rule(g, x, **_):
        called.append(x.shape)
        return g.Neg(x)

    model = to_onnx(jnp.sin, [(2,)], lowerings={lax.sin_p: rule})
    assert [n.op_type for n in model.graph.node] == ["Neg"]
    assert called == [(2,)]
    assert [n.op_type for n in to_onnx(jnp.sin, [(2,)]).graph.node] == ["Sin"]


def test_own_lowering_replaces_a_decomposition():
    model = to_onnx(jnp.log1p, [(2,)], lowerings={lax.log1p_p: lambda g, x, **_: g.Log(g.Add(x, 1.0))})
    assert [n.op_type for n in model.graph.node] == ["Add", "Log"]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda g, x, **_: None, r"The lowering of sin gave None, .* \(1\), at .*test_api\.py:\d+"),
        (lambda g, x, **_: [x, x], r"The lowering of sin gave \[Val.* \(1\), at .*test_api\.py:\d+"),
        (lambda g, x, **_: g.Sinus(x), r"The lowering of sin, at .*test_api\.py:\d+, emits Sinus\. "),
    ],
)
def test_own_lowerings_that_are_wrong(rule, message):
    with pytest.raises(InputError, match=message):
        to_onnx(lambda x: jnp.sin(x), [(2,)], lowerings={lax.sin_p: rule})


# ------------------------------------------------------------------------------------------------------ results


def test_return_modes(tmp_path):
    path = tmp_path / "model"
    assert isinstance(to_onnx(jnp.sin, [(2,)]), onnx.ModelProto)
    assert isinstance(to_onnx(jnp.sin, [(2,)], return_mode="ir"), ir.Model)
    assert to_onnx(jnp.sin, [(2,)], return_mode="file", output_path=path) == str(path)
    check_run(str(path), jnp.sin, np.float32([1, 2]))


def test_an_operator_that_the_opset_lacks():
    def body(count, x):
        return count + 1, x ^ 3

    line = body.__code__.co_firstlineno + 1
    with pytest.raises(UnsupportedError, match=rf"BitwiseXor.* from opset 18 on.* is 17, at .*test_api\.py:{line}\."):
        to_onnx(lambda xs: lax.scan(body, 0, xs), [np.ones((9, 5), np.int32)], opset=17)


def test_an_operator_that_the_opset_lacks_in_what_we_define():
    """The equations of a definition of ours have no line: only that of the program is said."""
    line = test_an_operator_that_the_opset_lacks_in_what_we_define.__code__.co_firstlineno + 4
    with pytest.raises(UnsupportedError, match=rf"the opset is 17, at [^ ]*test_api\.py:{line}\.$"):
        to_onnx(lambda key: jax.random.bits(key, (3,)), [jax.random.key(0)], opset=17)


@pytest.mark.parametrize("opset", range(17, 27))
def test_every_opset(opset):
    def fn(x):
        y = jnp.pad(x.reshape(2, 6), ((1, 0), (0, 2)))
        return jax.nn.softmax(y).sum(0), jnp.cumsum(y, 1), x.max(), x.mean(axis=0, keepdims=True), jnp.split(x, 2)

    model = check(fn, np.arange(12, dtype=np.float32).reshape(4, 3), opset=opset)
    assert {o.domain: o.version for o in model.opset_import}[""] == opset


def test_primitive_calls_are_recorded(tmp_path):
    path = tmp_path / "calls.json"
    to_onnx(lambda x: jnp.sin(x) + jnp.sin(x + 1), [(2,)], record_primitive_calls_file=path)
    record = json.loads(path.read_text())
    assert record["sin"]["count"] == 2
    call = record["sin"]["calls"][0]
    assert call["inputs"] == ["float32[2]"]
    assert "test_api.py:" in call["source"]


# ------------------------------------------------------------------------------------------------------ no side effects


def _program(size):
    weights = np.arange(size * 3, dtype=np.float32).reshape(3, size)

    def fn(x):
        return jax.nn.gelu(x @ weights), jnp.where(x > 0, x, -x).sum()

    return fn


def test_same_program_same_bytes():
    first, second = (to_onnx(_program(4), [("B", 3)]).SerializeToString() for _ in range(2))
    assert first == second


def test_loops_stay_loops_where_jit_is_disabled():
    def fn(x):
        return lax.scan(lambda total, t: (jax.nn.relu(total + t), total * t), 0.0, x)[1]

    expected = to_onnx(fn, [("T",)])
    with jax.disable_jit():
        assert to_onnx(fn, [("T",)]) == expected


@pytest.mark.parametrize(
    "strictness",
    [
        lambda: jax.numpy_rank_promotion("raise"),
        lambda: jax.numpy_dtype_promotion("strict"),
        lambda: jax.enable_checks(True),
        lambda: jax.debug_nans(True),
        lambda: jax.debug_infs(True),
    ],
)
def test_a_strict_user_gets_the_same(strictness):
    def fn(x):
        draws = jax.random.normal(jax.random.key(0), x.shape)
        return jnp.linalg.svd(x, compute_uv=False), draws + jnp.log(x - 5) - jnp.log(0.0)

    expected = to_onnx(fn, [(2, 3)])
    with strictness():
        assert to_onnx(fn, [(2, 3)], verify=True) == expected


def test_threads_do_not_disturb_each_other():
    sizes = range(1, 9)
    alone = [to_onnx(_program(n), [("B", 3)], enable_double_precision=n % 2 == 0).SerializeToString() for n in sizes]
    together: dict[int, bytes] = {}

    def export(n):
        model = to_onnx(_program(n), [("B", 3)], enable_double_precision=n % 2 == 0)
        together[n] = model.SerializeToString()

    threads = [threading.Thread(target=export, args=(n,)) for n in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[n] for n in sizes] == alone


def _identities():
    import equinox
    import flax.linen
    import flax.nnx

    modules = [jax, jnp, lax, jax.nn, jax.random, flax.nnx, flax.linen, equinox, equinox.nn]
    return {(m.__name__, name): id(value) for m in modules for name, value in vars(m).items()}


def test_nothing_of_any_library_changes():
    config = dict(jax.config.values)
    before = _identities()
    to_onnx(_program(2), [("B", 3)], enable_double_precision=True)
    with pytest.raises(UnsupportedError):
        to_onnx(_calls_back, [(2,)], enable_double_precision=True)
    assert _identities() == before
    assert dict(jax.config.values) == config
    assert jnp.ones(1).dtype == jnp.float32


def test_version_and_public_names():
    for name in jax2onnx.__all__:
        assert getattr(jax2onnx, name) is not None
    with compat.evaluation.x64(True):
        check_valid(to_onnx(jnp.sin, [(2,)]))
