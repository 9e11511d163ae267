"""Do the sizes of what goes into a model fit the shapes and the constraints that the model declares?

A runtime compares sizes that are numbers. That equal names are equal sizes and that constraints hold is checked here,
by what runs a model for the user: a model by itself would need nodes for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
from jax.export import SymbolicScope, is_symbolic_dim

from jax2onnx import compat
from jax2onnx.dimensions import make_scope, names_in, parse_constraint, parse_dim
from jax2onnx.errors import InputError

if TYPE_CHECKING:
    import onnxruntime as ort

CONSTRAINTS = "pkg.jax2onnx.constraints"
"""The metadata of a model that tell its constraints: a list of texts. There is none without symbolic dimensions."""

Check = Callable[[Mapping[str, Any]], None]


def describe_constraints(specs: Any, constraints: Sequence[str], needed: Sequence[str] = ()) -> dict[str, str]:
    """The metadata of a model with inputs like `specs`.

    `constraints` are the caller's words for them, if there are; `needed` is what the model needs beyond them.
    """
    dims = [dim for spec in jax.tree.leaves(specs) for dim in spec.shape if is_symbolic_dim(dim)]
    if not dims:
        return {}
    given = list(constraints) or compat.dims.constraint_texts(dims[0].scope)
    return {CONSTRAINTS: json.dumps([*given, *(text for text in needed if text not in given)])}


def check_of(session: ort.InferenceSession) -> Check:
    """`size_check` for the model of a session. A model that tells no constraints takes any sizes."""
    constraints = constraints_of(session)
    if constraints is None:
        return lambda arrays: None
    return size_check({i.name: i.shape for i in session.get_inputs()}, constraints)


def constraints_of(session: ort.InferenceSession) -> list[str] | None:
    """The constraints that the model of a session tells; None if it tells nothing about them."""
    described = session.get_modelmeta().custom_metadata_map
    return json.loads(described[CONSTRAINTS]) if CONSTRAINTS in described else None


def size_check(declared: Mapping[str, Sequence[int | str]], constraints: Sequence[str]) -> Check:
    """A function that takes arrays by name, and raises `InputError` if their sizes do not fit.

    Example:
        >>> import numpy as np
        >>> size_check({"x": ["B", "T"]}, ["T <= 8"])({"x": np.ones((2, 9))})
        Traceback (most recent call last):
        jax2onnx.errors.InputError: The model is for sizes with T <= 8, but T is 9.
    """
    scope = make_scope(_eliminating(declared, constraints))
    named = [
        (name, axis, parse_dim(dim, scope))
        for name, shape in declared.items()
        for axis, dim in enumerate(shape)
        if isinstance(dim, str)
    ]
    read = [(name, axis, solved) for name, axis, dim in named if (solved := compat.dims.solve_dim(dim)) is not None]
    conditions = [(text, *parse_constraint(text, scope)) for text in constraints]

    def check(arrays: Mapping[str, Any]) -> None:
        shapes = {name: array.shape for name, array in arrays.items()}
        if any(len(shapes.get(name, ())) != len(shape) for name, shape in declared.items()):
            return  # that one is missing or has another rank, the runtime says
        sizes: dict[str, int] = {}
        for name, axis, (variable, factor, offset) in read:
            sizes.setdefault(variable, (shapes[name][axis] - offset) // factor)
        known = ", ".join(f"{name} is {size}" for name, size in sizes.items())
        for name, axis, dim in named:
            size = shapes[name][axis]
            if size != compat.dims.evaluate_dim(dim, sizes):
                raise InputError(f"The size of axis {axis} of {name} is {size}; it must be {dim}, where {known}.")
        for text, difference, is_exact in conditions:
            value = compat.dims.evaluate_dim(difference, sizes)
            if value != 0 if is_exact else value < 0:
                mentioned = " and ".join(f"{n} is {sizes[n]}" for n in sorted(compat.dims.dim_names(difference)))
                raise InputError(f"The model is for sizes with {text}, but {mentioned}.")

    return check


def _eliminating(declared: Mapping[str, Sequence[int | str]], constraints: Sequence[str]) -> list[str]:
    """The equalities by which names have left the shapes: with "S == T", JAX writes T for S, and so do they."""
    names = {name for shape in declared.values() for dim in shape if isinstance(dim, str) for name in names_in(dim)}
    return [text for text in constraints if parse_constraint(text, SymbolicScope())[1] and not names_in(text) <= names]
