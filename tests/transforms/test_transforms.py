"""Each family of primitives under each transform: batches, derivatives, bodies of loops and branches."""

from __future__ import annotations

import numpy as np
import pytest

from jax2onnx import compat
from tests.helpers import check
from tests.transforms import families_indexing, families_numbers, families_windows
from tests.transforms.transforms import OF_ALL, OF_DIFFERENTIABLE, Transform

FAMILIES = families_windows.FAMILIES | families_indexing.FAMILIES | families_numbers.FAMILIES
CASES = [
    pytest.param(name, transform, id=f"{name} | {transform.__name__}")
    for name, family in FAMILIES.items()
    for transform in (*OF_ALL, *(OF_DIFFERENTIABLE if family.argnums else ()))
    if transform.__name__ not in family.beyond_jax
]
SAMPLE = 307  # one case of so many runs in `make test`


def agrees(name: str, transform: Transform) -> None:
    """The family under the transform gives in ONNX Runtime what it gives in JAX."""
    fn, args, argnums, tolerance, _ = FAMILIES[name]
    wide = any(np.asarray(x).dtype.name in compat.evaluation.WIDE for x in args)
    with compat.evaluation.x64(wide):
        program, inputs = transform(fn, args, argnums)
    check(program, *inputs, rtol=tolerance, atol=tolerance, x64=wide)


@pytest.mark.parametrize(("name", "transform"), CASES[::SAMPLE])
def test_a_sample(name: str, transform: Transform) -> None:
    agrees(name, transform)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "transform"), [case for i, case in enumerate(CASES) if i % SAMPLE])
def test_family(name: str, transform: Transform) -> None:
    agrees(name, transform)
