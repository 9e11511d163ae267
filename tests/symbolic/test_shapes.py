"""Shape operations on symbolic dimensions: reshape, broadcast, iota, pad, slice, rev, concatenate, split."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.symbolic.sizes import check_at_sizes, output_shapes

X = "f32[B,T,4]"


def test_reshapes_that_merge_and_split_axes():
    def f(x):
        b, t, _ = x.shape
        return (
            x.reshape(b * t, -1),
            x.reshape(b * t, 4).reshape(b, t, 4),
            x.reshape(b, -1),
            x.reshape(-1, 2),
            x.reshape(b, t, 2, 2).transpose(0, 2, 1, 3),
            x.reshape(b, t, 2, 2).transpose(0, 2, 1, 3).reshape(b * 2, t, 2),
            x.transpose(1, 0, 2).reshape(t, b * 4),
            x.reshape(1, b, 1, t, 4),
            x.ravel(),
            x.reshape(2, -1),
            x[..., None].squeeze(-1),
        )

    model = check_at_sizes(f, X, empty="")
    assert output_shapes(model)[:5] == [["B*T", 4], ["B", "T", 4], ["B", "4*T"], ["2*B*T", 2], ["B", 2, "T", 2]]


def test_reshapes_of_what_may_be_empty():
    def f(x):
        b, t, _ = x.shape
        y = x.reshape(b, 4 * t)
        return (
            x.reshape(b * t, 4),
            y,
            y.reshape(b, t, 4),
            x.transpose(1, 0, 2).reshape(t, b * 4),
            x.reshape(b, 2 * t, 2),
        )

    check_at_sizes(f, X, empty="B T")


def test_reshape_splits_a_dimension_that_is_a_multiple():
    def f(x):
        n = x.shape[0]
        return x.reshape(n // 2, 2, 3).sum(1), x.reshape(2, n // 2, 3), x.reshape(n // 2, 6)

    check_at_sizes(f, "f32[2*N,3]")
    check_at_sizes(f, "f32[M,3]", constraints=["M % 2 == 0"], sizes=[{"M": 2}, {"M": 4}, {"M": 10}, {"M": 0}])


def test_broadcasts():
    def f(x, y):
        b, t, _ = x.shape
        return (
            jnp.broadcast_to(y[:, None, None], x.shape) + x,
            jnp.broadcast_to(y[None], (t, b)),
            x + y[:, None, None],
            jnp.ones((t, b)) * 3,
            jnp.zeros((b + t, 2), jnp.int32),
            jnp.full((t,), 7, jnp.int8),
            jnp.full_like(x, 2.5),
            lax.broadcast_in_dim(y, (2, b, t), (1,)),
            lax.broadcast(y, (t, t)),
            jnp.tile(x, (2, 1, 3)),
            jnp.tile(y, t),
            jnp.repeat(x, 2, axis=1),
            jnp.broadcast_to(jnp.float32(1.5), (b, t)),
            jnp.meshgrid(y, jnp.arange(t)),
            jnp.outer(y, jnp.arange(t, dtype=jnp.float32)),
        )

    check_at_sizes(f, X, "f32[B]", empty="B T")


def test_broadcasts_that_transpose():
    def f(x, y):
        b, t, _ = x.shape
        return (
            lax.broadcast_in_dim(x, (4, t, b), (2, 1, 0)),
            lax.broadcast_in_dim(x, (4, 2, b, t, 3), (2, 3, 0)),
            lax.broadcast_in_dim(y[:, None], (t, 2, b, 1), (2, 0)),
            lax.broadcast_in_dim(lax.iota(np.int32, 6).reshape(3, 2), (2, t, 3), (2, 0)),
            jax.vmap(lambda row: lax.broadcast_in_dim(row, (4, 5, t), (2, 0)))(x),
        )

    check_at_sizes(f, X, "f32[B]", empty="B T")


def test_iotas():
    def f(x):
        b, t = x.shape
        return (
            jnp.arange(t),
            jnp.arange(1, t + 1, dtype=jnp.float32),
            jnp.arange(2, 2 * t + 4, 2),
            jnp.arange(t)[None] + jnp.zeros((b, 1), jnp.int32),
            lax.broadcasted_iota(jnp.int32, (b, t, 3), 1),
            lax.broadcasted_iota(jnp.uint8, (b, t), 0),
            jnp.eye(t),
            jnp.eye(t, b, k=1),
            jnp.tril(jnp.ones((t, t))),
            jnp.triu(jnp.ones((b, t, t)), k=-1),
            jnp.tril(x),
            jnp.triu(x, 1),
            jnp.tri(t, b, -1, dtype=jnp.bool_),
            jnp.diag(jnp.arange(t)),
            jnp.diagonal(jnp.ones((t, t)) * jnp.arange(t)),
            jnp.trace(jnp.ones((t, t)) * jnp.arange(t)),
        )

    check_at_sizes(f, "f32[B,T]", empty="B T")


def test_linspace_and_dimensions_as_values():
    def f(x):
        t = x.shape[0]
        return (
            jnp.linspace(0.0, 1.0, t),
            jnp.linspace(-1.0, 1.0, t + 2),
            jnp.linspace(0.0, x.sum(), t, endpoint=False),
            jnp.asarray(t) + 1,
            x * t,
            x / t,
            jnp.sqrt(jnp.float32(t)),
            t * 2 - 1,
        )

    check_at_sizes(f, "f32[T]", constraints=["T >= 2"], sizes=[{"T": n} for n in (2, 3, 5, 9)], rtol=2e-6, atol=2e-6)


def test_pads():
    def f(x):
        b, t, _ = x.shape
        return (
            jnp.pad(x, ((0, 0), (1, 2), (0, 0))),
            jnp.pad(x, ((0, b), (t, 0), (0, 1)), constant_values=3.0),
            lax.pad(x, 1.0, ((0, 0, 0), (1, 1, 2), (-1, 0, 1))),
            lax.pad(x, 1.0, ((0, t, 1), (b, -1, 1), (0, 0, 0))),
            lax.pad(x, 1.0, ((-1, 1, 0), (3, -1, 0), (0, 0, 0))),
            jnp.pad(x, ((1, 1), (2, 1), (0, 0)), mode="edge"),
            jnp.pad(x, ((0, 0), (0, t), (0, 0)), mode="wrap"),
        )

    check_at_sizes(f, X, empty="")


def test_pads_of_what_may_be_empty():
    def f(x):
        return lax.pad(x, 1.0, ((0, 0, 0), (1, 1, 2))), lax.pad(x, -1.0, ((0, 1, 1), (0, 0, 0)))

    check_at_sizes(f, "f32[B,T]", empty="B T")


@pytest.mark.parametrize("mode", ["reflect", "symmetric", "maximum", "mean", "linear_ramp"])
def test_pads_that_look_at_the_array(mode):
    sizes = [{"B": 1, "N": 3}, {"B": 2, "N": 4}, {"B": 3, "N": 7}]
    check_at_sizes(
        lambda x: jnp.pad(x, ((0, 0), (1, 2)), mode=mode), "f32[B,N]", constraints=["N >= 3"], sizes=sizes, atol=1e-6
    )


def test_slices():
    def f(x):
        b, n, _ = x.shape
        return (
            x[:, 1:],
            x[:, :-1],
            x[:, -1],
            x[:, -2:],
            x[:, 0],
            x[:, ::2],
            x[:, 1::3],
            x[:, : n // 2],
            x[:, n // 2 :],
            x[:, jnp.asarray(n // 2)],
            x[:, 1:-1:2],
            x[b - 1 :],
            lax.slice(x, (0, 1, 0), (b, n, 3), (1, 2, 2)),
            lax.slice_in_dim(x, n - 2, n, axis=1),
            x[:, 1:] - x[:, :-1],
            jnp.diff(x, axis=1),
            jnp.diff(x, axis=0),
        )

    sizes = [{"B": 1, "N": 2}, {"B": 2, "N": 3}, {"B": 3, "N": 5}, {"B": 5, "N": 8}]
    model = check_at_sizes(f, "f32[B,N,4]", constraints=["N >= 2"], sizes=sizes)
    assert output_shapes(model)[:3] == [["B", "N - 1", 4], ["B", "N - 1", 4], ["B", 4]]


def test_reverse_in_all_spellings():
    def f(x):
        return (
            x[::-1],
            x[:, ::-1],
            jnp.flip(x),
            jnp.flip(x, 1),
            lax.rev(x, (0, 2)),
            jnp.flipud(x),
            jnp.fliplr(x),
            jnp.rot90(x),
            x[::-2],
        )

    check_at_sizes(f, X)


def test_concatenations():
    def f(x, y):
        b = x.shape[0]
        first = jnp.zeros((b, 1, 4))
        return (
            jnp.concatenate([first, x], axis=1),
            jnp.concatenate([x, y], axis=1),
            jnp.concatenate([x, x, y], axis=1).sum(1),
            jnp.stack([x, 2 * x], axis=1),
            jnp.concatenate([x[:, 1:], first], axis=1) + x,
            jnp.hstack([x, y]),
            jnp.roll(x, 1, axis=1),
            jnp.roll(x, -2, axis=0),
            jnp.append(x, y, axis=1),
        )

    model = check_at_sizes(f, X, "f32[B,S,4]", empty="S")
    assert output_shapes(model)[:2] == [["B", "T + 1", 4], ["B", "T + S", 4]]


def test_splits():
    def f(x):
        n = x.shape[1]
        return (
            jnp.split(x, [1, 3], axis=1),
            jnp.split(x, [n - 1], axis=1),
            jnp.split(x, [n // 2], axis=1),
            jnp.split(x, 2, axis=2),
            lax.split(x, (2, n - 2), axis=1),
            jnp.array_split(x, 3, axis=2),
        )

    sizes = [{"B": 1, "N": 3}, {"B": 2, "N": 4}, {"B": 5, "N": 7}]
    check_at_sizes(f, "f32[B,N,4]", constraints=["N >= 3"], sizes=sizes)


def test_halves_of_an_even_dimension():
    def f(x):
        n = x.shape[1]
        a, b = jnp.split(x, 2, axis=1)
        return a * jax.nn.sigmoid(b), jax.nn.glu(x, axis=1), x[:, : n // 2] - x[:, n // 2 :], x[:, ::2] + x[:, 1::2]

    check_at_sizes(f, "f32[B,2*N]")


def test_every_expression_of_dimensions():
    def f(x, y):
        a, b = x.shape[0], y.shape[0]
        sizes = [
            a * b,
            a + b,
            2 * a - 1,
            a // 2,
            a % 3,
            (a + 1) // 2 * 3,
            jax.core.max_dim(a, b),
            jax.core.min_dim(a, 3),
            a**2 + b,
            jax.core.max_dim(a - b, 0),
            -(-a // 2),
            (a * b) // 4 + (a - 7) % 4 + jax.core.max_dim(3 - b, 0),
            (5 - 2 * a) // 3 + 4 * a,
        ]
        return [jnp.zeros(n, bool) for n in sizes], [jnp.asarray(n) for n in sizes]

    model = check_at_sizes(f, "f32[A]", "f32[B]", empty="")
    shapes = [shape[0] for shape in output_shapes(model)[:6]]
    assert shapes == ["A*B", "B + A", "2*A - 1", "floordiv(A, 2)", "mod(A, 3)", "3*floordiv(A + 1, 2)"]


def test_halves_take_one_division_each():
    def f(x):
        t = x.shape[0]
        return x[: t // 2], x[(t + 1) // 2 :], x[t // 3 : 2 * t // 3]

    model = check_at_sizes(f, "f32[T,3]", empty="")
    operators = [node.op_type for node in model.graph.node]
    assert set(operators) == {"Shape", "Div", "Slice", "Add", "Mul"} and len(operators) == 10


def test_equal_names_are_one_dimension_across_pytrees():
    def f(tree, z):
        return tree["x"] + tree["y"][1].sum(0) + z, np.float32(1) * tree["x"].shape[0]

    check_at_sizes(f, {"x": ("B", "T"), "y": [("T",), ("C", "B", "T")]}, ("T",))


def test_known_arrays_without_elements():
    """They have no elements, whatever the other sizes are."""

    def f(x):
        return jnp.zeros(0).reshape(x.shape) + x, jax.random.uniform(jax.random.key(1), x.shape) + x

    check_at_sizes(f, "f32[B,0,T]")
