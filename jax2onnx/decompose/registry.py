"""Which primitives are rewritten in JAX itself, and how.

A decomposition is a JAX function with the signature of the primitive it replaces::

    @decomposes(lax.square_p)
    def square(x, **_):
        return x * x

It gets the equation's operands and parameters, and returns one array (or a list for a primitive with several results)
of exactly the types the primitive has. It may use every primitive that is lowered or decomposed itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jax.extend.core import Primitive


class Decomposition(NamedTuple):
    """A JAX function that computes what a primitive computes, and the condition under which it is used."""

    fn: Callable[..., Any]
    when: Callable[..., bool] | None


DECOMPOSITIONS: dict[Primitive, Decomposition] = {}


def decomposes(*primitives: Primitive, when: Callable[..., bool] | None = None) -> Callable[[Callable], Callable]:
    """Register the decorated JAX function as the definition of `primitives`.

    `when(in_avals, params)` restricts it to some operand types or parameters; elsewhere the primitive stays as it is.
    """

    def register(fn: Callable) -> Callable:
        for primitive in primitives:
            DECOMPOSITIONS[primitive] = Decomposition(fn, when)
        return fn

    return register
