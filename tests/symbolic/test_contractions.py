"""Products of matrices and what attention is made of, with symbolic dimensions in every place."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.helpers import quick
from tests.symbolic.sizes import check_at_sizes, floats

W = floats(4, 6)
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def test_products():
    def f(x, y, v):
        return (
            x @ W,
            x @ y,
            x @ x.mT,
            jnp.matmul(x.mT, x),
            x @ v,
            v @ y,
            jnp.dot(x, v),
            jnp.vdot(v, v),
            jnp.outer(v, v),
            jnp.tensordot(x, x, ((0, 1), (0, 1))),
            lax.dot_general(x, x, (((1,), (1,)), ((0,), (0,)))),
            jnp.inner(x, v),
        )

    check_at_sizes(f, "f32[B,T,4]", "f32[B,4,S]", "f32[4]", empty="S", **CLOSE)


def test_einsums():
    def f(q, k):
        return (
            jnp.einsum("btd,bsd->bts", q, k),
            jnp.einsum("btd,bsd->bt", q, k),
            jnp.einsum("btd->tbd", q),
            jnp.einsum("btd,df->btf", q, W),
            jnp.einsum("btd,bte->bde", q, q),
            jnp.einsum("btd,btd->b", q, q),
            jnp.einsum("b...d,b...d->...", q, q),
            jnp.einsum("btd,bsd,df->tsf", q, k, W),
            jnp.einsum("bii->b", jnp.einsum("btd,bsd->bts", q, q)),
        )

    check_at_sizes(f, "f32[B,T,4]", "f32[B,S,4]", empty="B", **CLOSE)


def test_products_over_a_symbolic_axis_of_weights():
    def f(x, w):
        return x @ w, x.sum(0) @ w @ w.T, jnp.linalg.multi_dot([x, w, w.T])

    check_at_sizes(f, "f32[B,D]", "f32[D,E]", empty="B", **CLOSE)


def test_integer_and_double_products():
    check_at_sizes(lambda x, y: (x @ y, jnp.einsum("ij,ij->i", x, x)), "i32[B,T]", "i32[T,S]", empty="")
    check_at_sizes(lambda x, y: (x @ y, x.T @ x), "f64[B,T]", "f64[T,S]", empty="")


def test_attention_by_hand():
    def f(q, k, v, lengths):
        t, s = q.shape[1], k.shape[1]
        scores = jnp.einsum("bthd,bshd->bhts", q, k) / jnp.sqrt(q.shape[-1])
        causal = jnp.tril(jnp.ones((t, s), bool), k=s - t)
        padding = jnp.arange(s)[None] < lengths[:, None]
        mask = causal[None, None] & padding[:, None, None, :]
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
        return jnp.einsum("bhts,bshd->bthd", weights, v), mask

    check_at_sizes(f, "f32[B,T,2,4]", "f32[B,S,2,4]", "f32[B,S,2,4]", "i32[B]", empty="B", **CLOSE)


def test_attention_with_shared_heads_and_biases():
    def f(q, k, bias):
        grouped = jax.nn.dot_product_attention(q, k, k)
        biased = jax.nn.dot_product_attention(q, jnp.repeat(k, 2, 2), jnp.repeat(k, 2, 2), bias=bias)
        scaled = jax.nn.dot_product_attention(q, k, k, mask=bias[:, :1] > 0, scale=0.3)
        return grouped, biased, scaled

    check_at_sizes(f, "f32[B,T,4,3]", "f32[B,S,2,3]", "f32[B,4,T,S]", empty="B", **CLOSE)


def test_position_tables():
    def f(x):
        _, t, d = x.shape
        position = jnp.arange(t, dtype=jnp.float32)[:, None]
        frequency = jnp.exp(jnp.arange(0, d, 2) * (-jnp.log(10000.0) / d))
        table = jnp.zeros((t, d)).at[:, 0::2].set(jnp.sin(position * frequency))
        table = table.at[:, 1::2].set(jnp.cos(position * frequency))
        sines, cosines = jnp.sin(position * frequency)[None], jnp.cos(position * frequency)[None]
        a, b = jnp.split(x, 2, axis=-1)
        even, odd = x[..., ::2], x[..., 1::2]
        return (
            x + table,
            jnp.concatenate([a * cosines - b * sines, b * cosines + a * sines], axis=-1),
            jnp.stack([even * cosines - odd * sines, odd * cosines + even * sines], axis=-1).reshape(x.shape),
        )

    check_at_sizes(f, "f32[B,T,8]", **CLOSE)


def test_relative_positions():
    slopes, table = jnp.asarray(floats(2)), jnp.asarray(floats(9, 2))

    def f(x):
        t = x.shape[1]
        distance = jnp.arange(t)[None] - jnp.arange(t)[:, None]
        alibi = slopes[:, None, None] * distance
        buckets = table[jnp.clip(distance, -4, 4) + 4].transpose(2, 0, 1)
        local = jnp.abs(distance) <= 2
        return alibi, buckets, jnp.where(local, x @ x.mT, 0.0), distance % 3

    check_at_sizes(f, "f32[B,T,4]", **CLOSE)


def test_fourier_transforms_of_a_static_length():
    def f(x):
        spectrum = jnp.fft.rfft(x, axis=-1)
        return jnp.abs(spectrum), jnp.fft.irfft(spectrum, n=8, axis=-1), jnp.real(jnp.fft.fft(x, axis=-1))

    check_at_sizes(f, "f32[B,T,8]", empty="", rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", quick(["f32"], ["f32", "f64"]))
def test_fourier_transforms_of_any_length(dtype):
    def f(x):
        mixed = jnp.fft.fft2(x).real
        half = jnp.fft.rfft(x)
        return mixed, jnp.fft.ifft(mixed, axis=0).real, jnp.abs(half), lax.fft(half, "IRFFT", x.shape[1:])

    sizes = [{"B": 1, "T": 1}, {"B": 2, "T": 2}, {"B": 5, "T": 8}, {"B": 3, "T": 37}]
    tolerance = 2e-5 if dtype == "f32" else 1e-11
    check_at_sizes(f, f"{dtype}[B,T]", sizes=sizes, rtol=tolerance, atol=tolerance)


def test_linear_algebra_in_batches():
    def f(a, b):
        spd = a @ a.mT + 3 * jnp.eye(3)
        return jnp.linalg.cholesky(spd), jnp.linalg.solve(spd, b)

    check_at_sizes(f, "f32[B,3,3]", "f32[B,3,K]", empty="", rtol=1e-3, atol=1e-4)
