"""Sparse arrays of jax.experimental: made from dense ones, multiplied, differentiated; as inputs and as constants."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import sparse

from tests.helpers import check, quick

DENSE = np.where(np.arange(24).reshape(4, 6) % 5 < 2, np.linspace(-2, 2, 24).reshape(4, 6), 0)
OTHER = np.linspace(-1, 3, 18).reshape(6, 3)


@pytest.mark.parametrize("dtype", quick([np.float32], [np.float32, np.int32, np.complex64]))
def test_from_dense_and_back(dtype):
    def fn(m, v):
        a = sparse.BCOO.fromdense(m, nse=12)  # more than there are
        again = [a.T, a[1:3], a.reshape(6, 4), a.sum_duplicates(nse=12), sparse.bcoo_reduce_sum(a, axes=(1,)), a @ a.T]
        dense = [sparse.bcoo_multiply_dense(a, m), a @ v, sparse.BCSR.fromdense(m, nse=12) @ v, v.T @ a.T]
        others = [sparse.coo_fromdense(m, nse=12), sparse.csr_fromdense(m, nse=12)]
        return [*(x.todense() for x in again), *dense, *(x.todense() for x in others), *(x @ v for x in others)]

    check(fn, DENSE.astype(dtype), OTHER.astype(dtype))


@pytest.mark.slow
def test_as_an_input_with_a_gradient():
    a, v = sparse.BCOO.fromdense(DENSE.astype(np.float32)), OTHER.astype(np.float32)

    def fn(a, v):
        return jax.grad(lambda data, v: jnp.sum(jnp.sin(sparse.BCOO((data, a.indices), shape=a.shape) @ v)), (0, 1))(
            a.data, v
        )

    check(fn, a, v)
    batched = sparse.BCOO.fromdense(np.stack([DENSE, -DENSE]).astype(np.float32), n_batch=1)
    check(lambda a, v: jax.vmap(lambda a: a @ v)(a), batched, v)
