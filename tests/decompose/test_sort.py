"""sort, top_k and approx_top_k: NaN, signed zeros, ties, several keys, every dtype."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from jax2onnx.decompose import sort as definitions
from tests.decompose.agreement import assert_agrees, assert_close
from tests.helpers import check, check_run, quick

pytestmark = pytest.mark.usefixtures("x64")

HARD = [1.0, np.nan, np.inf, -np.inf, 0.0, -0.0, 3.0, np.nan, -0.0, 0.0, -2.0, np.inf, 1e-40, -1e-40, 3e38, 3.0]
FLOATS = [np.float16, jnp.bfloat16, np.float32, np.float64]
INTEGERS = [bool, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]


def extremes(dtype) -> np.ndarray:
    if dtype is bool:
        return np.array([True, False, True, False])
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return np.array([high, 0, low, 1, high, high - 1, low, low + 1, high // 2], dtype)


def assert_sorts(*operands, num_keys=1, dimension=0):
    assert_agrees(lax.sort_p, *operands, dimension=dimension, is_stable=True, num_keys=num_keys)


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats(dtype):
    x = jnp.asarray(HARD[:12]).astype(dtype)
    assert_sorts(x, np.arange(12))
    values, order = jax.jit(lambda x: lax.top_k(x, 12))(x)
    for k in (0, 3, 12):
        actual = definitions.top_k(x, k=k, axis=0)
        assert_close(actual[0], values[:k])
        assert_close(actual[1], order[:k])


@pytest.mark.parametrize(("dtype", "opset"), [*((dtype, 21) for dtype in FLOATS), (np.float32, 26)])
def test_top_k_reads_the_sign_of_nan_and_zero(dtype, opset):
    """A NaN is the greatest or the least, as its sign says; what has none and no zero takes another branch."""
    x = np.array([1, np.nan, -np.nan, 0.0, -0.0, np.inf, -np.inf, -0.0, -np.nan, 2, np.nan, 0.0]).astype(dtype)
    plain = np.array([3, 1, 4, 1, 5, 9, -np.inf, 6, 5, 3, 5, 8]).astype(dtype)
    model = check(lambda x: lax.top_k(x, 9), np.stack([x, plain, x[::-1]]), opset=opset, rtol=0, atol=0)
    check_run(model, lambda x: lax.top_k(x, 9), np.stack([plain, -plain, plain[::-1]]), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", quick(INTEGERS[::2], INTEGERS))
def test_integers(dtype):
    x = extremes(dtype)
    assert_sorts(x, np.arange(x.size))
    assert_sorts(x)
    assert_agrees(lax.top_k_p, x, **top_k_params(x, 3))


def top_k_params(x, k, axis=-1) -> dict:
    return jax.make_jaxpr(lambda x: lax.top_k(x, k, axis=axis))(x).eqns[0].params


def test_axes_and_empty_arrays():
    x = np.random.default_rng(0).integers(0, 4, (3, 5, 2)).astype(np.float32)
    for axis in (0, 1):
        assert_sorts(x, np.arange(x.size).reshape(x.shape), dimension=axis)
        assert_agrees(lax.top_k_p, x, **top_k_params(x, 2, axis))
    for shape in ((2, 0), (1, 1)):
        assert_sorts(np.ones(shape, np.float32), np.ones(shape, np.int8), dimension=len(shape) - 1)


@pytest.mark.parametrize("num_keys", [1, 2, 3])
def test_several_keys(num_keys):
    rng = np.random.default_rng(1)
    values = np.array([0.0, -0.0, np.nan, 1.0, np.inf])
    operands = [
        rng.choice(values, 60).astype(np.float32),
        rng.integers(0, 3, 60),
        rng.choice(values, 60),
        np.arange(60),
    ]
    assert_sorts(*operands, num_keys=num_keys)


def test_scalars_of_a_long_array_keep_their_order():
    x = np.random.default_rng(2).integers(0, 50, 3000).astype(np.float32)
    assert_sorts(x, np.arange(3000))


@pytest.mark.parametrize("search", [lax.approx_max_k, lax.approx_min_k])
@pytest.mark.parametrize("aggregate", [True, False])
def test_approximate_is_exact(search, aggregate):
    x = np.random.default_rng(3).permuted(np.tile(np.linspace(-3, 3, 300, dtype=np.float32), (2, 1)), axis=1)
    [eqn] = jax.make_jaxpr(lambda x: search(x, 3, aggregate_to_topk=aggregate))(x).eqns
    assert_agrees(lax.approx_top_k_p, x, **eqn.params)


def test_unknown_length():
    def fn(x, y):
        return definitions.sort(x, y, dimension=1, num_keys=2, is_stable=True)

    dims = export.symbolic_shape("a, b")
    exported = export.export(jax.jit(fn))(*(jax.ShapeDtypeStruct(dims, t) for t in (np.float32, np.float64)))
    for n in (1, 2, 7):
        x, y = np.random.default_rng(n).integers(0, 3, (2, 3, n))
        args = (x.astype(np.float32), y.astype(np.float64))
        for a, e in zip(exported.call(*args), lax.sort(args, dimension=1, num_keys=2), strict=True):
            assert_close(a, e)


@pytest.mark.parametrize("primitive", [lax.lt_to_p, lax.le_to_p, lax.eq_to_p])
def test_comparisons_in_sorting_order(primitive):
    x, y = np.array(np.meshgrid(HARD[:5], HARD[:5])).reshape(2, -1)
    assert_agrees(primitive, x, y)
    assert_agrees(primitive, np.array([1, 2, 3]), np.array([3, 2, 1]))


@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fnuz, jnp.float8_e4m3fn])
def test_the_only_nan_comes_first_if_its_sign_bit_is_set(dtype):
    x = np.array([1, np.nan, -3, 0, 5, np.nan, -1, -240]).astype(dtype)
    check(lambda x: (jnp.sort(x), jnp.argsort(x), jnp.argsort(x, descending=True), lax.top_k(x, 5)), x)
    check(lambda x: jnp.searchsorted(jnp.sort(x), x), x)
    for primitive in (lax.lt_to_p, lax.le_to_p, lax.eq_to_p):
        check(lambda x, y, p=primitive: p.bind(x, y), *np.array(np.meshgrid(x, x)).reshape(2, -1))


def test_keys_are_those_that_the_runtime_orders_properly():
    """Also when 64-bit types are off."""
    allowed = {"int32", "int64", "float32", "float64"}
    with jax.enable_x64(False):
        for dtype in [*FLOATS, *INTEGERS]:
            x = jax.ShapeDtypeStruct((4,), jax.dtypes.canonicalize_dtype(dtype))
            jaxpr = jax.make_jaxpr(lambda x: definitions.top_k(x, k=2, axis=0))(x)
            branches = [b for eqn in jaxpr.eqns for b in eqn.params.get("branches", ())]
            sorts = [e for j in [jaxpr, *branches] for e in j.eqns if e.primitive is definitions.ordered_p]
            assert sorts and {eqn.invars[0].aval.dtype.name for eqn in sorts} <= allowed
            assert [v.aval.dtype for v in jaxpr.jaxpr.outvars] == [x.dtype, np.int32]


def test_single_integer_operand_is_one_operation():
    jaxpr = jax.make_jaxpr(lambda x: definitions.sort(x, dimension=0, num_keys=1))(np.arange(4))
    assert [eqn.primitive for eqn in jaxpr.eqns] == [definitions.ordered_p]
