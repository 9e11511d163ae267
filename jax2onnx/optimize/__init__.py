"""The optimize stage: onnx_ir -> onnx_ir. Rules and passes that make a graph small and fast without changing a number.

First the graph is tidied up and equal nodes become one, so that a formula has one form; then formulas are recognised.
"""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from jax2onnx.optimize import fold, normalization, simplify, softmax
from jax2onnx.optimize.engine import Rewriter
from jax2onnx.optimize.shared import remove_unused, share_equal_nodes

TIDY = [simplify.RULES, fold.RULES, normalization.MEANS]
RECOGNISE = [softmax.RULES, normalization.RULES]


def optimize(model: ir.Model) -> Counter[str]:
    """Make `model` small and fast; what was done, and how often."""
    counts: Counter[str] = Counter()
    for rule_sets in (TIDY, [*TIDY, *RECOGNISE]):
        counts += Rewriter(model, rule_sets).run()
        counts["share_equal_nodes"] += share_equal_nodes(model)
    remove_unused(model)
    return counts
