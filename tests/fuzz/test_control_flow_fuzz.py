"""Random nested control flow agrees with JAX.

`FUZZ_EXAMPLES=10000 pytest tests/fuzz` for a long run.
"""

from __future__ import annotations

import os
from random import Random

import hypothesis
from hypothesis import strategies as st

from tests.fuzz.control_flow_programs import inputs, program, run, text
from tests.helpers import check, check_run

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "30"))


@hypothesis.settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="FUZZ_EXAMPLES" not in os.environ,
    suppress_health_check=list(hypothesis.HealthCheck),
)
@hypothesis.given(st.randoms(use_true_random=False))
def test_control_flow(random: Random):
    block = program(random)
    hypothesis.note(text(block))
    model = check(lambda *values: run(block, values), *inputs(random), rtol=1e-4, atol=1e-4)
    check_run(model, lambda *values: run(block, values), *inputs(random), rtol=1e-4, atol=1e-4)
