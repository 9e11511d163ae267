"""Which sizes must not be 0, although JAX could do without elements: where ONNX Runtime fails, or is wrong.

A model says so among its constraints, for those who run it (`sizes.py`). What would help costs all other sizes more:
an If around a Scan makes it up to 45% slower, since the weights in its body are no longer prepared.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import onnx_ir as ir
from jax.export import SymbolicScope, is_symbolic_dim

from jax2onnx import compat
from jax2onnx.dimensions import parse_dim
from jax2onnx.graphs import DOMAIN
from jax2onnx.lower.dims import is_never_negative
from jax2onnx.optimize.queries import aligned_dims, attribute, dims, producer
from jax2onnx.targets.turned import moves_batch

Size = int | str


def nonempty_sizes(model: ir.Model, target: str, specs: Any) -> list[str]:
    """Constraints such as "T >= 1" that a model for `target` needs, beyond those that hold for `specs`."""
    given = next((d.scope for spec in jax.tree.leaves(specs) for d in spec.shape if is_symbolic_dim(d)), None)
    if target != "onnxruntime" or given is None:
        return []
    scope = SymbolicScope()
    found: dict[str, None] = {}
    # What is in the functions of this target, its callers need.
    roots = [model.graph, *(f for f in model.functions.values() if f.domain != DOMAIN)]
    for node, is_certain in _nodes(roots):
        for size in itertools.chain(_needed(node), _indexed(node, scope) if is_certain else ()):
            if isinstance(size, str) and _may_be_zero(size, scope, given):
                found[f"{size} >= 1"] = None
        for size in _windows(node):
            if not isinstance(size, str) or size.startswith("?"):
                continue
            if not compat.dims.is_positive(parse_dim(size, given)) or _may_be_zero(size, scope, given):
                found[f"{size} >= 1"] = None
    return list(found)


def _nodes(roots: Sequence[ir.Graph | ir.Function]) -> Iterator[tuple[ir.Node, bool]]:
    """The nodes, and whether they are certainly run: what is in a body may not be."""
    for root in roots:
        certain = set(root)
        for node in root.all_nodes():
            yield node, node in certain


def _may_be_zero(size: str, scope: SymbolicScope, given: SymbolicScope) -> bool:
    """Is a size 0 for some inputs, although JAX takes it to be 1 or more? Of others, the program takes care.

    Not if the caller has said that it is larger.
    """
    if size.startswith("?"):  # it depends on the data
        return False
    if size.isidentifier() and compat.dims.is_at_least(parse_dim(size, given), 2):
        return False
    dim = parse_dim(size, scope)
    return compat.dims.is_positive(dim) and not is_never_negative(dim - 1)


def _needed(node: ir.Node) -> Iterator[Size]:
    match node.op_type:
        case "Scan":  # refuses to make no step
            yield from _steps(node)
        case "LSTM" | "GRU":  # so does the Scan for inputs that are not finite, or empty
            yield dims(_operand(node, 0))[0]
        case "MatMul":  # takes a Transpose into itself: no sums of nothing, and no empty batch, if that was first
            yield from _sums(node)
            yield from _repeated_batches(node)
        case "Conv":  # divides by the size of its kernel
            yield from dims(_operand(node, 1))[2:]
        case "MaxPool" | "AveragePool":  # also if there is padding
            yield from dims(_operand(node, 0))[1:]
        case "ConvTranspose":  # makes another shape
            yield from dims(_operand(node, 0))[2:]
        case "GroupNormalization":  # is written out with Reshapes to -1
            yield from dims(_operand(node, 0))


def _indexed(node: ir.Node, scope: SymbolicScope) -> Iterator[Size]:
    """The axes that positions are read from or written to: where there are positions, there must be elements.

    JAX checks no index that is inside every array of 1 or more.
    """
    if node.op_type not in _INDEXING:
        return
    shape, index = dims(_operand(node, 0)), dims(_operand(node, 1))
    if node.op_type in ("GatherND", "ScatterND"):
        batch, depth = attribute(node, "batch_dims", 0), index[-1]
        assert isinstance(depth, int)
        sizes, index = shape[batch : batch + depth], index[:-1]
    else:
        sizes = (shape[attribute(node, "axis", 0)],)
    for size in sizes:
        if isinstance(size, str) and not size.startswith("?") and _outlasts(index, size, scope):
            yield size


_INDEXING = ("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND")


def _outlasts(shape: Sequence[Size], size: str, scope: SymbolicScope) -> bool:
    """Has an array of this shape elements also where `size` is 0, because one of its variables is?"""
    if any(d == 0 or (isinstance(d, str) and d.startswith("?")) for d in shape):
        return False
    needed, found = parse_dim(size, scope), [parse_dim(d, scope) for d in shape if isinstance(d, str)]
    names = {name for dim in (needed, *found) for name in compat.dims.dim_names(dim)}
    for name in sorted(compat.dims.dim_names(needed)):
        sizes = {**dict.fromkeys(names, _ORDINARY), name: 0}
        if compat.dims.evaluate_dim(needed, sizes) == 0 and all(compat.dims.evaluate_dim(d, sizes) > 0 for d in found):
            return True
    return False


_ORDINARY = 64
"""A size that is divided by whatever a program divides its sizes by."""


def _windows(node: ir.Node) -> Sequence[Size]:
    """How many windows there are. If there is none, the runtime fails, or takes what there is of the first."""
    return dims(node.outputs[0])[2:] if node.op_type in ("Conv", "MaxPool", "AveragePool") else ()


def _operand(node: ir.Node, i: int) -> ir.Value:
    value = node.inputs[i]
    assert value is not None
    return value


def _steps(node: ir.Node) -> Iterator[Size]:
    count = attribute(node, "num_scan_inputs")
    x = _operand(node, len(node.inputs) - count)
    yield dims(x)[attribute(node, "scan_input_axes", [0])[0]]


def _sums(node: ir.Node) -> Iterator[Size]:
    shape = dims(node.outputs[0])
    for i in (0, 1):
        x = _operand(node, i)
        turned = producer(x, "Transpose")
        if turned is not None and len(dims(x)) >= 3 and moves_batch(turned):  # it divides by the number of rows
            yield from dims(x)[-2:]
        elif _is_turned(x):
            size = dims(x)[-1 if i == 0 else -2]
            if size not in shape:  # else the result is empty as well
                yield size


def _is_turned(x: ir.Value) -> bool:
    """Does it come from a Transpose of the last two axes of a batch of matrices?"""
    turned, rank = producer(x, "Transpose"), len(dims(x))
    return turned is not None and rank >= 3 and list(attribute(turned, "perm"))[-2:] == [rank - 1, rank - 2]


def _repeated_batches(node: ir.Node) -> Iterator[Size]:
    """MatMul does not repeat an operand for an empty batch, unless it is one matrix on the right of what it has not
    transposed itself. A vector is for each row."""
    left, right = (dims(_operand(node, i)) for i in (0, 1))
    if len(right) == 1:
        yield from left[:-1]
        return
    rank = max(len(left), len(right))
    repeats_left = len(right) > len(left)
    left, right = (aligned_dims(_operand(node, i), rank)[:-2] for i in (0, 1))
    if any(size != 1 for size in right) or repeats_left or _is_turned(_operand(node, 0)):
        for a, b in zip(left, right, strict=True):
            if a != b and 1 in (a, b):
                yield b if a == 1 else a
