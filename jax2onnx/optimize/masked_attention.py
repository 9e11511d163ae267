"""Attention with a mask or a bias, or perhaps without keys, as one call of a function.

In ONNX Runtime the operator takes less time than the plain form, and gives the same numbers, but for some inputs. The
function asks for these, and has the plain form for them. (It is a function so that this does not hide the graph; layers
share it.) What it asks:

- With a mask, are all scores small? The operator adds the mask to them, so that a score that is NaN or infinite matters
  although it is masked, which in JAX it does not. No score is larger than the product of the lengths of all queries and
  of all keys. So is a bias asked where there is one, too: scores that are not masked must be far above those that are.
- Is there something to attend to in each row? Where everything is masked, all scores are the same number, and so they
  are here, since what is added instead is so large that a score does not change it. But if they are replaced by -inf,
  the result is NaN. And the operator gives zeros for a row to which only the lowest of all numbers, or -inf, is added.
  Where a program makes 0 of the weights of what is masked, which most are already, it gives zeros for such a row, too.
- Where sizes vary, are there any queries and keys? The operator refuses empty arrays.

What is known when the model is made is not asked.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from jax2onnx.graphs import DOMAIN
from jax2onnx.optimize.attended import ENDS, Attended, Cleared, attended
from jax2onnx.optimize.attention import put_back, side_by_side
from jax2onnx.optimize.attention_functions import LARGEST_FILL, Call, function_of
from jax2onnx.optimize.engine import Rewriter, RuleSet
from jax2onnx.optimize.queries import Dims, aligned_dims, attribute, constant, dims, producer, scalar
from jax2onnx.optimize.simplify import RESHAPES
from jax2onnx.optimize.views import Axes, View, all_atoms, arranged, atoms

RULES = RuleSet()


@RULES.rewrites(*ENDS, needs=("Softmax",))
def recognise_masked_attention(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """softmax(where(mask, q k^T * scale + bias, fill)) v."""
    found = attended(r, node)
    if found is None:
        return None
    scores = found.scores
    is_causal = scores.mask is not None and _is_causal(found, scores.mask)
    if scores.mask is not None and not scores.fill <= LARGEST_FILL:
        return None
    if scores.cleared is not None and not _is_what_is_masked(found, scores.cleared, is_causal):
        return None
    bias = _total(r, found)
    mask = _operand(r, found, scores.mask) if scores.mask is not None and not is_causal else None
    if (scores.biases and bias is None) or (scores.mask and not is_causal and mask is None):
        return None
    call = Call(found, is_causal, bias, mask)
    operands = [*side_by_side(r, found), *(x for x in (bias, mask) if x is not None)]
    y = node.outputs[0]
    if not call.pays_off(operands):
        return None
    if call.is_safe():
        operands[3] = _with_lengths(r, operands[3], call.shape()[2:])
        result = r.op("Attention", *operands, like=y, shape=found.shape(), **found.attributes())
    else:
        function = function_of(r, call, operands)
        result = r.op(function.name, *operands, like=y, shape=found.shape(), domain=DOMAIN)
    return put_back(r, found, result)


def _is_causal(found: Attended, view: View) -> bool:
    """Does each query see the keys up to its own position, of as many as there are queries?

    The scores are kept inside of the mask, or outside, where they are its last operand.
    """
    parts, sizes = found.parts, found.sizes()
    mask: ir.Value | None = view.value
    if sizes["queries"] != sizes["keys"] or all_atoms(view.axes) != [*parts.queries, *parts.keys]:
        return False
    upper, known = found.scores.place - 1, constant(mask)
    if known is not None:
        rows = known.reshape(-1, int(sizes["keys"]))
        return np.array_equal(~rows if upper else rows, np.tri(len(rows), dtype=bool))
    while (moved := producer(mask, *RESHAPES)) is not None:
        mask = moved.inputs[0]
    triangle = producer(mask, "Trilu")
    ones = producer(triangle.inputs[0], "Expand") if triangle is not None else None
    if triangle is None or ones is None or mask is None:
        return False
    diagonal = scalar(triangle.inputs[1]) if len(triangle.inputs) > 1 else 0
    is_triangle = (attribute(triangle, "upper", 1), diagonal) == (upper, upper)
    return is_triangle and len(dims(mask)) == 2 and bool(scalar(ones.inputs[0]))


def _is_what_is_masked(found: Attended, cleared: Cleared, is_causal: bool) -> bool:
    """Do just those weights become 0 whose scores are masked, so that they are 0 already where a score is left?"""
    axes = [atoms(axis) for axis in cleared.mask.axes]
    if cleared.place is None:
        return is_causal and axes == [found.parts.queries, found.parts.keys]
    mask = found.scores.mask
    if mask is None or found.scores.place != cleared.place:
        return False
    return mask.value is cleared.mask.value and [atoms(axis) for axis in mask.axes] == axes


def _total(r: Rewriter, found: Attended) -> ir.Value | None:
    """What is added to the scores. Of several biases it is the sum, if they have their axes in one order."""
    total: View | None = None
    for view in found.scores.biases:
        if total is None:
            total = view
            continue
        rank = max(len(total.axes), len(view.axes))
        axes, more = [[*[[]] * (rank - len(v.axes)), *v.axes] for v in (total, view)]
        if any(a and b and atoms(a) != atoms(b) for a, b in zip(axes, more, strict=True)):
            return None
        shapes = aligned_dims(total.value, rank), aligned_dims(view.value, rank)
        shape = [b if a == 1 else a for a, b in zip(*shapes, strict=True)]
        added = r.op("Add", total.value, view.value, like=view.value, shape=shape)
        total = View(added, [a or b for a, b in zip(axes, more, strict=True)])
    return _operand(r, found, total) if total is not None else None


def _operand(r: Rewriter, found: Attended, view: View) -> ir.Value | None:
    """A mask or bias as (batch, heads, queries, keys), each of which may be 1, or without the first of these axes."""
    parts = found.parts
    there = set(all_atoms(view.axes))
    wanted: Axes = []
    for part in (parts.batch, parts.heads(), parts.queries, parts.keys):
        kept = [atom for atom in part if atom in there]
        if kept and len(kept) < len(part):
            return None
        wanted.append(kept)
    own = [atoms(axis) for axis in view.axes]
    if len(own) in (1, 2, 4) and [[]] * (4 - len(own)) + own == wanted:
        return _without_scores(r, found, view)
    if not wanted[0] and not wanted[1]:
        wanted = wanted[2:]
    return arranged(r, view._replace(value=_without_scores(r, found, view)), wanted)


def _with_lengths(r: Rewriter, bias: ir.Value, lengths: Dims) -> ir.Value:
    """A bias with both lengths, which are known, as the operator wants it."""
    shape = dims(bias)
    if shape[-2:] == lengths:
        return bias
    wanted = (*shape[:-2], *lengths)
    return r.op("Expand", bias, r.const(wanted, np.int64), like=bias, shape=wanted)


def _without_scores(r: Rewriter, found: Attended, view: View) -> ir.Value:
    """A triangle that has taken its size from the scores takes it from queries and keys, in the order of its axes."""
    mask = view.value
    triangle = producer(mask, "Trilu")
    ones = producer(triangle.inputs[0], "Expand") if triangle is not None else None
    if triangle is None or ones is None or producer(ones.inputs[1], "Shape") is None:
        return mask
    sizes = []
    for own in map(atoms, view.axes):
        source = found.q if own == found.parts.queries else found.k if own == found.parts.keys else None
        axis = next((i for i, axis in enumerate(source.axes) if atoms(axis) == own), None) if source else None
        if source is None or axis is None:
            return mask
        sizes.append(r.op("Shape", source.value, like=ones.inputs[1], shape=[1], start=axis, end=axis + 1))
    size = r.op("Concat", *sizes, like=ones.inputs[1], axis=0)
    again = r.op("Expand", ones.inputs[0], size, like=mask)
    return r.op("Trilu", again, *triangle.inputs[1:], like=mask, upper=attribute(triangle, "upper", 1))
