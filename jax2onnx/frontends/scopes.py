"""Named scopes for the modules of a private copy of a model, for libraries that open none themselves."""

from __future__ import annotations

from typing import Any

import jax


def scoped(module: Any, name: str) -> None:
    """Let the calls of `module`, which nobody else has, run in the named scope `name`."""
    kind = type(module)
    if not callable(module):
        return

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with jax.named_scope(name):
            return kind.__call__(self, *args, **kwargs)

    subclass = type(kind)(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})
    object.__setattr__(module, "__class__", subclass)
