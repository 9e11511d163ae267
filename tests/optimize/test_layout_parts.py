"""Channels-last code that splits, joins and shuffles channels between convolutions has no Transposes there either."""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.helpers import check

RNG = np.random.default_rng(0)
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
TRANSITION = np.eye(4, k=1, dtype=np.float32) + np.eye(4, dtype=np.float32)


def array(*shape) -> np.ndarray:
    return (RNG.normal(size=shape) / 4).astype(np.float32)


def conv(x, kernel, **options):
    """A convolution over all axes but the first and the last, which has the channels."""
    space = "DHW"[5 - x.ndim :]
    layout = (f"N{space}C", f"{space}IO", f"N{space}C")
    options = {"window_strides": (1,) * len(space), "padding": "SAME", **options}
    return lax.conv_general_dilated(x, kernel, dimension_numbers=layout, **options)


def kernel(rank: int, inputs: int, outputs: int) -> np.ndarray:
    return array(*(2,) * (rank - 2), inputs, outputs)


def image(rank: int, channels: int) -> np.ndarray:
    return array(2, *range(4, 2 + rank), channels)


def counted(graph) -> Counter[str]:
    """The operators of a graph and of its bodies."""
    counts = Counter(node.op_type for node in graph.node)
    for node in graph.node:
        for attribute in node.attribute:
            counts += counted(attribute.g) if attribute.HasField("g") else Counter()
    return counts


def transposes(fn, x, **options) -> int:
    return counted(check(fn, x, **CLOSE, **options).graph)["Transpose"]


RANKS = pytest.mark.parametrize("rank", [3, 4, 5])


@RANKS
def test_gated_convolutions(rank):
    kernels = [kernel(rank, 4, 8) for _ in range(3)]

    def fn(x):
        for k in kernels:
            a, b = jnp.split(conv(x, k), 2, -1)
            x = a * jax.nn.sigmoid(b)
        return x

    x = image(rank, 4)
    assert transposes(fn, x) == 2
    assert transposes(fn, x, dims=[("B", *"HWD"[: rank - 2], 4)]) == 2


@pytest.mark.parametrize("slices", [True, False])
def test_causal_layers_with_residuals_and_skips(slices):
    gates, results = [array(2, 4, 8) for _ in range(3)], [array(1, 4, 8) for _ in range(3)]

    def halves(x):
        return (x[..., :4], x[..., 4:]) if slices else jnp.split(x, 2, -1)

    def fn(x):
        x, skips = conv(x, gates[0])[..., :4], 0.0
        for i, (gate, result) in enumerate(zip(gates, results, strict=True)):
            a, b = halves(conv(jnp.pad(x, ((0, 0), (2**i, 0), (0, 0))), gate, padding="VALID", rhs_dilation=(2**i,)))
            residual, skip = halves(conv(jnp.tanh(a) * jax.nn.sigmoid(b), result))
            x, skips = (x + residual) * np.float32(0.7), skips + skip
        return conv(jax.nn.relu(skips), results[0])

    assert transposes(fn, array(2, 12, 4), dims=[("B", "N", 4)]) == 2


@pytest.mark.parametrize(("axis", "at"), [(0, [1]), (1, [1, 3]), (2, [2]), (3, [1, 3]), (-1, [2, 3])])
def test_any_axis_and_uneven_parts(axis, at):
    k, join = kernel(4, 3, 6), kernel(4, 6, 4)

    def fn(x):
        first, *others = jnp.split(conv(x, k), at, axis)
        return conv(jnp.concatenate([*map(jax.nn.relu, others), first], axis), join)

    assert transposes(fn, image(4, 3)) == 2


@RANKS
def test_parts_of_parts_and_sums_of_them(rank):
    k, inner, join = kernel(rank, 3, 8), kernel(rank, 2, 2), kernel(rank, 10, 4)

    def fn(x):
        a, b = jnp.split(conv(x, k), [4], -1)
        parts = [a, *jnp.split(jnp.tanh(b), 2, -1)]
        parts.append(parts[-1] + conv(parts[-1], inner))
        return conv(jnp.concatenate(parts, -1), join)

    assert transposes(fn, image(rank, 3)) == 2


@RANKS
def test_a_part_that_is_wanted_channels_last_is_transposed_alone(rank):
    k, other = kernel(rank, 3, 8), kernel(rank, 3, 4)

    def fn(x):
        a, b = jnp.split(conv(x, k), [5], -1)
        return a, conv(b, other)

    model = check(fn, image(rank, 3), **CLOSE)
    assert counted(model.graph)["Transpose"] == 3
    sizes = {v.name: v.type.tensor_type.shape.dim[-1].dim_value for v in model.graph.output}
    assert sorted(sizes[n.output[0]] for n in model.graph.node if n.output[0] in sizes) == [4, 5]


@RANKS
@pytest.mark.parametrize("slices", [True, False])
def test_parts_that_stay_channels_last_are_transposed_together(rank, slices):
    k = kernel(rank, 3, 4)

    def fn(x):
        y = conv(x, k)
        a, b = (y[..., :2], y[..., 2:]) if slices else jnp.split(y, 2, -1)
        return a.reshape(2, -1), b.reshape(2, -1)

    assert transposes(fn, image(rank, 3)) == 2


@RANKS
@pytest.mark.parametrize("slices", [True, False])
def test_parts_of_an_input_are_transposed_together(rank, slices):
    k, other = kernel(rank, 2, 4), kernel(rank, 2, 4)

    def fn(x):
        a, b = (x[..., :2], x[..., 2:]) if slices else jnp.split(x, 2, -1)
        return conv(a, k) * conv(b, other), b + 1  # and one of them is used as it is

    assert transposes(fn, image(rank, 4)) == 2


