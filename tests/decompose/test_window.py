"""Windows of every kind: strides, dilations, padding, computations, unknown sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from jax2onnx.decompose import window
from tests.decompose.agreement import assert_agrees, assert_close
from tests.helpers import check

pytestmark = pytest.mark.usefixtures("x64")

ONES = ((1, 1), (1, 1))
# (sizes, strides, padding, base dilation, window dilation) over an array of shape (7, 9)
KINDS = [
    ((2, 3), (1, 1), ((0, 0), (0, 0)), *ONES),
    ((3, 4), (2, 3), ((1, 2), (2, 1)), *ONES),
    ((1, 9), (1, 1), ((0, 0), (8, 0)), *ONES),
    ((2, 2), (2, 1), ((0, 1), (3, 0)), (2, 3), (1, 2)),
    ((3, 2), (1, 2), ((-1, 2), (-2, 1)), (1, 2), (3, 1)),
    ((8, 1), (1, 1), ((0, 0), (0, 0)), *ONES),
    ((1, 1), (3, 2), ((0, 0), (0, 0)), *ONES),
]


def params(sizes, strides, padding, base_dilation, window_dilation) -> dict:
    return {
        "window_dimensions": sizes,
        "window_strides": strides,
        "padding": padding,
        "base_dilation": base_dilation,
        "window_dilation": window_dilation,
    }


def composition(f, g):
    """Of affine maps (factor, offset): associative, not commutative."""
    return (g[0] * f[0], g[0] * f[1] + g[1])


@pytest.mark.parametrize("kind", KINDS)
def test_windows(kind):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(7, 9)).astype(np.float32)
    x[rng.random(x.shape) < 0.05] = np.nan
    assert_agrees(lax.reduce_window_max_p, x, **params(*kind))
    if kind in (KINDS[1], KINDS[3]):
        assert_agrees(lax.reduce_window_min_p, rng.integers(-99, 99, (7, 9), np.int8), **params(*kind))
        assert_agrees(lax.reduce_window_sum_p, rng.integers(-99, 99, (7, 9), np.int16), **params(*kind))


def general(operands, inits, computation, kind):
    def fn(operands, inits):
        return lax.reduce_window(operands, inits, computation, *kind)

    jaxpr = jax.make_jaxpr(fn)(operands, inits)
    [eqn] = [eqn for eqn in jaxpr.eqns if eqn.primitive is lax.reduce_window_p]
    flat = [*jax.tree.leaves(operands), *jax.tree.leaves(inits)]
    assert_agrees(lax.reduce_window_p, *flat, **eqn.params, rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_any_computation(kind):
    """The order is kept, padding is skipped and the initial value is counted once."""
    rng = np.random.default_rng(1)
    operands = tuple(rng.integers(1, 4, (2, 7, 9)).astype(np.float64))
    general(operands, (np.float64(2), np.float64(3)), composition, kind)


@pytest.mark.parametrize("computation", [lax.add, lax.mul, lax.max, lax.bitwise_xor, lambda a, b: a + b])
def test_standard_computations_with_any_init(computation):
    x = np.random.default_rng(2).integers(1, 4, (7, 9))
    general(x, np.int64(2), computation, KINDS[3])


@pytest.mark.parametrize(("select", "kind"), [(lax.ge_p, KINDS[1]), (lax.le_p, KINDS[1]), (lax.ge_p, KINDS[2])])
def test_selection(select, kind):
    rng = np.random.default_rng(3)
    operand = rng.integers(0, 5, (7, 9)).astype(np.float32)  # many ties: the first one is selected
    values = rng.normal(size=(7, 9)).astype(np.float32)
    assert_agrees(lax.select_and_gather_add_p, values, operand, select_prim=select, **params(*kind))
    place = {k: v for k, v in params(*kind).items() if "dilation" not in k}
    shape = jax.eval_shape(lambda x: lax.reduce_window_max_p.bind(x, **params(*kind)), operand).shape
    source = rng.normal(size=shape).astype(np.float32)
    assert_agrees(lax.select_and_scatter_add_p, source, operand, select_prim=select, rtol=1e-6, atol=1e-6, **place)


@pytest.mark.parametrize("select", [lax.ge_p, lax.le_p])
@pytest.mark.parametrize("kind", [((5,), (1,), ((0, 0),)), ((5,), (2,), ((2, 2),)), ((3, 2), (1, 2), ((1, 0), (0, 2)))])
def test_selection_goes_on_after_nan(select, kind):
    """Elements are compared one after the other: what follows a NaN is selected over what was before."""
    rng = np.random.default_rng(9)
    operand = rng.choice(np.float32([np.nan, np.nan, -np.inf, np.inf, 0, 1, 2]), (31, 6)[: len(kind[0])])
    sizes = dict(zip(("window_dimensions", "window_strides", "padding"), kind, strict=True))
    ones = (1,) * operand.ndim
    windows = {**sizes, "base_dilation": ones, "window_dilation": ones}
    shape = jax.eval_shape(lambda x: lax.reduce_window_max_p.bind(x, **windows), operand).shape
    source = 2.0 ** rng.integers(0, 9, shape).astype(np.float32)
    assert_agrees(lax.select_and_scatter_add_p, source, operand, select_prim=select, **sizes)
    if operand.ndim == 1:  # XLA's order in more dimensions depends on the sizes
        tangents = np.arange(1, operand.size + 1, dtype=np.float32)
        assert_agrees(lax.select_and_gather_add_p, tangents, operand, select_prim=select, **windows)


def test_selection_of_booleans():
    operand, source = np.random.default_rng(8).random((2, 4, 4)) < 0.5
    place = {"window_dimensions": (2, 2), "window_strides": (1, 1), "padding": ((0, 1), (1, 0))}
    assert_agrees(lax.select_and_scatter_add_p, source, operand, select_prim=lax.ge_p, **place)


def test_dilated_selection():
    rng = np.random.default_rng(4)
    operand, values = rng.normal(size=(2, 7, 9))
    assert_agrees(lax.select_and_gather_add_p, values, operand, select_prim=lax.ge_p, **params(*KINDS[3]))


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (1, 1)])
def test_empty_and_small_arrays(shape):
    for padding in (((0, 0), (0, 0)), ((1, 1), (2, 0))):
        kind = ((2, 2), (1, 2), padding, *ONES)
        assert_agrees(lax.reduce_window_max_p, np.ones(shape, np.float32), **params(*kind))


def test_dtypes_and_ranks():
    x = np.random.default_rng(5).integers(0, 9, (2, 3, 4, 3, 2))
    kind = ((1, 2, 3, 2, 1), (1, 1, 2, 1, 1), ((0, 0), (1, 0), (1, 1), (0, 0), (0, 1)), (1,) * 5, (1,) * 5)
    for dtype in (np.uint8, np.float16, jnp.bfloat16):
        assert_agrees(lax.reduce_window_min_p, jnp.asarray(x).astype(dtype), **params(*kind))
    assert_agrees(lax.reduce_window_sum_p, x.astype(np.complex64), **params(*kind))
    assert_agrees(lax.reduce_window_max_p, np.float32(3), **params((), (), (), (), ()))


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[1], KINDS[3]])
def test_unknown_sizes(kind):
    spec = jax.ShapeDtypeStruct(export.symbolic_shape("a, b"), np.float32)

    def maximum(x):
        return window.fold_windows([x], [-np.inf], lambda a, b: [lax.max(a[0], b[0])], window.Windows(*kind))[0]

    exported = export.export(jax.jit(maximum))(spec)
    for shape in ((7, 9), (5, 12), (2, 2)):
        x = np.random.default_rng(6).normal(size=shape).astype(np.float32)
        assert_close(exported.call(x), lax.reduce_window_max_p.bind(x, **params(*kind)))


def test_unknown_sizes_of_a_selection():
    place = {"window_dimensions": (2, 3), "window_strides": (2, 3), "padding": ((0, 0), (0, 0))}
    arrays = np.zeros((2, 3), np.float32), np.zeros((4, 9), np.float32)
    specs = export.symbolic_args_specs(arrays, ("a, b", "2*a, 3*b"))

    def scatter(source, operand):
        return window.select_and_scatter_add(source, operand, select_prim=lax.ge_p, **place)

    exported = export.export(jax.jit(scatter))(*specs)
    x, s = np.random.default_rng(7).normal(size=(4, 9)).astype(np.float32), np.ones((2, 3), np.float32)
    assert_close(exported.call(s, x), lax.select_and_scatter_add_p.bind(s, x, select_prim=lax.ge_p, **place))


def test_graph_grows_with_the_logarithm():
    x = np.zeros(4096, np.float32)
    kind = params((1000,), (1,), ((0, 0),), (1,), (1,))
    jaxpr = jax.make_jaxpr(lambda x: window._monoid_windows(lax.max_p)(x, **kind))(x)
    assert len(jaxpr.eqns) < 50


@pytest.mark.parametrize("op", [lax.add, lax.max], ids=["sum", "max"])
def test_windows_that_do_not_fit_or_step_over_the_operand(op):
    init = 0.0 if op is lax.add else -np.inf
    x = np.float32([[1], [-2], [3]])
    check(lambda x: lax.reduce_window(x, init, op, (2, 3), (3, 3), [(1, 1), (1, 0)]), x)
    check(lambda x: lax.reduce_window(x, init, op, (1, 2), (1, 1), "SAME", window_dilation=(1, 2)), x)
