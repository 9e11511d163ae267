"""What is known while exporting is evaluated, to the same numbers, also in 64-bit types that the program has not."""

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from jax import lax

from jax2onnx import compat, to_onnx
from jax2onnx.lower import fold
from tests.helpers import check

FLOATS = np.float32([1.5, -0.0, np.nan, -3.25, 1e-30, 3e38])
INTS = np.int32([7, 2**30, -(2**31), 2**31 - 1, -1, 0])


def test_known_operands_of_definitions_in_64_bits():
    def fn(x):
        floats, ints = jnp.asarray(FLOATS), jnp.asarray(INTS)
        return lax.mulhi(ints, jnp.int32(2**30)), lax.top_k(floats, 4), lax.bitcast_convert_type(floats, np.uint32), x

    check(fn, np.float32(1), x64=False)


def test_known_operands_of_what_numpy_computes():
    def fn(x):
        a, b = jnp.asarray(FLOATS), jnp.asarray(FLOATS[::-1].copy())
        m, mask, small = jnp.arange(6).reshape(2, 3), a > b, a.astype(jnp.bfloat16)
        moved = lax.reshape(m, (3, 2), (1, 0)), m.T, lax.squeeze(m[None], (0,)), lax.concatenate([m, m * 2], 1)
        moved += (lax.broadcast_in_dim(m, (3, 4, 2), (2, 0)),)
        chosen = lax.select_n(mask, a, b), lax.select_n(m[0], b[:3], a[:3], -a[3:]), lax.select_n(mask[0], a, b)
        pairs = [f(a, b) for f in (lax.max, lax.min, lax.add, lax.mul, lax.eq, lax.lt, lax.div)]
        return moved, chosen, pairs, [~mask, -a, small * small, lax.max(small, -small), lax.abs(a), lax.square(a)], x

    check(fn, np.float32(1))


def test_what_numpy_computes_of_known_operands_is_what_jax_computes(monkeypatch):
    monkeypatch.setattr(compat.evaluation, "evaluate_equation", None)  # which compiles it
    numbers = np.float32([-0.0, 1 + 2**-11, 1 + 3 * 2**-11, 65519.996, 65520, -np.inf, 3e38, 3e-8, 2.0**-25, 1e-40])

    def fn(x):
        a, zeros = jnp.asarray(FLOATS), jnp.float32([0.0, -0.0, -0.0])
        ints, bytes_ = jnp.asarray(INTS), jnp.uint8([0, 255, 7])
        m = jnp.arange(24).reshape(2, 3, 4)
        parts = lax.slice(m, (0, 1, 0), (2, 3, 4), (1, 1, 2)), lax.split(m, (1, 3), 2), lax.rev(m, (0, 2)), a[1:4]
        signs = lax.abs(ints), lax.sign(ints), lax.sign(bytes_)
        within = lax.clamp(jnp.float32(-2), a, jnp.float32(2)), lax.clamp(jnp.int32(-7), ints, jnp.int32(7))
        rounded = lax.floor(a), lax.ceil(a)
        extremes = [f(zeros, zeros[::-1]) for f in (lax.max, lax.min)]
        of_zeros = 1 / extremes[0], 1 / extremes[1], 1 / lax.clamp(zeros[::-1], zeros, zeros + 1)
        whole = jnp.float32([-2.75, 2147483520.0, -0.0]).astype(jnp.int32)
        divisors = jnp.int32([2, -3, -1, 7, -2, 5])
        divided = lax.div(ints, divisors), lax.rem(ints, divisors), lax.div(bytes_, bytes_ | 2), ints // 7, ints % -5
        bits = ints.astype(jnp.uint32), jnp.uint32([0, 1, 31, 32, 33, 99])
        shifted = [f(*bits) for f in (lax.shift_left, lax.shift_right_logical)], lax.shift_right_logical(ints, divisors)
        casts = [lax.bitcast_convert_type(a, jnp.int32), lax.bitcast_convert_type(bytes_, jnp.int8)]
        reduced = [f(m % 5 > 0, (1,)) for f in (lax.reduce_or, lax.reduce_and)], lax.reduce_or(m, (0, 2)), m.sum(2)
        halves = [jnp.asarray(numbers).astype(t) for t in (jnp.float16, jnp.bfloat16)]
        found = shifted, casts, reduced, halves, [half.astype(jnp.float32) for half in halves]
        return found, parts, signs, within, rounded, extremes, of_zeros, whole, divided, lax.is_finite(a), x

    check(fn, np.float32(1))


