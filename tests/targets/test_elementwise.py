"""Every elementwise operator with every dtype that ONNX allows: legalized, run, compared with numpy on hard values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

from tests.targets.one_node import (
    BOOL,
    F32,
    F64,
    FLOATS,
    HALVES,
    INTEGERS,
    SIGNED,
    UNSIGNED,
    allowed,
    check,
    extreme,
    hard,
    mild,
    pairs,
    run,
)

# The truth overflows and meets NaN on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SPOT_OPSETS = (17, 21, 26)


def cases(
    ops: Any, opsets: tuple[int, ...] = (23, *SPOT_OPSETS), operand: int = 0, only: Callable[..., bool] | None = None
) -> list[Any]:
    """(op, dtype, opset) for all dtypes that ONNX allows in opset 23; one dtype in three for the other opsets.

    `only(op, dtype, opset)` leaves some out.
    """
    found = []
    for opset in opsets:
        for i, op in enumerate(ops):
            for j, dtype in enumerate(allowed(op, opset, operand)):
                if (opset == 23 or (i + j) % 3 == 0) and (only is None or only(op, dtype, opset)):
                    found.append(pytest.param(op, dtype, opset, id=f"{op}-{dtype.name}-{opset}"))
    return found


def widely(fn: Callable[..., np.ndarray], *operands: np.ndarray, dtype: np.dtype | None = None) -> np.ndarray:
    """`fn` as JAX computes it: half precision in float32, rounded once; all other dtypes as they are."""
    out = operands[0].dtype if dtype is None else dtype
    with np.errstate(all="ignore"):
        wide = [x.astype(F32) if x.dtype in HALVES else x for x in operands]
        return np.asarray(fn(*wide)).astype(out)


def without_negative_zero(x: np.ndarray) -> np.ndarray:
    """The runtime is careless with the sign of a zero: Sign, Relu, Max, Min and Where change it (FACTS.md)."""
    return np.where(x == 0, np.zeros((), x.dtype), x) if x.dtype in FLOATS else x


UNARY: dict[str, Callable] = {
    "Abs": np.abs, "Acos": np.arccos, "Acosh": np.arccosh, "Asin": np.arcsin, "Asinh": np.arcsinh, "Atan": np.arctan,
    "Atanh": np.arctanh, "BitwiseNot": np.invert, "Ceil": np.ceil, "Cos": np.cos, "Cosh": np.cosh, "Erf": special.erf,
    "Exp": np.exp, "Floor": np.floor, "Identity": lambda x: x, "Log": np.log, "Neg": np.negative, "Not": np.logical_not,
    "Reciprocal": lambda x: x.dtype.type(1) / x, "Relu": lambda x: np.maximum(x, 0), "Round": np.rint,
    "Sigmoid": special.expit, "Sign": np.sign, "Sin": np.sin, "Sinh": np.sinh, "Sqrt": np.sqrt, "Tan": np.tan,
    "Tanh": np.tanh,
    "Celu": lambda x: np.where(x < 0, np.expm1(x), x),
    "Elu": lambda x: np.where(x < 0, np.expm1(x), x),
    "Gelu": lambda x: x.dtype.type(0.5) * x * (1 + special.erf(x * x.dtype.type(np.sqrt(0.5)))),
    "HardSigmoid": lambda x: np.clip(x * x.dtype.type(np.float32(0.2)) + x.dtype.type(0.5), 0, 1),
    "HardSwish": lambda x: x * np.clip(x / 6 + x.dtype.type(0.5), 0, 1),
    "LeakyRelu": lambda x: np.where(x < 0, x * x.dtype.type(np.float32(0.01)), x),
    "Mish": lambda x: x * np.tanh(np.logaddexp(x, x.dtype.type(0))),
    "Selu": lambda x: x.dtype.type(1.0507010221481323)
    * np.where(x < 0, x.dtype.type(1.6732631921768188) * np.expm1(x), x),
    "Softplus": lambda x: np.logaddexp(x, x.dtype.type(0)),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "ThresholdedRelu": lambda x: np.where(x > 1, x, x.dtype.type(0)),
}  # fmt: skip
EXACT = {"Abs", "Ceil", "Floor", "Neg", "Reciprocal", "Round", "Sign", "Sqrt", "Identity", "Relu", "BitwiseNot", "Not"}
# The runtime's own float32 kernels of these differ from the definition at infinity or NaN, or lose the sign of zero.
FINITE = {"HardSwish", "Gelu", "Mish", "Softsign", "Celu", "ThresholdedRelu", "Elu", "Selu", "Sigmoid", "LeakyRelu"}


@pytest.mark.parametrize(("op", "dtype", "opset"), cases(UNARY))
def test_unary(op: str, dtype: np.dtype, opset: int) -> None:
    x = hard(dtype)
    if op in FINITE:
        x = mild(dtype, (50,))
    if op in ("Sign", "Relu"):
        x = without_negative_zero(x)
    check(op, [x], [widely(UNARY[op], x)], opset=opset, exact=op in EXACT)


DOUBLE_POINTS = np.concatenate(
    [
        np.random.default_rng(0).uniform(-1, 1, 3000),
        np.random.default_rng(1).uniform(-40, 40, 3000),
        np.exp(np.random.default_rng(2).uniform(-700, 700, 3000)) * np.resize([1, -1], 3000),
        [0.0, -0.0, 1.0, -1.0, 0.5, 0.66, 2.414213562373095, 22.0, 6.0, 709.7, 710.4, -710.4, 710.5, 1e308, 5e-324],
        [np.pi, np.pi / 2, np.inf, -np.inf, np.nan],
    ]
)


@pytest.mark.parametrize(
    "op",
    ["Tan", "Atan", "Asin", "Acos", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Erf", "Softplus", "Elu", "Softsign"],
)
def test_double_functions_to_the_last_digits(op: str) -> None:
    """Within 4 units in the last place of the extended-precision value, with the sign of a zero result."""
    x = DOUBLE_POINTS
    with np.errstate(all="ignore"):
        want = UNARY[op](x if op == "Erf" else x.astype(np.longdouble))
        got = run(op, [x], [x], {}, 23)[0]
        nearest = want.astype(np.float64)
        ulps = np.abs(got - want) / np.spacing(np.abs(nearest))
    same = (got == nearest) | (np.isnan(got) & np.isnan(nearest))
    assert np.all(same | (ulps < 4)), [(x[i], got[i], nearest[i]) for i in np.flatnonzero(~(same | (ulps < 4)))[:3]]
    if op not in ("Elu", "Softsign"):
        np.testing.assert_array_equal(np.signbit(got[nearest == 0]), np.signbit(nearest[nearest == 0]))


def trunc_div(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype.kind == "f":
        return x / y
    x, y = np.broadcast_arrays(x.astype(object), y.astype(object))
    return np.vectorize(lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1), otypes=[object])(x, y)


BINARY: dict[str, Callable] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Max": np.maximum, "Min": np.minimum, "And": np.logical_and,
    "Or": np.logical_or, "Xor": np.logical_xor, "BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or,
    "BitwiseXor": np.bitwise_xor, "Sum": np.add, "PRelu": lambda x, y: np.where(x < 0, x * y, x),
    "Mean": lambda x, y: (x + y) / x.dtype.type(2), "Div": trunc_div,
}  # fmt: skip


@pytest.mark.parametrize(("op", "dtype", "opset"), cases(BINARY))
def test_binary(op: str, dtype: np.dtype, opset: int) -> None:
    x, y = pairs(dtype)
    if op in ("Max", "Min"):
        x, y = (without_negative_zero(v) for v in (x, y))
    if op == "PRelu":
        x, y = np.broadcast_to(x, (x.size, y.size)), without_negative_zero(y)  # only the slope is broadcast
        x = without_negative_zero(mild(dtype, x.shape)) if dtype in FLOATS else x
    if op == "Div" and dtype in INTEGERS:
        y = y[(y != 0) & (y != (-1 if dtype in SIGNED else 0))][None]  # the runtime traps (FACTS.md)
    check(op, [x, y], [widely(BINARY[op], x, y)], opset=opset, exact=op != "PRelu")


COMPARE = {
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Equal": np.equal,
}


@pytest.mark.parametrize(("op", "dtype", "opset"), cases(COMPARE))
def test_compare(op: str, dtype: np.dtype, opset: int) -> None:
    x, y = pairs(dtype)
    check(op, [x, y], [COMPARE[op](x, y)], opset=opset)


@pytest.mark.parametrize(("op", "dtype", "opset"), cases(["Mod"]))
@pytest.mark.parametrize("with_sign_of", ["divisor", "dividend"])
def test_mod(op: str, dtype: np.dtype, opset: int, with_sign_of: str) -> None:
    x, y = pairs(dtype)
    if dtype in INTEGERS:
        y = y[(y != 0) & (y != (-1 if dtype in SIGNED else 0))][None]
    is_fmod = with_sign_of == "dividend" or dtype in FLOATS  # the standard has only that one for floats
    check(op, [x, y], [widely(np.fmod if is_fmod else np.mod, x, y)], {"fmod": int(is_fmod)}, opset)


@pytest.mark.parametrize(("op", "dtype", "opset"), cases(["Pow"]))
@pytest.mark.parametrize(
    "exponent", [np.dtype(n) for n in ("f4", "f8", "f2", "i1", "i2", "i4", "i8", "u1", "u2", "u4")], ids=str
)
def test_pow(op: str, dtype: np.dtype, opset: int, exponent: np.dtype) -> None:
    x = np.array([0, 1, 2, 3, 5], dtype)[:, None]
    y = np.array([0, 1, 2, 3, 7], exponent)[None]
    check(op, [x, y], [(x.astype(object) ** y.astype(object)).astype(dtype)], opset=opset)


@pytest.mark.parametrize(("op", "dtype", "opset"), cases(["BitShift"]))
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_bit_shift(op: str, dtype: np.dtype, opset: int, direction: str) -> None:
    bits = dtype.itemsize * 8
    x, y = hard(dtype)[:, None], np.array([0, 1, bits - 1, bits, bits + 1, 2 * bits], dtype)[None]
    shift = (lambda a, b: a << b) if direction == "LEFT" else (lambda a, b: a >> b)
    want = shift(x.astype(object), y.astype(object)) & (2**bits - 1)
    check(op, [x, y], [want.astype(dtype)], {"direction": direction}, opset)


@pytest.mark.parametrize(("op", "dtype", "opset"), cases(["Where"], operand=1))
def test_where(op: str, dtype: np.dtype, opset: int) -> None:
    x, y = (without_negative_zero(v) for v in pairs(dtype))
    condition = mild(BOOL, np.broadcast_shapes(x.shape, y.shape))
    check(op, [condition, x, y], [np.where(condition, x, y)], opset=opset)


@pytest.mark.parametrize(("op", "dtype", "opset"), cases(["Clip"]))
def test_clip(op: str, dtype: np.dtype, opset: int) -> None:
    x = hard(dtype)
    low, high = np.array(1, dtype), np.array(100, dtype)
    check(op, [x, low, high], [np.minimum(np.maximum(x, low), high)], opset=opset)
    x = x[~np.isinf(x)] if dtype in FLOATS else x  # the bound left out is the lowest finite number
    check(op, [x, None, high], [np.minimum(x, high)], opset=opset)


@pytest.mark.parametrize(("op", "dtype", "opset"), cases(["IsNaN", "IsInf"]))
def test_classify(op: str, dtype: np.dtype, opset: int) -> None:
    x = hard(dtype)
    want = (
        np.isnan(x.astype(F32 if dtype != F64 else F64))
        if op == "IsNaN"
        else np.isinf(x.astype(F32 if dtype != F64 else F64))
    )
    check(op, [x], [want], opset=opset)


def test_round_is_once_per_node() -> None:
    """Half precision is rounded after each node, so what a node sees is what JAX sees (the runtime alone would not)."""
    from tests.targets.graphs import chain

    for dtype in HALVES:
        x = np.array([2.0**-12, 2.0**-9, 3 * 2.0**-9, 300.0], dtype)
        one = np.ones((), dtype)
        got = chain([("Add", "x", "one"), ("Sub", "", "one"), ("Mul", "", "x"), ("Mul", "", "x")], {"x": x, "one": one})
        want = ((((x + one) - one) * x).astype(dtype) * x).astype(dtype)
        assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", [*UNSIGNED, *SIGNED], ids=str)
def test_wrap_around_in_a_row(dtype: np.dtype) -> None:
    """Carriers wider than the dtype do not leak the bits above it."""
    from tests.targets.graphs import chain

    x = extreme(dtype, (40,))
    got = chain([("Mul", "x", "x"), ("Add", "", "x"), ("Mul", "", ""), ("Max", "", "x")], {"x": x})
    y = x * x + x
    np.testing.assert_array_equal(got, np.maximum(y * y, x))
