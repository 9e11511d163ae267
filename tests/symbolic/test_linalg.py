"""Factorisations of matrices whose number of rows or columns is symbolic: which one is larger may be unknown."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.helpers import quick
from tests.symbolic.sizes import check_at_sizes

SIZES = [{"A": 5, "B": 3}, {"A": 1, "B": 1}, {"A": 2, "B": 7}, {"A": 3, "B": 1}, {"A": 18, "B": 17}]
CLOSE = {"rtol": 2e-3, "atol": 2e-3}


def svd(x, full):
    u, s, vh = jnp.linalg.svd(x, full_matrices=full)
    k = s.shape[0]
    return s, (u[:, :k] * s) @ vh[:k], u.T @ u, vh @ vh.T


def qr(x, full):
    q, r = jnp.linalg.qr(x, mode="complete" if full else "reduced")
    return abs(r), q @ r, q.T @ q


def eigh(x):
    w, v = jnp.linalg.eigh(x + x.mT)
    return w, (v * w[..., None, :]) @ v.mT


def eig(x):
    w, v = jnp.linalg.eig(x)
    return jnp.sort(w.real), w.sum(), abs(x.astype(v.dtype) @ v - v * w)


def schur(x):
    t, z = jax.scipy.linalg.schur(x)
    return z @ t @ z.T, z @ z.T, jnp.trace(t)


def tridiagonal(x, lower=True):
    packed, d, e, tau = lax.linalg.tridiagonal(x + x.T, lower=lower)
    return packed, d, abs(e), tau


CASES = {
    "thin svd": (lambda x: svd(x, False), "f32[A,B]"),
    "full svd": (lambda x: svd(x, True), "f32[A,B]"),
    "full svd of rows": (lambda x: svd(x, True), "f32[3,B]"),
    "thin qr": (lambda x: qr(x, False), "f32[A,B]"),
    "full qr": (lambda x: qr(x, True), "f32[A,B]"),
    "eigh": (eigh, "f32[A,A]"),
    "eigh in batches": (eigh, "f32[B,A,A]"),
    "eig": (eig, "f32[A,A]"),
    "schur": (schur, "f32[A,A]"),
    "hessenberg": (lax.linalg.hessenberg, "f32[A,A]"),
    "tridiagonal": (tridiagonal, "f32[A,A]"),
    "tridiagonal from below": (lambda x: tridiagonal(x, lower=False), "f32[A,A]"),
}


@pytest.mark.parametrize("name", quick(["full qr", "eigh in batches", "hessenberg"], CASES))
def test_factorisation(name):
    fn, spec = CASES[name]
    check_at_sizes(fn, spec, sizes=SIZES, **CLOSE)
