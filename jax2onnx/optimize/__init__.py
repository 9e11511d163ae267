"""The optimize stage: onnx_ir -> onnx_ir. Rules and passes that make a graph small and fast without changing a number.

First the graph is tidied up and equal nodes become one, so that a formula has one form; then formulas are recognised.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from typing import NamedTuple

import onnx_ir as ir

from jax2onnx.graphs import all_nodes, roots
from jax2onnx.optimize import (
    activations,
    attention,
    batch_norm,
    bidirectional,
    blocks,
    channel_norm,
    colours,
    columns,
    comparisons,
    conditions,
    convolution,
    dense,
    detours,
    division,
    ends,
    flips,
    fold,
    frames,
    group_norm,
    groups,
    indices,
    integers,
    intervals,
    layers,
    layout,
    left_out,
    masked_attention,
    masks,
    matmul,
    moduli,
    moves,
    narrow,
    normalization,
    paddings,
    parts,
    piecewise,
    pixels,
    pointwise,
    pools,
    recurrent,
    rotary,
    runs,
    saturation,
    sigmoid,
    signs,
    simplify,
    slices,
    small_products,
    softmax,
    spans,
    turns,
    units,
    upsample,
)
from jax2onnx.optimize.carries import drop_needless_carries
from jax2onnx.optimize.choices import choose_together
from jax2onnx.optimize.counters import bound_carries
from jax2onnx.optimize.draws import THREEFRY, draw_together, write_out_draws
from jax2onnx.optimize.engine import Rewriter, RuleSet
from jax2onnx.optimize.functions import import_functions
from jax2onnx.optimize.independent import compute_before_loops, compute_behind_loops
from jax2onnx.optimize.rows import keep_rows
from jax2onnx.optimize.shared import remove_unused, share_equal_constants, share_equal_nodes
from jax2onnx.optimize.single import keep_single_axes
from jax2onnx.optimize.steps import take_out_step_arithmetic

TIDY = [
    simplify.RULES,
    signs.RULES,
    conditions.RULES,
    slices.RULES,
    paddings.RULES,
    moves.RULES,
    fold.RULES,
    integers.RULES,
    intervals.RULES,
    indices.RULES,
    comparisons.RULES,
    normalization.MEANS,
]
MOVE = [
    convolution.RULES,
    units.RULES,
    layout.RULES,
    pointwise.RULES,
    frames.RULES,
    matmul.RULES,
    dense.RULES,
    groups.RULES,
    detours.RULES,
    pixels.RULES,
    pools.RULES,
    upsample.RULES,
    runs.RULES,
]
RECURRENT = [recurrent.RULES, layers.RULES, flips.RULES, bidirectional.RULES]
RECOGNISE = [
    indices.PICK,
    masks.RULES,
    softmax.RULES,
    activations.RULES,
    sigmoid.RULES,
    piecewise.RULES,
    moduli.RULES,
    *RECURRENT,
    attention.RULES,
    rotary.RULES,
]
LAST = [
    simplify.LAST,
    conditions.LAST,
    sigmoid.LAST,
    integers.LAST,
    slices.LAST,
    convolution.LAST,
    pools.LAST,
    division.LAST,
    moves.LAST,
    indices.LAST,
    saturation.LAST,
    small_products.LAST,
    spans.LAST,
    columns.LAST,
    ends.LAST,
    turns.LAST,
]
NORMALIZE = {
    "auto": [normalization.RULES, group_norm.RULES, channel_norm.RULES],
    "prefer_native": [normalization.RULES, group_norm.NATIVE, batch_norm.RULES],
    "force_decomposed": [],
}
"""How formulas of normalizations are written: where that is no slower, as operators, or not as operators."""
MAX_ROUNDS = 4
"""One rule's result may be what another looks for, further away than the rewriter revisits."""

MAX_NARROWINGS = 16
"""What is used twice stops one, until both users want the same part of it and have become one."""

MAX_LAYERS = 16
"""Of recurrent networks with something between them that has to leave the loop before the next one can."""

