"""Transposes around matrix products."""

import itertools

import jax
import numpy as np
import onnx
import pytest
from jax import lax
from jax import numpy as jnp

from jax2onnx import to_onnx
from jax2onnx.optimize.engine import GENERATIONS, Rewriter, RuleSet
from tests.helpers import check, quick

X, Y = (np.random.default_rng(i).standard_normal((3, 3, 3)).astype(np.float32) for i in (0, 1))
SWAP = (0, 2, 1)
ORDERS = list(itertools.product([None, SWAP, (1, 0, 2)], itertools.permutations(range(3))))


def transposes(model):
    return sum(node.op_type == "Transpose" for node in model.graph.node)


def turned(x, y, left, outer):
    return ((x if left is None else x.transpose(left)) @ y.transpose(SWAP)).transpose(outer)


def test_a_transposed_product_of_transposed_operands():
    """No more transposes than are written, and the rules come to rest (a test in which they do not fails)."""
    model = check(lambda x, y: [turned(x + i, y - i, *o) for i, o in enumerate(ORDERS)], X, Y, rtol=1e-4, atol=1e-4)
    written = [1 + (left is not None) + (outer != (0, 1, 2)) for left, outer in ORDERS]
    needless = [left == SWAP and outer != (0, 1, 2) for left, outer in ORDERS]
    assert transposes(model) <= sum(written) - sum(needless)
    assert transposes(check(lambda x, y: turned(x, y, SWAP, SWAP), X, Y, rtol=1e-5, atol=1e-5)) == 0


@pytest.mark.parametrize("sizes", [(4, 4, 4), (3, 4, 4), (3, 4, 7), (3, 7, 4)])
def test_of_two_unknown_matrices_none_turns_the_other(sizes):
    k, m, n = sizes
    a, b = np.resize(X, (k, m)), np.resize(Y, (k, n))
    assert transposes(check(lambda a, b: (a.T @ b).T, a, b, rtol=1e-5)) == 1
    assert transposes(check(lambda a, b: (a.T @ b).T + a.T.sum(), a, b, rtol=1e-5)) <= 2
    assert transposes(check(jax.grad(lambda w: jnp.sum((a @ w) ** 2)), np.resize(Y, (m, m)), rtol=1e-5)) == 0


def test_rules_that_undo_each_other_are_stopped(caplog):
    """By a warning, and soon: the size of the rest of the graph does not matter."""
    rules = RuleSet()
    rules.rewrites("Add")(lambda r, node: r.op("Sub", *node.inputs, like=node.outputs[0]))
    rules.rewrites("Sub")(lambda r, node: r.op("Add", *node.inputs, like=node.outputs[0]))
    model = to_onnx(lambda x, y: x + y, [(3,), (3,)], return_mode="ir")
    counts = Rewriter(model, [rules]).run()
    assert sum(counts.values()) <= 2 * GENERATIONS
    assert "does not come to rest" in caplog.text
    caplog.clear()


IMAGE, KERNEL = (
    np.random.default_rng(i).standard_normal(s).astype(np.float32) for i, s in ((2, (2, 10, 12, 9)), (3, (3, 3, 9, 9)))
)
SIZES = dict(zip("bhwc", IMAGE.shape, strict=True))
MATRICES = {a: np.random.default_rng(ord(a)).standard_normal((SIZES[a], 11)).astype(np.float32) for a in "bhwc"}


@pytest.mark.parametrize("axis", quick("bw", "bhwc"))
@pytest.mark.parametrize("is_known", [True, False])
def test_a_matrix_times_any_axis(axis, is_known):
    """Where the axis stays in its place, nothing is transposed, wherever that is."""
    w = MATRICES[axis]
    orders = ["".join(order) for order in itertools.permutations("bhwc".replace(axis, "z"))]

    def fn(x, w, orders):
        return [jnp.einsum(f"bhwc,{axis}z->{order}", x, w) for order in orders]

    if is_known:
        assert transposes(check(lambda x: fn(x, w, orders[:1]), IMAGE, rtol=1e-5, atol=1e-5)) == 0
        check(lambda x: fn(x, w, orders), IMAGE, rtol=1e-5, atol=1e-5)
    else:
        model = check(lambda x, w: fn(x, w, orders[:1]), IMAGE, w, rtol=1e-5, atol=1e-5)
        assert transposes(model) <= 1  # of the matrix
        check(lambda x, w: fn(x, w, orders), IMAGE, w, rtol=1e-5, atol=1e-5)


def test_a_matrix_times_an_axis_of_unknown_size():
    for spec in ("bhwc,hz->bzwc", "bhwc,wz->bhzc", "bhwc,cz->bhwz"):
        fn = lambda x: jnp.einsum(spec, x, MATRICES[spec[5]])  # noqa: B023, E731
        for dims in (("B", 10, 12, 9), (2, 10, 12, "C"), ("B", "H", 12, "C")):
            if isinstance(dims["bhwc".index(spec[5])], int):
                check(fn, IMAGE, dims=[dims], rtol=1e-5, atol=1e-5)


