"""erfc, erf_inv, lgamma, digamma, polygamma, zeta, the incomplete gamma and beta functions, Bessel functions."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax2onnx import compat
from jax2onnx.decompose import special_bessel, special_erf, special_gamma, special_incomplete
from jax2onnx.decompose.registry import DECOMPOSITIONS
from tests.decompose.agreement import SPECIAL, assert_agrees, evaluate
from tests.helpers import check, check_run, quick

MODULES = special_bessel, special_erf, special_gamma, special_incomplete  # importing them registers the definitions

pytestmark = pytest.mark.usefixtures("x64")

RNG = np.random.default_rng(0)
LINE = np.concatenate(
    [RNG.uniform(-10, 20, 400), 10 ** RNG.uniform(-20, 20, 200), [100.0, -100.0, 3.0, -3.0, *SPECIAL]]
)
UNIT = np.concatenate(
    [RNG.uniform(-1, 1, 400), 1 - 10 ** RNG.uniform(-6, 0, 100), 10 ** RNG.uniform(-20, 0, 100), SPECIAL]
)
ORDERS = np.concatenate([RNG.uniform(1, 20, 200), np.arange(200.0) % 7])
SIGNED = RNG.uniform(-12, 12, 400)
POSITIVE = list(10 ** RNG.uniform(-2, 1.5, (2, 100)))
GRID = np.array([*SPECIAL[:12], 3.0, 4.0, -3.0, 2.5])

# (primitive, arguments, relative tolerances in float32 and float64, absolute ones): near a zero of a function only the
# absolute error is small, in XLA's float32 more so.
CASES = {
    "erfc": (lax.erfc_p, [LINE], (1e-6, 5e-15), (0, 0)),
    "erf_inv": (lax.erf_inv_p, [UNIT], (1e-5, 1e-14), (0, 0)),
    "lgamma": (lax.lgamma_p, [LINE], (2e-6, 1e-14), (3e-6, 1e-14)),
    "digamma": (lax.digamma_p, [LINE], (2e-6, 1e-14), (1e-6, 1e-14)),
    "bessel_i0e": (lax.bessel_i0e_p, [LINE], (2e-6, 1e-14), (0, 0)),
    "bessel_i1e": (lax.bessel_i1e_p, [LINE], (2e-6, 1e-14), (0, 0)),
    "zeta": (lax.zeta_p, [ORDERS, SIGNED], (5e-6, 1e-14), (0, 0)),
    "polygamma": (lax.polygamma_p, [ORDERS[150:250], POSITIVE[0]], (5e-6, 1e-14), (1e-6, 1e-14)),
}


def params_of(primitive) -> dict:
    return {"accuracy": None} if primitive is lax.erfc_p and jax.__version_info__ >= (0, 11) else {}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", quick([np.float32], [np.float32, np.float64]))
def test_values(name, dtype):
    primitive, args, rtol, atol = CASES[name]
    args = [x.astype(dtype) for x in args]
    if primitive is lax.erfc_p:
        args = [np.clip(args[0], -9, 9)]  # beyond, float32 results are subnormal, which XLA flushes
    which = dtype == np.float64
    assert_agrees(primitive, *args, rtol=rtol[which], atol=atol[which], **params_of(primitive))


@pytest.mark.parametrize("name", ["zeta", "polygamma"])
def test_special_values(name):
    assert_agrees(CASES[name][0], *np.array(list(itertools.product(GRID, GRID))).T, rtol=1e-12)


@pytest.mark.parametrize(
    ("primitive", "dtype", "rtol"),
    [
        (lax.igammac_p, np.float32, 2e-5),
        pytest.param(lax.igamma_grad_a_p, np.float64, 1e-11, marks=pytest.mark.slow),
        (lax.regularized_incomplete_beta_p, np.float32, 1e-4),
    ],
)
def test_incomplete_functions(primitive, dtype, rtol):
    """JAX's own definitions; they are slow to compile, so each is tried in one dtype."""
    points = np.array(list(itertools.product(GRID, GRID))).T
    args = [np.concatenate([x, y]).astype(dtype) for x, y in zip(POSITIVE, points, strict=True)]
    if primitive is lax.regularized_incomplete_beta_p:
        args.append(np.resize([0.0, 0.3, 1.0, 0.8, -1.0, 2.0, np.nan], args[0].shape).astype(dtype))
    assert_agrees(primitive, *args, rtol=rtol, atol=2e-6 if dtype == np.float32 else 1e-14)


