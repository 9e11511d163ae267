"""Elements that several nodes only move, to places that are known: one or two nodes do that as well.

Simulations set the boundaries of a grid side by side, `p.at[1:-1, 1:-1].set(new).at[:, 0].set(...).at[0, :].set(...)`:
what comes out is `new` with an edge around it, and a row of zeros. And they look at the neighbours of all cells,
`jnp.roll(u, 1)`: two slices, the other way round, are one Gather.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from jax2onnx.attributes import attributes_of
from jax2onnx.dimensions import is_static, likely_size
from jax2onnx.optimize.engine import Rewriter, RuleSet, first, some
from jax2onnx.optimize.fold import EXACT, MOVES
from jax2onnx.optimize.queries import attribute, constant, dims, only_user, producer
from jax2onnx.optimize.slices import cut_of
from jax2onnx.optimize.units import BINARY, UNARY

RULES = RuleSet()

SMALL_TABLE = 1024
"""Larger ones, which may be weights, stay as they are."""

MANY_PARTS = 32
"""Of more, it takes too long to see what they are."""

LAST = RuleSet()
"""Others look for the slices, and for what is written where."""

# ------------------------------------------------------------------------------------------------- parts of an array


@RULES.rewrites("Concat", given=some("Slice"))
def join_neighbours(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Parts of one array that follow each other there, too, are one part, or the array."""
    y = node.outputs[0]
    axis = attribute(node, "axis") % len(dims(y))
    parts: list[ir.Value | None] = [node.inputs[0]]
    for part in node.inputs[1:]:
        (x, start, middle), (same, begin, end) = _span(parts[-1], axis), _span(part, axis)
        if x is None or x is not same or middle != begin:
            parts.append(part)
            continue
        shape = [end - start if i == axis else d for i, d in enumerate(dims(x))]
        bounds = [r.const([i], np.int64) for i in (start, end, axis)]
        parts[-1] = x if shape == list(dims(x)) else r.op("Slice", x, *bounds, like=x, shape=shape)
    if len(parts) == len(node.inputs):
        return None
    return parts[0] if len(parts) == 1 else r.op("Concat", *parts, like=y, axis=axis)


def _span(part: ir.Value | None, axis: int) -> tuple[ir.Value | None, int, int]:
    """What a part is cut from along this axis, and from where to where; None if it is not."""
    cut = cut_of(part)
    return (None, 0, 0) if cut is None or list(cut.ranges) != [axis] else (cut.x, *cut.ranges[axis])


