"""Every public function of JAX that can be traced with symbolic axes, alone and transformed; many in one model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.image
import jax.numpy as jnp
import jax.scipy as jsp
import jax.scipy.fft
import jax.scipy.integrate
import jax.scipy.linalg
import jax.scipy.ndimage
import jax.scipy.signal
import jax.scipy.special
import jax.scipy.stats
import pytest
from jax import lax

from jax2onnx.specs import input_specs
from tests.symbolic.sizes import check_at_sizes

MODULES = {
    "jax.numpy": jnp,
    "jax.numpy.linalg": jnp.linalg,
    "jax.numpy.fft": jnp.fft,
    "jax.lax": lax,
    "jax.lax.linalg": lax.linalg,
    "jax.nn": jax.nn,
    "jax.image": jax.image,
    "jax.ops": jax.ops,
    **{f"jax.scipy.{n}": getattr(jsp, n) for n in "fft integrate linalg ndimage signal special stats".split()},
    **{f"jax.scipy.stats.{n}": m for n, m in vars(jsp.stats).items() if inspect.ismodule(m) and not n.startswith("_")},
}
OPERANDS = {
    "array": ["f32[A,B]"],
    "vector": ["f32[A]"],
    "matrix": ["f32[A,A]"],
    "arrays": ["f32[A,B]", "f32[A,B]"],
    "matrix and vector": ["f32[A,B]", "f32[B]"],
}
SEVERAL_ANSWERS = {"svd", "eig", "eigh", "eigvals", "schur", "sqrtm", "lstsq", "null_space", "orth", "cho_factor"}
ROUNDED_TO_BINS = {"histogram", "histogram2d", "histogramdd"}  # a number on an edge falls to either side
NOT_FUNCTIONS = {"rng_bit_generator", "rng_uniform", "scaled_dot", "empty_like", "empty"}
LEFT_OUT = SEVERAL_ANSWERS | ROUNDED_TO_BINS | NOT_FUNCTIONS
TOGETHER = 16


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


def traced(module: Any, operands: list[str], how: str) -> Iterator[Callable[..., Any]]:
    """The public functions of a module that JAX can trace with these operands, and that have results."""
    specs = input_specs(operands)
    for name, fn in sorted(vars(module).items()):
        if name.startswith("_") or not callable(fn) or inspect.isclass(fn) or name in LEFT_OUT:
            continue
        function = transformed(fn, how)
        try:
            results = jax.eval_shape(function, *specs)
        except Exception:  # there are many ways to say no
            continue
        if jax.tree.leaves(results):
            yield function


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operands", "how"),
    [*((operands, "") for operands in OPERANDS), *(("array", how) for how in ("vmap", "grad", "scan", "cond"))],
)
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.filterwarnings("ignore")
def test_module(name: str, operands: str, how: str) -> None:
    found = list(traced(MODULES[name], OPERANDS[operands], how))
    for functions in (found[i : i + TOGETHER] for i in range(0, len(found), TOGETHER)):
        check_at_sizes(
            lambda *xs, functions=functions: [fn(*xs) for fn in functions],
            *OPERANDS[operands], empty="", rtol=5e-4, atol=5e-4,
        )  # fmt: skip
