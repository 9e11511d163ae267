"""The comparison sees what is different and lets pass what is equal."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jax2onnx.runtime import at_boundary
from tests.compare import CONFORMANCE, TIGHT, difference, factorisation_difference

F32 = np.float32
INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (F32([1, NAN, INF, -INF, 0.0]), F32([1 + 1e-6, NAN, INF, -INF, -0.0])),
        (np.array([2**63 - 1]), np.array([2**63 - 1])),
        (np.zeros((0, 3), bool), np.zeros((0, 3), bool)),
        (F32([[1, 2]]), np.array([1 + 2j], np.complex64)),
        (np.array([1.5], ml_dtypes.bfloat16), jnp.array([1.5], jnp.bfloat16)),
        (np.array([3, -4], ml_dtypes.int4), jnp.array([3, -4], jnp.int4)),
        (np.uint32([0, 7]), jax.random.key(7)),
    ],
)
def test_same(got, want):
    assert difference([got], [want]) is None


@pytest.mark.parametrize(
    ("got", "want", "message"),
    [
        (F32([1]), np.float64([1]), "output 0: dtype float32 instead of float64"),
        (F32([1]), F32([[1]]), "shape (1,) instead of (1, 1)"),
        (F32([1, NAN]), F32([1, 1]), "worst at (1,): nan instead of 1.0"),
        (F32([1, 1]), F32([1, NAN]), "1.0 instead of nan"),
        (F32([INF]), F32([-INF]), "inf instead of -inf"),
        (F32([3e38]), F32([INF]), "instead of inf"),
        (F32([INF]), F32([3e38]), "inf instead of"),
        (F32([1, 2.001, 3]), F32([1, 2, 3]), "1 of 3 values differ, worst at (1,): 2.001 instead of 2.0, off by 0.001"),
        (np.array([2**63 - 1]), np.array([2**63 - 2]), "first at (0,)"),
        (np.array([True]), np.array([False]), "True instead of False"),
        (np.array([3], ml_dtypes.int4), jnp.array([-4], jnp.int4), "3 instead of -4"),
        (np.array([1.125], ml_dtypes.float8_e4m3fn), jnp.array([1], jnp.float8_e4m3fn), "1.125 instead of 1"),
        (F32([[1, 2]]), np.array([1 + 3j], np.complex64), "worst at (0, 1)"),
    ],
)
def test_different(got, want, message):
    assert message in difference([got], [want])


def test_number_of_outputs():
    assert difference([], [F32(1)]) == "0 outputs instead of 1"


def test_zero_tolerance_is_bit_for_bit():
    zero, nan = [F32([0.0])], [F32([NAN])]
    assert "-0.0" in difference(zero, [F32([-0.0])], rtol=0, atol=0)
    assert difference(nan, [-nan[0]], rtol=0, atol=0) is None
    nearly = [np.nextafter(F32([1]), F32(2))]
    assert difference(nearly, [F32([1])]) is None
    assert "off by" in difference(nearly, [F32([1])], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("table", [CONFORMANCE, TIGHT])
def test_tolerances_are_relative_and_absolute(dtype, table):
    """Just inside passes, just outside does not, for large and for tiny values."""
    for value, margin in ((1000.0, table[dtype] * 1001), (0.0, table[dtype])):
        want = np.array([value]).astype(dtype)
        for factor, same in ((0.5, True), (2.0, False)):
            got = np.array([value + factor * margin]).astype(dtype)
            if got != want:
                assert (difference([got], [want], tolerances=table) is None) == same, (value, factor)


FACTORISE = {
    "eig": lambda m: jax.lax.linalg.eig(m, compute_left_eigenvectors=True, compute_right_eigenvectors=True),
    "eigh": lambda m: jax.lax.linalg.eigh(m, symmetrize_input=False),
    "qr": lambda m: jax.lax.linalg.qr(m, full_matrices=False),
    "svd": lambda m: jax.lax.linalg.svd_p.bind(m, full_matrices=True, compute_uv=True, subset_by_index=None),
    "schur": lambda m: jax.scipy.linalg.schur(m, output="complex" if np.iscomplexobj(m) else "real"),
}
SHAPES = [(kind, shape) for kind in FACTORISE for shape in [(4, 4), (2, 5, 5), (0, 0)]]
SHAPES = [(kind, shape) for kind, shape in SHAPES if kind != "schur" or shape == (4, 4)]  # JAX has no other schur


def factors(kind, shape, dtype):
    """A matrix and JAX's factors of it."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=shape).astype(dtype)
    if np.iscomplexobj(a):
        a += 1j * rng.normal(size=shape)
    if kind == "eigh":
        a += np.conj(np.swapaxes(a, -1, -2))
    return a, [np.asarray(factor) for factor in FACTORISE[kind](a)]


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize(("kind", "shape"), SHAPES)
def test_factorisation(kind, shape, dtype):
    a, want = factors(kind, shape, dtype)
    got = [at_boundary(w) for w in want]
    assert factorisation_difference(kind, a, got, want, 1e-4) is None
    assert "dtype" in factorisation_difference(kind, a, [g.astype(np.float64) for g in got], want, 1e-4)
    assert "outputs" in factorisation_difference(kind, a, got[:-1], want, 1e-4)
    for i, factor in enumerate(got):
        if factor.size:
            for wrong, message in ((factor.flat[-1] + 0.1, "fails"), (NAN, "NaN")):
                others = [g.copy() for g in got]
                others[i].flat[-1] = wrong
                assert message in factorisation_difference(kind, a, others, want, 1e-4), i


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_factors_are_not_unique(dtype):
    a, (vectors, values) = factors("eigh", (4, 4), dtype)
    assert factorisation_difference("eigh", a, [at_boundary(-vectors), values], [vectors, values], 1e-4) is None
    a, want = factors("eig", (4, 4), dtype)
    other_order = [at_boundary(np.take(w, [2, 0, 3, 1], axis=-1)) for w in want]
    assert factorisation_difference("eig", a, other_order, want, 1e-4) is None


def test_to_the_scale_of_the_output():
    want = F32([1000, 0.001, INF, NAN])
    assert difference([want + F32(0.005)], [want], to_scale=True) is None
    assert difference([want + F32(0.005)], [want]) is not None
    assert difference([want + F32(0.05)], [want], to_scale=True) is not None
    assert difference([F32([0.002])], [F32([0.001])], to_scale=True) is not None
