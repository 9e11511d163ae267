"""Pauses of Python's garbage collection, which among the objects of JAX takes longer than what it is paused for."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """For work that makes many objects which all stay: to look for garbage among them takes a fifth of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
