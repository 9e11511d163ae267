"""Parameters that are an argument of the function: they become initializers under their own names.

A weight may be an array, or a `jax.ShapeDtypeStruct` whose content a loader reads when the file is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import onnx_ir as ir

from jax2onnx.errors import InputError
from jax2onnx.paths import tree_paths
from jax2onnx.streaming import StreamedTensor, from_devices, is_elsewhere, pieces_of
from jax2onnx.tracing import spec_of

Loader = Callable[[str], Any]


class Weight(NamedTuple):
    """An argument that is baked in: its name, and an array or a tensor that is read later."""

    name: str
    value: Any


def weight_specs(weights: Any) -> Any:
    """The shapes and dtypes of a pytree of arrays or specs."""
    leaves, tree = jax.tree.flatten(weights)
    paths = tree_paths("weights", weights)
    return jax.tree.unflatten(tree, [_spec(path, leaf) for path, leaf in zip(paths, leaves, strict=True)])


def _spec(path: str, leaf: Any) -> jax.ShapeDtypeStruct:
    try:
        return spec_of(leaf)
    except (TypeError, ValueError):
        raise InputError(f"{path} is {leaf!r}; a weight is an array, a number or a jax.ShapeDtypeStruct.") from None


def check_has_weights(**options: Any) -> None:
    """These options are about `weights`; where there are none, those of a module may have been meant."""
    for name, value in options.items():
        if value:
            raise InputError(f"{name} is {value!r}, but it is about weights: give them, the first argument of fn.")


def bake(weights: Any, names: Sequence[str], loader: Loader | None) -> list[Weight]:
    """The leaves of `weights` with their names; abstract ones are left to `loader`."""
    baked = []
    for name, leaf in zip(names, jax.tree.leaves(weights), strict=True):
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            baked.append(Weight(name, leaf))
        elif loader is None:
            raise InputError(f"The weight {name!r} has no content. Give load_weight, a function from names to arrays.")
        elif names.count(name) > 1:
            raise InputError(f"Several weights have the path {name!r}: load_weight could not tell them apart.")
        else:
            baked.append(Weight(name, _lazy(name, leaf, loader)))
    return baked


def loaded(weights: Any, baked: Sequence[Weight]) -> Any:
    """The pytree with all contents, for what runs the program itself."""
    contents = [w.value.numpy() if isinstance(w.value, ir.TensorProtocol) else w.value for w in baked]
    return jax.tree.unflatten(jax.tree.structure(weights), contents)


def _lazy(name: str, spec: Any, loader: Loader) -> ir.TensorProtocol:
    if not any(jax.numpy.issubdtype(spec.dtype, kind) for kind in _KINDS):
        raise InputError(f"The weight {name!r} is of the type {spec.dtype}: give its content, it cannot be read later.")
    dtype = np.dtype(spec.dtype)

    def load() -> ir.TensorProtocol:
        array = loader(name)
        if np.shape(array) != spec.shape:
            raise InputError(f"The weight {name!r} was read with the shape {np.shape(array)}, but is {spec.shape}.")
        if is_elsewhere(array):
            return from_devices(array)
        return ir.Tensor(np.asarray(array))

    def converted(array: np.ndarray) -> np.ndarray:
        if _kind(array.dtype) > _kind(dtype):
            raise InputError(f"The weight {name!r} was read as {array.dtype}, which {dtype} cannot hold.")
        if array.dtype == dtype:
            return array
        with np.errstate(over="ignore", invalid="ignore"):
            result = array.astype(dtype)
        if not _has_same_range(array, result):
            raise InputError(f"The weight {name!r} was read as {array.dtype}, with values that {dtype} cannot hold.")
        return result

    return StreamedTensor(
        lambda: map(converted, pieces_of(load())), lambda: converted(load().numpy()), dtype, spec.shape
    )


def _has_same_range(array: np.ndarray, result: np.ndarray) -> bool:
    """Did a conversion keep integers as they are, and finite floats finite?"""
    if _kind(result.dtype) == _FLOATS:
        finite = np.isfinite(array) if _kind(array.dtype) == _FLOATS else np.ones(array.shape, bool)
        return bool((np.isfinite(result) == finite).all())
    return bool((result == array).all())


def _kind(dtype: np.dtype) -> int:
    """Booleans, integers, floats, others: each can hold what those before it can, but for rounding."""
    return next((i for i, kind in enumerate(_KINDS) if jax.numpy.issubdtype(dtype, kind)), len(_KINDS))


_KINDS = (np.bool_, np.integer, np.floating)
_FLOATS = _KINDS.index(np.floating)
