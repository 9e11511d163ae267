"""Numbers of a vector that become a vector again."""

from __future__ import annotations

from collections import Counter

import jax.numpy as jnp
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from jax import lax

from jax2onnx.graphs import all_nodes
from tests.helpers import check

STATES = [np.float32(s) for s in ([1, 2, 3], [np.nan, -0.0, np.inf], [-np.inf, 1e-30, 0.0])]


def ops(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in all_nodes(ir.from_proto(model).graph))


def lorenz(state):
    x, y, z = state
    return jnp.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])


@pytest.mark.parametrize("state", STATES)
def test_numbers_stay_vectors(state):
    found = ops(check(lorenz, state))
    assert found["Gather"] == 3 and not found["Unsqueeze"] + found["Reshape"] + found["Squeeze"]
    found = ops(check(lambda s: lax.scan(lambda s, _: (s + 0.01 * lorenz(s), s), s, None, length=20), state))
    assert found["Gather"] == 3 and not found["Unsqueeze"] + found["Reshape"] + found["Squeeze"]


@pytest.mark.parametrize("state", STATES)
def test_numbers_that_are_needed_too(state):
    def f(s):
        x, y, z = s
        length = jnp.sqrt(x * x + y * y)
        moved = jnp.stack([x + z, y - z, z * length])
        inside = lax.cond(length > 2, lambda: length * jnp.arange(3.0), lambda: jnp.stack([y, z, x]))
        return moved, length, x > y, jnp.where(z < 0, moved, inside), x * moved, jnp.full((2, 2), y)

    found = ops(check(f, state))
    assert found["Unsqueeze"] + found["Squeeze"] + found["Reshape"] == 3  # for results, or for those that are stacked


