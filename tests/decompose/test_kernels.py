"""Pallas kernels: a kernel is what its interpreter says, also one that was written for another device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

import jax2onnx
from tests.helpers import check, check_run


def floats(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def output(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def product(x, y, interpret):
    """By blocks, which are added up."""

    def kernel(x, y, out):
        @pl.when(pl.program_id(2) == 0)
        def _():
            out[...] = jnp.zeros_like(out)

        out[...] += x[...] @ y[...]

    return pl.pallas_call(
        kernel,
        output(8, 4),
        grid=(2, 2, 4),
        in_specs=[pl.BlockSpec((4, 3), lambda i, j, k: (i, k)), pl.BlockSpec((3, 2), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((4, 2), lambda i, j, k: (i, j)),
        interpret=interpret,
    )(x, y)


def test_blocks():
    check(functools.partial(product, interpret=True), floats(8, 12), floats(12, 4), rtol=1e-5)


def test_a_kernel_for_another_device():
    model = jax2onnx.to_onnx(functools.partial(product, interpret=False), [(8, 12), (12, 4)])
    check_run(model, functools.partial(product, interpret=True), floats(8, 12), floats(12, 4), rtol=1e-5)


def test_blocks_that_go_over_the_end():
    def kernel(x, out):
        out[...] = jnp.exp(x[...])

    blocks = pl.BlockSpec((4,), lambda i: (i,))
    check(
        pl.pallas_call(kernel, output(10), grid=(3,), in_specs=[blocks], out_specs=blocks, interpret=True), floats(10)
    )


def test_loops_and_transformations():
    def kernel(x, out):
        out[...] = lax.fori_loop(0, x.shape[0], lambda i, total: total + x[i], jnp.zeros(4))

    total = pl.pallas_call(kernel, output(4), interpret=True)
    check(total, floats(6, 4))
    check(jax.vmap(total), floats(3, 6, 4))


def test_attention_that_reads_the_keys_in_pieces():
    def kernel(q, k, v, out):
        def piece(i, state):
            top, total, weighted = state
            rows = pl.ds(i * 4, 4)
            scores = q[...] @ k[rows, :].T
            new_top = jnp.maximum(top, scores.max(1))
            weights, old = jnp.exp(scores - new_top[:, None]), jnp.exp(top - new_top)
            return new_top, total * old + weights.sum(1), weighted * old[:, None] + weights @ v[rows, :]

        start = jnp.full(8, -jnp.inf), jnp.zeros(8), jnp.zeros((8, 6))
        _, total, weighted = lax.fori_loop(0, pl.cdiv(k.shape[0], 4), piece, start)
        out[...] = weighted / total[:, None]

    whole = pl.BlockSpec((12, 6), lambda i: (0, 0))
    rows = pl.BlockSpec((8, 6), lambda i: (i, 0))
    attention = pl.pallas_call(
        kernel, output(16, 6), grid=(2,), in_specs=[rows, whole, whole], out_specs=rows, interpret=True
    )
    check(attention, floats(16, 6), floats(12, 6) + 1, floats(12, 6), rtol=1e-5, atol=1e-6)
