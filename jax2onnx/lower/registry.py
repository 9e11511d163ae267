"""Which primitives are lowered to ONNX, and how.

A rule is a plain function. It gets a builder `g`, the operands and the parameters of the equation, and returns the
result (a list for a primitive with several results)::

    @lowers(lax.sin_p)
    def sin(g, x, **_):
        return g.Sin(x)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jax.extend.core import Primitive

Rule = Callable[..., Any]

LOWERINGS: dict[Primitive, Rule] = {}


def lowers(*primitives: Primitive) -> Callable[[Rule], Rule]:
    """Register the decorated function as the lowering of `primitives`."""

    def register(rule: Rule) -> Rule:
        for primitive in primitives:
            LOWERINGS[primitive] = rule
        return rule

    return register


def lower_one_to_one(table: Mapping[Primitive, str]) -> None:
    """Register primitives that are exactly one ONNX operator with the same operands."""
    for primitive, op_type in table.items():
        LOWERINGS[primitive] = _one_to_one(op_type)


def _one_to_one(op_type: str) -> Rule:
    def rule(g: Any, *operands: Any, **_: Any) -> Any:
        return g.op(op_type, *operands)

    return rule
