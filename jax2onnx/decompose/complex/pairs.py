"""What the rules for complex numbers share: the pair, and the table of rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jax import lax
from jax.extend.core import Primitive


class Complex(NamedTuple):
    """A complex array as its real and imaginary parts, of equal shape."""

    re: Any
    im: Any


RULES: dict[Primitive, Callable[..., Any]] = {}
"""For each primitive a JAX function of its operands (`Complex` or a real array) and its parameters."""


def on_complex(*primitives: Primitive) -> Callable[[Callable], Callable]:
    """Register the decorated function as what `primitives` do to complex operands or results."""

    def register(fn: Callable) -> Callable:
        RULES.update(dict.fromkeys(primitives, fn))
        return fn

    return register


def as_complex(x: Any) -> Complex:
    """A real or complex operand as a pair."""
    return x if isinstance(x, Complex) else Complex(x, lax.full_like(x, 0))


def partwise(fn: Callable[..., Any], *operands: Any) -> Complex:
    """Apply `fn` to the real parts and to the imaginary parts. Real operands go to both."""
    re, im = (fn(*[x[i] if isinstance(x, Complex) else x for x in operands]) for i in (0, 1))
    return Complex(re, im)


def where(which: Any, x: Any, y: Any) -> Any:
    """`x` where the condition holds, `y` elsewhere. One of them may be a number, both may be complex."""
    if isinstance(x, Complex):
        return Complex(where(which, x.re, y.re), where(which, x.im, y.im))
    x = lax.full_like(y, x) if isinstance(x, int | float | np.generic) else x
    y = lax.full_like(x, y) if isinstance(y, int | float | np.generic) else y
    return lax.select(which, x, y)


def spread(*arrays: Any) -> list[Any]:
    """The operands of an elementwise primitive in one shape. (It broadcasts scalars and axes of size 1 by itself.)"""
    shape = lax.broadcast_shapes(*(x.shape for x in arrays))
    return [
        x if x.shape == shape else lax.broadcast_in_dim(x, shape, range(len(shape) - x.ndim, len(shape)))
        for x in arrays
    ]
