"""Names of nodes and values: from the program's own named scopes, unique in the whole model, the same every time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from jax2onnx.errors import InputError
from jax2onnx.graphs import all_nodes, bodies, roots
from jax2onnx.options import is_text

NAME = "name"
"""The key of an initializer's meta data under which its name in the program is, whatever became of it since."""

SOURCE = "pkg.jax2onnx.source"
"""The key of a node's metadata under which the line of the program is that it comes from, with `provenance`."""


def array_key(array: Any) -> Any:
    """What tells an array from others: JAX may wrap a NumPy array anew, but its memory stays the same."""
    if isinstance(array, np.ndarray):
        return array.__array_interface__["data"][0], array.shape, array.dtype.str
    return id(array)


class Names(NamedTuple):
    """The names of a model's inputs and outputs."""

    inputs: list[str]
    outputs: list[str]


def final_names(
    inputs: Sequence[str],
    given_inputs: Sequence[str] | None,
    outputs: Sequence[str],
    given_outputs: Sequence[str] | None,
) -> Names:
    """The caller's names where given, the program's own elsewhere; a name is used once in the whole signature."""
    for what, own, given in (("input", inputs, given_inputs), ("output", outputs, given_outputs)):
        if given is not None and len(given) != len(own):
            raise InputError(
                f"{what}_names has {len(given)} names, but the model has {len(own)} {what}s: {', '.join(own)}."
            )
    names = Names(list(given_inputs or inputs), list(given_outputs or outputs))
    taken: set[str] = set()
    for is_given, group in ((given_inputs is not None, names.inputs), (given_outputs is not None, names.outputs)):
        for i, name in enumerate(group):
            if not isinstance(name, str) or not name or not is_text(name):
                raise InputError(f"{name!r} cannot be the name of an input or output: give a string that is not empty.")
            if name in taken and is_given:
                raise InputError(f"The name {name!r} is used twice among the model's inputs and outputs.")
            while name in taken:
                name += "_"
            group[i] = name
            taken.add(name)
    return names


def assign_names(model: ir.Model) -> None:
    """Give every node and every inner value its final name.

    While the model is built, a node's name is its named scope and its operator, `encoder/layer_0/MatMul`. Here it gets
    a number from the second of its kind on, and its results get its name.

    Names are different in functions, too: ONNX Runtime copies a function to where it is called, and does not rename
    what is in the bodies of its nodes.
    """
    _name_initializers(model.graph)
    graphs = roots(model)
    taken = {v.name for graph in graphs for v in (*graph.inputs, *graph.outputs, *graph.initializers.values())}
    counts: dict[str, int] = {}
    for graph in graphs:
        fixed = {*graph.inputs, *graph.outputs}
        for node in all_nodes(graph):
            base = node.name if node.name and not node.name.startswith("node_") else node.op_type
            node.name = _unique(base, counts, taken)
            for i, value in enumerate(node.outputs):
                if value not in fixed:
                    value.name = node.name if i == 0 else _unique(f"{node.name}:{i}", counts, taken)
            for body in bodies(node):
                for i, value in enumerate(body.inputs):
                    value.name = _unique(f"{node.name}.in{i}", counts, taken)


def _name_initializers(graph: ir.Graph) -> None:
    """Weights get the names they have in the program, other constants a number."""
    values = [v for v in graph.initializers.values() if not v.is_graph_input()]
    taken = {v.name for v in graph.inputs} | {v.name for v in graph.outputs}
    counts: dict[str, int] = {}
    names = {v: _unique(v.meta[NAME], counts, taken) for v in values if NAME in v.meta}
    names |= {v: _unique("const", counts, taken) for v in values if NAME not in v.meta}
    for value in values:
        del graph.initializers[value.name]  # type: ignore[arg-type]
    for value in values:
        value.name = names[value]
        graph.register_initializer(value)


def _unique(base: str, counts: dict[str, int], taken: set[str | None]) -> str:
    name = base
    while name in taken or name in counts:
        counts[base] = counts.get(base, 0) + 1
        name = f"{base}_{counts[base]}"
    counts.setdefault(name, 0)
    return name
