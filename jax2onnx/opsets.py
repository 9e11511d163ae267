"""Which ONNX operator sets can be written, and the oldest IR version that each of them needs."""

from __future__ import annotations

import functools
from typing import Any

import onnx
from onnx import helper

from jax2onnx.errors import InputError, UnsupportedError

DEFAULT = 23
OLDEST = 17
NEWEST_OF_THE_RUNTIME = 26
"""The newest opset that the current ONNX Runtime release loads; `onnx` alone may know newer ones."""


def newest() -> int:
    """The newest opset that both the installed `onnx` and ONNX Runtime know."""
    return min(onnx.defs.onnx_opset_version(), NEWEST_OF_THE_RUNTIME)


def check(opset: int) -> None:
    """Raise `InputError` unless `opset` can be written."""
    if isinstance(opset, bool) or not isinstance(opset, int) or not OLDEST <= opset <= newest():
        raise InputError(f"opset is {opset!r}; it must be a whole number from {OLDEST} to {newest()}.")


@functools.cache
def ir_version(opset: int) -> int:
    """The lowest IR version that fits `opset`, so that older runtimes can load the model."""
    return helper.find_min_ir_version_for([helper.make_opsetid("", opset)])


@functools.cache
def check_operator(op: str, opset: int) -> None:
    """Raise `UnsupportedError` if `opset` does not have the operator yet."""
    versions = [schema.since_version for schema in _schemas() if schema.name == op]
    if min(versions) > opset:
        raise UnsupportedError(f"This needs {op}, which ONNX has from opset {min(versions)} on; the opset is {opset}.")


@functools.cache
def _schemas() -> list[Any]:
    return [schema for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain]
