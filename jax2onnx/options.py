"""The types of options: a mistake in one is named before any time is spent on tracing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from jax2onnx.errors import InputError


def check_lists(**options: Any) -> None:
    """Each is None or a list. A string is a sequence, too, but of letters."""
    for name, value in options.items():
        if value is not None and (not isinstance(value, Sequence) or isinstance(value, (str, bytes))):
            raise InputError(f"{name} is {value!r}; it is a list, as in {name}=[{value!r}].")


def check_mappings(**options: tuple[Any, type, str]) -> None:
    """Each is None or a dict with keys of the type beside it, for which there is a word."""
    for name, (value, kind, word) in options.items():
        if value is not None and not isinstance(value, Mapping):
            raise InputError(f"{name} is {value!r}; it is a dict by {word}.")
        for key in value or ():
            if not isinstance(key, kind):
                raise InputError(f"{name} is a dict by {word}; {key!r} is none.")


def check_callables(**options: Any) -> None:
    """Each is None or can be called."""
    for name, value in options.items():
        if value is not None and not callable(value):
            raise InputError(f"{name} is {value!r}; it is a function.")


def check_flags(**options: Any) -> None:
    """Each is True or False. (A word such as "no" would count as True.)"""
    for name, value in options.items():
        if not isinstance(value, (bool, np.bool_)) and not (isinstance(value, int) and value in (0, 1)):
            raise InputError(f"{name} is {value!r}; it is True or False.")


def check_choices(**options: tuple[Any, Sequence[Any]]) -> None:
    """Each is one of those beside it."""
    for name, (value, choices) in options.items():
        if value not in choices:
            *others, last = [str(c) if c is None else f'"{c}"' for c in choices]
            raise InputError(f"{name} is {value!r}; it must be {', '.join(others)} or {last}.")


def check_names(**options: Any) -> None:
    """Each is a string that can be written."""
    for name, value in options.items():
        if not isinstance(value, str) or not is_text(value):
            raise InputError(f"{name} is {value!r}; it is a string.")


def is_text(value: str, encode: Callable[[str], bytes] = str.encode) -> bool:
    """Can a string be written, as UTF-8 unless it is encoded otherwise? Half of a surrogate pair cannot."""
    try:
        encode(value)
    except UnicodeEncodeError:
        return False
    return True


def check_sizes(**options: tuple[Any, int]) -> None:
    """Each is None or a number of bytes, not below the one beside it."""
    for name, (value, smallest) in options.items():
        is_number = isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value)
        if value is not None and (not is_number or value < smallest):
            raise InputError(f"{name} is {value!r}; it is a number of bytes, {smallest} or more.")
