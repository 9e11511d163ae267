"""Inputs to try a model with: sizes for its symbolic dimensions, and arrays. The same ones every time."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import tree_util
from jax.export import is_symbolic_dim

from . import compat
from .dimensions import parse_constraint
from .errors import InputError

_ATTEMPTS = 20_000
_PLENTY = (2, 3, 5, 4, 7, 6, 9, 8)  # sizes that differ from symbol to symbol


def sample_sizes(specs: Any, count: int = 3, needed: Sequence[str] = ()) -> list[dict[str, int]]:
    """Up to `count` different sizes for the symbolic dimensions in `specs`, by name, that keep to their constraints and
    to those `needed` besides.

    The first is ordinary and tells the symbols apart, the second has as many ones as can be. Without symbolic
    dimensions, there is one: no sizes.
    """
    dims = [dim for spec in tree_util.tree_leaves(specs) for dim in spec.shape if is_symbolic_dim(dim)]
    if not dims:
        return [{}]
    scope = dims[0].scope
    constraints = [*compat.dims.scope_constraints(scope), *(parse_constraint(text, scope) for text in needed)]
    expressions = [*dims, *(expression for expression, _ in constraints if is_symbolic_dim(expression))]
    names = sorted(set().union(*map(compat.dims.dim_names, expressions)))

    def fits(sizes: Mapping[str, int]) -> bool:
        if any(compat.dims.evaluate_dim(dim, sizes) < 0 for dim in dims):
            return False
        values = [(compat.dims.evaluate_dim(expression, sizes), exact) for expression, exact in constraints]
        return all(value == 0 if exact else value >= 0 for value, exact in values)

    found: list[dict[str, int]] = []
    for sizes in itertools.islice(_candidates(names, constraints), _ATTEMPTS):
        if sizes not in found and fits(sizes):
            found.append(sizes)
            if len(found) == count:
                break
    if not found:
        raise InputError(f"Found no sizes of {', '.join(names)} that keep to the constraints.")
    return found


def _candidates(names: list[str], constraints: list[tuple[Any, bool]]) -> Iterator[dict[str, int]]:
    ordinary = itertools.cycle(_PLENTY)
    yield dict(zip(names, ordinary, strict=False))
    yield dict.fromkeys(names, 1)
    yield dict(zip(names, ordinary, strict=False))
    # A constraint such as N >= 128 or B % 48 == 0 can be met by the numbers in it, and by numbers near them.
    in_constraints = {int(n) for expression, _ in constraints for n in re.findall(r"\b\d+\b", str(expression))}
    near = {n + step for n in in_constraints for step in (-1, 0, 1)} | {n * k for n in in_constraints for k in (2, 3)}
    sizes = sorted(n for n in {1, *_PLENTY, 16, *near} if n > 0)
    random = np.random.default_rng(0)
    while True:
        yield {name: int(random.choice(sizes)) for name in names}


def with_sizes(specs: Any, sizes: Mapping[str, int]) -> Any:
    """`specs` with numbers in place of symbolic dimensions."""

    def fixed(spec: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        shape = tuple(compat.dims.evaluate_dim(dim, sizes) for dim in spec.shape)
        return jax.ShapeDtypeStruct(shape, spec.dtype, weak_type=spec.weak_type)

    return tree_util.tree_map(fixed, specs)


def sample_arrays(specs: Any, seed: int = 0) -> Any:
    """Arrays for `specs`: floats from a normal distribution, integers from 0 to 9, random booleans and keys."""
    leaves, tree = tree_util.tree_flatten(specs)
    arrays = [_sample(spec, np.random.default_rng([seed, i])) for i, spec in enumerate(leaves)]
    return tree_util.tree_unflatten(tree, arrays)


def _sample(spec: jax.ShapeDtypeStruct, random: np.random.Generator) -> Any:
    dtype: Any = spec.dtype
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        blank = jax.numpy.empty(spec.shape, dtype)
        data = random.integers(0, 2**32, jax.random.key_data(blank).shape, np.uint32)
        return jax.random.wrap_key_data(jax.numpy.asarray(data), impl=jax.random.key_impl(blank))
    if dtype == np.bool_:
        return random.random(spec.shape) < 0.5
    if jax.numpy.issubdtype(dtype, np.integer):
        largest = min(9, int(jax.numpy.iinfo(dtype).max))
        return random.integers(0, largest, spec.shape, endpoint=True).astype(dtype)
    values = random.standard_normal(spec.shape)
    if jax.numpy.issubdtype(dtype, np.complexfloating):
        values = values + 1j * random.standard_normal(spec.shape)
    return np.asarray(values).astype(dtype)
