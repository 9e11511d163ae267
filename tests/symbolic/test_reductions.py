"""Reductions, running sums, sorts and counts over symbolic axes."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.symbolic.sizes import check_at_sizes

X = "f32[B,T,4]"
Y = "f32[B,T]"


def test_reductions_of_what_may_be_empty():
    def f(x):
        return (
            x.sum(),
            x.sum(1),
            x.sum((0, 2), keepdims=True),
            jnp.prod(x, axis=1),
            jnp.any(x > 1, axis=1),
            jnp.all(x > -2, axis=(0, 1)),
            jnp.count_nonzero(x > 0, axis=1),
            lax.reduce_max(x, (1,)),
            jnp.max(x, axis=1, initial=-1.0),
            jnp.linalg.norm(x, axis=1),
            jax.nn.logsumexp(x, axis=2),
        )

    check_at_sizes(f, X, empty="B T", rtol=1e-5, atol=1e-5)


def test_reductions_with_a_dynamic_count():
    def f(x):
        return (
            x.mean(),
            x.mean(1),
            x.mean((1, 2), keepdims=True),
            x.var(1),
            x.std((0, 1)),
            jnp.var(x, axis=1, ddof=1),
            jnp.average(x, axis=0),
            x.max((0, 1)),
            x.min(1),
            jnp.ptp(x, axis=1),
            jax.nn.standardize(x, axis=1),
            jax.nn.logsumexp(x, axis=1),
            jax.nn.softmax(x, axis=1),
            jax.nn.log_softmax(x, axis=0),
        )

    sizes = [{"B": 1, "T": 2}, {"B": 2, "T": 3}, {"B": 4, "T": 5}, {"B": 3, "T": 9}]
    check_at_sizes(f, X, constraints=["T >= 2"], sizes=sizes, rtol=1e-4, atol=1e-5)


def test_means_of_a_number_of_elements_that_is_no_product():
    check_at_sizes(lambda x: (x[1:].mean(), jnp.std(x[1:, 1:])), "f32[T,T]", sizes=[{"T": n} for n in (2, 5)])


def test_means_over_sizes_that_are_computed():
    """The number of terms is read from what is summed, which spares the arithmetic that led to its size."""

    def halved(x):
        return lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")

    model = check_at_sizes(lambda x: halved(halved(x)).mean((1, 2)), "f32[B,H,W,3]", empty="B", atol=1e-6)
    found = [node.op_type for node in model.graph.node]
    assert found.count("Shape") == 2 and "Mod" not in found
    check_at_sizes(
        lambda x: (x[:, ::2].mean(1), x[:, 1:].mean((1, 2)), x[1:, ::3].mean((0, 1))), X, empty="", atol=1e-6
    )
    check_at_sizes(lambda x: jnp.swapaxes(x[:, ::2], 0, 2).mean((1, 2)), X, empty="", atol=1e-6)
    check_at_sizes(lambda x: (x[:, ::2].mean(), x[::2, ::2].mean(keepdims=True)), X, empty="", atol=1e-6)


def test_masked_means():
    def f(x, lengths):
        mask = jnp.arange(x.shape[1])[None] < lengths[:, None]
        total = jnp.where(mask[..., None], x, 0).sum(1)
        return total / jnp.maximum(lengths, 1)[:, None], jnp.mean(x, axis=1, where=mask[..., None])

    check_at_sizes(f, X, "i32[B]", empty="B", atol=1e-6)


def test_running_reductions():
    def f(x):
        return (
            jnp.cumsum(x, axis=1),
            jnp.cumsum(x),
            lax.cumsum(x, 0, reverse=True),
            jnp.cumprod(x, axis=1),
            lax.cummax(x, 1),
            lax.cummin(x, 1, reverse=True),
            lax.cumlogsumexp(x, 1),
            jnp.cumsum(x > 0, axis=1),
        )

    check_at_sizes(f, Y, empty="", rtol=1e-5, atol=1e-5)


def test_sorts():
    def f(x):
        return (
            jnp.sort(x, axis=1),
            jnp.sort(x, axis=0),
            jnp.argsort(x, axis=1),
            -jnp.sort(-x),
            jnp.argsort(x, axis=1, descending=True),
            jnp.sort(x[1:, 1:], axis=0),
            jnp.argsort(x[1:, 1:], axis=1),
            lax.sort((x, jnp.broadcast_to(jnp.arange(x.shape[1]), x.shape)), dimension=1, num_keys=1),
            jnp.lexsort((x[0], x[-1])),
        )

    check_at_sizes(f, Y, empty="")


def test_medians():
    check_at_sizes(lambda x: (jnp.median(x, axis=1), jnp.quantile(x, 0.3, axis=1)), Y, empty="", rtol=1e-5, atol=1e-6)


def test_largest_elements():
    def f(x):
        values, indices = lax.top_k(x, 2)
        return values, indices, x.argmax(1), x.argmin(0), jnp.argmax(x, axis=1, keepdims=True), jnp.nanmax(x, axis=1)

    check_at_sizes(f, "f32[B,N]", constraints=["N >= 2"], sizes=[{"B": 1, "N": 2}, {"B": 3, "N": 3}, {"B": 2, "N": 7}])


def test_integers():
    def f(x):
        return x.sum(1), x.max(0), x.prod(0), jnp.cumsum(x, axis=1), jnp.sort(x, axis=1), x.mean(0), x // x.shape[0]

    check_at_sizes(f, "i32[B,T]", empty="", rtol=1e-6)


@pytest.mark.parametrize("dtype", ["f64", "bf16", "f16"])
def test_other_floats(dtype):
    check_at_sizes(
        lambda x: (x.sum(1), x.mean(0), jnp.sort(x, axis=1), jnp.cumsum(x, axis=0)[-1] * 0 + x.max(0)),
        f"{dtype}[B,T]",
        empty="",
        **({} if dtype == "f64" else {"rtol": 0.02, "atol": 0.02}),
    )


def test_any_reduction():
    def f(x, n):
        return (
            lax.reduce(x, jnp.float32(0), lambda a, b: a + b, (1,)),
            lax.reduce(x, jnp.float32(1), lambda a, b: a * b + 0.0, (1,)),
            lax.reduce(n, jnp.int32(0), lax.bitwise_or, (1,)),
            jnp.bitwise_and.reduce(n, axis=0),
            jnp.bitwise_xor.reduce(n, axis=1),
        )

    check_at_sizes(f, Y, "i32[B,T]", empty="", rtol=1e-5, atol=1e-6)


def test_histories():
    def f(x):
        t = x.shape[1]
        ages = jnp.arange(t)[::-1]
        weights = 0.5 ** ages.astype(jnp.float32)
        return (x * weights).sum(1) / weights.sum(), jnp.polyval(jnp.array([1.0, 2.0]), x)

    check_at_sizes(f, Y, empty="", rtol=1e-5, atol=1e-5)
