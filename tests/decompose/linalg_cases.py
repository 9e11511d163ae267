"""What the tests of linear algebra share: matrices that hurt, and how factorisations are compared."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive

from jax2onnx.decompose import DECOMPOSITIONS
from tests.decompose.agreement import as_list, evaluate

REAL = [np.float32, np.float64]
INEXACT = [np.float32, np.float64, np.complex64, np.complex128]

# Errors are at most that many roundings of the largest entry.
ROUNDINGS = 100


def random(*shape: int, dtype: Any = np.float64, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal(shape)
    if np.issubdtype(dtype, np.complexfloating):
        x = x + 1j * generator.standard_normal(shape)
    return x.astype(dtype)


def adjoint(x: Any) -> np.ndarray:
    return np.asarray(x).conj().swapaxes(-1, -2)


def definition(primitive: Primitive, *operands: Any, **params: Any) -> list[np.ndarray]:
    """What our definition of a primitive gives; its types are those of the primitive."""
    results = as_list(evaluate(DECOMPOSITIONS[primitive].fn, *operands, **params))
    types = jax.eval_shape(lambda *xs: primitive.bind(*xs, **params), *operands)
    assert [(x.shape, x.dtype) for x in results] == [(t.shape, t.dtype) for t in as_list(types)]
    return [np.asarray(x) for x in results]


def assert_equal_up_to_rounding(actual: Any, expected: Any, size: float | None = None) -> None:
    """No difference is over ROUNDINGS roundings of `size`, by default the largest expected entry."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    size = np.abs(expected).max(initial=0) if size is None else size
    eps = np.finfo(np.result_type(actual.dtype, np.float32)).eps
    np.testing.assert_allclose(actual, expected, rtol=0, atol=ROUNDINGS * eps * size)


def assert_unitary(x: np.ndarray) -> None:
    """The columns are orthonormal."""
    gram = adjoint(x) @ x
    assert_equal_up_to_rounding(gram, np.broadcast_to(np.eye(x.shape[-1]), gram.shape))


def hard_symmetric(n: int) -> dict[str, np.ndarray]:
    """Real symmetric matrices with multiple, clustered, tiny and no eigenvalues, badly scaled or already diagonal."""
    q = np.linalg.qr(random(n, n))[0]
    a = random(n, n) + random(n, n).T
    path = np.eye(n, k=1) + np.eye(n, k=-1)
    return {
        "random": a,
        "zero": np.zeros((n, n)),
        "identity": np.eye(n),
        "ones": np.ones((n, n)),
        "diagonal": np.diag(np.arange(n) % 4 - 1.0),
        "three eigenvalues": (q * (np.arange(n) % 3)) @ q.T,
        "clusters": (q * (1 + 1e-7 * np.arange(n))) @ q.T,
        "graded": 10.0 ** -np.arange(n)[:, None] * (np.eye(n) + 0.01 * a) * 10.0 ** -np.arange(n),
        "wilkinson": np.diag(np.abs(np.arange(n) - n // 2)) + path,
        "laplace": 2 * np.eye(n) - path,
        "blocks": np.kron(np.eye(n // 2), [[2, -1], [-1, 2]]),
        "large": 1e30 * a,
        "small": 1e-30 * a,
    }


def hard_general(n: int) -> dict[str, np.ndarray]:
    """Square matrices that are defective, nilpotent, orthogonal, rank-deficient, triangular, ill-conditioned."""
    index = np.arange(n)
    return {
        "random": random(n, n),
        "zero": np.zeros((n, n)),
        "identity": np.eye(n),
        "jordan block": np.eye(n) + np.eye(n, k=1),
        "nilpotent": np.eye(n, k=1),
        "rotations": np.kron(np.eye(n // 2), [[0, 1], [-1, 0]]),
        "cycle": np.roll(np.eye(n), 1, 0),
        "companion": np.vstack([-np.ones(n), np.eye(n)[:-1]]),
        "rank 2": random(n, 2) @ random(2, n),
        "ones": np.ones((n, n)),
        "triangle": np.triu(np.ones((n, n))),
        "hilbert": 1 / (1.0 + index[:, None] + index),
        "graded": random(n, n) * 10.0**-index,
        "large": 1e30 * random(n, n),
    }
