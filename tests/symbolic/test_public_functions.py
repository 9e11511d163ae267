"""Every public function of JAX that can be traced with symbolic axes, alone and transformed; many in one model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import jax.scipy.integrate
import jax.scipy.linalg
import jax.scipy.special
import jax.scipy.stats
import pytest
from jax import lax
from jax.errors import InconclusiveDimensionOperation

from jax2onnx.specs import input_specs
from tests.symbolic.sizes import check_at_sizes

DISTRIBUTIONS = """
    bernoulli beta binom cauchy chi2 expon gamma gennorm geom gumbel_l gumbel_r laplace logistic nbinom norm
    pareto poisson t truncnorm uniform vonmises wrapcauchy
""".split()
MODULES = {
    "jax.numpy": jnp,
    "jax.numpy.linalg": jnp.linalg,
    "jax.numpy.fft": jnp.fft,
    "jax.lax": lax,
    "jax.lax.linalg": lax.linalg,
    "jax.nn": jax.nn,
    **{f"jax.scipy.{n}": getattr(jsp, n) for n in "integrate linalg special stats".split()},
    **{f"jax.scipy.stats.{n}": getattr(jsp.stats, n) for n in DISTRIBUTIONS},
}
OPERANDS = {
    "array": ["f32[A,B]"],
    "vector": ["f32[A]"],
    "matrix": ["f32[A,A]"],
    "integers": ["i32[A,B]"],
    "two arrays": ["f32[A,B]", "f32[A,B]"],
    "two arrays of integers": ["i32[A,B]", "i32[A,B]"],
    "three arrays": ["f32[A,B]", "f32[A,B]", "f32[A,B]"],
    "matrix and vector": ["f32[A,B]", "f32[B]"],
}
CASES = [*((operands, "") for operands in OPERANDS), *(("array", how) for how in ("vmap", "grad", "scan", "cond"))]

SEVERAL_ANSWERS = {"svd", "eig", "eigh", "eigvals", "schur", "sqrtm", "lstsq", "null_space", "orth", "cho_factor"}
ROUNDED_TO_BINS = {"histogram", "histogram2d", "histogramdd"}  # a number on an edge falls to either side
NOT_FUNCTIONS = {"rng_bit_generator", "rng_uniform", "scaled_dot", "empty_like", "empty"}
ASSERTS = {"glu"}  # that a size is even, where others raise
LEFT_OUT = SEVERAL_ANSWERS | ROUNDED_TO_BINS | NOT_FUNCTIONS | ASSERTS
LEFT_OUT_OF_CASE = {
    # JAX traces it since 0.12, but when it compiles it cannot tell that there are 0 of them or more.
    ("jax.numpy", "array"): {"tril_indices_from", "triu_indices_from"},
    ("jax.numpy", "integers"): {"tril_indices_from", "triu_indices_from"},
    ("jax.lax", "integers"): {"cumlogsumexp"},  # JAX traces it, and then has no integer for -inf
    ("jax.scipy.stats.cauchy", "integers"): {"isf", "ppf"},  # at the poles of a tangent
    ("jax.scipy.stats.cauchy", "two arrays of integers"): {"isf", "ppf"},
    # NaN where a probability is 0. To XLA it is that already where it is too small for a normal float.
    ("jax.scipy.stats.poisson", "grad"): {"entropy"},
}

DECLINED = (
    TypeError,  # other operands are needed; tracers where numbers are (jax.errors are of this kind)
    ValueError,  # of other ranks, shapes or dtypes
    InconclusiveDimensionOperation,
    NotImplementedError,  # no rule for a derivative or a batch; not of symbolic sizes
    AttributeError,  # of a dimension that is taken for an array
    IndexError,  # of an axis that is not there
)
"""How JAX says that it cannot trace a function with such operands."""

TOGETHER = 16
MANY = 2500


def arrays_in(results: Any) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(results) if isinstance(leaf, jax.Array)]


def transformed(fn: Callable[..., Any], how: str) -> Callable[..., Any]:
    """`fn` under a transformation, over the first, symbolic, axis."""

    def plain(*xs: Any) -> list[Any]:
        return arrays_in(fn(*xs))

    def total(*xs: Any) -> Any:
        floats = [y for y in plain(*xs) if jnp.issubdtype(y.dtype, jnp.floating)]
        return sum(jnp.sin(y).sum() for y in floats)

    match how:
        case "vmap":
            return jax.vmap(plain)
        case "grad":
            return jax.grad(total)
        case "scan":
            return lambda *xs: lax.scan(lambda count, rows: (count + 1, plain(*rows)), 0, xs)
        case "cond":
            return lambda *xs: lax.cond(
                xs[0].sum() > 0, plain, lambda *ys: [jnp.zeros_like(y) for y in plain(*ys)], *xs
            )
    return plain


def traced(name: str, operands: str, how: str) -> Iterator[Callable[..., Any]]:
    """The public functions of a module that JAX can trace with these operands, and that have results."""
    specs = input_specs(OPERANDS[operands])
    left_out = LEFT_OUT | LEFT_OUT_OF_CASE.get((name, how or operands), set())
    for public, fn in sorted(vars(MODULES[name]).items()):
        if public.startswith("_") or not callable(fn) or inspect.isclass(fn) or public in left_out:
            continue
        function = transformed(fn, how)
        try:
            results = jax.eval_shape(function, *specs)
        except DECLINED:
            continue
        if jax.tree.leaves(results):
            yield function


@pytest.mark.slow
@pytest.mark.parametrize(("operands", "how"), CASES)
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.filterwarnings("ignore")
def test_module(name: str, operands: str, how: str) -> None:
    found = list(traced(name, operands, how))
    for functions in (found[i : i + TOGETHER] for i in range(0, len(found), TOGETHER)):
        check_at_sizes(lambda *xs, functions=functions: [fn(*xs) for fn in functions], *OPERANDS[operands], empty="")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_there_is_much_to_try() -> None:
    """Each module has functions, and all of them many: not everything is declined."""
    counts = {name: sum(len(list(traced(name, *case))) for case in CASES) for name in MODULES}
    assert all(counts.values()), counts
    assert sum(counts.values()) >= MANY
