"""What jax.random draws when keys are batched, carried through loops, and split in bodies and branches."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax import random as jr

from tests.helpers import check

A = np.float32([0.2, 1.0, 3.5])

# Functions of a key and of an array of positive numbers.
DRAWS = {
    "bits": lambda k, a: (jr.bits(k, (3, 2)), jr.bits(k, (3,), "uint8"), jr.bits(k, (0, 2)), jr.bits(k, (), "uint16")),
    "integers": lambda k, a: (jr.randint(k, (5,), -3, 100), jr.randint(k, (2,), 0, 7, "uint8"), jr.rademacher(k, (3,))),
    "uniform": lambda k, a: (jr.uniform(k, (3,)), jr.uniform(k, (3,), "float16"), jr.bernoulli(k, a / 4)),
    "normal": lambda k, a: (jr.normal(k, (3,)), jr.normal(k, (2,), "complex64"), jr.normal(k, (3,), jnp.bfloat16)),
    "truncated": lambda k, a: (jr.truncated_normal(k, -a, a), jr.maxwell(k, (2,)), jr.ball(k, 3, shape=(2,))),
    "tails": lambda k, a: (jr.exponential(k, (3,)), jr.gumbel(k, (3,)), jr.laplace(k, (3,)), jr.cauchy(k, (3,))),
    "others": lambda k, a: (jr.logistic(k, (3,)), jr.pareto(k, a), jr.weibull_min(k, a, a), jr.lognormal(k, a)),
    "gamma": lambda k, a: (jr.gamma(k, a), jr.loggamma(k, a), jr.chisquare(k, a)),
    "beta": lambda k, a: (jr.beta(k, a, a + 1), jr.dirichlet(k, a), jr.t(k, a)),
    "counts": lambda k, a: (jr.poisson(k, 5 * a), jr.geometric(k, a / 4), jr.binomial(k, 10.0, a / 4)),
    "choices": lambda k, a: (jr.categorical(k, a), jr.choice(k, a, (4,), p=a / a.sum()), jr.choice(k, a, (2,), False)),
    "permutation": lambda k, a: (jr.permutation(k, 7), jr.permutation(k, a), jr.permutation(k, jnp.eye(3), 1, True)),
    "matrices": lambda k, a: (jr.multivariate_normal(k, a, jnp.diag(a)), abs(jnp.linalg.det(jr.orthogonal(k, 3)))),
    "keys": lambda k, a: (jr.normal(jr.split(k, (2, 2))[1, 0]), jr.bits(jr.fold_in(k, 7)), jr.bits(jr.clone(k))),
}
QUICK = [("integers", "typed")]
CASES = [(name, kind) for name in DRAWS for kind in ("typed", "raw")]


@pytest.mark.parametrize(
    ("name", "kind"), [c if c in QUICK else pytest.param(*c, marks=pytest.mark.slow) for c in CASES]
)
def test_drawn(name: str, kind: str) -> None:
    draw = DRAWS[name]

    def run(which: Any, key: Any, keys: Any, a: Any) -> Any:
        def step(state: Any) -> Any:
            i, key, _ = state
            key, used = jr.split(key)
            return i + 1, key, draw(jr.fold_in(used, i), a)

        blank = jax.tree.map(jnp.zeros_like, jax.eval_shape(draw, key, a))
        return (
            jax.vmap(draw, (0, None))(keys, a),
            lax.scan(lambda key, k: (jr.split(key)[1], draw(k, a)), key, keys)[1],
            lax.while_loop(lambda state: state[0] < 2, step, (jnp.int32(0), key, blank))[2],
            lax.cond(which, lambda k: draw(k, a), lambda k: blank, key),
            jax.vmap(lambda p, k: lax.cond(p, draw, lambda *_: blank, k, a))(jnp.stack([which, ~which]), keys),
        )

    make = jr.key if kind == "typed" else jr.PRNGKey
    check(run, np.bool_(True), make(3), jax.vmap(make)(jnp.arange(2)), A)


@pytest.mark.slow
def test_derivatives_of_what_is_drawn() -> None:
    """By the parameters of the distributions: through the draws, or by their implicit derivatives."""

    def total(a: Any, key: Any) -> Any:
        draws = jr.gamma(key, a), jr.dirichlet(key, a), jr.t(key, a), jr.weibull_min(key, a, a), jr.pareto(key, a)
        return sum(jnp.sum(jnp.sin(x)) for x in draws)

    def run(a: Any, key: Any, keys: Any) -> Any:
        def descend(a: Any, key: Any) -> Any:
            return a - jax.grad(total)(a, key) / 64, None

        return (
            jax.value_and_grad(total)(a, key),
            jax.vmap(jax.grad(total), (None, 0))(a, keys),
            lax.scan(descend, a, keys),
        )

    check(run, A, jr.key(3), jr.split(jr.key(4), 2))
