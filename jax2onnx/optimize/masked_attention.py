"""Attention with a mask as one call of a function.

In ONNX Runtime the operator takes about a fifth less time than the plain form, and gives the same numbers bit for bit,
but for one thing: it adds the mask to the scores, so that a score that is NaN or infinite matters although it is
masked, which in JAX it does not. No score is larger than the product of the lengths of all queries and of all keys. So
the function asks whether that is small, and has the plain form for when it is not. (It is a function so that this does
not hide the graph; layers share it.)

A causal mask leaves each query something to attend to. Of other masks that is not known. Where everything is masked,
all scores are the same number, and so they are here if that is so large that adding a score does not change it.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import onnx_ir as ir

from jax2onnx.graphs import DOMAIN
from jax2onnx.optimize.attention import HEADS_FIRST, HEADS_FIRST_TURNED, Attended, attended, joined_dims, side_by_side
from jax2onnx.optimize.engine import Rewriter, RuleSet, first
from jax2onnx.optimize.functions import Nodes, function_for
from jax2onnx.optimize.queries import aligned_dims, as_shape, attribute, dims, producer, scalar
from jax2onnx.optimize.simplify import RESHAPES

RULES = RuleSet()

CAUSAL, MASKED = "CausalAttention", "MaskedAttention"
BOOL, FLOAT, INT64 = ir.DataType.BOOL, ir.DataType.FLOAT, ir.DataType.INT64

LARGEST_FILL = -1000.0
"""What masked scores are replaced by: so little that others, of less than half of that, leave nothing of them."""
ABSORBING_FILL, ABSORBED = -1e30, 1e20
"""A number that is the same after such scores are added to it. (What is added to scores is not less: ONNX Runtime takes
rows to which only the lowest of all numbers is added for rows without anything, and gives zeros.)"""
LIMIT = 1e37


@RULES.rewrites("Transpose", given=first("MatMul"), needs=("Softmax",))
def recognise_masked_attention(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """softmax(where(mask, q k^T * scale, fill)) v."""
    found, y = attended(r, node), node.outputs[0]
    replaced = found.fill() if found is not None else None
    if found is None or found.mask is None or replaced is None:
        return None
    fill, scores = replaced
    mask = found.mask.inputs[0]
    assert mask is not None
    if _is_causal(found, scores):
        if not fill <= LARGEST_FILL:
            return None
        operands, scores = [], 0
    elif _is_added(mask, found) and -math.inf < fill <= ABSORBING_FILL:
        operands = [mask]
    else:
        return None
    function = _function_for(r, found, fill, scores, y)
    joined = side_by_side(r, found)
    result = r.op(function.name, *joined, *operands, like=y, shape=joined_dims(y), domain=DOMAIN)
    return r.op("Reshape", result, r.const([0, 0, *dims(y)[2:]], np.int64), like=y)


def _is_causal(found: Attended, scores: int) -> bool:
    """Does each query see the keys up to its own position, of as many as there are queries?

    The scores are kept inside of the mask, or outside, where they are its last operand.
    """
    assert found.mask is not None
    mask, length = found.mask.inputs[0], dims(found.q)[1]
    upper = scores - 1
    while (moved := producer(mask, *RESHAPES)) is not None:
        mask = moved.inputs[0]
    triangle = producer(mask, "Trilu")
    ones = producer(triangle.inputs[0], "Expand") if triangle is not None else None
    if triangle is None or ones is None or mask is None or length != dims(found.k)[1]:
        return False
    diagonal = scalar(triangle.inputs[1]) if len(triangle.inputs) > 1 else 0
    is_triangle = (attribute(triangle, "upper", 1), diagonal) == (upper, upper)
    shape = dims(found.mask.inputs[0])  # type: ignore[arg-type]
    fits = dims(mask) == shape[-2:] == (length, length) and all(d == 1 for d in shape[:-2])
    return is_triangle and fits and bool(scalar(ones.inputs[0]))


def _is_added(mask: ir.Value, found: Attended) -> bool:
    """Can the operator add a mask of this shape, when it has been repeated along the lengths?"""
    batch, length, heads, _ = dims(found.q)
    wanted = (batch, heads, length, dims(found.k)[1])
    if len(dims(mask)) not in (1, 2, 4):
        return False
    return all(d in (1, size) for d, size in zip(aligned_dims(mask, 4), wanted, strict=True))


def _function_for(r: Rewriter, found: Attended, fill: float, scores: int, y: ir.Value) -> ir.Function:
    """The function for operands of these shapes: the one that another layer calls, or a new one.

    `scores` says which operand of the mask they are; it is 0 for a causal mask, which is no operand.
    """
    assert found.mask is not None
    mask = dims(found.mask.inputs[0]) if scores else ()  # type: ignore[arg-type]
    key = (dims(found.q), dims(found.k), dims(found.v), found.scale, fill, scores, mask)
    body = functools.partial(_body, found, fill, scores, y, r.opset)
    return function_for(r, MASKED if scores else CAUSAL, key, body)


def _body(found: Attended, fill: float, scores: int, y: ir.Value, opset: int) -> ir.Graph:
    """The operator, if all scores are finite and far above what masked ones are replaced by, else the plain form."""
    inputs = [
        ir.Value(name=name, shape=as_shape(joined_dims(x)), type=x.type)
        for name, x in (("q", found.q), ("k", found.k), ("v", found.v))
    ]
    mask = found.mask.inputs[0] if scores and found.mask is not None else None
    if mask is not None:
        inputs.append(ir.Value(name="mask", shape=mask.shape, type=mask.type))
    n = Nodes()
    squares = [n.add("ReduceSumSquare", x, shape=(), keepdims=0) for x in inputs[:2]]
    bound = n.add("Mul", *squares, shape=())
    largest = ABSORBED if scores else -fill / 2
    limit = min((largest / found.scale) ** 2, LIMIT) if found.scale else LIMIT
    is_small = n.add("LessOrEqual", bound, n.known(limit, np.float32), shape=(), dtype=BOOL)
    if not found.has_known_sizes():  # the operator refuses empty arrays
        is_full = n.add("Greater", bound, n.known(0, np.float32), shape=(), dtype=BOOL)
        is_small = n.add("And", is_small, is_full, shape=(), dtype=BOOL)
    quick, careful = Nodes(), Nodes()
    operands = [*inputs[:3], *([_added(quick, inputs, found, scores)] if scores else [])]
    causal = {} if scores else {"is_causal": 1}
    same = quick.add("Attention", *operands, shape=joined_dims(y), **causal, **found.attributes())
    other = _plain(careful, inputs, found, fill, scores, y)
    branches = {
        name: ir.Graph([], [result], nodes=nodes.nodes, name=name)
        for name, nodes, result in (("then_branch", quick, same), ("else_branch", careful, other))
    }
    result = n.add("If", is_small, shape=joined_dims(y), **branches)
    result.name = "y"
    return ir.Graph(inputs, [result], nodes=n.nodes, opset_imports={"": opset})


def _added(n: Nodes, inputs: list[ir.Value], found: Attended, scores: int) -> ir.Value:
    """What is added to the scores: nothing, or so little that nothing is left of them."""
    q, k, _, mask = inputs
    numbers = [n.known(0, np.float32), n.known(ABSORBING_FILL, np.float32)]
    added = n.add("Where", mask, *(numbers if scores == 1 else numbers[::-1]), shape=dims(mask))
    lengths = (dims(found.q)[1], dims(found.k)[1])
    if dims(mask)[-2:] == lengths:
        return added
    sizes = [n.add("Shape", x, shape=(1,), dtype=INT64, start=1, end=2) for x in (q, k)]
    size = n.add("Concat", *sizes, shape=(2,), dtype=INT64, axis=0)
    return n.add("Expand", added, size, shape=(*dims(mask)[:-2], *lengths))


def _plain(n: Nodes, inputs: list[ir.Value], found: Attended, fill: float, scores_place: int, y: ir.Value) -> ir.Value:
    """What was recognised."""
    moved = []
    for joined, x, perm in zip(inputs[:3], found[:3], (HEADS_FIRST, HEADS_FIRST_TURNED, HEADS_FIRST), strict=True):
        heads = n.add("Reshape", joined, n.known([0, 0, *dims(x)[2:]]), shape=dims(x))
        moved.append(n.add("Transpose", heads, shape=tuple(dims(x)[i] for i in perm), perm=perm))
    batch, length, count, _ = dims(found.q)
    shape = (batch, count, length, dims(found.k)[1])
    scores = n.add("MatMul", *moved[:2], shape=shape)
    if found.scale != 1:
        scores = n.add("Mul", scores, n.known(found.scale, np.float32), shape=shape)
    cases = [scores, n.known(fill, np.float32)]
    if scores_place:
        mask = inputs[3]
    else:
        size = n.add("Shape", scores, shape=(2,), dtype=INT64, start=-2)
        ones = n.add("Expand", n.known(True, np.bool_), size, shape=shape[2:], dtype=BOOL)
        mask = n.add("Trilu", ones, n.known(0), shape=shape[2:], dtype=BOOL, upper=0)
    masked = n.add("Where", mask, *(cases[::-1] if scores_place == 2 else cases), shape=shape)
    weights = n.add("Softmax", masked, shape=shape, axis=-1)
    weighted = n.add("MatMul", weights, moved[2], shape=tuple(dims(y)[i] for i in HEADS_FIRST))
    back = n.add("Transpose", weighted, shape=dims(y), perm=HEADS_FIRST)
    return n.add("Reshape", back, n.known([0, 0, math.prod(map(int, dims(y)[2:]))]), shape=joined_dims(y))