@RANKS
def test_an_input_that_is_added_and_joined_is_transposed_once(rank):
    first, second, join = kernel(rank, 4, 4), kernel(rank, 4, 4), kernel(rank, 10, 4)

    def fn(x):
        y = x + jnp.tanh(conv(x, first))
        y = y * jax.nn.sigmoid(conv(y, second))
        places = jnp.broadcast_to(jnp.arange(4.0).reshape(4, *(1,) * (rank - 2)), (*y.shape[:-1], 2))
        return conv(jnp.concatenate([y, x, places], -1), join)

    assert transposes(fn, image(rank, 4)) == 2
    assert transposes(fn, image(rank, 4), dims=[("B", *image(rank, 4).shape[1:])]) == 2


@RANKS
@pytest.mark.parametrize("batch", [1, 2])
def test_shuffled_channels_are_picked(rank, batch):
    k, grouped = kernel(rank, 6, 6), kernel(rank, 2, 6)

    def shuffle(x, *groups):
        return jnp.moveaxis(x.reshape(*x.shape[:-1], *groups), -1, x.ndim - 1).reshape(x.shape)

    def fn(x):
        x = conv(shuffle(x, 2, 3), k)
        x = jax.nn.relu(conv(shuffle(x, 3, 2), grouped, feature_group_count=3))
        return conv(shuffle(x, 3, 1, 2), k)

    x = image(rank, 6)[:batch]
    for dims in (None, [(batch, *"HWD"[: rank - 2], 6)]):
        counts = counted(check(fn, x, **CLOSE, dims=dims).graph)
        assert (counts["Transpose"], counts["Gather"], counts["Reshape"]) == (2, 3, 0)


def test_an_operand_with_more_axes():
    k = kernel(3, 4, 4)
    assert transposes(lambda x: x[:, None] + conv(x, k), array(5, 5, 4)) <= 2


def test_in_the_body_of_a_loop():
    k, other = kernel(4, 4, 8), kernel(4, 4, 4)

    def fn(x):
        def step(h, _):
            a, b = jnp.split(conv(h, k), 2, -1)
            h = conv(jnp.tanh(a) * jax.nn.sigmoid(b), other)
            return h, jnp.split(h, 2, -1)[0].mean()

        return lax.scan(step, x, None, length=60)

    model = check(fn, image(4, 4), **CLOSE)
    body = next(a.g for n in model.graph.node for a in n.attribute if a.name == "body")
    assert counted(body)["Transpose"] == 2  # of the carry, which is channels-last


@pytest.mark.parametrize("behind", ["transposed", "symmetrised", "both"])
def test_a_matrix_and_its_transpose_come_to_rest(behind: str, caplog: pytest.LogCaptureFixture) -> None:
    def symmetrise(x):
        s = x + x.swapaxes(1, 2)
        again = jnp.where(s > 0, s, s.swapaxes(1, 2))
        return {"transposed": s.transpose(1, 0, 2), "symmetrised": again, "both": (again, s.transpose(1, 0, 2))}[behind]

    model = check(symmetrise, array(4, 3, 3))
    assert not caplog.records
    assert counted(model.graph)["Transpose"] <= 3


def test_columns_of_transposed_factors_come_to_rest(caplog: pytest.LogCaptureFixture) -> None:
    """The gains of a Kalman smoother: substitution takes columns of a factor that is needed both ways."""

    def smooth(covariances, priors, last):
        def step(carry, matrices):
            covariance, prior = matrices
            gain = jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(prior), covariance).T
            return gain @ carry, carry

        return lax.scan(step, last, (TRANSITION @ covariances, priors))

    rows = array(6, 4, 4)
    check(smooth, array(6, 4, 4), rows @ rows.swapaxes(1, 2) + np.eye(4, dtype=np.float32), array(4, 4), **CLOSE)
    assert not caplog.records


def test_what_is_computed_from_an_input_that_is_transposed_anyway():
    kernel, factors = array(3, 3, 4, 4), array(4)

    def fn(x, y):
        squares = conv(x * x, kernel) + conv(jnp.clip((x * y) * factors - 1, -1, 2), kernel)
        scaled = conv((x - 0.1) * 1.3 + x.mean((1, 2), keepdims=True), kernel)
        return conv(x, kernel) * conv(y, kernel) + squares + scaled

    x, y = array(2, 5, 6, 4), array(2, 5, 6, 4)
    x[0, 1, 2, 3] = np.nan
    model = check(fn, x, y, dims=[("B", "H", 6, 4)] * 2, rtol=1e-4, atol=1e-4)
    assert Counter(n.op_type for n in model.graph.node)["Transpose"] == 3  # two inputs, and the result


@pytest.mark.parametrize("dims", [None, [("B", 5, 7, 3)], [("B", "H", "W", 3)]])
def test_what_is_the_same_at_all_positions_is_repeated_with_the_channels_first(dims):
    first, pooled, last = kernel(4, 3, 4), kernel(4, 4, 2), kernel(4, 6, 3)

    def fn(x):
        y = conv(x, first)
        mean = jax.nn.relu(conv(y.mean((1, 2), keepdims=True), pooled))
        return conv(jnp.concatenate([y, jnp.broadcast_to(mean, (*y.shape[:3], 2))], -1), last)

    model = check(fn, array(2, 5, 7, 3), dims=dims, **CLOSE)
    assert counted(model.graph)["Transpose"] == 2 and counted(model.graph)["Reshape"] == 0