def powers(x: np.ndarray) -> jax.Array:
    """With other last digits in what NumPy computes of whole arrays; no numbers that XLA may take for zeros."""
    tiny = np.finfo(np.float32).tiny
    x = np.where(np.abs(x) < 10 * tiny, np.copysign(np.float32(0), x), x)
    y = lax.pow(np.concatenate([x, -x, x[::-1]]), np.concatenate([x[::-1], np.round(x), x * 0.1]))
    return jnp.where(jnp.abs(y) < tiny, 0, y)


def whole_powers(x: np.ndarray) -> jax.Array:
    return lax.pow(*np.meshgrid(np.float32([0.9, 0.999, -1.1, 0, np.inf, np.nan]), np.int32([0, 1, 2, 9, -3])))


@pytest.mark.parametrize("fn", [lax.exp, lax.log, lax.sin, lax.cos, lax.tanh, powers, whole_powers])
def test_functions_of_known_numbers_are_to_the_bit_what_jit_makes_of_them(fn, monkeypatch):
    numbers = np.random.default_rng(0).normal(size=500) * 10.0 ** np.arange(-25, 25).repeat(10)
    hurting = [0.0, -0.0, np.inf, -np.inf, np.nan, 88.7, 88.8, -87.4, -103.9, -104.1, 1e30, 3.4e38, -3.4e38]
    x = np.concatenate([np.linspace(-20, 20, 500), numbers, hurting]).astype(np.float32)
    want = np.asarray(jax.jit(lambda: fn(x))())
    monkeypatch.setattr(compat.evaluation, "evaluate_equation", None)  # which compiles it
    model = to_onnx(lambda y: y + fn(x), [want.shape])
    (got,) = [onnx.numpy_helper.to_array(t) for t in model.graph.initializer]
    np.testing.assert_array_equal(got, want)
    assert np.array_equal(np.signbit(got) | np.isnan(got), np.signbit(want) | np.isnan(want))


def scattered() -> list[jax.Array]:
    x, at = jnp.float32([[1, -0.0, 3e37], [np.nan, 5, -np.inf]]), np.int32([[2], [0], [2], [7], [-1]])
    u = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    found = []
    for mode in ("clip", "drop"):
        found += [x.at[:, at[:, 0]].add(u.T, mode=mode), x.at[[1, 1, 0], 1].add(np.float32([1e37, 2, 3]), mode=mode)]
        found += [jnp.arange(6).at[at[:, 0]].add(at[:, 0], mode=mode), x.at[1].add(u[:3, 0], mode=mode)]
        windows = lax.ScatterDimensionNumbers((1, 2), (), (1,))
        found.append(lax.scatter_add(x, at, np.stack([u, -u], 2), windows, mode=mode))
        batched = lax.ScatterDimensionNumbers((), (1,), (1,), (0,), (0,))
        found.append(lax.scatter_add(x, at[1:3], u[:2, 0], batched, mode=mode))
    return found


def products_of_zeros() -> list[jax.Array]:
    w = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    return [jnp.zeros((3, 4)) @ w, w @ -jnp.zeros(4), lax.dot(-jnp.ones((3, 2)), np.float32([[-0.0, -0.0]] * 2))]