@RULES.rewrites("Transpose", "Reshape", given=first("Gather"))
def gather_from_moved(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """What is taken out of a small, known array, and then moved: that is moved instead."""
    y = node.outputs[0]
    gather = producer(node.inputs[0], "Gather")
    table, index = gather.inputs if gather is not None else (None, None)
    if gather is None or table is None or index is None or only_user(gather.outputs[0]) is None:
        return None
    known = constant(table) if table.const_value is not None and table.const_value.size <= SMALL_TABLE else None
    if known is None or len(dims(index)) != 1 or not is_static(dims(y)):
        return None
    axis = attribute(gather, "axis", 0) % known.ndim
    if node.op_type == "Transpose":
        perm = list(attribute(node, "perm"))
        return r.op("Gather", r.moved(known.transpose(perm), table), index, like=y, axis=perm.index(axis))
    if dims(y)[: axis + 1] != dims(gather.outputs[0])[: axis + 1] or not known.size:
        return None
    shape = [*known.shape[: axis + 1], *dims(y)[axis + 1 :]]
    return r.op("Gather", r.moved(known.reshape(shape), table), index, like=y, axis=axis)  # type: ignore[arg-type]


@LAST.rewrites("Slice", given=first(*UNARY, *BINARY))
def cut_what_is_cut_anyway(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Parts of x * 2, and nothing else of it, where the same parts of x are there as well: those times 2."""
    whole = node.inputs[0]
    source = whole.producer() if whole is not None else None
    arrays = [v for v in source.inputs if v is not None and likely_size(dims(v)) != 1] if source is not None else []
    if whole is None or source is None or source.domain or len(arrays) != 1 or dims(arrays[0]) != dims(whole):
        return None
    (x,) = arrays
    if len(whole.uses()) > MANY_PARTS or len(x.uses()) > MANY_PARTS or whole.is_graph_output():
        return None
    own, others = [[cut_of(use.node.outputs[0]) for use in v.uses()] for v in (whole, x)]
    there = [cut.ranges for cut in others if cut is not None]
    if not all(cut is not None and cut.ranges in there for cut in own):
        return None
    part = r.op("Slice", x, *node.inputs[1:], like=x, shape=dims(node.outputs[0]))
    operands = [part if v is x else v for v in source.inputs]
    return r.op(source.op_type, *operands, like=node.outputs[0], **attributes_of(source))


NODE = 400
ROW = 8
ELEMENT = 0.4
"""Nanoseconds for a node, for a row that a Gather copies, and for an element that is copied twice instead of once."""

MAX_INDICES = 1024
"""From so many elements on, it takes longer to read where each of them is than to copy them twice."""


@LAST.rewrites("Concat", given=some("Slice"))
def gather_parts(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Parts of one array, joined along the axis along which they are cut."""
    y = node.outputs[0]
    axis = attribute(node, "axis") % len(dims(y))
    x, order, spared = _joined(node, axis)
    if x is None or not spared:
        return None
    shape = dims(y)
    columns = math.prod(d for d in shape[axis + 1 :] if isinstance(d, int))
    size = likely_size(shape)
    if columns > 1:
        pays = ROW * size / columns <= NODE * spared + ELEMENT * size
        return r.op("Gather", x, r.const(order, np.int64), like=y, axis=axis) if pays else None
    if size > MAX_INDICES or not is_static(shape):
        return None
    places = np.broadcast_to(order.reshape(-1, *(1,) * (len(shape) - axis - 1)), shape)  # type: ignore[arg-type]
    return r.op("GatherElements", x, r.const(places, np.int64), like=y, axis=axis)


def _joined(concat: ir.Node, axis: int) -> tuple[ir.Value | None, np.ndarray, int]:
    """What all the parts are cut from, if that is so, which positions they are, and how many nodes only cut them."""
    source: ir.Value | None = None
    positions, spared = [], 0
    for part in concat.inputs:
        x, start, end = _span(part, axis)
        if x is None or (source is not None and x is not source):
            return None, np.zeros(0), 0
        source = x
        positions.append(np.arange(start, end))
        spared += only_user(part) is concat  # type: ignore[arg-type]
    return source, np.concatenate(positions), spared


# ------------------------------------------------------------------------------------------------ writing and padding

MAX_SIZE = 1 << 16
MAX_MOVES = 64
MAX_OTHERS = 4
"""How large the arrays are whose elements are followed, through how many nodes, and through how many, one behind the
other, that something else needs as well."""

MAX_WRITTEN = 2048
"""So many elements, or rows, are written one by one."""

SCATTERS = ("ScatterND", "ScatterElements")


@LAST.rewrites("ScatterND", given=first(*SCATTERS, "Reshape"))
def pad_and_write(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """What is written piece by piece is some array, padded if need be, and known numbers that are written at once."""
    y = node.outputs[0]
    user = only_user(y)
    if user is not None and user.op_type in SCATTERS and user.inputs[0] is y:
        return None  # the last of them sees all
    own = _own_moves(node)
    if len(own) < 2:
        return None
    moves = _Moves(own)
    codes = moves.codes(y)
    found = _padded(moves, codes)
    if found is None:
        return None
    where = found.codes != codes
    written = codes[where]
    rank = codes.ndim
    while rank > 1 and bool((where.all(rank - 1) == where.any(rank - 1)).all()):
        where, rank = where.any(rank - 1), rank - 1  # whole rows
    places = np.argwhere(where)
    needed = (found.mode is not None) + bool(places.size)
    if (written >= 0).any() or len(places) > MAX_WRITTEN or written.size > MAX_SIZE or len(own) <= needed:
        return None
    result = found.base(r, y)
    if not places.size:
        return result
    updates = moves.numbers[-1 - written].reshape(len(places), *codes.shape[rank:])
    return r.op("ScatterND", result, r.const(places, np.int64), r.const(updates), like=y)


class _Moves:
    """Where the elements of a value come from: a code for each element of what some nodes move, negative for numbers
    that are known."""

    def __init__(self, nodes: set[ir.Node]) -> None:
        self.nodes = nodes
        self.sources: dict[ir.Value, np.ndarray] = {}
        self.numbers: np.ndarray = np.zeros(0)
        self._codes: dict[ir.Value, np.ndarray] = {}
        self._next = 0

    def codes(self, value: ir.Value, others: int = MAX_OTHERS) -> np.ndarray:
        """Those of a value, found through these nodes and so many others that something else needs as well."""
        if value not in self._codes:
            self._codes[value] = self._find(value, others)
        return self._codes[value]

    def _find(self, value: ir.Value, others: int) -> np.ndarray:
        shape = dims(value)
        if value.const_value is not None and value.const_value.size <= MAX_SIZE:
            return self._known(value.const_value.numpy())
        node = value.producer()
        is_own = node in self.nodes
        if node is None or not (is_own or (others and _only_moves(node))):
            size = math.prod(map(int, shape)) if _is_small(value) else 0
            new = np.arange(self._next, self._next + size)
            self._next += size
            self.sources[value] = new.reshape(shape) if size else new  # type: ignore[arg-type]
            return self.sources[value]
        operands = [self.codes(x, others - (not is_own)) for x in _moved(node)]
        if node.op_type in SCATTERS:
            return _scattered(node, *operands)
        if node.op_type == "Expand":
            return np.broadcast_to(operands[0], shape)  # type: ignore[arg-type]
        rest = [] if node.op_type == "Concat" else [constant(v) for v in node.inputs[1:]]
        return (MOVES | EXACT)[node.op_type](node, *operands, *rest)

    def _known(self, array: np.ndarray) -> np.ndarray:
        """The codes of known numbers: equal ones have the same, 0.0 and -0.0 have not."""
        bits = f"u{array.dtype.itemsize}"
        known = self.numbers.astype(array.dtype) if not self.numbers.size else self.numbers
        every = np.concatenate([known, np.unique(array.reshape(-1).view(bits)).view(array.dtype)])
        _, at = np.unique(every.view(bits), return_index=True)
        self.numbers = every[np.sort(at)]
        order = np.argsort(self.numbers.view(bits))
        return -1 - order[np.searchsorted(self.numbers.view(bits)[order], array.view(bits))]


def _is_small(value: ir.Value) -> bool:
    shape = dims(value)
    return is_static(shape) and math.prod(shape) <= MAX_SIZE  # type: ignore[operator]


def _moved(node: ir.Node) -> Iterator[ir.Value]:
    """The operands whose elements a node moves, if it does only that, and where to is known."""
    data = {"Concat": range(len(node.inputs)), "ScatterND": (0, 2), "ScatterElements": (0, 2)}.get(node.op_type, (0,))
    if node.domain or node.op_type not in (*MOVES, *SCATTERS, "Concat", "Gather", "Expand"):
        return
    others = [v for i, v in enumerate(node.inputs) if i not in data]
    if any(v is None or v.const_value is None for v in others) or attribute(node, "reduction", "none") != "none":
        return
    for i in data:
        if (x := node.inputs[i]) is not None:
            yield x


def _scattered(node: ir.Node, x: np.ndarray, updates: np.ndarray) -> np.ndarray:
    result, index = x.copy(), constant(node.inputs[1])
    assert index is not None
    if node.op_type == "ScatterND":
        result[tuple(np.moveaxis(index, -1, 0))] = updates
    else:
        np.put_along_axis(result, index, updates, attribute(node, "axis", 0))
    return result


class _Padded(NamedTuple):
    """An array, how it is padded, and the codes of the result."""

    x: ir.Value
    mode: str | None
    """None if it is as large as the result."""
    pads: list[int]
    filling: np.ndarray | None
    codes: np.ndarray

    def base(self, r: Rewriter, like: ir.Value) -> ir.Value:
        if self.mode is None:
            return self.x
        filling = [r.const(self.filling)] if self.filling is not None else []
        return r.op(
            "Pad", self.x, r.const(self.pads, np.int64), *filling, like=like, mode=None if filling else self.mode
        )


def _padded(moves: _Moves, codes: np.ndarray) -> _Padded | None:
    """An array that is there as a whole, with around it what is most like the elements that there are."""
    candidates = [(x, own) for x, own in moves.sources.items() if own.ndim == codes.ndim and own.size]
    best: tuple[int, _Padded | None] = (0, None)
    for x, own in candidates:
        middle = own[tuple(d // 2 for d in own.shape)]
        for place in np.argwhere(codes == middle)[:2]:
            before = [int(p) - d // 2 for p, d in zip(place, own.shape, strict=True)]
            behind = [n - d - b for n, d, b in zip(codes.shape, own.shape, before, strict=True)]
            if min(*before, *behind, 0) < 0:
                continue
            for mode, filling, result in _paddings(own, list(zip(before, behind, strict=True)), codes):
                number = moves.numbers[-1 - filling] if filling is not None else None
                same = int((result == codes).sum())
                if same > best[0]:
                    best = same, _Padded(x, mode, [*before, *behind], number, result)
    return best[1]


def _paddings(own: np.ndarray, widths: Any, codes: np.ndarray) -> Iterator[tuple[str | None, int | None, np.ndarray]]:
    if own.shape == codes.shape:
        yield None, None, own
        return
    yield "edge", None, np.pad(own, widths, mode="edge")
    known, counts = np.unique(codes[codes < 0], return_counts=True)
    if known.size:
        filling = int(known[counts.argmax()])
        yield "constant", filling, np.pad(own, widths, constant_values=filling)


def _own_moves(node: ir.Node) -> set[ir.Node]:
    """The nodes that only move elements, for this one and for nothing else, and itself."""
    own: set[ir.Node] = set()
    ahead = [node]
    while ahead and len(own) < MAX_MOVES:
        found = ahead.pop()
        if not _only_moves(found):
            continue
        own.add(found)
        for x in _moved(found):
            source = x.producer()
            if source is None or source in own or source.graph is not node.graph or x.is_graph_output():
                continue
            if own.issuperset(x.consumers()):
                ahead.append(source)
    return own


def _only_moves(node: ir.Node) -> bool:
    """Does a node move the elements of small arrays to known places?"""
    moved = list(_moved(node)) if _is_small(node.outputs[0]) else []
    return bool(moved) and all(map(_is_small, moved))