LOOPS = frozenset(["Loop", "Scan"])

_IS_ON = contextvars.ContextVar("optimize", default=True)


@contextlib.contextmanager
def switched_off() -> Iterator[None]:
    """Exports in this context are not optimized: for tests that compare."""
    token = _IS_ON.set(False)
    try:
        yield
    finally:
        _IS_ON.reset(token)


def optimize(
    model: ir.Model, write_out_composites: Callable[[], int] = int, normalization_mode: str = "auto"
) -> Counter[str]:
    """Make `model` small and fast (`remove_unused` comes after it); what was done, and how often.

    `write_out_composites` replaces the nodes that were only there to be recognised as parts of a formula.
    """
    if not _IS_ON.get():
        write_out_composites()
        write_out_draws(model)
        return Counter()
    counts = _to_rest(model, normalization_mode)
    if write_out_composites():
        counts.update(_rewrite(model, TIDY))
    operators = {node.op_type for graph in roots(model) for node in all_nodes(graph)}
    if "Scan" in operators:
        counts += _compute_all_steps_at_once(model)
    if THREEFRY in operators:
        counts["draw_together"] = draw_together(model)
        counts["write_out_draws"] = write_out_draws(model)
    if counts["compute_all_steps_at_once"] or counts["write_out_draws"]:
        counts.update(_rewrite(model, [*TIDY, *MOVE]))
    if counts["compute_all_steps_at_once"]:
        counts.update(_recognise_what_is_left(model))
    for _ in range(MAX_NARROWINGS):
        narrower = Rewriter(model, [narrow.RULES])
        if not narrower.run().total():
            break
        counts.update(narrower.counts + _round(model, [*TIDY, *MOVE], around=narrower.surroundings).done)
    if "Softmax" in operators:  # now that it is known which queries are needed
        masked = masked_attention.RULES
        around = [attention.RULES, units.RULES, detours.RULES, *TIDY]
        counts.update(Rewriter(model, [masked, *around]).run(start=masked.by_op))
    order_of_axes = [layout.LAST, channel_norm.LAST, colours.LAST]  # before what depends on it
    counts.update(Rewriter(model, order_of_axes).run())
    around = [detours.LAST, units.RULES, *TIDY]
    counts.update(Rewriter(model, around).run(start=detours.LAST.by_op))
    rewriter = Rewriter(model, [*LAST, *([] if normalization_mode == "force_decomposed" else [batch_norm.LAST])])
    counts.update(rewriter.run())
    if "ScatterND" in rewriter.operators:
        counts.update(Rewriter(model, [blocks.LAST, fold.RULES]).run(start=blocks.LAST.by_op))
    if not rewriter.operators.isdisjoint(simplify.RESHAPES):
        counts["keep_single_axes"] = keep_single_axes(model)
        counts["keep_rows"] = keep_rows(model)
    if "Where" in rewriter.operators and not LOOPS.isdisjoint(rewriter.operators):
        counts["choose_together"] = choose_together(model)
    if "Slice" in rewriter.operators:
        counts.update(Rewriter(model, [parts.LAST]).run())
    repeating = (
        integers.remainder_by_division,
        spans.repeat_around_short_spans,
        columns.add_rows_by_product,
        detours.move_what_is_combined,
        ends.take_column,
        ends.take_part,
        layout.transpose_before_slices,
        layout.transpose_before_split,
        layout.transpose_operands,
        small_products.multiply_small_matrices,
        moves.cut_what_is_cut_anyway,
        masked_attention.recognise_masked_attention,
    )
    if any(counts[rule.__name__] for rule in repeating):
        share_equal_constants(model.graph)
        counts["share_equal_nodes"] += share_equal_nodes(model)
    calling = (masked_attention.recognise_masked_attention, saturation.convert_plain_numbers_at_once)
    if any(counts[rule.__name__] for rule in calling):
        import_functions(model)
    return counts


