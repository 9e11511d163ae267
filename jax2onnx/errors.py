"""The errors a user of this package can meet. Each message says what was wrong, where, and what to do."""

from __future__ import annotations

import os
import re

UNKNOWN_LINE = "unknown"
_LINE = re.compile(r"\.py:\d+|, at [^ ]+:\d+\.$")
_OWN_FOLDER = os.path.dirname(__file__) + os.sep


class Jax2OnnxError(Exception):
    """Base class of every error this package raises on purpose."""


class InputError(Jax2OnnxError, ValueError):
    """An argument of the export is wrong: a bad input spec, an unknown opset, a name clash, an unwritable path."""


class UnsupportedError(Jax2OnnxError, NotImplementedError):
    """The program contains something that cannot be expressed exactly. Nothing was written."""

    def at(self, line: str) -> UnsupportedError:
        """The same, with the line of the program that it is about, unless it has one, or nobody else knows this one."""
        if _LINE.search(str(self)) or line == UNKNOWN_LINE or line.startswith(_OWN_FOLDER):
            return self
        return UnsupportedError(f"{str(self).rstrip('.')}, at {line}.")


class VerificationError(Jax2OnnxError, AssertionError):
    """The exported model ran, but did not reproduce what JAX computes."""
