"""Casts between a Transpose and a product come before the Transpose: ONNX Runtime crashes when it changes that itself.

It takes a Transpose into the product behind it, also past a Cast, for which it exchanges the two. Where the first axis
is moved to the end, or next to it, that kills the process that loads the model, whatever the types are.
"""

from __future__ import annotations

import itertools

import onnx_ir as ir

from jax2onnx.graphs import all_nodes, roots, use_instead
from jax2onnx.optimize.queries import attribute, producer


def moves_batch(transpose: ir.Node) -> bool:
    """Is the first of three axes or more moved to the end, or next to it, where a product has its matrices?"""
    perm = list(attribute(transpose, "perm"))
    rank = len(perm)
    return rank > 2 and perm in ([*range(1, rank - 1), 0, rank - 1], [*range(1, rank), 0])


def cast_before_transposes(model: ir.Model) -> int:
    """Exchange them, in all graphs; how many were."""
    done = 0
    for node in itertools.chain.from_iterable(map(all_nodes, roots(model))):
        for x in node.inputs if node.op_type == "MatMul" else ():
            cast = producer(x, "Cast")
            transpose = producer(cast.inputs[0], "Transpose") if cast is not None else None
            if cast is not None and transpose is not None and moves_batch(transpose):
                _exchange(transpose, cast)
                done += 1
    return done


def _exchange(transpose: ir.Node, cast: ir.Node) -> None:
    """Cast, then transpose. What was there is left without users."""
    source, result = transpose.inputs[0], cast.outputs[0]
    assert source is not None and cast.graph is not None
    whole = ir.Value(shape=source.shape, type=result.type)
    turned = ir.Value(shape=result.shape, type=result.type)
    attributes = [list(node.attributes.values()) for node in (cast, transpose)]
    first = ir.Node("", "Cast", [source], attributes[0], outputs=[whole], name=cast.name)
    second = ir.Node("", "Transpose", [whole], attributes[1], outputs=[turned], name=transpose.name)
    for node in (first, second):
        node.metadata_props.update(cast.metadata_props)
    cast.graph.insert_before(cast, [first, second])
    use_instead(result.uses(), turned)
