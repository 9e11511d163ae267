"""Complex numbers as pairs of reals.

Inside the program a complex value is two arrays, its real and its imaginary part. At the program's boundary (inputs,
outputs, constants) it is one array with a trailing axis of two.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr

from jax2onnx.compat.evaluation import as_array
from jax2onnx.compat.programs import Inventory
from jax2onnx.decompose import fft  # noqa: F401  (these fill the table of rules)
from jax2onnx.decompose.complex import arithmetic, elementary, structural, trigonometry  # noqa: F401
from jax2onnx.decompose.complex.pairs import RULES, Complex
from jax2onnx.decompose.representation import Representation, eliminate

_REAL: dict[Any, np.dtype] = {
    np.dtype(np.complex64): np.dtype(np.float32),
    np.dtype(np.complex128): np.dtype(np.float64),
}


def eliminate_complex(closed: ClosedJaxpr, inventory: Inventory | None = None) -> ClosedJaxpr:
    """The same program in real arithmetic."""
    return eliminate(_COMPLEX, closed, inventory)


def _parts_of(aval: Any) -> tuple[ShapedArray, ...] | None:
    real = _REAL.get(aval.dtype) if isinstance(aval, ShapedArray) else None
    return None if real is None else (ShapedArray(aval.shape, real),) * 2


def _split(value: Any, aval: Any) -> tuple:
    array = np.asarray(as_array(value), aval.dtype)
    return array.real, array.imag


def _packed(aval: Any) -> ShapedArray:
    return ShapedArray((*aval.shape, 2), _REAL[aval.dtype])


def _pack_constant(value: Any, aval: Any) -> np.ndarray:
    array = np.ascontiguousarray(as_array(value)).reshape(aval.shape)
    return array.view(_REAL[aval.dtype]).reshape((*aval.shape, 2)) if array.ndim else np.stack([array.real, array.imag])


def _pack(re: Any, im: Any) -> Any:
    return lax.concatenate([lax.expand_dims(x, [re.ndim]) for x in (re, im)], re.ndim)


def _unpack(packed: Any) -> tuple:
    return tuple(lax.index_in_dim(packed, i, packed.ndim - 1, keepdims=False) for i in (0, 1))


_COMPLEX = Representation(
    kind="complex numbers",
    parts_of=_parts_of,
    hold=Complex,
    split=_split,
    packed=_packed,
    pack_constant=_pack_constant,
    pack=_pack,
    unpack=_unpack,
    rule=lambda eqn: RULES.get(eqn.primitive),
)
