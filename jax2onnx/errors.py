"""The errors a user of this package can meet. Each message says what was wrong, where, and what to do."""

from __future__ import annotations


class Jax2OnnxError(Exception):
    """Base class of every error this package raises on purpose."""


class InputError(Jax2OnnxError, ValueError):
    """An argument of the export is wrong: a bad input spec, an unknown opset, a name clash, an unwritable path."""


class UnsupportedError(Jax2OnnxError, NotImplementedError):
    """The program contains something that cannot be expressed exactly. Nothing was written."""


class VerificationError(Jax2OnnxError, AssertionError):
    """The exported model ran, but did not reproduce what JAX computes."""
