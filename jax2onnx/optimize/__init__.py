"""The optimize stage: onnx_ir -> onnx_ir. Rules and passes that make a graph small and fast without changing a number."""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from jax2onnx.optimize import fold, simplify
from jax2onnx.optimize.engine import Rewriter
from jax2onnx.optimize.shared import remove_unused, share_equal_nodes

RULE_SETS = [simplify.RULES, fold.RULES]


def optimize(model: ir.Model) -> Counter[str]:
    """Make `model` small and fast; what was done, and how often."""
    counts = Rewriter(model, RULE_SETS).run()
    counts["share_equal_nodes"] = share_equal_nodes(model)
    remove_unused(model)
    return counts
