"""What attention consists of: read from a product with weights that softmax made, whichever way it is written."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from jax2onnx.dimensions import is_static
from jax2onnx.optimize.engine import Rewriter
from jax2onnx.optimize.queries import as_shape, attribute, dims, is_zero, only_user, producer, scalar
from jax2onnx.optimize.simplify import RESHAPES
from jax2onnx.optimize.views import (
    VIEWS,
    Atom,
    Axes,
    View,
    after,
    all_atoms,
    atoms,
    before,
    can_be_arranged,
    fresh,
    needs_transpose,
    origin,
    size_of,
)

OPSET = 23


class Cleared(NamedTuple):
    """Where weights become 0: at the other place of a Where by a mask, or above the diagonal of these last two axes."""

    mask: View
    place: int | None = None


class Scores(NamedTuple):
    """What softmax is taken of, from the last step to the first: a mask, biases, and a scaled product."""

    product: View | None = None
    mask: View | None = None
    place: int = 1  # of the scores among the operands of the Where by which some are replaced
    fill: Any = None
    biases: tuple[View, ...] = ()
    scale: float | None = None
    cleared: Cleared | None = None


class Parts(NamedTuple):
    """The atoms of attention by what they are to it."""

    batch: list[Atom]
    shared: list[Atom]  # heads of keys and values
    groups: list[Atom]  # heads of queries for each of these
    queries: list[Atom]
    keys: list[Atom]
    size: list[Atom]
    value_size: list[Atom]

    def heads(self) -> list[Atom]:
        return [*self.shared, *self.groups]


class Attended(NamedTuple):
    """What attention consists of."""

    q: View
    k: View
    v: View
    y: View  # the product with the values
    scores: Scores
    parts: Parts
    heads_first: bool  # operands are (batch, heads, length, size), or (batch, length, heads * size)

    def axes(self, heads: list[Atom], length: list[Atom], size: list[Atom]) -> Axes:
        if self.heads_first:
            return [self.parts.batch, heads, length, size]
        return [self.parts.batch, length, [*heads, *size]]

    def wanted(self) -> tuple[Axes, Axes, Axes, Axes]:
        """The axes of the operands and of the result of the operator."""
        p = self.parts
        return (
            self.axes(p.heads(), p.queries, p.size),
            self.axes(p.shared, p.keys, p.size),
            self.axes(p.shared, p.keys, p.value_size),
            self.axes(p.heads(), p.queries, p.value_size),
        )

    def transposes(self) -> int:
        """How many of its operands and results have to be transposed for the operator."""
        views = (self.q, self.k, self.v, _as_used(self.y))
        return sum(needs_transpose(view, axes) for view, axes in zip(views, self.wanted(), strict=True))

    def can_be_arranged(self) -> bool:
        """Can the operator have its operands, and the graph its result, without shapes that have to be computed?"""
        *operands, result = self.wanted()
        views = zip(self[:3], operands, strict=True)
        return all(can_be_arranged(view, axes) for view, axes in views) and can_be_arranged(
            View(ir.Value(shape=as_shape(self.shape())), result), self.y.axes
        )

    def sizes(self) -> dict[str, int | str]:
        """The sizes of what the axes of the operands are made of."""
        named = {**self.parts._asdict(), "heads": self.parts.heads()}
        return {name: size_of(part) for name, part in named.items()}  # type: ignore[misc]

    def has_known_sizes(self) -> bool:
        """If not, there may be nothing to attend to."""
        return is_static(self.sizes().values())

    def attributes(self) -> dict[str, Any]:
        """Those of the operator. Where heads are an axis, the operands say how many there are: then the
        attributes must not (which onnx checks from opset 25 on)."""
        if self.heads_first:
            return {"scale": self.scale()}
        sizes = self.sizes()
        return {"q_num_heads": sizes["heads"], "kv_num_heads": sizes["shared"], "scale": self.scale()}

    def scale(self) -> float:
        """What the product is multiplied by."""
        return 1.0 if self.scores.scale is None else self.scores.scale

    def shape(self) -> list[int | str]:
        """That of the result of the operator."""
        return [size_of(axis) for axis in self.wanted()[3]]  # type: ignore[misc]


ENDS = ("MatMul", "Transpose", *RESHAPES)
"""What attention ends with: a product and, where that joins axes to one of a size that is not known, what follows."""


def attended(r: Rewriter, node: ir.Node, *, masked: bool = True) -> Attended | None:
    """What is attended to if a value is the product of weights, which softmax made, and values, or made of it.

    If not `masked`, nothing is read where the scores are seen to be masked or biased.
    """
    moves: list[ir.Node] = []
    product: ir.Node | None = node
    while product is not None and product.op_type != "MatMul":
        moves.append(product)
        x = product.inputs[0]
        product = producer(x, *ENDS) if x is not None and only_user(x) is not None else None
    y = node.outputs[0]
    if product is None or r.opset < OPSET or y.dtype != ir.DataType.FLOAT or 0 in dims(y):
        return None
    for place in (0, 1):
        weights = product.inputs[place]
        if weights is None or len(dims(weights)) < 2 or not _may_be_softmax(weights, masked):
            continue
        found = _read(product, place)
        view = found.y if found is not None else None
        for move in reversed(moves):
            view = after(view, move) if view is not None else None
        if found is not None and view is not None and found._replace(y=view).can_be_arranged():
            return found._replace(y=view)
    return None


def _may_be_softmax(value: ir.Value | None, masked: bool) -> bool:
    while (node := producer(value, *VIEWS, *(CLEARING if masked else ()))) is not None:
        value = node.inputs[_kept(node) or 0]
    softmax = producer(value, "Softmax")
    return softmax is not None and (masked or producer(softmax.inputs[0], "Where", "Add") is None)


def _read(node: ir.Node, place: int) -> Attended | None:
    weights, values = node.inputs[place], node.inputs[1 - place]
    assert weights is not None
    if values is None or dims(weights)[:-2] != dims(node.outputs[0])[:-2]:
        return None
    view: View | None = View(weights, fresh(dims(weights)))
    labels, cleared = view.axes, None  # type: ignore[union-attr]
    while view is not None and producer(view.value, "Softmax") is None:
        clearing = producer(view.value, *CLEARING) if cleared is None else None
        if not _is_used_once(view.value):
            view = None
        elif clearing is None:
            view = before(view, repeats=False)
        else:
            view, cleared = _before_clearing(clearing, view)
    if view is None or not _is_used_once(view.value):
        return None
    softmax = producer(view.value, "Softmax")
    assert softmax is not None and softmax.inputs[0] is not None
    axis = attribute(softmax, "axis", -1) % len(view.axes)
    keys = labels[-1 - place]  # contracted: the columns of the first operand, or the rows of the second
    scores = _scores(View(softmax.inputs[0], view.axes), Scores(cleared=cleared))
    if scores is None or scores.product is None or not keys or atoms(view.axes[axis]) != atoms(keys):
        return None
    size = fresh(dims(values)[-1 - place :][:1]) if len(dims(values)) > 1 else [[]]
    v_axes = [*_aligned(labels[:-2], values), *([keys, *size] if place == 0 else [*size, keys])]
    y_axes = [*labels[:-2], *([labels[-2], *size] if place == 0 else [*size, labels[-1]])]
    rows = view.axes[axis - 1] if axis else []
    return _with_operands(scores, View(values, v_axes), View(node.outputs[0], y_axes), keys, size[0], rows)


CLEARING = ("Trilu", "Where")
"""What makes some of the weights 0."""


def _kept(node: ir.Node) -> int | None:
    """The place of what is kept where others become 0."""
    if node.op_type != "Where":
        return 0
    return next((place for place in (1, 2) if is_zero(scalar(node.inputs[3 - place]))), None)


def _before_clearing(node: ir.Node, view: View) -> tuple[View | None, Cleared | None]:
    """The weights before some of them became 0, and which of them did."""
    place = _kept(node)
    x = node.inputs[place] if place is not None else None
    if place is None or x is None or dims(x) != dims(view.value):
        return None, None
    if node.op_type == "Where":
        mask = node.inputs[0]
        assert mask is not None
        return view._replace(value=x), Cleared(View(mask, _aligned(view.axes, mask, 0)), place)
    is_causal = attribute(node, "upper", 1) == 0 and scalar(node.inputs[1]) == 0
    return (view._replace(value=x) if is_causal else None), Cleared(View(x, view.axes[-2:]))


def _aligned(axes: Axes, value: ir.Value, behind: int = 2) -> Axes:
    """The axes of an operand that is broadcast to these, but for the last ones."""
    shape = dims(value)[: len(dims(value)) - behind]
    return [axis if size != 1 else [] for axis, size in zip(axes[len(axes) - len(shape) :], shape, strict=True)]


def _scores(view: View, found: Scores) -> Scores | None:
    """What a value is as scores, `found` being known of what follows."""
    node = view.value.producer()
    if node is None or not _is_used_once(view.value):
        return None
    if node.op_type == "MatMul":
        return found._replace(product=view)
    if node.op_type in VIEWS:
        earlier = before(view, repeats=False)
        return _scores(earlier, found) if earlier is not None else None
    step = _STEPS.get(node.op_type)
    return step(node, view, found) if step is not None else None


def _masked(node: ir.Node, view: View, found: Scores) -> Scores | None:
    """where(mask, scores, fill), or the other way around."""
    place = 2 if scalar(node.inputs[1]) is not None else 1
    mask, scores, fill = node.inputs[0], node.inputs[place], scalar(node.inputs[3 - place])
    if (
        found != Scores(cleared=found.cleared)
        or mask is None
        or scores is None
        or fill is None
        or dims(scores) != dims(view.value)
    ):
        return None
    masked = View(mask, _aligned(view.axes, mask, 0))
    return _scores(view._replace(value=scores), found._replace(mask=masked, place=place, fill=float(fill)))


def _biased(node: ir.Node, view: View, found: Scores) -> Scores | None:
    """scores + bias"""
    if found.scale is not None:
        return None
    for scores, bias in (node.inputs, node.inputs[::-1]):
        if scores is None or bias is None or dims(scores) != dims(view.value):
            continue
        biases = (*found.biases, View(bias, _aligned(view.axes, bias, 0)))
        read = _scores(view._replace(value=scores), found._replace(biases=biases))
        if read is not None:
            return read
    return None


def _scaled(node: ir.Node, view: View, found: Scores) -> Scores | None:
    """scores * number"""
    scores, factor = node.inputs[0], scalar(node.inputs[1])
    if scores is None or factor is None or factor == 0 or dims(scores) != dims(view.value):
        return None
    number = float(factor) if node.op_type == "Mul" else 1 / float(factor)
    if found.scale is not None:
        if abs(number) > 1:  # a product that is too large for the one is not for both
            return None
        number *= found.scale
    return _scores(view._replace(value=scores), found._replace(scale=number))


_STEPS = {"Where": _masked, "Add": _biased, "Mul": _scaled, "Div": _scaled}


def _with_operands(
    scores: Scores, v: View, y: View, keys: list[Atom], value_size: list[Atom], rows: list[Atom]
) -> Attended | None:
    """All of it, `rows` being the axis of the scores before the keys, mostly that of the queries."""
    assert scores.product is not None
    labels, node = scores.product.axes, scores.product.value.producer()
    a, b = node.inputs  # type: ignore[union-attr]
    if a is None or b is None or len(dims(a)) < 2 or len(dims(b)) < 2:
        return None
    size = fresh(dims(a)[-1:])
    first = View(a, [*_aligned(labels[:-2], a), labels[-2], *size])
    second = View(b, [*_aligned(labels[:-2], b), *size, labels[-1]])
    if set(atoms(keys)) <= set(atoms(labels[-2])):
        first, second = second, first
    k, v, q = origin(second, repeats=True), origin(v, repeats=True), origin(first, repeats=False)
    if not 0 < np.float32(1.0 if scores.scale is None else scores.scale) < np.inf:
        return None
    parts = _parts(q, k, v, size[0], value_size, keys, rows)
    if parts is None:
        return None
    # Several heads that share keys are as good as several queries of one head, and the other way around.
    other = parts._replace(groups=parts.queries, queries=parts.groups)
    ways = [Attended(q, k, v, y, scores, p, is_first) for p in (parts, other) for is_first in (False, True)]
    return min(filter(_is_possible, ways), key=_cost, default=None)


def _cost(way: Attended) -> tuple[bool, int]:
    """For a single query, the kernel reads the keys once for each head: two to three times as slow as for queries."""
    return bool(way.parts.groups and not way.parts.queries), way.transposes()


def _is_possible(way: Attended) -> bool:
    """Does the operator take the operands in this way?"""
    sizes = way.sizes()
    if None in sizes.values() or not all(isinstance(sizes[n], int) for n in ("heads", "size", "value_size")):
        return False
    return not (way.parts.groups and needs_transpose(way.q, way.wanted()[0]))


def _parts(
    q: View, k: View, v: View, size: list[Atom], value_size: list[Atom], keys: list[Atom], rows: list[Atom]
) -> Parts | None:
    """What is what, in the order of the operands; None if they do not belong together."""
    of_q, of_k, of_v = (all_atoms(view.axes) for view in (q, k, v))
    is_key, inner, outer = set(atoms(keys)), set(atoms(size)), set(atoms(value_size))
    shared = [atom for atom in of_k if atom not in is_key and atom not in inner]
    queries = [atom for atom in of_q if atom not in shared and atom not in inner]
    ordered = [atom for atom in of_k if atom in is_key]
    if not is_key or not inner or not outer or len(of_k) != len(shared) + len(is_key) + len(inner):
        return None
    if set(of_v) != {*shared, *is_key, *outer} or set(of_q) != {*shared, *queries, *inner} or is_key & set(of_q):
        return None
    others = [atom for atom in queries if atom not in atoms(rows)]
    lengths = atoms(rows) if set(atoms(rows)) <= set(queries) else others
    behind = of_k[of_k.index(ordered[-1]) :]
    heads = [atom for atom in shared if atom in behind] or (shared[-1:] if len(shared) > 1 else [])
    return Parts(
        batch=[atom for atom in shared if atom not in heads],
        shared=heads,
        groups=[atom for atom in queries if atom not in lengths],
        queries=[atom for atom in queries if atom in lengths],
        keys=ordered,
        size=[atom for atom in of_k if atom in inner],
        value_size=[atom for atom in of_v if atom in outer],
    )


def _as_used(view: View) -> View:
    """A result as its user has it, after its axes were moved."""
    while (user := only_user(view.value)) is not None:
        later = after(view, user)
        if later is None:
            break
        view = later
    return view


def _is_used_once(value: ir.Value) -> bool:
    """Is a value used once, but for the size of the mask that is applied to it?"""
    others = [use.node for use in value.uses() if not _leads_to(use.node, "Shape", "Expand", "Trilu", "Where")]
    return len(others) == 1 and not value.is_graph_output()


def _leads_to(node: ir.Node, *op_types: str) -> bool:
    """Is it the first of these operators, each of which has only the next one as its user?"""
    found: ir.Node | None = node
    for op_type in op_types[:-1]:
        if found is None or found.op_type != op_type:
            return False
        found = only_user(found.outputs[0])
    return found is not None and found.op_type == op_types[-1]