@pytest.mark.parametrize("fn", [scattered, products_of_zeros])
def test_what_is_compiled_for_long_is_computed_without(fn, monkeypatch):
    monkeypatch.setattr(compat.evaluation, "evaluate_equation", None)  # which compiles it
    check(lambda y: ([(x, 1 / x) for x in fn()], y), np.float32(1), rtol=0, atol=0)


def test_zeros_whose_sign_depends_on_how_they_are_added_up():
    minus = -np.ones((2, 3), np.float32)
    check(lambda x: (x * 0, 1 / (jnp.zeros((1, 2)) @ minus), 1 / (jnp.zeros((4, 2)) @ minus)), np.float32(1))
    check(lambda x: (x * 0, jnp.zeros((1, 2)) @ (minus * np.inf)), np.float32(1))


def test_logarithms_of_known_numbers_too_small_to_be_normal():
    """`jax.jit` knows them, unlike what it compiles."""
    tiny = np.float32([1, 1e-40, 1e-45])
    check(lambda x: x * lax.log(tiny), np.ones(3, np.float32), rtol=0, atol=0)


def test_known_operands_that_only_jax_computes():
    """Numbers that XLA may take for zeros, a division by zero, and numbers in other types."""
    tiny, zeros, half = np.float32([1, 1e-40]), np.int32([3, 0]), np.float16([1, 2])
    assert fold.numpy_rule(lax.pow_p, [np.float32([2, 3]), tiny]) is None
    assert fold.numpy_rule(lax.div_p, [zeros, zeros]) is None
    assert fold.numpy_rule(lax.rem_p, [zeros, zeros]) is None
    assert fold.numpy_rule(lax.exp_p, [half]) is None
    check(lambda x: x + lax.exp(jnp.asarray(half)), half)


def test_a_choice_of_more_than_numpy_knows():
    cases = [np.full(3, i, np.int32) for i in range(70)]
    check(lambda x: x + lax.select_n(np.int32([69, 0, 40]), *cases) + lax.select_n(np.int32(65), *cases), np.int32(1))


def test_known_indices_are_evaluated_whatever_their_size():
    index = np.arange(9000).reshape(90, 100) * 7 % 40 - 20  # more than is evaluated if the result may be larger

    def fn(x, table):
        quantized = jnp.asarray(np.tile(index, 3).astype(np.int8))
        return x[jnp.asarray(index) + 1], (quantized + 1).astype(np.float32) * table

    model = check(fn, np.arange(21, dtype=np.float32), np.float32(2))
    operators = [node.op_type for node in model.graph.node]
    assert operators.count("Add") == 1  # of weights
    assert not {"Where", "Clip", "Less"} & set(operators)


KNOWN = np.random.default_rng(3).normal(size=(12, 4)).astype(np.float32)


@pytest.mark.parametrize(
    "factor",
    [
        lambda: jnp.linalg.svd(KNOWN, full_matrices=False)[0],
        lambda: jnp.linalg.eigh(KNOWN.T @ KNOWN)[1],
        lambda: jnp.linalg.pinv(KNOWN),
        lambda: jax.scipy.linalg.schur(KNOWN[:4])[0],
        lambda: jax.scipy.special.gammainc(jnp.abs(KNOWN), 2.0),
        lambda: jax.lax.cond(KNOWN[0, 0] > 0, jnp.linalg.pinv, lambda x: x.T, KNOWN),
    ],
)
def test_what_is_decomposed_into_loops_is_evaluated_as_a_whole(factor):
    """The signs of vectors are those of JAX, then."""
    model = check(lambda x: x + factor().sum(0), np.float32([[1.0], [2.0]]))
    assert [n.op_type for n in model.graph.node] == ["Add"]


def test_what_is_decomposed_into_loops_in_other_types_is_evaluated_there():
    check(lambda x: x * jnp.linalg.eigvals(KNOWN[:4]).sum().real, np.float32([1.0, 2.0]), rtol=1e-4)
