"""What a program consists of: the check that all of it can be lowered, and the record of its primitives."""

from __future__ import annotations

import json
import os
from collections.abc import Container, Iterator
from typing import Any

from jax.extend.core import ClosedJaxpr, Primitive

from jax2onnx import compat
from jax2onnx.errors import UnsupportedError
from jax2onnx.replacement import Replacement

_CALLS_PYTHON = "it calls back into Python, which is not there when the model runs"
_FOREIGN_CODE = "it is compiled code of another library or device"

REASONS = {
    "pure_callback": _CALLS_PYTHON,
    "io_callback": _CALLS_PYTHON,
    "ffi_call": _FOREIGN_CODE,
    "call_exported": "it is compiled already: convert the function that was exported",
}
"""Why there can be no lowering for some primitives."""


def equations(closed: ClosedJaxpr) -> Iterator[tuple[Any, list[Any]]]:
    """All equations of a program, each with those that know the user's line it comes from, the closest first.

    These are the equation itself and those whose bodies it is in; in a decomposition, what is decomposed comes first.
    """

    def visit(closed: ClosedJaxpr, around: list[Any], is_decomposition: bool) -> Iterator[tuple[Any, list[Any]]]:
        for eqn in closed.jaxpr.eqns:
            origins = around if is_decomposition else [eqn, *around]
            yield eqn, origins
            inside = is_decomposition or str(eqn.params.get("name", "")).startswith(compat.equations.DECOMPOSED)
            for sub in compat.programs.sub_jaxprs(eqn.params):
                yield from visit(sub, origins, inside)

    return visit(closed, [], False)


def check_all_supported(
    closed: ClosedJaxpr, lowered: Container[Primitive], inventory: compat.programs.Inventory | None = None
) -> None:
    """Raise one `UnsupportedError` that lists every primitive without a lowering, with count and place.

    There is nothing in `closed` that its `inventory` has not, if that is given.
    """
    inventory = inventory or compat.programs.inventory(closed)
    if all(primitive in lowered for primitive in inventory.primitives):
        return
    missing: dict[str, list[str]] = {}
    for eqn, origins in equations(closed):
        if eqn.primitive not in lowered:
            missing.setdefault(eqn.primitive.name, []).append(compat.sources.source_line(*origins))
    if missing:
        lines = [
            f"  {name} ({len(places)}x), first at {places[0]}" + (f": {REASONS[name]}" if name in REASONS else "")
            for name, places in sorted(missing.items())
        ]
        raise UnsupportedError(
            "There is no lowering for these primitives of the program:\n"
            + "\n".join(lines)
            + "\nTo add one for this call, pass to_onnx(..., lowerings={primitive: rule}), where rule(g, *operands,"
            " **params) builds the ONNX nodes; CONTRIBUTING.md shows how."
        )


def write_primitive_calls(closed: ClosedJaxpr, path: str | os.PathLike[str]) -> None:
    """Write each primitive of the program with its count, parameters, shapes and places in the source, as JSON."""
    calls: dict[str, list[dict[str, Any]]] = {}
    for eqn, origins in equations(closed):
        calls.setdefault(eqn.primitive.name, []).append(
            {
                "inputs": [v.aval.str_short() for v in eqn.invars],
                "outputs": [v.aval.str_short() for v in eqn.outvars],
                "params": {k: str(v) for k, v in eqn.params.items() if not _is_jaxpr(v)},
                "source": compat.sources.source_line(*origins),
            }
        )
    record = {name: {"count": len(uses), "calls": uses} for name, uses in sorted(calls.items())}
    target = os.path.realpath(path)
    with Replacement(target) as files:
        with files.open(target) as stream:
            stream.write(json.dumps(record, indent=1).encode())
        files.commit()


def _is_jaxpr(value: Any) -> bool:
    return bool(compat.programs.sub_jaxprs({"": value})) or callable(value)
