"""The optimize stage: onnx_ir -> onnx_ir. Passes that make a graph small and fast without changing a number."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

Pass = Callable[[ir.Model], int]
"""A pass changes a model in place and returns how many changes it made."""

PASSES: list[Pass] = []


def optimize(model: ir.Model) -> dict[str, int]:
    """Run all passes and return what each of them did."""
    return {p.__name__: p(model) for p in PASSES}