def test_other_types():
    def f(s, b):
        i, j = s[-1], s[0]
        p, q = b
        return jnp.stack([i // 3, jnp.where(p, i, j), -j]), jnp.stack([p & q, ~p, i > j]), jnp.stack([i, j])[None]

    for s in ([3, -7], [-(2**31), 2**31 - 1]):
        for b in ([True, False], [False, False]):
            check(f, np.int32(s), np.bool_(b))


def test_of_any_size():
    check(lambda s: jnp.stack([s[0] * s[-1], s[1] + 1, s[-2]]), np.float32([1, 2, 3, 4]), dims=[("N",)])


def test_groups_that_would_not_gain():
    model = check(lambda s: (jnp.stack([s[0], s[0] * 2]).sum(), s[0] * 2, s[0] + 1, s[1] - s[0]), STATES[0])
    assert not ops(model)["Reshape"]


def points(*shape: int) -> np.ndarray:
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    x.flat[:2] = np.nan, -0.0
    return x


def shape_nodes(model: onnx.ModelProto) -> int:
    found = ops(model)
    return found["Unsqueeze"] + found["Squeeze"] + found["Reshape"]


def rotated(q, v):
    """A vector turned by a quaternion, as physics engines do it."""
    s, u = q[..., 0], q[..., 1:]
    r = 2 * (jnp.sum(u * v, -1, keepdims=True) * u) + (s * s - jnp.sum(u * u, -1))[..., None] * v
    return r + 2 * s[..., None] * jnp.cross(u, v)


def multiplied(p, q):
    a, b, c, d = (p[..., i] for i in range(4))
    e, f, g, h = (q[..., i] for i in range(4))
    return jnp.stack(
        [
            a * e - b * f - c * g - d * h,
            a * f + b * e + c * h - d * g,
            a * g - b * h + c * e + d * f,
            a * h + b * g - c * f + d * e,
        ],
        -1,
    )


@pytest.mark.parametrize("shape", [(), (9,), (2, 5), (1,), (0,), (4, 1)])
def test_coordinates_of_many_points_keep_their_axis(shape):
    p, q, v = points(*shape, 4), points(*shape, 4), points(*shape, 3)
    assert not shape_nodes(check(multiplied, p, q))
    assert not shape_nodes(check(jnp.cross, p[..., :3], v))
    check(rotated, p, v)
    dims = tuple("ABC"[: len(shape)])
    if 0 not in shape:
        check(lambda q, v: rotated(multiplied(q, q), v), p, v, dims=[(*dims, 4), (*dims, 3)])


@pytest.mark.parametrize(
    "fn",
    [
        lambda p, s: jnp.stack([p[:, 0] * s, p[:, 1] + p[:, 2], s], -1),  # one from elsewhere
        lambda p, s: jnp.stack([p[:, 0] * jnp.arange(9.0), p[:, 1] * jnp.ones((1, 1))[0], p[:, 2]], -1),
        lambda p, s: jnp.stack([p[:, 0] + p[:, 1], -p[:, 1], p[:, 2]], -1) * (p[:, 0] - p[:, 2])[:, None, None],
        lambda p, s: (jnp.stack([p[:, 0], 2 * p[:, 1], p[:, 2]], -1), (p[:, 0] + p[:, 1]).sum(), p[:, 2] > 0),
        lambda p, s: jnp.stack([p[:, 0] * p[2, 1], p[:, 1] + s[3], p[:, 2]], -1),
        lambda p, s: jnp.stack([jnp.sqrt((p * p).sum(-1)), p.max(-1), p[:, 0] * s], -1),
        lambda p, s: jnp.stack([p[:, 0] * 2, p[:, 1]], 0) + jnp.stack([p[:, 2] - 1, s], 0),
        lambda p, s: jnp.stack([p[:, 0] * 2, p[:, 1] + 1, p[:, 2]], -1)[None] * (p[:, 0] * 3)[None, :, None],
        lambda p, s: jnp.stack(
            [p[:, 0] + jnp.ones((2, 9)), p[:, 1] - jnp.ones((2, 1)), p[:, 2] * jnp.ones((2, 9))], -1
        ),
        lambda p, s: lax.fori_loop(0, 3, lambda i, p: jnp.stack([p[:, 1] * s, -p[:, 0], p[:, 2] + p[:, 0]], -1), p),
        lambda p, s: jnp.stack([jnp.where(p[:, 0] > s, p[:, 1], p[:, 2]), jnp.clip(p[:, 0], 0, 1), -s], -1),
        lambda p, s: lax.cond(s[0] > 0, lambda: jnp.stack([p[:, 0] * 2, p[:, 1]], -1), lambda: p[:, :2] * p[:, 2:]),
        lambda p, s: jnp.stack([p[:, 0], p[:, 1], p[:, 0] * p[:, 1]], -1) @ jnp.stack([p[:3, 0], p[:3, 1] * 2], -1),
    ],
)
def test_coordinates_with_other_things(fn):
    check(fn, points(9, 3), points(9), rtol=1e-5)
    check(fn, np.abs(points(9, 3)[::-1]), -points(9)[::-1], rtol=1e-5)


def test_large_constants_are_not_stored_twice():
    known = points(40_000)

    def fn(p):
        return jnp.stack([p[:, 0] * known, p[:, 1] + known, -p[:, 0]], -1), known + p.sum()

    model = check(fn, points(40_000, 2))
    assert sum(t.dims[0] >= 40_000 for t in model.graph.initializer if t.dims) == 1


@pytest.mark.parametrize(
    "pressure",
    [
        lambda q: (q * q).sum(1),
        lambda q: (q * q).max(1) + q[:, 3],
        lambda q: jnp.exp(q)[:, 2] - q[0],
    ],
)
def test_parts_of_what_is_computed_from_parts(pressure):
    """Distances are sums over the coordinates; the forces need sums of those, and both again (smoothed particles)."""

    def fn(x):
        d = x[:, None] - x[None]
        q = jnp.maximum(0.9 - jnp.sqrt((d * d).sum(-1) + 1e-6), 0)
        p = pressure(q)
        return (((p[:, None] + p[None]) * q)[..., None] * d).sum(1)

    check(fn, points(9, 2), rtol=1e-5, atol=1e-6)
    check(fn, points(9, 2), dims=[("N", 2)], rtol=1e-5, atol=1e-6)
