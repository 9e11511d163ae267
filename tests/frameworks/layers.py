"""Tables of layers: each is exported, checked, and compared with JAX at the sizes it was exported for and at another.

LAYERS = [layer("Linear", lambda: nnx.Linear(3, 4, rngs=nnx.Rngs(0)), (2, 3)), ...]

@pytest.mark.parametrize("case", LAYERS, ids=name_of)
def test_layer(case):
    module = case.make()
    check_export(module, module, case.inputs)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np
import onnx

import jax2onnx
from tests.helpers import check_run, check_valid


class Layer(NamedTuple):
    """A row of a table. The class of the layer is what comes before the first space in its name."""

    name: str
    make: Callable[[], Any]
    inputs: tuple[Any, ...]
    batched: bool  # whether the first axis of each input may have any size


def layer(name: str, make: Callable[[], Any], *inputs: Any, batched: bool = True) -> Layer:
    """A row; inputs are arrays, or shapes for arrays of normal random numbers."""
    return Layer(name, make, tuple(normal(*x) if isinstance(x, tuple) else x for x in inputs), batched)


def name_of(case: Layer) -> str:
    """The id of the test of a row."""
    return case.name


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    """Random numbers, positive and negative."""
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def integers(high: int, *shape: int, seed: int = 0) -> np.ndarray:
    """Random integers from 0 to high - 1."""
    return np.random.default_rng(seed).integers(0, high, shape, np.int32)


def fill(specs: Any) -> Any:
    """Arrays for a pytree of `ShapeDtypeStruct`s, the parameters of a layer: quicker than running its initializers.

    Matrices and kernels have random numbers around zero; vectors and scalars (biases, scales, means, variances) have
    positive ones, away from the zeros and ones that libraries start with, which would hide many a mistake.
    """
    random = np.random.default_rng(1)

    def content(spec: Any) -> Any:
        if not isinstance(spec, jax.ShapeDtypeStruct):
            return spec  # an activation function, say
        if jax.dtypes.issubdtype(spec.dtype, jax.dtypes.prng_key):
            return jax.random.key(7) if spec.shape == () else jax.random.split(jax.random.key(7), spec.shape)
        if not jax.numpy.issubdtype(spec.dtype, np.floating):
            return jax.numpy.zeros(spec.shape, spec.dtype)
        if len(spec.shape) < 2:
            array = random.uniform(0.5, 1.5, spec.shape)
        else:
            array = random.normal(size=spec.shape) / np.sqrt(np.prod(spec.shape[:-1]))
        return jax.numpy.asarray(np.asarray(array, spec.dtype))

    return jax.tree.map(content, specs)


def check_export(
    target: Any,
    reference: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    batched: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    **options: Any,
) -> onnx.ModelProto:
    """Export `target`, as given and (if `batched`) with a symbolic first axis: both compute what `reference` does.

    Returns the first of the two models.
    """
    model = jax2onnx.to_onnx(target, list(inputs), **options)
    check_valid(model)
    check_run(model, reference, *inputs, rtol=rtol, atol=atol)
    if batched:
        dynamic = jax2onnx.to_onnx(target, jax.tree.map(_any_batch, list(inputs)), **options)
        check_valid(dynamic)
        check_run(dynamic, reference, *resized(inputs, 3), rtol=rtol, atol=atol)
    return model


def _any_batch(x: np.ndarray) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(("B", *x.shape[1:]), x.dtype)


def resized(inputs: Sequence[Any], size: int) -> list[Any]:
    """The inputs with another size of the first axis."""
    return jax.tree.map(lambda x: np.resize(x, (size, *x.shape[1:])), list(inputs))


def with_gradients(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn(params, *inputs)` as a training step has it: its results, and how their squares depend on the parameters."""

    def step(params: Any, *inputs: Any) -> Any:
        def loss(params: Any) -> Any:
            results = fn(params, *inputs)
            floats = [r for r in jax.tree.leaves(results) if jax.numpy.issubdtype(r.dtype, np.floating)]
            return sum((jax.numpy.sum(r.astype(np.float32) ** 2) for r in floats), jax.numpy.float32(0)), results

        (_, results), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        return results, gradients

    return step


def public_classes(module: ModuleType, base: type) -> set[str]:
    """The names of the public classes of a module that are derived from `base`."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and inspect.isclass(value) and issubclass(value, base) and value is not base
    }


def classes_in(tables: Iterable[Iterable[Layer]]) -> set[str]:
    """The names of the classes that have rows in the tables."""
    return {case.name.split()[0] for table in tables for case in table}


def identities(*modules: ModuleType) -> dict[str, int]:
    """Which object each name in the modules, and in the classes there, stands for: an export must not change it."""
    named = [(f"{module.__name__}.{name}", value) for module in modules for name, value in vars(module).items()]
    inside = [
        (f"{path}.{name}", v) for path, owner in named if inspect.isclass(owner) for name, v in vars(owner).items()
    ]
    return {path: id(value) for path, value in named + inside}
