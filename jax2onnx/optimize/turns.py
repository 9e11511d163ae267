"""Transposes that ONNX Runtime does element by element become two that it does in blocks.

It is fast where the last axis stays, so that whole rows are copied, and where just two neighbouring groups of axes are
exchanged: 0.1 to 0.5 ns an element. All others take 4 ns, and more if the array does not fit into the cache.
"""

from __future__ import annotations

import functools
import itertools
import math

import onnx_ir as ir

from jax2onnx.dimensions import is_static
from jax2onnx.optimize.engine import Rewriter, RuleSet
from jax2onnx.optimize.queries import Dims, attribute, dims

LAST = RuleSet()

MANY = 4096
"""So many elements pay for another node."""

SHORT_ROW = 4
"""Rows of fewer elements are not copied faster than single elements."""

SLOW = 4.0
"""Nanoseconds for an element that is copied by itself."""

MOST_GROUPS = 6
"""More groups of axes have too many orders to try."""

Perm = tuple[int, ...]


@LAST.rewrites("Transpose")
def turn_twice(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A Transpose of many elements, if it is slow and two fast ones amount to the same."""
    x, y = node.inputs[0], node.outputs[0]
    assert x is not None
    shape, perm = dims(x), list(attribute(node, "perm"))
    if not is_static(shape) or math.prod(int(d) for d in shape) < MANY:
        return None
    groups, order = _grouped(shape, perm)
    sizes = tuple(math.prod(int(shape[a]) for a in group) for group in groups)
    first = _first_of_two(sizes, order) if len(groups) <= MOST_GROUPS else None
    if first is None:
        return None
    halfway = [a for i in first for a in groups[i]]
    halfway += [a for a in range(len(shape)) if a not in halfway]  # axes of size 1 go last, where they do not matter
    turned = r.transpose(x, halfway)
    return r.op("Transpose", turned, like=y, perm=[halfway.index(a) for a in perm])


def _grouped(shape: Dims, perm: list[int]) -> tuple[list[list[int]], Perm]:
    """The axes that stay side by side, as groups in the order of `x`, and the new order of these groups."""
    found: list[list[int]] = []
    used = [a for a in perm if shape[a] != 1]
    place = {a: i for i, a in enumerate(sorted(used))}
    for a in used:
        if found and place[a] == place[found[-1][-1]] + 1:
            found[-1].append(a)
        else:
            found.append([a])
    groups = sorted(found)
    return groups, tuple(groups.index(group) for group in found)


@functools.cache
def _first_of_two(sizes: tuple[int, ...], order: Perm) -> Perm | None:
    """The first of the two fastest orders that amount to a slow one; None for one that is fast itself."""
    if _time(sizes, order) < SLOW:
        return None
    orders = list(itertools.permutations(range(len(sizes))))
    times = {o: _time(sizes, o) + _time(tuple(sizes[i] for i in o), tuple(o.index(i) for i in order)) for o in orders}
    best = min(orders, key=times.__getitem__)
    return best if times[best] < SLOW else None


def _time(sizes: tuple[int, ...], order: Perm) -> float:
    """About how many nanoseconds an element takes."""
    if order[-1] == len(order) - 1 and sizes[-1] >= SHORT_ROW:  # whole rows are copied
        return 0.3
    ends = [i for i, (a, b) in enumerate(itertools.pairwise(order), 1) if b != a + 1]  # of groups that stay together
    if len(ends) == 1:  # one matrix
        return 0.2
    if len(ends) == 2 and order[0] == 0:  # many, which may be small
        return 0.5 if math.prod(sizes[ends[0] :]) >= MANY else 1.5
    return SLOW
