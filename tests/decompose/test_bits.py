"""Bit counts, reduce_precision, nextafter, bitcasts between widths."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax2onnx.decompose import bits
from tests.decompose.agreement import SPECIAL, assert_agrees, assert_close, evaluate

pytestmark = pytest.mark.usefixtures("x64")

INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]


def hard_integers(dtype) -> np.ndarray:
    info = np.iinfo(dtype)
    around = [sign * (1 << e) + d for e in range(info.bits) for sign in (1, -1) for d in (-1, 0, 1)]
    return np.array(sorted({n for n in [*around, 0, info.min, info.max] if info.min <= n <= info.max}), dtype)


def floats(dtype, n: int = 2000) -> np.ndarray:
    """All kinds of floats: random bits, rounding boundaries and special values."""
    size = np.dtype(dtype).itemsize
    noise = np.random.default_rng(0).bytes(n * size)
    x = np.frombuffer(noise, np.dtype(f"u{size}")).copy()
    x[: n // 4] &= np.array(~((1 << (4 * size)) - 1) & ((1 << 8 * size) - 1), x.dtype)
    return np.concatenate([x.view(dtype), np.array([*SPECIAL[:12], 65504.0, 65519.9]).astype(dtype)])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_counts(dtype):
    x = hard_integers(dtype)
    assert_agrees(lax.population_count_p, x)
    assert_agrees(lax.clz_p, x)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_mulhi(dtype):
    x = np.random.default_rng(1).choice(hard_integers(dtype), (2, 300))
    n = np.iinfo(dtype).bits
    expected = [int(a) * int(b) >> n for a, b in x.T]
    np.testing.assert_array_equal(evaluate(bits.mulhi, x[0], x[1]), np.array(expected, dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, jnp.bfloat16])
def test_nextafter(dtype):
    limits = [float(jnp.finfo(dtype).max), float(jnp.finfo(dtype).tiny)]
    x, y = np.array(list(itertools.product(SPECIAL[:12] + limits, repeat=2))).astype(dtype).T
    assert_agrees(lax.nextafter_p, x, y)


@pytest.mark.parametrize(
    ("dtype", "kinds"),
    [
        (np.float32, [(8, 23), (8, 7), (5, 10), (4, 3), (5, 2), (8, 0), (1, 0), (5, 23), (11, 7)]),
        (np.float64, [(11, 52), (8, 23), (5, 10), (8, 7), (11, 20)]),
        (np.float16, [(5, 10), (8, 7), (4, 3), (8, 23)]),
        (jnp.bfloat16, [(8, 7), (5, 10), (4, 3)]),
    ],
)
def test_reduce_precision(dtype, kinds):
    x = jnp.asarray(floats(dtype))
    x = x[(abs(x) >= jnp.finfo(dtype).tiny) | (x == 0) | (x != x)]  # XLA itself treats subnormal inputs as it likes

    def all_kinds(fn):
        return lambda x: [fn(x, exponent_bits=e, mantissa_bits=m) for e, m in kinds]

    expected = jax.jit(all_kinds(lax.reduce_precision))(x)
    for a, e in zip(evaluate(all_kinds(bits.reduce_precision), x), expected, strict=True):
        assert_close(a, e)


def test_common_precisions_need_no_bits():
    for dtype, e, m, n in [
        (np.float32, 8, 23, 0),
        (np.float32, 8, 7, 2),
        (np.float32, 5, 10, 6),
        (np.float64, 8, 23, 6),
    ]:
        jaxpr = jax.make_jaxpr(lambda x, e=e, m=m: bits.reduce_precision(x, exponent_bits=e, mantissa_bits=m))(dtype(1))
        assert len(jaxpr.eqns) == n


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (np.float32, np.uint8),
        (np.uint8, np.float32),
        (np.float64, np.int16),
        (np.int16, np.float64),
        (np.int8, jnp.bfloat16),
        (np.uint64, np.float32),
        (np.int32, np.int64),
        (np.uint8, jnp.uint4),
        (jnp.int4, np.int8),
    ],
)
def test_bitcast_to_another_width(old, new):
    ratio = bits.width(new) // bits.width(old)
    x = np.random.default_rng(2).integers(0, 255, (3, 48 * max(ratio, 1)), np.uint8)
    x = jnp.asarray(x).astype(old) if bits.width(old) < 8 else jnp.asarray(x[:, : 48 - 48 % 8].view(old))
    if ratio > 1:
        x = x.reshape(-1, ratio)
    assert_agrees(lax.bitcast_convert_type_p, x, new_dtype=np.dtype(new))
    assert_agrees(lax.bitcast_convert_type_p, x[:0], new_dtype=np.dtype(new))
    assert not bits._widths_differ([jax.typeof(x)], {"new_dtype": np.dtype(old)})
