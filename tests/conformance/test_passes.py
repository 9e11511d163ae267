"""Optimized models are as close to JAX as those that are not (`make passes` looks at many more cases)."""

import jax
import numpy as np

from tests.conformance import cases
from tests.conformance.passes import distance, judge_passes


def test_distance_counts_units_in_the_last_place():
    want = np.float32([1.0, -2.0, np.nan, np.inf])
    assert distance(want, want) == 0
    assert distance(np.nextafter(want, np.float32(9)), np.where(np.isfinite(want), want, 1)) == np.inf
    assert distance(np.float32([1.0, -2.0 - 2**-22, np.nan, np.inf]), want) == 1
    assert distance(np.float32([1.0, -2.0, 0.0, np.inf]), want) == np.inf
    assert distance(np.int32([1]), np.int32([2])) == np.inf


def test_sample():
    """The middle case of every fourth group."""
    groups: dict[str, list[str]] = {}
    before = jax.config.jax_enable_x64
    try:
        for name, harness in sorted(cases.load().items()):
            groups.setdefault(harness.group_name, []).append(name)
        chosen = [names[len(names) // 2] for names in groups.values()][::4]
        results = [judge_passes(name) for name in chosen]
    finally:
        jax.config.update("jax_enable_x64", before)  # the cases turn it on
    assert len(results) > 30
    assert [(r.name, r.reason) for r in results if r.verdict != "ok"] == []
