"""Symbolic dimensions: their terms and values, and what is known of their order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jax._src import core
from jax._src.export.shape_poly import _DimExpr
from jax._src.lax import utils as lax_utils


def dim_terms(dim: Any) -> list[tuple[list[tuple[Any, int]], int]]:
    """The terms of a symbolic dimension: ([(factor, power), ...], coefficient), the positive ones first.

    Not public: the structure of a `jax.export` dimension expression.
    """
    terms = [(list(term._factors), int(k)) for term, k in dim._sorted_terms]
    return sorted(terms, key=lambda t: t[1] < 0)


def simplest_dim(dim: Any) -> Any:
    """A dimension expression as an int if it is constant (operands inside an expression are always expressions)."""
    constant = _DimExpr._to_constant(dim) if isinstance(dim, _DimExpr) else dim
    return dim if constant is None else constant


def solve_dim(dim: Any) -> tuple[str, int, int] | None:
    """(variable, factor, offset) if `dim` is `factor * variable + offset`, so that the variable can be read off it."""
    variable, factor, offset = None, 1, 0
    for factors, coefficient in dim_terms(dim):
        if not factors:
            offset = coefficient
        elif len(factors) == 1 and factors[0][1] == 1 and factors[0][0].to_var() and variable is None:
            variable, factor = factors[0][0].to_var(), coefficient
        else:
            return None
    return None if variable is None else (variable, factor, offset)


def dim_names(dim: Any) -> set[str]:
    """The names in a symbolic dimension. Not public: its variables."""
    return set(dim._get_vars())


def evaluate_dim(dim: Any, sizes: Mapping[str, int]) -> int:
    """The value of a dimension for given sizes of its variables. Not public: evaluation of an expression."""
    return int(dim._evaluate(dict(sizes))) if isinstance(dim, _DimExpr) else int(dim)


def scope_constraints(scope: Any) -> list[tuple[Any, bool]]:
    """The constraints of a scope, as (expression, must it be 0): else it must be 0 or more. Not public: the list."""
    return [(c.diff, c.cmp.name == "EQ") for c in scope._explicit_constraints]


def constraint_texts(scope: Any) -> list[str]:
    """The constraints of a scope as they were written. Not public: the list. JAX adds some that it derives."""
    return [c.debug_str for c in scope._explicit_constraints]


def contradiction(scope: Any) -> str | None:
    """Why the constraints of a scope cannot all hold. Not public: JAX looks when it first compares two dimensions."""
    try:
        for difference, _ in scope_constraints(scope)[:1]:
            is_at_least(difference, 0)
    except ValueError as error:
        return str(error)
    except AttributeError:  # of JAX, where a later constraint makes a number of what an earlier one is about
        return None
    return None


def is_at_least(dim: Any, low: int) -> bool:
    """Is a dimension, which may be symbolic, known to be `low` or more?"""
    try:
        return bool(dim >= low)
    except core.InconclusiveDimensionOperation:
        return False


def is_positive(dim: Any) -> bool:
    """Is a dimension, which may be symbolic, known to be 1 or more?"""
    return is_at_least(dim, 1)


def is_undecided(a: Any, b: Any) -> bool:
    """Is it unknown which of two dimensions, which may be symbolic, is the smaller one?"""
    try:
        bool(a < b)
    except core.InconclusiveDimensionOperation:
        return True
    return False


def non_negative(dim: Any) -> Any:
    """max(dim, 0) for a dimension that may be symbolic."""
    return max(dim, 0) if isinstance(dim, int) else core.max_dim(dim, 0)


def smaller(a: Any, b: Any) -> Any:
    """min(a, b) of dimensions that may be symbolic."""
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else core.min_dim(a, b)


def index_dtype(shape: Any) -> np.dtype:
    """The dtype that JAX converts the indices into an array of this shape to, in a gather that fills. Not public.

    Sizes that vary are small: JAX at such a size is what a model must agree with.
    """
    known = [d for d in shape if isinstance(d, int)]
    return np.dtype(lax_utils.int_dtype_for_shape(known, signed=True))
