"""Loops whose number of steps is known when they start: `scan`, and what `while_loop.py` finds to be one.

They become ONNX Scan, which in ONNX Runtime is twice as fast per step as Loop. Values from outside are simply used in
the body; carries that never change are such values; a counter is read from a vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr

from jax2onnx import compat
from jax2onnx.lower.cond import if_
from jax2onnx.lower.context import Builder, Val
from jax2onnx.lower.dtypes import INT64
from jax2onnx.lower.loop_analysis import increments, is_unrolled, origins, written_out
from jax2onnx.lower.registry import lowers

SMALL = 16 * 1024
"""A known array of up to so many bytes is taken apart while exporting."""


@lowers(lax.scan_p)
def scan(g: Builder, *operands: Val, jaxpr: ClosedJaxpr, length: Any, reverse: bool, **params: Any) -> list[Val]:
    """A loop over the leading axis of some operands that carries values along and stacks up others."""
    n_consts, n_carry = compat.programs.scan_layout(params)
    consts, init, xs = operands[:n_consts], operands[n_consts : n_consts + n_carry], operands[n_consts + n_carry :]
    closed = compat.programs.closed_jaxpr(jaxpr)
    if is_unrolled(written_out(closed), length):
        return _unrolled(g, closed, consts, init, xs, length, reverse)
    counters, finals = {}, {}
    for (out, position), by in increments(closed.jaxpr).items():
        i = position - n_consts
        if i == out < n_carry:
            counters[i], finals[i] = _counter(g, init[i], by, length)
    may_be_empty = not compat.dims.is_positive(length)

    def loop(body: Builder) -> list[Val]:
        return steps(body, closed, consts, init, xs, counters, length=length, reverse=reverse, stay=may_be_empty)

    if not may_be_empty:
        results = loop(g)
    else:
        empty = [g.full((length, *a.shape), 0, a.dtype) for a in closed.out_avals[n_carry:]]
        nonempty = g.Greater(g.dim(length), np.asarray(0, np.int64))
        results = if_(g, nonempty, loop, lambda _: [*init, *empty], transparent=True)
    return [finals.get(i, result) for i, result in enumerate(results)]


def _counter(g: Builder, start: Val, by: np.ndarray, length: Any) -> tuple[Val, Val]:
    """The values start, start + by, ... of a counter, and the one after the last step. Integers wrap around."""
    if start.const is not None and isinstance(length, int) and length <= 1024:
        first, step = (x.astype(np.int64) for x in (start.const, by))  # uint64 and int64 together would be float64
        values = (first + step * np.arange(length + 1)).astype(start.dtype)
        return g.const(values[:-1]), g.const(values[-1])
    index = g.iota(length, start.dtype)
    total = g.cast(g.dim(length), start.dtype)
    if by != 1:
        index, total = g.Mul(index, by), g.Mul(total, by)
    if start.const is not None and start.const == 0:
        return index, total
    return g.Add(start, index), g.Add(start, total)


def steps(
    g: Builder,
    closed: ClosedJaxpr,
    consts: Sequence[Val],
    init: Sequence[Val],
    xs: Sequence[Val],
    counters: Mapping[int, Val],
    *,
    length: Any,
    reverse: bool = False,
    stay: bool = False,
) -> list[Val]:
    """The loop as a Scan, of one step or more. `counters` gives the values of some carries, in the order of the steps.

    What is returned for those is meaningless.
    """
    n_consts, n_carry = len(consts), len(init)
    fixed = {i for i, origin in enumerate(origins(closed.jaxpr)[:n_carry]) if origin == n_consts + i}
    states = [i for i in range(n_carry) if i not in fixed and i not in counters]
    body = g.child()
    state_inputs = {i: body.input(init[i].shape, init[i].dtype) for i in states}
    scanned = [*((x, reverse) for x in xs), *((counter, False) for counter in counters.values())]
    slices = [body.input(x.shape[1:], x.dtype) for x, _ in scanned]
    current = {**state_inputs, **dict(zip(counters, slices[len(xs) :], strict=True))}
    results = g.session.lower_closed(
        body, closed, [*consts, *(current.get(i, init[i]) for i in range(n_carry)), *slices[: len(xs)]]
    )

    # A stacked result is made in the loop only if it is neither the same at each step nor a scanned input itself.
    whole = {id(s.value): x for s, (x, backwards) in zip(slices, scanned, strict=True) if backwards == reverse}
    ys = results[n_carry:]
    stacked = {id(y.value): y for y in ys if y.home is body and id(y.value) not in whole}
    outputs = [*(results[i] for i in states), *stacked.values()]
    final = list(init)
    if outputs:
        if not slices:
            scanned, slices = [(g.iota(length), False)], [body.input((), INT64)]
        needed = {id(output.value) for output in outputs}
        used = [i for i, s in enumerate(slices) if s.value.uses() or id(s.value) in needed] or [0]
        scanned = [scanned[i] for i in used]  # a Scan has to scan something
        body.inputs = [*(s.value for s in state_inputs.values()), *(slices[i].value for i in used)]
        made = g.Scan(
            *(init[i] for i in states),
            *(x for x, _ in scanned),
            body=body.graph(outputs, "body"),
            num_scan_inputs=len(scanned),
            scan_input_directions=[int(r) for _, r in scanned] if any(r for _, r in scanned) else None,
            scan_output_directions=[1] * len(stacked) if reverse and stacked else None,
            out=[
                *((init[i].shape, init[i].dtype) for i in states),
                *(((length, *y.shape), y.dtype) for y in stacked.values()),
            ],
            stay=stay,
        )
        for i, state in zip(states, made, strict=False):
            final[i] = state
        whole.update(zip(stacked, made[len(states) :], strict=True))
    repeated = {id(y.value): g.expand(y, (length, *y.shape)) for y in ys if id(y.value) not in whole}
    return [*final, *((whole | repeated)[id(y.value)] for y in ys)]


def _unrolled(
    g: Builder,
    closed: ClosedJaxpr,
    consts: Sequence[Val],
    carry: Sequence[Val],
    xs: Sequence[Val],
    length: int,
    reverse: bool,
) -> list[Val]:
    """The steps one after the other."""
    n_carry = len(carry)
    history: list[list[Val]] = []
    for step in reversed(range(length)) if reverse else range(length):
        results = g.session.lower_closed(g, closed, [*consts, *carry, *(_element(g, x, step) for x in xs)])
        carry = results[:n_carry]
        history.append(results[n_carry:])
    if reverse:
        history.reverse()
    stacks = [_stack(g, column) for column in zip(*history, strict=True)]
    if not length:
        stacks = [g.full((0, *a.shape), 0, a.dtype) for a in closed.out_avals[n_carry:]]
    return [*carry, *stacks]


def _element(g: Builder, x: Val, i: int) -> Val:
    """x[i] for a known i."""
    if x.const is not None and x.const.nbytes <= SMALL:
        return g.const(x.const[i])
    if x.shape[0] == 1:
        return g.squeeze(x, (0,))
    return g.Gather(x, np.asarray(i, np.int64), axis=0)


def _stack(g: Builder, ys: Sequence[Val]) -> Val:
    """Arrays along a new leading axis."""
    first = ys[0]
    if len(ys) > 1 and all(y.value is first.value for y in ys):
        return g.expand(first, (len(ys), *first.shape))
    if all(y.const is not None and y.const.nbytes * len(ys) <= SMALL for y in ys):
        return g.const(np.stack([y.const for y in ys]))  # type: ignore[misc]
    rows = [g.unsqueeze(y, (0,)) for y in ys]
    return rows[0] if len(rows) == 1 else g.Concat(*rows, axis=0)
