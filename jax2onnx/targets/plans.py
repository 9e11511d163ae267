"""How to run what a runtime has no kernel for: by other operators, or in other dtypes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import onnx_ir as ir

from jax2onnx.errors import UnsupportedError
from jax2onnx.targets import table
from jax2onnx.targets.carriers import FLOATS, INT64, ORDERS, SELECTS, UINT64, carriers, is_exact

if TYPE_CHECKING:
    from jax2onnx.targets.emitter import Emitter

Expansion = Callable[["Emitter", ir.Node], Sequence[ir.Value] | None]
"""Computes what a node computes by other nodes, and returns the values of its outputs; None if it can stay as it is."""

EXPANSIONS: dict[tuple[str, ir.DataType], Expansion] = {}

FUNCTIONS: set[Expansion] = set()
"""Expansions that become functions of the model, so that a long detour for rare inputs does not hide the graph."""

EXEMPT: dict[Expansion, Callable[[ir.Node], bool]] = {}
"""For some expansions: which nodes need none."""


def expands(
    ops: str, dtypes: str = "f64", *, as_function: bool = False, unless: Callable[[ir.Node], bool] | None = None
) -> Callable[[Expansion], Expansion]:
    """Register the decorated function as the way to compute `ops` with `dtypes` where there is no kernel."""

    def register(fn: Expansion) -> Expansion:
        for op, dtype in itertools.product(ops.split(), dtypes.split()):
            EXPANSIONS[op, ir.DataType.from_short_name(dtype)] = fn
        if as_function:
            FUNCTIONS.add(fn)
        if unless is not None:
            EXEMPT[fn] = unless
        return fn

    return register


CONTROL_FLOW = {"If": 0, "Loop": 1, "Scan": 0}
"""Operators with bodies, and which output of a body becomes the first of the node. The inputs are the same."""


class Plan(NamedTuple):
    """How to compute a node without a kernel: by an expansion, or in other dtypes."""

    expansion: Expansion | None = None
    runs: bool = True  # there is a kernel, so that the node can stay if the expansion sees that it is right
    inputs: tuple[tuple[int, ir.DataType], ...] = ()
    outputs: tuple[tuple[int, ir.DataType], ...] = ()
    exact: bool = False  # the results are elements of the original dtype before they are cast back
    flip: bool = False  # uint64 is carried by int64 with the top bit flipped


@functools.cache
def plan_for(
    target: str,
    op: str,
    mode: str,
    opset: int,
    inputs: tuple[ir.DataType | None, ...],
    outputs: tuple[ir.DataType | None, ...],
) -> Plan | None:
    """How to run a node on `target`, None if it can run as it is."""
    bound = table.variables(target, op, opset, len(inputs), len(outputs))
    if bound is None:
        return None
    pairs = [*zip(bound[0], inputs, strict=True), *zip(bound[1], outputs, strict=True)]
    if op in CONTROL_FLOW:  # each value may have a type of its own
        return _plan_for_values(target, op, opset, pairs[: len(inputs)], pairs[len(inputs) :])
    types = {variable: dtype for variable, dtype in reversed(pairs) if variable is not None and dtype is not None}
    if table.supports(target, op, opset, types, mode):
        return None
    expansion = next((EXPANSIONS[op, dtype] for dtype in types.values() if (op, dtype) in EXPANSIONS), None)
    if expansion is not None:
        return Plan(expansion, runs=table.has_kernel(target, op, opset, types))
    operation = f"{op}:{mode}" if mode else op
    candidates = [[dtype, *_carriers(target, operation, opset, dtype)] for dtype in types.values()]
    flip = operation in ORDERS and UINT64 in types.values()
    if flip:
        candidates = [[INT64] if dtype == UINT64 else c for dtype, c in zip(types.values(), candidates, strict=True)]
    choices = itertools.product(*(enumerate(c) for c in candidates))
    for choice in sorted(choices, key=lambda c: sum(rank for rank, _ in c)):
        carried = dict(zip(types, (dtype for _, dtype in choice), strict=True))
        if table.supports(target, op, opset, carried, mode):
            changed = {variable: dtype for variable, dtype in carried.items() if dtype != types[variable]}
            return Plan(
                inputs=tuple((i, changed[v]) for i, v in enumerate(bound[0]) if v in changed and inputs[i] is not None),
                outputs=tuple(
                    (i, changed[v]) for i, v in enumerate(bound[1]) if v in changed and outputs[i] is not None
                ),
                exact=all(is_exact(operation, types[v]) for v in changed) and not flip,
                flip=flip,
            )
    raise no_kernel(target, operation, opset, types.values())


def no_kernel(target: str, operation: str, opset: int, dtypes: Iterable[ir.DataType | None]) -> UnsupportedError:
    """The error for a node that cannot be run."""
    names = " and ".join(sorted({dtype.name.lower() for dtype in dtypes if dtype is not None}))
    start, way_out = f"{target} has no kernel for {operation}", "export for another runtime with target='onnx'"
    if target == table.STANDARD:
        start, way_out = f"ONNX does not allow {operation}", "choose a later opset"
    return UnsupportedError(
        f"{start} with {names} (opset {opset}), and no other dtype gives exactly the same result. Convert to another"
        f" dtype in the program, or {way_out}."
    )


def _plan_for_values(target: str, op: str, opset: int, inputs: Sequence[Any], outputs: Sequence[Any]) -> Plan | None:
    """Which values pass into and out of bodies in another dtype; of each is given what it is called, and its dtype."""

    def changed(values: Sequence[Any]) -> Iterator[tuple[int, ir.DataType]]:
        for i, (variable, dtype) in enumerate(values):
            if variable is None or dtype is None or table.supports(target, op, opset, {variable: dtype}):
                continue
            candidates = _carriers(target, "Identity", opset, dtype)
            carrier = next((c for c in candidates if table.supports(target, op, opset, {variable: c})), None)
            if carrier is None:
                raise UnsupportedError(f"{target} cannot carry {dtype.name.lower()} values through {op}.")
            yield i, carrier

    plan = Plan(inputs=tuple(changed(inputs)), outputs=tuple(changed(outputs)), exact=True)
    return plan if plan.inputs or plan.outputs else None


def _carriers(target: str, operation: str, opset: int, dtype: ir.DataType) -> list[ir.DataType]:
    """The dtypes to try for `dtype`: such that the operation gives the same, and that can be reached by a Cast."""
    if operation in ("BitCast", "Cast", "Cast:0"):
        return []
    # Floats hold integers exactly but do not compute like them.
    floats = dtype in FLOATS or operation in SELECTS or operation == "NonZero"
    return [
        c
        for c in carriers(operation, dtype)
        if (floats or c not in FLOATS) and table.supports(target, "Cast", opset, {"T1": dtype, "T2": c})
    ]
