"""Functions of complex numbers where it hurts: near zeros and poles, on branch cuts, for huge arguments."""

import functools
import itertools

import jax
import numpy as np
import pytest
from jax import lax

from jax2onnx.decompose.complex import eliminate_complex
from tests.decompose.rewriting import compiled
from tests.helpers import quick

EPS = float(np.finfo(np.float32).eps)
FINITE = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, 1e-3, -1e-3, 1e-10, -1e-10, 20.0, -20.0, 85.0, 1e5, -1e5, 1e10,
    -1e10, np.pi / 2, -np.pi, 1 + EPS, 1 - EPS,
]  # fmt: skip
TOLERANCE = {"complex64": 2e-4, "complex128": 1e-6}

UNARY = {
    "abs": lax.abs, "sign": lax.sign, "square": lax.square, "exp": lax.exp, "exp2": lax.exp2, "expm1": lax.expm1,
    "log": lax.log, "log1p": lax.log1p, "logistic": lax.logistic, "sqrt": lax.sqrt, "rsqrt": lax.rsqrt, "sin": lax.sin,
    "cos": lax.cos, "tan": lax.tan, "sinh": lax.sinh, "cosh": lax.cosh, "tanh": lax.tanh, "asin": lax.asin,
    "acos": lax.acos, "atan": lax.atan, "asinh": lax.asinh, "acosh": lax.acosh, "atanh": lax.atanh,
    "cube": lambda z: lax.integer_pow(z, 3), "inverse square": lambda z: lax.integer_pow(z, -2),
    "one": lambda z: lax.integer_pow(z, 0),
}  # fmt: skip


def pairs(values, dtype):
    z = np.empty(len(values) ** 2, dtype)
    z.real, z.imag = np.array(list(itertools.product(values, values))).T
    return z


def spread_out(dtype):
    """Random numbers of all magnitudes, and some near the unit circle."""
    rng = np.random.default_rng(0)
    plain = rng.normal(size=(400, 2)) * 10.0 ** rng.uniform(-6, 6, (400, 1))
    skewed = rng.normal(size=(300, 2)) * 10.0 ** rng.uniform(-10, 10, (300, 2))
    angle = rng.uniform(0, 2 * np.pi, 300)
    circle = np.stack([np.cos(angle), np.sin(angle)], -1) * (1 + 1e-4 * rng.normal(size=(300, 1)))
    values = np.concatenate([plain, skewed, circle])
    return (values[:, 0] + 1j * values[:, 1]).astype(dtype)


@functools.lru_cache(maxsize=4)
def programs(fn, *types):
    """`fn`, and the same without complex numbers; compiled once for all arguments of these types."""
    specs = [jax.ShapeDtypeStruct(*t) for t in types]
    return jax.jit(fn), compiled(eliminate_complex(jax.make_jaxpr(fn)(*specs)))


def compare(fn, *args):
    dtype = args[0].dtype.name
    original, rewritten = programs(fn, *((x.shape, x.dtype) for x in args))
    expected = np.asarray(original(*args))
    (actual,) = rewritten(*args)
    if np.iscomplexobj(expected):
        actual = actual[..., 0] + 1j * actual[..., 1] if np.isfinite(actual).all() else _joined(actual)
    # Where JAX itself gets NaN from finite numbers there is nothing to compare with.
    kept = ~(np.isnan(expected) & np.all([np.isfinite(x) for x in args], 0))
    actual, expected, args = actual[kept], expected[kept], [x[kept] for x in args]
    tol = TOLERANCE[dtype]
    finite = np.isfinite(expected)
    error = np.abs(actual[finite] - expected[finite])
    bad = np.flatnonzero(finite)[~(error <= tol * (1 + np.abs(expected[finite])))]
    assert bad.size == 0, [(tuple(x[i] for x in args), actual[i], expected[i]) for i in bad[:5]]
    for part in (np.real, np.imag):
        np.testing.assert_array_equal(part(actual[~finite]), part(expected[~finite]))


def _joined(packed):
    z = np.empty(packed.shape[:-1], np.result_type(packed.dtype, np.complex64))
    z.real, z.imag = packed[..., 0], packed[..., 1]
    return z


@pytest.fixture(params=quick(["complex64"], ["complex64", "complex128"]))
def dtype(request):
    with jax.enable_x64(True):
        yield request.param


@pytest.mark.parametrize("name", quick(list(UNARY)[1::2], UNARY))
def test_finite(name, dtype):
    compare(UNARY[name], pairs(FINITE, dtype))
    compare(UNARY[name], spread_out(dtype))


@pytest.mark.parametrize("name", quick(list(UNARY)[::2], UNARY))
def test_infinite(name, dtype):
    values = pairs([0.0, 1.0, -2.0, np.inf, -np.inf], dtype)
    compare(UNARY[name], values[~np.isfinite(values)])


@pytest.mark.parametrize("name", quick(list(UNARY)[1::2], UNARY))
def test_nan(name, dtype):
    # |inf + nan j| is NaN on one JAX line and infinite on the other.
    infinite = [np.inf, -np.inf] if name != "abs" else []
    values = pairs([0.0, -0.0, 1.0, -2.0, 1e30, np.nan, *infinite], dtype)
    compare(UNARY[name], values[np.isnan(values)])


@pytest.mark.parametrize("fn", [lax.mul, lax.div, lax.max, lax.min, lax.pow], ids=lambda f: f.__name__)
def test_two_operands(fn, dtype):
    rng = np.random.default_rng(1)
    moderate = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.0, 1e-3, 1e3, -1e5]
    z = pairs(moderate, dtype)
    compare(fn, z, rng.permutation(z))
    z = spread_out(dtype)
    if fn is not lax.pow:  # of 1e6 to the power 1e6 nothing is left
        compare(fn, z, rng.permutation(z))


def test_division_by_zero_and_infinity(dtype):
    z = pairs([0.0, 1.0, -2.0, np.inf, -np.inf], dtype)
    numerators = z[np.isfinite(z)]
    for a, b in itertools.product(numerators, z):
        compare(lax.div, np.array([a]), np.array([b]))


def test_atan2(dtype):
    rng = np.random.default_rng(1)
    z, w = ((rng.normal(size=200) + 1j * rng.normal(size=200)).astype(dtype) for _ in range(2))
    compare(lax.atan2, z, w)


def test_huge_and_tiny_numbers_do_not_overflow_on_the_way(dtype):
    top = float(np.finfo(np.dtype(dtype).char.lower()).max) / 4
    tiny = float(np.finfo(np.dtype(dtype).char.lower()).tiny) * 64
    z = np.array([complex(top, top), complex(-top, tiny), complex(tiny, tiny), complex(tiny, -top)], dtype)
    for fn in (lax.abs, lax.sqrt, lax.log, lax.asinh, lax.acosh, lax.sign, lax.tanh):
        compare(fn, z)
    compare(lax.div, z, z)
    compare(lax.div, z, z[::-1] * 2)


def test_integer_exponents(dtype):
    z = spread_out(dtype)
    z = z[(np.abs(z) > 1e-3) & (np.abs(z) < 1e3)]
    compare(lambda z: lax.pow(z, np.int32(2)), z)
    for power in (-3, 1, 2, 5, 8):
        compare(lambda z, power=power: lax.integer_pow(z, power), z)
