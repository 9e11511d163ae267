"""`cond` and `switch`: a choice between branches becomes an If, or a balanced tree of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr

from jax2onnx.lower.context import Builder, Val
from jax2onnx.lower.dtypes import BOOL, onnx_dtype
from jax2onnx.lower.registry import lowers

Branch = Callable[[Builder], Sequence[Val]]
"""Emits the nodes of a branch and returns its results."""


@lowers(lax.cond_p)
def cond(g: Builder, index: Val, *operands: Val, branches: Sequence[ClosedJaxpr], **_: Any) -> list[Val]:
    """The branch number `index`, counted as JAX does: what is out of range is the first or the last one."""
    if index.const is not None:
        taken = branches[min(max(int(index.const), 0), len(branches) - 1)]
        return g.session.lower_closed(g, taken, operands)
    return _choose(g, index, 0, branches, operands)


def _choose(g: Builder, index: Val, first: int, branches: Sequence[ClosedJaxpr], operands: Sequence[Val]) -> list[Val]:
    """One of `branches`, the first of which has the number `first`."""
    if len(branches) == 1:
        return g.session.lower_closed(g, branches[0], operands)
    half = len(branches) // 2
    return if_(
        g,
        _at_least(g, index, first + half),
        lambda upper: _choose(upper, index, first + half, branches[half:], operands),
        lambda lower: _choose(lower, index, first, branches[:half], operands),
    )


def _at_least(g: Builder, index: Val, number: int) -> Val:
    """index >= number. JAX turns a bool predicate into an index: there, that is the predicate itself."""
    if index.dtype == BOOL:
        return index
    node = index.value.producer()
    source = node.inputs[0] if node is not None and node.op_type == "Cast" else None
    if number == 1 and source is not None and source.dtype == onnx_dtype(BOOL):
        return Val(source, index.shape, BOOL, index.home)
    return g.GreaterOrEqual(index, np.asarray(number, index.dtype))


def if_(g: Builder, predicate: Val, then: Branch, otherwise: Branch, *, transparent: bool = False) -> list[Val]:
    """The results of `then` where `predicate` holds, else those of `otherwise`.

    The nodes of a branch stay in it, unless it is `transparent`: then they go as far out as those of a loop body.
    """
    upper, lower = (g.child(is_branch=not transparent) for _ in range(2))
    yes, no = then(upper), otherwise(lower)
    # What both branches take from outside needs no choice.
    chosen = [i for i, (a, b) in enumerate(zip(yes, no, strict=True)) if a.value is not b.value]
    results = list(yes)
    if chosen:
        outputs = g.If(
            predicate,
            then_branch=upper.graph([yes[i] for i in chosen], "then"),
            else_branch=lower.graph([no[i] for i in chosen], "else"),
            out=[(yes[i].shape, yes[i].dtype) for i in chosen],
        )
        for i, output in zip(chosen, outputs, strict=True):
            results[i] = output
    return results
