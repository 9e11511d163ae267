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

Loader = Callable[[str], Any]


class Weight(NamedTuple):
    """An argument that is baked in: its name, and an array or a tensor that is read later."""

    name: str
    value: Any


def weight_specs(weights: Any) -> Any:
    """The shapes and dtypes of a pytree of arrays or specs."""
    return jax.tree.map(lambda w: jax.ShapeDtypeStruct(np.shape(w), jax.dtypes.result_type(w)), weights)


def bake(weights: Any, names: Sequence[str], loader: Loader | None) -> list[Weight]:
    """The leaves of `weights` with their names; abstract ones are left to `loader`."""
    baked = []
    for name, leaf in zip(names, jax.tree.leaves(weights), strict=True):
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            baked.append(Weight(name, leaf))
        elif loader is None:
            raise InputError(f"The weight {name!r} has no content. Give load_weight, a function from names to arrays.")
        else:
            baked.append(Weight(name, _lazy(name, leaf, loader)))
    return baked


def _lazy(name: str, spec: Any, loader: Loader) -> ir.TensorProtocol:
    def read() -> ir.TensorProtocol:
        array = np.asarray(loader(name))
        if array.shape != spec.shape:
            raise InputError(f"The weight {name!r} was read with the shape {array.shape}, but is {spec.shape}.")
        return ir.Tensor(np.asarray(array, spec.dtype))

    return ir.LazyTensor(read, ir.DataType.from_numpy(np.dtype(spec.dtype)), ir.Shape(spec.shape), name=name)
