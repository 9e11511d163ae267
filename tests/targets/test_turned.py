"""Products of what is transposed and then cast, which ONNX Runtime crashes on."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import check

W = np.float32([[1, -2, 3], [0, 5, 4], [-1, 2, 2], [7, 0, 1]])
X = (np.arange(24).reshape(2, 3, 4) % 5).astype(np.float32)


@pytest.mark.parametrize("dims", [None, [("B", "T", 4)]])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves(dtype: str, dims: Any) -> None:
    w = W.astype(dtype)
    check(lambda x: (jnp.swapaxes(x, 0, 1) @ w, jnp.swapaxes(x, 0, 1)), X.astype(dtype), dims=dims)
    model = check(lambda x: jnp.swapaxes(x, 0, 1) @ w, X.astype(dtype), dims=dims)
    assert [node.op_type for node in model.graph.node] == ["Cast", "Transpose", "MatMul", "Cast"]


@pytest.mark.parametrize("dtype", ["int32", "int8", "bool"])
def test_other_types(dtype: str) -> None:
    def fn(x: Any) -> Any:
        rows, y = jnp.swapaxes(x, 0, 1).astype(jnp.float32), x.reshape(4, 2, 3)
        columns = jnp.matmul(W.T, jnp.swapaxes(y, 0, 1).astype(jnp.float32))
        return rows @ W, rows @ W[:, :2], jnp.moveaxis(y, 0, -1).astype(jnp.float32) @ W, columns

    check(fn, X.astype(dtype))