def convolved(x):
    return lax.conv_general_dilated(x, KERNEL, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


@pytest.mark.parametrize("method", ["bilinear", "cubic", "lanczos3"])
def test_images_are_resized_in_the_layout_they_have(method):
    def resized(x):
        return jax.image.resize(x, (2, 20, 24, 9), method)

    assert transposes(check(resized, IMAGE, rtol=1e-5, atol=1e-5)) == 0
    model = check(lambda x: jax.nn.relu(convolved(resized(jax.nn.relu(convolved(x))))), IMAGE, rtol=1e-4, atol=1e-4)
    assert transposes(model) == 2  # of the input and of the output


def test_layers_along_another_axis():
    """As in mixers: transposed, two layers, transposed back."""
    w1, w2 = MATRICES["w"], np.random.default_rng(4).standard_normal((11, 12)).astype(np.float32)
    bias = np.arange(11, dtype=np.float32)

    def fn(x):
        hidden = jax.nn.gelu(x.transpose(0, 2, 1) @ w1 + bias)
        return x + (hidden @ w2 + np.float32(0.5)).transpose(0, 2, 1)

    model = check(fn, IMAGE[0], rtol=1e-4, atol=1e-4)
    assert transposes(model) == 0


@pytest.mark.parametrize("formula", ["abc,cde->abde", "abc,dec->abde"])
def test_weights_in_half_precision_are_rearranged_as_they_are_stored(formula):
    shape = (64, 4, 32) if formula[4] == "c" else (4, 32, 64)
    weights = jnp.asarray(np.random.default_rng(0).standard_normal(shape), jnp.bfloat16)
    x = np.random.default_rng(1).standard_normal((2, 3, 64)).astype(np.float32)
    model = check(lambda x: jnp.einsum(formula, x, weights.astype(np.float32)), x, rtol=1e-4, atol=1e-5)
    assert [node.op_type for node in model.graph.node] == ["Cast", "MatMul", "Reshape"]
    assert [i.data_type for i in model.graph.initializer if len(i.dims) == 2] == [onnx.TensorProto.BFLOAT16]


@pytest.mark.parametrize("batch", [1, 2])
def test_an_image_of_one_pixel_grows_by_expanding(batch):
    """As the mean of an image that is resized to it again, which in JAX is a product with ones."""

    def fn(x):
        y = lax.conv_general_dilated(x, KERNEL, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        mean = jax.image.resize(y.mean((1, 2), keepdims=True), y.shape, "bilinear")
        z = jnp.concatenate([y, mean], -1)
        return lax.conv_general_dilated(z, WIDE, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    model = check(fn, IMAGE[:batch], rtol=1e-4, atol=1e-3)
    operators = [node.op_type for node in model.graph.node]
    assert operators == ["Transpose", "Conv", "ReduceMean", "Expand", "Concat", "Conv", "Transpose"]


WIDE = np.concatenate([KERNEL, KERNEL], 2)


@pytest.mark.parametrize("dims", [None, [("B", "T", 4), ("B", "T", 5), None]])
def test_gradients_of_weights_turn_matrices(dims):
    """Rows in several axes are joined first: what is turned then is a matrix, and only one of both."""

    def fn(x, ct, w):
        return jax.vjp(lambda x, w: x @ w, x, w)[1](ct)[1], jnp.einsum("btd,bte->ed", x, ct)

    x, ct, w = (
        np.ones((2, 3, 4), np.float32),
        np.arange(30, dtype=np.float32).reshape(2, 3, 5),
        np.ones((4, 5), np.float32),
    )
    x[1, 2, 3] = np.nan
    model = check(fn, x, ct, w, dims=dims, rtol=1e-5, atol=1e-5)
    assert transposes(model) <= 2
    turned = [node.output[0] for node in model.graph.node if node.op_type == "Transpose"]
    assert all(len(v.type.tensor_type.shape.dim) == 2 for v in model.graph.value_info if v.name in turned)
    check(fn, x[:0], ct[:0], w, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("order", [(1, 2, 0), (2, 0, 1), (2, 1, 0), (1, 0, 2), (0, 2, 1)])
@pytest.mark.parametrize("shape", [(6, 20), (24, 5), (20, 6), (5, 24), (4, 30)])
def test_products_of_moved_and_joined_axes(order, shape):
    x, w = (
        np.random.default_rng(i).standard_normal(s).astype(np.float32) for i, s in enumerate([(4, 5, 6), shape[::-1]])
    )
    check(lambda x, w: x.transpose(order).reshape(shape) @ w, x, w, rtol=1e-5, atol=1e-5)
    check(lambda x, w: w @ x.transpose(order).reshape(shape), x, w, rtol=1e-5, atol=1e-5)
