"""Named scopes for the modules of a private copy of a model, for libraries that open none themselves."""

from __future__ import annotations

import functools
from typing import Any

import jax


def scoped(module: Any, name: str) -> None:
    """Let the calls of `module`, which nobody else has, run in the named scope `name`."""
    kind: Any = type(module)
    object.__setattr__(module, "__class__", scoped_class(kind, name))


@functools.cache
def scoped_class(kind: Any, name: str) -> type:
    """A subclass of `kind`, called in a scope. One for all exports: JAX keeps each class that is a pytree for ever."""

    @functools.wraps(kind.__call__)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with jax.named_scope(name):
            return kind.__call__(self, *args, **kwargs)

    return type(kind)(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})
