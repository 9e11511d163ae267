"""What can be known of a loop from the jaxpr of its body, before it is lowered."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal

from jax2onnx import compat
from jax2onnx.lower.dtypes import is_integer

UNROLLED_EQUATIONS = 32
"""A loop is written out if that takes at most so many equations.

In ONNX Runtime a step of a Scan costs about as much as one or two small nodes on top of its body: with bodies of 1, 4
and 16 nodes, the loop took 2, 1.7 and 1.1 times as long as its written-out form.
"""


def origins(jaxpr: Any) -> list[int | None]:
    """For each result of a jaxpr, the position of the input that it is, unchanged, or None."""
    known: dict[Any, Any] = {v: v for v in jaxpr.invars}
    for eqn in jaxpr.eqns:
        if eqn.primitive in compat.kinds.CALL_PRIMITIVES:
            for out, origin in zip(eqn.outvars, origins(compat.programs.callee(eqn.params).jaxpr), strict=True):
                source = None if origin is None else eqn.invars[origin]
                if source is not None and not isinstance(source, Literal) and source in known:
                    known[out] = known[source]
    position = {v: i for i, v in enumerate(jaxpr.invars)}
    return [None if isinstance(v, Literal) else position.get(known.get(v)) for v in jaxpr.outvars]


def increments(jaxpr: Any) -> dict[tuple[int, int], np.ndarray]:
    """The results of a jaxpr that are an integer input plus a known number: {(result, input): number}."""
    position = {v: i for i, v in enumerate(jaxpr.invars)}
    made_by = {v: eqn for eqn in jaxpr.eqns if eqn.primitive is lax.add_p for v in eqn.outvars}
    found = {}
    for out, var in enumerate(jaxpr.outvars):
        eqn = None if isinstance(var, Literal) else made_by.get(var)
        if eqn is None or var.aval.shape or not is_integer(var.aval.dtype):
            continue
        for a, b in (eqn.invars, eqn.invars[::-1]):
            if isinstance(b, Literal) and not isinstance(a, Literal) and a in position:
                found[out, position[a]] = np.asarray(b.val, var.aval.dtype)
    return found


def written_out(closed: ClosedJaxpr, times: Any = 1) -> int:
    """How many equations a jaxpr has, `times` over, with the loops in it that are written out counted in full."""
    total = 0
    for eqn in closed.jaxpr.eqns:
        inner = sum(map(written_out, compat.programs.sub_jaxprs(eqn.params)))
        length = eqn.params["length"] if eqn.primitive is lax.scan_p else 1
        total += 1 + (inner * length if is_unrolled(inner, length) else inner)
    return total * times


def is_unrolled(equations: int, length: Any) -> bool:
    """Is a loop of so many steps written out, if its body has so many equations?"""
    return isinstance(length, int) and (length <= 1 or length * equations <= UNROLLED_EQUATIONS)
