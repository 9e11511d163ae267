"""The functions around the operator Attention: what they ask of their operands, and what they do instead."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from jax2onnx.dimensions import likely_size
from jax2onnx.optimize.attended import Attended
from jax2onnx.optimize.engine import Rewriter
from jax2onnx.optimize.functions import Nodes, function_for
from jax2onnx.optimize.magnitudes import magnitude
from jax2onnx.optimize.queries import Dims, aligned_dims, attribute, constant, dims, producer, scalar

BOOL, FLOAT, INT64, UINT8 = ir.DataType.BOOL, ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.UINT8

LARGEST_FILL = -1000.0
"""What masked scores are replaced by: so little that others, of less than half of that, leave nothing of them."""
ABSORBING_FILL, ABSORBED = -1e30, 1e20
"""What is added to masked scores: a number that is the same after scores up to the other are added to it."""
LOWEST = float(np.finfo(np.float32).min)
LIMIT = 1e37
FEW = 32_768
"""With fewer elements in operands and scores, to ask more than whether scores are small takes longer than it saves."""
HEADS_FIRST = [0, 2, 1, 3]


class Call:
    """What is known of attention that is to become an operator, or a call of a function."""

    def __init__(self, found: Attended, is_causal: bool, bias: ir.Value | None, mask: ir.Value | None):
        self.found, self.is_causal, self.bias, self.mask = found, is_causal, bias, mask
        self.is_masked = is_causal or mask is not None
        self.fill = found.scores.fill
        bound = magnitude(bias) if bias is not None else 0.0
        self.largest = min(ABSORBED, -self.fill / 2 if self.is_masked else math.inf)
        """So large may scores that are not masked be."""
        self.asks_bias = self.is_masked and (bound is None or bound > self.largest / 2)
        self.asks_rows = not (bound is not None and bound < -LOWEST) if not self.is_masked else self._may_lack()
        known = constant(bias)
        if self.asks_rows and not self.is_masked and known is not None:
            self.asks_rows = not np.greater(known, LOWEST).any(-1).all()

    def _may_lack(self) -> bool:
        """May a row be masked of which then the result is NaN, or 0?"""
        if self.mask is None or (self.fill != -math.inf and self.found.scores.cleared is None):
            return False
        array = constant(self.mask)
        if array is not None:
            return not (array if self.found.scores.place == 1 else ~array).any(-1).all()
        triangle = producer(self.mask, "Trilu")
        ones = producer(triangle.inputs[0], "Expand") if triangle is not None else None
        if triangle is None or ones is None or self.found.scores.place == 2 or not scalar(ones.inputs[0]):
            return True
        diagonal = scalar(triangle.inputs[1])
        return not (attribute(triangle, "upper", 1) == 0 and diagonal is not None and diagonal >= 0)

    def shape(self) -> Dims:
        """That of the scores."""
        sizes = self.found.sizes()
        return sizes["batch"], sizes["heads"], sizes["queries"], sizes["keys"]

    def is_safe(self) -> bool:
        """Is the operator right whatever its operands are?"""
        return not self.is_masked and not self.asks_rows and self.found.has_known_sizes() and self.bias is not None

    def pays_off(self, operands: Sequence[ir.Value]) -> bool:
        """Does it take no longer to ask than the operator saves?"""
        count = likely_size(self.shape()) + sum(likely_size(dims(x)) for x in operands[:3])
        return count >= FEW or not (self.asks_rows or self.asks_bias)

    def name(self) -> str:
        if self.is_causal:
            return "CausalAttention"
        return "MaskedAttention" if self.is_masked else "BiasedAttention" if self.bias is not None else "Attention"


def function_of(r: Rewriter, call: Call, operands: Sequence[ir.Value]) -> ir.Function:
    """The function for such a call."""
    found = call.found
    sizes = tuple(found.sizes().items())
    scores = (found.scale(), call.fill, found.scores.place, found.scores.cleared is not None)
    asked = (call.asks_bias, call.asks_rows)
    key = (sizes, found.heads_first, scores, tuple(map(dims, operands)), asked)
    return function_for(r, call.name(), key, functools.partial(_body, call, operands, r.opset))


def _body(call: Call, operands: Sequence[ir.Value], opset: int) -> ir.Graph:
    """The operator, if its result is that of the plain form, else the plain form."""
    names = ["q", "k", "v", *(["bias"] if call.bias is not None else []), *(["mask"] if call.mask is not None else [])]
    given = {name: ir.Value(name=name, shape=x.shape, type=x.type) for name, x in zip(names, operands, strict=True)}
    n, quick, careful = Nodes(), Nodes(), Nodes()
    shape = tuple(call.found.shape())
    added = _added(quick, call, given)
    causal = {"is_causal": 1} if call.is_causal else {}
    same = quick.add(
        "Attention",
        *(given[name] for name in "qkv"),
        *([added] if added is not None else []),
        shape=shape,
        **causal,
        **call.found.attributes(),
    )
    other = _plain(careful, call, given)
    is_right = _question(n, call, given)
    branches = {
        name: ir.Graph([], [result], nodes=nodes.nodes, name=name)
        for name, nodes, result in (("then_branch", quick, same), ("else_branch", careful, other))
    }
    result = n.add("If", is_right, shape=shape, **branches)
    result.name = "y"
    return ir.Graph(list(given.values()), [result], nodes=n.nodes, opset_imports={"": opset})


def _question(n: Nodes, call: Call, given: dict[str, ir.Value]) -> ir.Value:
    """Is the operator right?"""
    answers = []
    if call.is_masked:
        squares = [n.add("ReduceSumSquare", given[name], shape=(), keepdims=0) for name in "qk"]
        bound = n.add("Mul", *squares, shape=())
        scale = call.found.scale()
        largest = call.largest / (1 if call.bias is None else 2)
        limit = min((largest / scale) ** 2, LIMIT)
        answers.append(n.add("LessOrEqual", bound, _number(n, limit), shape=(), dtype=BOOL))
        if not call.found.has_known_sizes():
            answers.append(n.add("Greater", bound, _number(n, 0), shape=(), dtype=BOOL))
    elif not call.found.has_known_sizes():
        sizes = [n.add("Size", given[name], shape=(), dtype=INT64) for name in "qk"]
        answers.append(n.add("Greater", n.add("Mul", *sizes, shape=(), dtype=INT64), n.known(0), shape=(), dtype=BOOL))
    if call.asks_bias:
        bias = given["bias"]
        is_small = n.add("GreaterOrEqual", bias, _number(n, -call.largest / 2), shape=dims(bias), dtype=BOOL)
        answers.append(_are_all(n, n.add("Cast", is_small, shape=dims(bias), dtype=UINT8, to=int(UINT8))))
    if call.asks_rows:
        answers.append(_has_something_in_each_row(n, call, given))
    while len(answers) > 1:
        answers = [n.add("And", *answers[:2], shape=(), dtype=BOOL), *answers[2:]]
    return answers[0]


def _number(n: Nodes, content: float) -> ir.Value:
    return n.known(content, np.float32)


def _has_something_in_each_row(n: Nodes, call: Call, given: dict[str, ir.Value]) -> ir.Value:
    if call.mask is None:
        there = n.add("Greater", given["bias"], _number(n, LOWEST), shape=dims(given["bias"]), dtype=BOOL)
    else:
        there = given["mask"]
        if call.found.scores.place == 2:
            there = n.add("Not", there, shape=dims(there), dtype=BOOL)
    flags = n.add("Cast", there, shape=dims(there), dtype=UINT8, to=int(UINT8))
    return _are_all(n, n.add("ReduceMax", flags, n.known([-1]), shape=dims(there)[:-1], dtype=UINT8, keepdims=0))


def _are_all(n: Nodes, flags: ir.Value) -> ir.Value:
    """Are all of these 1, also if there are none?"""
    least = n.add("ReduceMin", flags, shape=(), dtype=UINT8, keepdims=0)
    return n.add("Cast", least, shape=(), dtype=BOOL, to=int(BOOL))


def _added(n: Nodes, call: Call, given: dict[str, ir.Value]) -> ir.Value | None:
    """What is added to the scores: a bias or nothing or, where they are masked, so little that nothing is left."""
    added = given.get("bias")
    if call.mask is not None:
        cases = [_number(n, 0) if added is None else added, _number(n, ABSORBING_FILL)]
        mask = given["mask"]
        shape = dims(mask) if added is None else _broadcast(mask, added)
        added = n.add("Where", mask, *(cases if call.found.scores.place == 1 else cases[::-1]), shape=shape)
    lengths = call.shape()[2:]
    if added is None or dims(added)[-2:] == lengths:
        return added
    axis = 2 if call.found.heads_first else 1
    sizes = [n.add("Shape", given[name], shape=(1,), dtype=INT64, start=axis, end=axis + 1) for name in "qk"]
    size = n.add("Concat", *sizes, shape=(2,), dtype=INT64, axis=0)
    return n.add("Expand", added, size, shape=(*dims(added)[:-2], *lengths))


def _broadcast(a: ir.Value, b: ir.Value) -> Dims:
    rank = max(len(dims(a)), len(dims(b)))
    return tuple(y if x == 1 else x for x, y in zip(aligned_dims(a, rank), aligned_dims(b, rank), strict=True))


def _plain(n: Nodes, call: Call, given: dict[str, ir.Value]) -> ir.Value:
    """What was recognised."""
    scores, sizes, shape = call.found.scores, call.found.sizes(), call.shape()
    q, k, v = (_heads(n, call, given, name) for name in "qkv")
    x = n.add("MatMul", q, n.add("Transpose", k, shape=_swapped(k), perm=[0, 1, 3, 2]), shape=shape)
    if scores.scale not in (None, 1):
        x = n.add("Mul", x, _number(n, scores.scale), shape=shape)
    if call.bias is not None:
        x = n.add("Add", x, given["bias"], shape=shape)
    mask = given["mask"] if call.mask is not None else _triangle(n, x) if call.is_masked else None
    order = -1 if call.mask is not None and scores.place == 2 else 1
    if mask is not None:
        x = n.add("Where", mask, *(x, _number(n, call.fill))[::order], shape=shape)
    weights = n.add("Softmax", x, shape=shape, axis=-1)
    if mask is not None and scores.cleared is not None:
        weights = n.add("Where", mask, *(weights, _number(n, 0))[::order], shape=shape)
    y = n.add("MatMul", weights, v, shape=(*shape[:3], sizes["value_size"]))
    if call.found.heads_first:
        return y
    back = n.add("Transpose", y, shape=tuple(dims(y)[i] for i in HEADS_FIRST), perm=HEADS_FIRST)
    return n.add("Reshape", back, n.known([0, 0, call.found.shape()[2]]), shape=tuple(call.found.shape()))


def _heads(n: Nodes, call: Call, given: dict[str, ir.Value], name: str) -> ir.Value:
    """An operand with the heads of queries in front."""
    sizes, x = call.found.sizes(), given[name]
    count = sizes["heads" if name == "q" else "shared"]
    size = sizes["value_size" if name == "v" else "size"]
    if not call.found.heads_first:
        apart = n.add("Reshape", x, n.known([0, 0, count, size]), shape=(*dims(x)[:2], count, size))
        x = n.add("Transpose", apart, shape=tuple(dims(apart)[i] for i in HEADS_FIRST), perm=HEADS_FIRST)
    if count == sizes["heads"]:
        return x
    places = np.repeat(np.arange(int(count)), int(sizes["heads"]) // int(count))
    return n.add("Gather", x, n.known(places), shape=(dims(x)[0], sizes["heads"], *dims(x)[2:]), axis=1)


def _triangle(n: Nodes, x: ir.Value) -> ir.Value:
    shape = dims(x)[2:]
    size = n.add("Shape", x, shape=(2,), dtype=INT64, start=-2)
    ones = n.add("Expand", n.known(True, np.bool_), size, shape=shape, dtype=BOOL)
    return n.add("Trilu", ones, n.known(0), shape=shape, dtype=BOOL, upper=0)


def _swapped(x: ir.Value) -> Dims:
    *lead, rows, columns = dims(x)
    return (*lead, columns, rows)
