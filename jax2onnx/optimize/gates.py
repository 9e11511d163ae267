"""The cells that ONNX has operators for, found in the formulas of a step: LSTM, GRU and the simple one."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from jax2onnx.optimize.cells import Apply, Array, Formula, Function, Input, Linear, Number, Product, Sum

SIGMOID, TANH = Function("Sigmoid"), Function("Tanh")


class Affine(NamedTuple):
    """x @ a + h @ b + gated @ c + bias, where `gated` is the state times the reset gate, and what is left over."""

    matrices: dict[ir.Value, list[Array]]
    gated: list[tuple[Product, Array]]
    picks: list[Input]
    biases: list[Array]
    rest: list[Formula]
    sign: int = 1


class Cell(NamedTuple):
    """A cell: its operator, its gates in the order of ONNX, and what only some cells have."""

    op_type: str
    gates: list[Affine]
    inner: Affine | None = None
    """Of a GRU that multiplies by the reset gate last: what it multiplies."""
    attributes: tuple[tuple[str, Any], ...] = ()


def _gate(formula: Formula | None) -> Function | None:
    """The function of a gate, if that is one."""
    is_gate = isinstance(formula, Apply) and formula.function.op_type in ("Sigmoid", "HardSigmoid")
    return formula.function if is_gate else None  # type: ignore[union-attr]


def _is_symmetric(gate: Function | None) -> bool:
    """Is 1 - f(x) the same as f(-x)?"""
    return gate is not None and gate.beta in (None, 0.5)


def _activations(gate: Function, *others: Function) -> tuple[tuple[str, Any], ...]:
    """The attributes that say which functions a cell has, if these are not the usual ones."""
    if gate == SIGMOID:
        return ()
    names = [function.op_type for function in (gate, *others)]
    return ("activations", names), ("activation_alpha", [gate.alpha]), ("activation_beta", [gate.beta])


def _argument(formula: Formula | None, function: Function | None) -> Formula | None:
    return formula.argument if isinstance(formula, Apply) and formula.function == function else None


def _orders(formula: Formula | None) -> Iterator[tuple[Formula, Formula]]:
    """The factors of a product, or the terms of a sum of two, in both orders."""
    pair: Sequence[Formula] = ()
    if isinstance(formula, Product):
        pair = formula.factors
    elif isinstance(formula, Sum) and not formula.minus and len(formula.plus) == 2:
        pair = formula.plus
    if len(pair) == 2:
        yield pair[0], pair[1]
        yield pair[1], pair[0]


def _is_input(formula: Formula, value: ir.Value) -> bool:
    return isinstance(formula, Input) and formula.value is value and formula.is_whole()


def _is_same(a: Formula, b: Formula) -> bool:
    return a is b or (isinstance(b, Input) and _is_input(a, b.value) and b.is_whole())


def simple(result: Formula | None) -> Cell | None:
    """h' = tanh(x @ a + h @ b + bias). With relu instead, ONNX Runtime's kernel drops NaN."""
    gate = _affine(_argument(result, TANH))
    return None if gate is None or gate.rest or gate.gated else Cell("RNN", [gate])


def lstm(hidden: Formula | None, memory: Formula | None, before: ir.Value) -> Cell | None:
    """c' = f * c + i * g; h' = o * tanh(c')."""
    for out, squashed in _orders(hidden):
        gate = _gate(out)
        o = _argument(out, gate)
        if gate is None or memory is None or _argument(squashed, TANH) is not memory:
            continue
        for kept, new in _orders(memory):
            for forget, c in _orders(kept):
                f = _argument(forget, gate)
                if f is None or not _is_input(c, before):
                    continue
                for enter, candidate in _orders(new):
                    i, g = _argument(enter, gate), _argument(candidate, TANH)
                    gates = [_affine(argument) for argument in (i, o, f, g)]
                    if all(found is not None and not found.rest and not found.gated for found in gates):
                        return Cell("LSTM", gates, None, _activations(gate, TANH, TANH))  # type: ignore[arg-type]
    return None


def gru(result: Formula | None, h: ir.Value) -> Cell | None:
    """h' = z * h + (1 - z) * n, where n = tanh(x @ a + r * (h @ b + bias)) or tanh(x @ a + (r * h) @ b)."""
    for z, candidate, sign in _interpolations(result, h):
        function = _gate(z)
        update, argument = _affine(_argument(z, function)), _argument(candidate, TANH)
        new = _affine(argument)
        if sign < 0 and not _is_symmetric(function):
            continue
        if function is None or update is None or new is None or update.rest or update.gated or h in new.matrices:
            continue
        inner: Affine | None = None
        if len(new.rest) == 1 and not new.gated:
            found = [(r, _affine(factor)) for r, factor in _orders(new.rest[0]) if _argument(r, function) is not None]
            reset, inner = next(((r, f) for r, f in found if f is not None), (None, None))
            if inner is None or inner.rest or inner.gated or inner.picks or set(inner.matrices) != {h}:
                continue
        elif len(new.gated) == 1 and not new.rest:
            product = new.gated[0][0]
            reset = next((r for r, state in _orders(product) if _is_input(state, h)), None)
        else:
            continue
        gate = _affine(_argument(reset, function)) if reset is not None else None
        if gate is None or gate.rest or gate.gated:
            continue
        last = () if inner is None else (("linear_before_reset", 1),)
        return Cell("GRU", [update._replace(sign=sign), gate, new], inner, (*last, *_activations(function, TANH)))
    return None


def _interpolations(result: Formula | None, h: ir.Value) -> Iterator[tuple[Formula, Formula, int]]:
    """(z, n, sign) such that the result is z * h + (1 - z) * n; with the sign -1, (1 - z) * h + z * n."""
    if not isinstance(result, Sum):
        return
    for first, second in _orders(result):
        for weight, state in _orders(first):
            for other, candidate in _orders(second):
                if _is_input(state, h):
                    if _complement(other) is weight:
                        yield weight, candidate, 1
                    if _complement(weight) is other:
                        yield other, candidate, -1
        for z, difference in _orders(second):  # first + z * (end - first)
            if isinstance(difference, Sum) and len(difference.plus) == len(difference.minus) == 1:
                end, start = difference.plus[0], difference.minus[0]
                if _is_same(start, first) and _is_input(end, h):
                    yield z, first, 1
                if _is_same(start, first) and _is_input(first, h):
                    yield z, end, -1


def _complement(formula: Formula) -> Formula | None:
    """z if this is 1 - z."""
    if not isinstance(formula, Sum) or len(formula.plus) != 1 or len(formula.minus) != 1:
        return None
    one = formula.plus[0]
    return formula.minus[0] if isinstance(one, Number) and one.number == 1 else None


def _affine(formula: Formula | None) -> Affine | None:
    if formula is None or (isinstance(formula, Sum) and formula.minus):
        return None
    found = Affine({}, [], [], [], [])
    for part in formula.plus if isinstance(formula, Sum) else (formula,):
        if isinstance(part, Linear):
            found.biases.extend(part.biases)
            for source, matrix in part.terms:
                if isinstance(source, Input) and source.is_whole():
                    found.matrices.setdefault(source.value, []).append(matrix)
                elif isinstance(source, Product):
                    found.gated.append((source, matrix))
                else:
                    return None
        elif isinstance(part, Number):
            found.biases.append(functools.partial(np.full, part.width, part.number, np.float32))
        elif isinstance(part, Input):
            found.picks.append(part)
        else:
            found.rest.append(part)
    return found
