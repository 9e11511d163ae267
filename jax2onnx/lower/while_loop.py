"""`while_loop`: an ONNX Loop, or a Scan if it only counts up to a number that does not change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal

from jax2onnx.lower.cond import if_
from jax2onnx.lower.context import Builder, Val
from jax2onnx.lower.dtypes import BOOL, INT32, INT64
from jax2onnx.lower.loop_analysis import increments, origins
from jax2onnx.lower.registry import lowers
from jax2onnx.lower.scan import steps


@lowers(lax.while_p)
def while_loop(
    g: Builder,
    *operands: Val,
    cond_jaxpr: ClosedJaxpr,
    body_jaxpr: ClosedJaxpr,
    cond_nconsts: int,
    body_nconsts: int,
) -> list[Val]:
    """Repeat the body as long as the condition holds."""
    cond_consts = operands[:cond_nconsts]
    consts = operands[cond_nconsts : cond_nconsts + body_nconsts]
    init = operands[cond_nconsts + body_nconsts :]
    fixed = [origin == body_nconsts + i for i, origin in enumerate(origins(body_jaxpr.jaxpr))]
    counter = _counter(cond_jaxpr, body_jaxpr, fixed)
    if counter is not None:
        i, limit = counter
        limits = [*cond_consts, *init]
        end = g.const(limit) if isinstance(limit, np.ndarray) else limits[limit]
        return _counted(g, body_jaxpr, consts, init, i, end)

    def condition(g: Builder, carry: Sequence[Val]) -> Val:
        return g.session.lower_closed(g, cond_jaxpr, [*cond_consts, *carry])[0]

    running = condition(g, init)
    if running.const is not None and not running.const.any():
        return list(init)
    states = [i for i in range(len(init)) if not fixed[i]]
    body = g.child()
    body.input((), INT64)  # the number of the step
    body.input((), BOOL)  # that the loop goes on
    # With a batch of conditions (the vmap of a while loop), it goes on while any of them holds, and what is done stays.
    is_batch = bool(running.shape)
    was_running = body.input(running.shape, BOOL) if is_batch else None
    carry = [init[i] if fixed[i] else body.input(init[i].shape, init[i].dtype) for i in range(len(init))]
    new = g.session.lower_closed(body, body_jaxpr, [*consts, *carry])
    if was_running is not None:
        new = [a if a.value is b.value else _select(body, was_running, a, b) for a, b in zip(new, carry, strict=True)]
    new = [init[i] if fixed[i] else new[i] for i in range(len(init))]
    goes_on = condition(body, new)
    outputs = [_any(body, goes_on), *([goes_on] if is_batch else []), *(new[i] for i in states)]
    start = [*([running] if is_batch else []), *(init[i] for i in states)]
    results = g.Loop(
        None,
        _any(g, running),
        *start,
        body=body.graph(outputs, "body", forwards=True),
        out=[(x.shape, x.dtype) for x in start],
    )
    final = list(init)
    for i, result in zip(states, results[len(results) - len(states) :], strict=True):
        final[i] = result
    return final


def _select(g: Builder, which: Val, a: Val, b: Val) -> Val:
    """`a` where `which` holds, else `b`; `which` has the leading axes of both."""
    return g.Where(g.unsqueeze(which, range(which.rank, a.rank)), a, b)


def _any(g: Builder, x: Val) -> Val:
    return g.call_jax(_reduce_or, x) if x.shape else x


def _reduce_or(x: Any) -> Any:
    return lax.reduce_or(x, range(x.ndim))


def _counter(cond: ClosedJaxpr, body: ClosedJaxpr, fixed: Sequence[bool]) -> tuple[int, int | np.ndarray] | None:
    """If the loop goes on while a counter is less than a number that does not change: the position of the counter among
    the carries, and of the number among the operands of the condition (or the number itself)."""
    n_carry, n_limits = len(fixed), len(cond.jaxpr.invars) - len(fixed)
    if len(cond.jaxpr.eqns) != 1 or cond.jaxpr.eqns[0].primitive is not lax.lt_p:
        return None
    (eqn,) = cond.jaxpr.eqns
    counter, limit = eqn.invars
    position = {v: i for i, v in enumerate(cond.jaxpr.invars)}
    if eqn.outvars != cond.jaxpr.outvars or isinstance(counter, Literal) or counter not in position:
        return None
    i = position[counter] - n_limits
    n_consts = len(body.jaxpr.invars) - n_carry
    if i < 0 or increments(body.jaxpr).get((i, n_consts + i)) != 1:
        return None
    if isinstance(limit, Literal):
        return i, np.asarray(limit.val, counter.aval.dtype)
    if limit in position and (position[limit] < n_limits or fixed[position[limit] - n_limits]):
        return i, position[limit]
    return None


def _counted(
    g: Builder, body: ClosedJaxpr, consts: Sequence[Val], init: Sequence[Val], counter: int, end: Val
) -> list[Val]:
    """A loop that counts up to `end`: a Scan, if there is a step at all."""
    start = init[counter]
    final = g.Max(start, end)
    is_zero = start.const is not None and start.const == 0
    if start.dtype == INT32 or (start.dtype == INT64 and is_zero):
        values = g.op("Range", start, end, np.asarray(1, start.dtype), out=((None,), start.dtype))
    else:  # ONNX Runtime's Range computes in double, and not at all in other dtypes
        count = g.Sub(g.cast(final, INT64), g.cast(start, INT64))
        index = g.op("Range", np.asarray(0, np.int64), count, np.asarray(1, np.int64), out=((None,), INT64))
        values = g.Add(g.cast(index, start.dtype), start)
    results = if_(
        g,
        g.Less(start, end),
        lambda branch: steps(branch, body, consts, init, (), {counter: values}, length=None, stay=True),
        lambda _: init,
        transparent=True,
    )
    results[counter] = final
    return results
