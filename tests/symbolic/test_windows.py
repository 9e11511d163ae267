"""Convolution, pooling and resizing where height, width, time or batch are symbolic."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

from tests.symbolic.sizes import check_at_sizes, floats

IMAGE = "f32[B,H,W,3]"
NHWC = ("NHWC", "HWIO", "NHWC")
K3 = floats(3, 3, 3, 4)
SMALL = [{"B": 1, "H": 3, "W": 5}, {"B": 2, "H": 4, "W": 3}, {"B": 3, "H": 7, "W": 6}, {"B": 5, "H": 6, "W": 8}]


@pytest.mark.parametrize(
    ("strides", "padding", "dilation"),
    [((1, 1), "SAME", (1, 1)), ((2, 2), "SAME", (1, 1)), ((3, 2), "SAME_LOWER", (1, 2)), ((2, 1), "VALID", (1, 1))],
)
def test_convolution(strides, padding, dilation):
    def f(x):
        return lax.conv_general_dilated(x, K3, strides, padding, rhs_dilation=dilation, dimension_numbers=NHWC)

    large_enough = {"constraints": ["H >= 3", "W >= 3"], "sizes": SMALL} if padding == "VALID" else {"empty": "B"}
    check_at_sizes(f, IMAGE, **large_enough, rtol=1e-5, atol=1e-5)


def test_same_padding_with_strides_takes_no_arithmetic():
    wide, narrow = floats(3, 2, 3, 4), floats(1, 1, 3, 4)

    def f(x):
        conv = lambda kernel, *args: lax.conv_general_dilated(x, kernel, *args, dimension_numbers=NHWC)  # noqa: E731
        window = (1, 3, 2, 1), (1, 2, 2, 1)
        return (
            conv(wide, (2, 2), "SAME"),
            conv(wide, (3, 1), "SAME_LOWER"),
            conv(narrow, (2, 3), "SAME"),
            lax.reduce_window(x, -jnp.inf, lax.max, *window, "SAME"),
            lax.reduce_window(x, 0.0, lax.add, *window, "SAME_LOWER"),
        )

    model = check_at_sizes(f, IMAGE, empty="B", rtol=1e-5, atol=1e-5)
    operators = {node.op_type for node in model.graph.node}
    assert operators == {"Conv", "MaxPool", "AveragePool", "Mul", "Transpose"}
    # A window that is smaller than its stride, and one that is dilated, are padded by what is computed.
    conv = lambda *args: lax.conv_general_dilated(*args, dimension_numbers=NHWC)  # noqa: E731
    check_at_sizes(
        lambda x: (conv(x, wide, (1, 3), "SAME"), conv(x, wide, (2, 2), "SAME", None, (1, 2))), IMAGE, empty="B",
        rtol=1e-5, atol=1e-5,
    )  # fmt: skip
    double = "f64[B,H,W,3]"
    check_at_sizes(lambda x: (conv(x, wide.astype(x.dtype), (2, 2), "SAME"), nnx.max_pool(x, (3, 3), (2, 2), "SAME"),
                              nnx.avg_pool(x, (3, 3), (2, 2), "SAME")), double, empty="B")  # fmt: skip


def test_convolutions_with_explicit_padding():
    def f(x):
        conv = lambda *args, **kw: lax.conv_general_dilated(x, K3, *args, dimension_numbers=NHWC, **kw)  # noqa: E731
        return (
            conv((1, 1), [(1, 2), (2, 2)]),
            conv((2, 2), [(1, 1), (1, 1)], lhs_dilation=(2, 3)),
            conv((1, 1), [(4, -1), (3, 0)]),
        )

    check_at_sizes(f, IMAGE, empty="B", rtol=1e-5, atol=1e-5)


def test_grouped_and_one_dimensional_convolutions():
    depthwise, causal = floats(3, 3, 1, 6), floats(4, 3, 5)

    def f(x):
        t = lax.conv_general_dilated(x[:, 0], causal, (1,), [(3, 0)], dimension_numbers=("NWC", "WIO", "NWC"))
        d = lax.conv_general_dilated(x, depthwise, (1, 1), "SAME", feature_group_count=3, dimension_numbers=NHWC)
        return t, d

    check_at_sizes(f, IMAGE, constraints=["W >= 3"], sizes=SMALL, rtol=1e-5, atol=1e-5)


def test_convolutions_of_each_image_with_its_own_kernel():
    """So are the gradients of a kernel for each image; of a depthwise one, groups of the batch are mapped over."""

    def f(x, kernels):
        conv = lambda x, k, **kw: lax.conv_general_dilated(x, k, (1, 2), "SAME", dimension_numbers=NHWC, **kw)  # noqa: E731
        own = jax.vmap(lambda x, k: conv(x[None], k))(x, kernels)
        loss = lambda k, x: jnp.sum(jnp.sin(conv(x[None], k, feature_group_count=3)))  # noqa: E731
        each = jax.vmap(jax.grad(loss), (None, 0))(floats(2, 3, 1, 6), x)
        signals = jax.vmap(jax.vmap(jnp.convolve))(x[:, :2, :, 0], kernels[:, :, 0, 0])
        return own, each, signals

    check_at_sizes(f, "f32[B,4,5,3]", "f32[B,2,3,3,4]", sizes=[{"B": 3}, {"B": 1}], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("padding", ["SAME", "VALID", [(2, 3), (1, 2)]])
def test_transposed_convolution(padding):
    def f(x):
        return lax.conv_transpose(x, K3, (2, 2), padding), lax.conv_transpose(
            x, K3, (1, 3), padding, rhs_dilation=(2, 1)
        )

    check_at_sizes(f, IMAGE, empty="", sizes=[*SMALL, {"B": 2, "H": 1, "W": 2}], rtol=1e-5, atol=1e-5)


def test_pooling():
    def f(x):
        return (
            nnx.max_pool(x, (2, 2), (2, 2)),
            nnx.avg_pool(x, (2, 2), (1, 2)),
            nnx.max_pool(x, (3, 3), (2, 2), "SAME"),
            nnx.avg_pool(x, (3, 2), (2, 1), "SAME"),
            nnx.avg_pool(x, (2, 3), (2, 2), "SAME", count_include_pad=False),
            nnx.min_pool(x, (2, 2), (2, 2), [(1, 1), (0, 1)]),
        )

    check_at_sizes(f, IMAGE, constraints=["H >= 2", "W >= 2"], sizes=[*SMALL, {"B": 2, "H": 2, "W": 3}], atol=1e-6)


def test_windows_with_any_computation():
    def f(x):
        return (
            lax.reduce_window(x, 1.0, lax.mul, (2, 2), (1, 2), "SAME"),
            lax.reduce_window(x, 0.0, lax.add, (3, 2), (2, 1), "SAME_LOWER"),
            lax.reduce_window(x.astype(jnp.int32), 0, lax.add, (2, 3), (1, 1), [(1, 0), (1, 1)]),
            lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 1), "SAME", window_dilation=(1, 2)),
            lax.reduce_window(x, 0.5, lambda a, b: a * b + a + b, (2, 1), (2, 1), "SAME"),
        )

    check_at_sizes(f, "f32[A,B]", empty="", rtol=1e-5)


def test_gradients_of_windows():
    def f(x):
        loss = lambda x: (  # noqa: E731
            jnp.sin(nnx.max_pool(x, (2, 2), (2, 2), "SAME")).sum()
            + jnp.cos(nnx.avg_pool(x, (3, 3), (2, 2), "SAME")).sum()
            + jnp.sin(lax.conv_general_dilated(x, K3, (1, 1), [(1, 1), (1, 1)], dimension_numbers=NHWC)).sum()
        )
        return jax.grad(loss)(x)

    check_at_sizes(f, IMAGE, empty="", rtol=1e-4, atol=1e-4)


def test_resizing():
    def f(x):
        b, h, w, c = x.shape
        return (
            jax.image.resize(x, (b, 2 * h, 2 * w, c), "nearest"),
            jax.image.resize(x, (b, 6, 4, c), "nearest"),
        )

    check_at_sizes(f, IMAGE, empty="B", rtol=1e-5, atol=1e-5)


def test_resizing_with_interpolation():
    def f(x):
        b, h, w, c = x.shape
        return jax.image.resize(x, (b, 2 * h, 7, c), "linear"), jax.image.resize(x, (b, h, 3 * w, c), "cubic")

    check_at_sizes(f, IMAGE, empty="", rtol=2e-5, atol=2e-5)


def test_upsampling_by_repetition():
    def f(x):
        return jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2), jnp.kron(x[0, :, :, 0], jnp.ones((2, 2)))

    check_at_sizes(f, IMAGE, empty="")


def test_patches():
    def f(x):
        b, h, w, c = x.shape
        patches = x.reshape(b, h // 2, 2, w // 2, 2, c).transpose(0, 1, 3, 2, 4, 5)
        return patches.reshape(b, (h // 2) * (w // 2), 4 * c)

    check_at_sizes(f, "f32[B,2*H,2*W,3]")


def test_kernel_of_symbolic_size():
    def f(x, kernel):
        return lax.conv_general_dilated(x, kernel, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"))

    check_at_sizes(f, "f32[B,8,2]", "f32[K,2,O]", empty="", rtol=1e-5, atol=1e-5)
    check_at_sizes(f, "f64[B,8,2]", "f64[3,2,O]", empty="")


def test_windows_over_whole_axes():
    def f(x):
        window, once = (1, *x.shape[1:3], 1), (1, 1, 1, 1)
        return (
            lax.reduce_window(x, 0.0, lax.add, window, once, "VALID") / (x.shape[1] * x.shape[2]),
            lax.reduce_window(
                x, -jnp.inf, lax.max, (1, x.shape[1], 2, 1), (1, x.shape[1], 1, 1), [(0, 0), (0, 0), (1, 0), (0, 0)]
            ),
            lax.reduce_window(x, 3.0, lax.mul, window, window, "VALID"),
            lax.reduce_window(x.astype(jnp.int32), 1, lax.min, window, once, "VALID"),
        )

    model = check_at_sizes(f, "f32[B,H,W,3]", empty="B")
    assert {"ReduceSum", "ReduceProd", "ReduceMin"} <= {node.op_type for node in model.graph.node}


def test_windows_of_any_symbolic_size():
    def f(x, k):
        size, rows = k.shape[0], x.shape[0]
        return (
            lax.reduce_window(x, 0.0, lax.add, (1, size), (1, 1), "VALID"),
            lax.reduce_window(x, -jnp.inf, lax.max, (rows, size), (rows, 2), [(0, 0), (1, 2)]),
            lax.reduce_window(x, 1.0, lax.mul, (1, 2), (1, size), "SAME", window_dilation=(1, size)),
            lax.reduce_window(x, 0.5, lambda a, b: a * b + a + b, (2, size), (1, 3), [(1, 0), (0, 1)]),
        )

    sizes = [{"B": 1, "N": 9, "K": 1}, {"B": 2, "N": 7, "K": 6}, {"B": 3, "N": 10, "K": 3}, {"B": 4, "N": 5, "K": 5}]
    check_at_sizes(f, "f32[B,N]", "f32[K]", constraints=["N >= K"], sizes=sizes, rtol=1e-5)


def test_gradients_of_windows_over_whole_axes():
    def energy(x):
        pooled = nnx.avg_pool(x, x.shape[1:3]), nnx.max_pool(x, x.shape[1:3])
        return sum(jnp.sum(p**2) for p in pooled)

    f = jax.grad(energy)
    check_at_sizes(lambda x: (f(x), jax.jvp(energy, (x,), (x + 1,))[1]), IMAGE, empty="B", rtol=1e-5, atol=1e-6)


def test_what_windows_of_symbolic_size_select():
    def f(x):
        pooled, back = jax.vjp(lambda x: nnx.max_pool(x, x.shape[1:3]), x)
        return back(jnp.cos(jnp.arange(pooled.size, dtype=jnp.float32)).reshape(pooled.shape))

    some = np.array([-np.inf, -np.inf, np.nan, 0, -0.0, 1, 1, np.inf], np.float32)
    hurting = np.random.default_rng(0).choice(some, 10_000)
    args = lambda arrays: [hurting[: x.size].reshape(x.shape) for x in arrays]  # noqa: E731
    check_at_sizes(f, IMAGE, empty="B", args=args, rtol=1e-5, atol=1e-6)