def test_half_precision_is_rounded_once():
    dtype = jnp.bfloat16
    x = jnp.asarray(RNG.uniform(0.1, 0.9, 20)).astype(dtype)
    names = ["erfc", "lgamma", "bessel_i0e"]

    def all_of_them(x):
        return [DECOMPOSITIONS[CASES[name][0]].fn(x) for name in names]

    wide = evaluate(all_of_them, x.astype(np.float64))
    for actual, exact in zip(evaluate(all_of_them, x), wide, strict=True):
        assert actual.dtype == dtype
        np.testing.assert_allclose(
            np.asarray(actual, np.float64), exact, rtol=float(jnp.finfo(dtype).eps) * 0.51, atol=1e-6
        )


def test_shapes():
    incomplete = {
        p: [0] * (2 + (p is lax.regularized_incomplete_beta_p)) for p in compat.definitions.special_definitions()
    }
    for primitive, args in ({p: args for p, args, *_ in CASES.values()} | incomplete).items():
        for shape in ((), (0, 2)):
            spec = [jax.ShapeDtypeStruct(shape, np.float32)] * len(args)
            out = jax.eval_shape(DECOMPOSITIONS[primitive].fn, *spec)
            assert (out.shape, out.dtype) == (shape, np.float32)


def test_zeros_and_tails():
    x = jnp.array([1.0, 2.0], np.float32)
    np.testing.assert_allclose(evaluate(DECOMPOSITIONS[lax.lgamma_p].fn, x), 0, atol=1e-14)
    z = jnp.array([26.0, -26.0, 0.0])
    np.testing.assert_allclose(evaluate(DECOMPOSITIONS[lax.erfc_p].fn, z), [5.663192408856143e-296, 2, 1], rtol=1e-15)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("fn", [lax.erf, lax.erfc, jax.scipy.special.ndtr], ids=lambda fn: fn.__name__)
def test_derivatives_of_error_functions(fn, dtype):
    """As accurate far from 0 as near it, and without taking the bits of floats apart."""
    x = dtype([0, -0.0, 1e-30, 0.3, -1, 2.71, -4.4, 7.9, 9.2, -9, 12, -40, np.inf, -np.inf, np.nan])
    rtol = 1e-6 if dtype == np.float32 else 1e-14  # of a square rounded once, 1e-5 and 3e-14
    model = check(jax.vmap(jax.grad(fn)), x, rtol=rtol, atol=1e-37, x64=True)
    assert len(model.graph.node) < 50
    check(jax.vmap(jax.grad(jax.grad(fn))), x[1:-3], rtol=rtol, atol=1e-36, x64=True)


@pytest.mark.parametrize("fn", [lax.lgamma, lax.digamma])
def test_negative_numbers_only_cost_time_where_there_are_some(fn):
    x = np.concatenate([np.geomspace(1e-30, 1e30, 1500), [np.inf, np.nan, 3e38, 1, 2]]).astype(np.float32)
    model = check(fn, x, rtol=2e-6, atol=3e-6)
    usual, rare = (
        [[n.op_type for n in a.g.node] for node in model.graph.node for a in node.attribute if a.name == name]
        for name in ("else_branch", "then_branch")
    )
    assert usual == [["Identity"]]
    assert "Sin" in rare[0]
    assert "Sin" not in [n.op_type for n in model.graph.node]
    special = np.float32([-np.inf, -1, -2.5, -0.0, 0.0, -1e-20])
    check_run(model, fn, np.concatenate([x[: -len(special)], special]), rtol=2e-6, atol=3e-6)
    assert "If" not in [n.op_type for n in check(fn, special, rtol=2e-6, atol=3e-6).graph.node]
    check(fn, x, dims=[("N",)], rtol=2e-6, atol=3e-6)
    check(fn, x[:0])
