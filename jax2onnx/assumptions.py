"""What is known of symbolic dimensions where another library calls `to_onnx`, and has no place to say it."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

_ASSUMED: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("assumed", default=())


@contextlib.contextmanager
def assuming(*constraints: str) -> Iterator[None]:
    """Exports in this context have these `constraints` beside their own.

    Example:
        >>> from jax2onnx import assuming, to_onnx
        >>> with assuming("H >= 2"):
        ...     model = to_onnx(lambda x: x[:, 1], [("B", "H")])
        >>> with assuming("dim_0_1 >= 2", "dim_0_2 >= 2"):  # names that Keras gives to sizes that vary
        ...     keras_model.export("model.onnx", format="onnx")  # doctest: +SKIP
    """
    token = _ASSUMED.set((*_ASSUMED.get(), *constraints))
    try:
        yield
    finally:
        _ASSUMED.reset(token)


def assumed() -> tuple[str, ...]:
    """The constraints of the contexts around."""
    return _ASSUMED.get()
