"""Pauses of Python's garbage collection, which among the objects of JAX takes longer than what it is paused for."""

import contextlib
import gc

_paused = False


class without_garbage_collection(contextlib.ContextDecorator):
    """For work that makes many objects which all stay: to look for garbage among them takes a fifth of its time."""

    def __enter__(self) -> None:
        global _paused
        if gc.isenabled():
            _paused = True
            gc.disable()

    def __exit__(self, *_: object) -> None:
        resume_garbage_collection()


def resume_garbage_collection() -> None:
    """End the pause, if there is one: others are at work now, who may leave much garbage behind."""
    global _paused
    if _paused:
        _paused = False
        gc.enable()
