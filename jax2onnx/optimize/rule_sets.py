"""Which rules there are for which nodes: what the rewriter asks, and what it need not ask."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import onnx_ir as ir

from jax2onnx.optimize.queries import KNOWN

if TYPE_CHECKING:
    from jax2onnx.optimize.engine import Rewriter

Rule = Callable[["Rewriter", ir.Node], Any]
Given = Callable[[Sequence[str]], bool]
"""Whether a rule may apply, from the operators that the operands of a node come from, `KNOWN` for constants."""


def _always(origins: Sequence[str]) -> bool:
    return True


class _Registered(NamedTuple):
    """A rule, and what must be so that it may apply."""

    rule: Rule
    given: Given
    needs: frozenset[str]


class RuleSet:
    """Rules by the operator they look at, in the order in which they are tried."""

    def __init__(self) -> None:
        self.by_op: dict[str, list[_Registered]] = {}

    def rewrites(self, *op_types: str, given: Given = _always, needs: Sequence[str] = ()) -> Callable[[Rule], Rule]:
        """Register the decorated function as a rule for nodes of these operators whose operands are as `given`, in
        models that have one of the operators that it `needs`, if any."""

        def register(rule: Rule) -> Rule:
            for op_type in op_types:
                self.by_op.setdefault(op_type, []).append(_Registered(rule, given, frozenset(needs)))
            return rule

        return register


def first(*op_types: str) -> Given:
    """The first operand comes from one of these operators."""
    wanted = frozenset(op_types)
    return lambda origins: bool(origins) and origins[0] in wanted


def some(*op_types: str) -> Given:
    """Some operand comes from one of these operators."""
    wanted = frozenset(op_types)
    return lambda origins: not wanted.isdisjoint(origins)


def all_known(origins: Sequence[str]) -> bool:
    """All operands are constants."""
    return all(origin == KNOWN for origin in origins)


class Rules:
    """The rules of several sets together, and which of them may apply to what has been met so far."""

    REMEMBERED = 10_000

    def __init__(self, rule_sets: Sequence[RuleSet]):
        self.by_op: dict[str, list[_Registered]] = {}
        self._applicable: dict[tuple[str, ...], list[_Registered]] = {}
        for rule_set in rule_sets:
            for op_type, rules in rule_set.by_op.items():
                self.by_op.setdefault(op_type, []).extend(rules)

    def applicable(self, op_type: str, *origins: str) -> list[_Registered]:
        """The rules for a node of this operator whose operands come from these."""
        key = (op_type, *origins)
        found = self._applicable.get(key)
        if found is None:
            if len(self._applicable) >= self.REMEMBERED:
                self._applicable.clear()
            found = self._applicable[key] = [r for r in self.by_op.get(op_type, ()) if r.given(origins)]
        return found


def operators_around(node: ir.Node) -> tuple[str, ...]:
    """The operator of a node, and those that its operands come from."""
    found = [node.op_type]
    for value in node.inputs:
        if value is None:
            found.append("")
        elif value.const_value is not None:
            found.append(KNOWN)
        else:
            source = value.producer()
            found.append(source.op_type if source is not None else "")
    return tuple(found)


together = functools.cache(Rules)
