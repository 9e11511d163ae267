"""Every accepted way to describe inputs, and a sentence for every wrong one."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.export import SymbolicScope, symbolic_shape

from jax2onnx.dimensions import make_scope, parse_dim
from jax2onnx.errors import InputError
from jax2onnx.specs import input_specs, needs_x64, parse_dtype

F32 = np.dtype(np.float32)
Struct = jax.ShapeDtypeStruct


def shown(specs: Any) -> Any:
    """Specs in a form that is easy to compare: "float32[B, 3]"."""
    return jax.tree.map(lambda s: f"{s.dtype}[{', '.join(map(str, s.shape))}]", specs)


class Pair(NamedTuple):
    left: Any
    right: Any


class Empty(NamedTuple):
    pass


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Batch:
    x: Any
    mask: Any


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((2, 3), "float32[2, 3]"),
        ([2, 3], "float32[2, 3]"),
        ((), "float32[]"),
        (("B", np.int64(3)), "float32[B, 3]"),
        ((None, 3, None), "float32[dim0, 3, dim1]"),
        (jnp.ones((2, 0), jnp.bfloat16), "bfloat16[2, 0]"),
        (np.ones(3), "float32[3]"),
        (np.arange(3), "int32[3]"),
        (np.float16(1), "float16[]"),
        (True, "bool[]"),
        (3, "int32[]"),
        (2.5, "float32[]"),
        (1j, "complex64[]"),
        (Struct(("B", 10), np.float32), "float32[B, 10]"),
        (Struct((2,), np.float64), "float64[2]"),
        ("f32[B,128]", "float32[B, 128]"),
        (" i64 [ T + 1 , max(T, 3) ] ", "int64[T + 1, max(T, 3)]"),
        ("bf16[]", "bfloat16[]"),
        ("bool[0]", "bool[0]"),
        ("float16[2]", "float16[2]"),
        ("key<fry>[B]", "key<fry>[B]"),
        ("key<rbg>[]", "key<rbg>[]"),
        (jax.random.key(0), "key<fry>[]"),
        (jax.typeof(jnp.ones(3)), "float32[3]"),
        ({"x": ("B", 2), "y": [jnp.ones(3)]}, {"x": "float32[B, 2]", "y": ["float32[3]"]}),
        (((2, "B"), (3,)), ("float32[2, B]", "float32[3]")),
        (("f32[2]", "i8[B]"), ("float32[2]", "int8[B]")),
        (Pair((2,), ()), Pair("float32[2]", "float32[]")),
        (Empty(), Empty()),
        ((np.ones(2, np.float32), (), {"b": ()}), ("float32[2]", (), {"b": ()})),  # arrays, not shapes
        ([], []),
        (None, None),
        (Batch(("B",), "bool[B]"), Batch("float32[B]", "bool[B]")),
        ((2, 0.5), ("int32[]", "float32[]")),
    ],
)
def test_accepted_forms(given: Any, expected: Any) -> None:
    assert shown(input_specs([given])) == [expected]


def test_no_inputs() -> None:
    assert input_specs([]) == input_specs(()) == []


def test_numbers_are_weakly_typed_as_in_jax() -> None:
    weak = [spec.weak_type for spec in input_specs([3, 2.5, True, np.float32(1), jnp.asarray(1.0), (2,)])]
    assert weak == [True, True, False, False, bool(jnp.asarray(1.0).aval.weak_type), False]


def test_equal_names_are_one_dimension() -> None:
    first, second, third = input_specs([("B", "T"), {"x": "f32[T + 1, B]"}, Struct(("B*T", "B"), F32)])
    (batch, time), (longer, again), (product, once_more) = first.shape, second["x"].shape, third.shape
    assert batch is not time
    assert batch == again == once_more
    assert longer == time + 1
    assert product == batch * time


def test_nameless_dimensions_avoid_given_names() -> None:
    assert shown(input_specs([(None, "dim0"), (None,)])) == ["float32[dim1, dim0]", "float32[dim2]"]


def test_the_callers_own_dimensions_keep_their_scope() -> None:
    batch, time = symbolic_shape("B, T", constraints=["T <= 1024"])
    specs = input_specs([(batch, 3), Struct((time, "B"), F32), ("T + 1",)])
    assert all(dim.scope is batch.scope for spec in specs for dim in spec.shape if not isinstance(dim, int))
    assert specs[1].shape == (time, batch)
    assert specs[2].shape == (time + 1,)


def test_double_precision() -> None:
    specs = input_specs([(2,), np.ones(3), 1.5, "f32[2]", np.arange(3)], np.float64)
    assert [str(s.dtype) for s in specs] == ["float64", "float64", "float64", "float32", "int64"]
    # One input that asks for 64 bits turns x64 on, and then JAX keeps arrays as they are; shapes stay float32.
    specs = input_specs([(2,), np.ones(3), "f64[2]"])
    assert [str(s.dtype) for s in specs] == ["float32", "float64", "float64"]
    assert needs_x64(specs)
    assert needs_x64({"a": Struct((), np.uint64)})
    assert not needs_x64(input_specs([(2,), np.ones(3), "key<fry>[]", "bf16[]", "c64[]"]))


def test_python_notation_in_dimensions() -> None:
    scope = SymbolicScope()
    a, b = symbolic_shape("a, b", scope=scope)
    assert parse_dim("2*(a + 1)", scope) == 2 * a + 2
    assert parse_dim("a // 2", scope) == a // 2 == parse_dim("floordiv(a, 2)", scope)
    assert parse_dim("a % 8", scope) == a % 8 == parse_dim("mod(a, 8)", scope)
    assert parse_dim("min(a, b) - -3", scope) == jax.core.min_dim(a, b) + 3
    assert parse_dim("a^2", scope) == a * a == parse_dim("a**2", scope)
    assert parse_dim("2 * 3", scope) == 6
    assert str(parse_dim("class", scope)) == "class"
    for dim in (a * b - 3, -(-a // 2), jax.core.max_dim(a - 1, b % 5), a**3, 2 * a**2 - a + 1):
        assert parse_dim(str(dim), scope) == dim


def test_constraints() -> None:
    (x,) = input_specs([("N", "T", "B")], constraints=["N >= 2", "T < 1024", "B % 8 == 0", "N + T > 4"])
    n, t, b = x.shape
    assert n >= 2
    assert t <= 1023
    assert b % 8 == 0
    assert n + t >= 5
    assert str(make_scope(["B % 8 == 0"])._explicit_constraints[-1].e1) == "mod(B, 8)"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([object()], r"inputs\[0\] is a object"),
        ([{"a": {1}}], r"inputs\[0\]\['a'\] is a set"),
        (["f32 B"], r"inputs\[0\] is 'f32 B', a dimension that is not in a shape"),
        (("B", 3), r"inputs\[0\] is 'B', a dimension that is not in a shape"),
        ([("B", 224 / 2)], r"inputs\[0\]\[0\] is 'B', a dimension that is not in a shape"),
        (["f31[2]"], "'f31' is not a dtype"),
        (["f32[2"], "notation looks like"),
        (["f32[2,,3]"], "'' is not a dimension"),
        (["f32[?]"], r"'\?' is not a dimension"),
        (["f32[B B]"], "'B B' is not a dimension"),
        ([("None", "open('x')")], "is not a dimension"),
        ([("1.5",)], "is not a dimension"),
        ([("B // 0", "B")], "cannot be computed"),
        ([("max", "B")], "max is a function of two dimensions"),
        ([("2 ** B", "B")], "the exponent B is no number"),
        ([(-1, 3)], "negative dimension -1"),
        ([("-3",)], "negative dimension -3"),
        ([Struct((2.5,), F32)], r"a float \(2.5\) in its shape"),
        ([("batch-size", 3)], "'batch' cannot be read from any input"),
        ([("B*T", 3)], "cannot be read"),
        ([np.array(["a"])], "dtype <U1, which JAX does not have"),
        ([np.ones(2, np.longdouble)], "which JAX does not have"),
        (["key<no>[]"], "not a kind of PRNG key"),
        ("f32[2]", "inputs is a list or tuple"),
        ({"x": (2,)}, "inputs is a list or tuple"),
        (jnp.ones(3), "inputs is a list or tuple"),
        (None, "inputs is a list or tuple"),
    ],
)
def test_wrong_inputs(inputs: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        input_specs(inputs)


def test_an_expression_beside_its_parts_can_be_read() -> None:
    input_specs([("B*T", 3), ("B", "2*T")])


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ("N >= 2", "sequence of strings"),
        (["N"], "not a comparison"),
        (["1 <= N <= 3"], "not a comparison"),
        ([3], "not a string"),
        (["M >= 2"], "'M', which no input has"),
        (["1 >= 2"], "Unsatisfiable"),
        (["N >= 5", "N <= 2"], "No sizes keep to the constraints N >= 5, N <= 2"),
        (["N == 3", "N % 2 == 0"], "No sizes keep to the constraints"),
        (["N < 1"], "No sizes keep to the constraints"),
        (["N >="], "not a dimension"),
    ],
)
def test_wrong_constraints(constraints: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        input_specs([("N",)], constraints=constraints)


def test_mixed_scopes() -> None:
    (a,), (b,) = symbolic_shape("a"), symbolic_shape("b")
    with pytest.raises(InputError, match=r"'b' of inputs\[1\] and those of inputs\[0\]"):
        input_specs([(a,), (b,)])
    with pytest.raises(InputError, match="already exist"):
        input_specs([(a,)], constraints=["a >= 2"])


def test_dtype_names_are_those_jax_prints() -> None:
    for name in ("float32", "bfloat16", "float16", "int8", "uint64", "int4", "bool", "complex64", "float8_e4m3fn"):
        dtype = jnp.dtype(name)
        short = str(jax.core.ShapedArray((), dtype).str_short(short_dtypes=True)).removesuffix("[]")
        assert parse_dtype(short) == parse_dtype(name) == dtype