def optimize_part(graph: ir.Graph, opset: int, normalization_mode: str = "auto") -> None:
    """Make a graph small that will be a part of others. It is optimized again there, with what is around it."""
    if not _IS_ON.get():
        return
    empty = ir.Graph([], [], nodes=[], opset_imports={"": opset})
    graph.opset_imports[""] = opset
    part = ir.Function("jax2onnx", "part", graph=graph, attributes=[])
    model = ir.Model(empty, ir_version=10, functions=[part])
    _to_rest(model, normalization_mode)
    remove_unused(model)


def _compute_all_steps_at_once(model: ir.Model) -> Counter[str]:
    """Move what is independent of other steps out of loops: of those before, and then of those after."""
    moved = compute_before_loops(model)
    counts = Rewriter(model, [left_out.RULES]).run(start=["Scan"])  # while its result is what is chosen at each step
    counts["compute_all_steps_at_once"] = moved + compute_behind_loops(model) + counts.total()
    return +counts


def _recognise_what_is_left(model: ir.Model) -> Counter[str]:
    """Recurrent networks in loops that do nothing else any more; and in what these leave, layer by layer."""
    counts: Counter[str] = Counter()
    for _ in range(MAX_LAYERS):
        found = Rewriter(model, RECURRENT).run(start=["Scan"])
        if not found.total():
            break
        found += _compute_all_steps_at_once(model)
        counts += found + _rewrite(model, [*TIDY, *MOVE, *RECURRENT])
    return counts


def _to_rest(model: ir.Model, normalization_mode: str) -> Counter[str]:
    """Apply all rules until none applies."""
    recognise = [*RECOGNISE, *NORMALIZE[normalization_mode]]
    last = _round(model, TIDY)
    counts = last.done.copy()
    last = _round(model, [*TIDY, *recognise], last)  # before axes move away from where formulas have them
    counts += last.done
    for _ in range(MAX_ROUNDS):
        last = _round(model, [*TIDY, *MOVE, *recognise], last)
        if not last.done.total():
            break
        counts += last.done
    return counts


class _Round(NamedTuple):
    """How often which rule and which pass over whole graphs did something, and the rules that apply to nothing now."""

    done: Counter[str]
    settled: Sequence[RuleSet]


def _rewrite(model: ir.Model, rule_sets: list[RuleSet]) -> Counter[str]:
    """Apply rules, and then the passes over whole graphs; how often which did something."""
    return _round(model, rule_sets).done


def _round(
    model: ir.Model,
    rule_sets: list[RuleSet],
    before: _Round | None = None,
    around: Container[ir.Node] | None = None,
) -> _Round:
    """Apply rules (first to the nodes `around` which something changed, if they are given), and then the passes over
    whole graphs, right after the round `before`, if there was one."""
    rewriter = Rewriter(model, rule_sets, before.settled if before is not None else ())
    done = rewriter.run(around=around)
    has_loops = not LOOPS.isdisjoint(rewriter.operators)
    if before is not None and not rewriter.is_changed and _was_last(before.done, has_loops):
        return _Round(done, rule_sets)
    if has_loops:
        done["drop_needless_carries"] = drop_needless_carries(model)
        done["take_out_step_arithmetic"] = take_out_step_arithmetic(model)
        done["bound_carries"] = bound_carries(model)
    shared_constants = share_equal_constants(model.graph)
    done["share_equal_nodes"] = share_equal_nodes(model)
    if has_loops or "Slice" in rewriter.operators:  # what is taken out of loops may be sliced
        done["share_sliced_arithmetic"] = slices.share_sliced_arithmetic(model)
    is_as_before = not (rewriter.is_changed or done.total() or shared_constants)
    return _Round(done, rule_sets if is_as_before else [])


def _was_last(done: Counter[str], has_loops: bool) -> bool:
    """Would the passes find nothing more after this round of them? To make equal nodes one takes one time."""
    passes = ("drop_needless_carries", "take_out_step_arithmetic", "bound_carries", "share_sliced_arithmetic")
    return not any(done[name] for name in passes) and not (has_loops and done["share_equal_nodes"])
