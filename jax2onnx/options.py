"""The types of options: a mistake in one is named before any time is spent on tracing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from jax2onnx.errors import InputError


def check_lists(**options: Any) -> None:
    """Each is None or a list. A string is a sequence, too, but of letters."""
    for name, value in options.items():
        if value is not None and (not isinstance(value, Sequence) or isinstance(value, (str, bytes))):
            raise InputError(f"{name} is {value!r}; it is a list, as in {name}=[{value!r}].")


def check_mappings(**options: Any) -> None:
    """Each is None or a dict."""
    for name, value in options.items():
        if value is not None and not isinstance(value, Mapping):
            raise InputError(f"{name} is {value!r}; it is a dict.")


def check_names(**options: Any) -> None:
    """Each is a string."""
    for name, value in options.items():
        if not isinstance(value, str):
            raise InputError(f"{name} is {value!r}; it is a string.")


def check_sizes(**options: tuple[Any, int]) -> None:
    """Each is None or a number of bytes, not below the one beside it."""
    for name, (value, smallest) in options.items():
        if value is not None and (not isinstance(value, Real) or value < smallest):
            raise InputError(f"{name} is {value!r}; it is a number of bytes, {smallest} or more.")
