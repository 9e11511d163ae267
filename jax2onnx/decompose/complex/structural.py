"""Primitives that move complex numbers about, or are linear: they do the same to both parts. And their relatives."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.extend.core import primitives as P

from jax2onnx.decompose.complex.pairs import RULES, Complex, as_complex, on_complex, partwise, spread


def _same_for_both(primitive: Primitive) -> Any:
    def rule(*operands: Any, **params: Any) -> Any:
        both = partwise(partial(primitive.bind, **params), *operands)
        return [Complex(*parts) for parts in zip(*both, strict=True)] if primitive.multiple_results else both

    return rule


LINEAR = (
    P.add_p, P.add_jaxvals_p, P.sub_p, P.neg_p, P.copy_p, P.stop_gradient_p, P.name_p, P.reduce_precision_p,
    P.reshape_p, P.squeeze_p, P.broadcast_in_dim_p, P.transpose_p, P.rev_p, P.slice_p, P.concatenate_p, P.pad_p,
    P.select_n_p, P.dynamic_slice_p, P.dynamic_update_slice_p, P.reduce_sum_p, P.cumsum_p, P.reduce_window_sum_p,
    lax.split_p, lax.stack_p, lax.unstack_p, lax.tile_p,
)  # fmt: skip
RULES.update({primitive: _same_for_both(primitive) for primitive in LINEAR})


@on_complex(P.device_put_p, lax.optimization_barrier_p)
def identity(*operands: Any, **_: Any) -> list[Any]:
    return list(operands)


@on_complex(P.complex_p)
def complex_(re: Any, im: Any) -> Complex:
    return Complex(*spread(re, im))


@on_complex(P.real_p)
def real(z: Complex, **_: Any) -> Any:
    return z.re


@on_complex(P.imag_p)
def imag(z: Complex, **_: Any) -> Any:
    return z.im


@on_complex(P.conj_p)
def conj(z: Any, **_: Any) -> Complex:
    return Complex(z.re, -z.im) if isinstance(z, Complex) else as_complex(z)


def real_dtype(dtype: Any) -> Any:
    """The dtype of the parts of a complex dtype; None and real dtypes stay as they are."""
    return dtype if dtype is None else np.zeros((), dtype).real.dtype


@on_complex(P.convert_element_type_p)
def convert_element_type(x: Any, *, new_dtype: Any, **_: Any) -> Any:
    if not np.issubdtype(new_dtype, np.complexfloating):
        return lax.convert_element_type(x.re, new_dtype)
    return partwise(lambda part: lax.convert_element_type(part, real_dtype(new_dtype)), as_complex(x))


@on_complex(P.iota_p)
def iota(*dynamic_shape: Any, dtype: Any, shape: tuple, dimension: int, **_: Any) -> Complex:
    return as_complex(lax.broadcasted_iota(real_dtype(dtype), shape, dimension))


@on_complex(P.sort_p)
def sort(*operands: Any, dimension: int, is_stable: bool, num_keys: int) -> list[Any]:
    """Complex keys are ordered by their real parts, then by their imaginary parts."""
    flat = [part for x in operands for part in (x if isinstance(x, Complex) else (x,))]
    keys = sum(2 if isinstance(x, Complex) else 1 for x in operands[:num_keys])
    rest = iter(lax.sort(flat, dimension=dimension, is_stable=is_stable, num_keys=keys))
    return [Complex(next(rest), next(rest)) if isinstance(x, Complex) else next(rest) for x in operands]


@on_complex(P.bitcast_convert_type_p)
def bitcast_convert_type(z: Complex, **_: Any) -> Complex:
    """JAX allows this only between equal complex types."""
    return z


@on_complex(P.dot_general_p)
def dot_general(a: Any, b: Any, *, preferred_element_type: Any, **params: Any) -> Complex:
    dtype = real_dtype(preferred_element_type)
    product = bilinear(partial(P.dot_general_p.bind, preferred_element_type=dtype, **params), a, b)
    if dtype is None:  # float64 times complex64 is complex64 to JAX
        dtype = np.result_type(*(x.re.dtype for x in (a, b) if isinstance(x, Complex)))
    return partwise(lambda part: lax.convert_element_type(part, dtype), product)


@on_complex(P.conv_general_dilated_p)
def conv_general_dilated(a: Complex, b: Complex, *, preferred_element_type: Any, **params: Any) -> Complex:
    """With three real convolutions, as JAX does it."""
    dtype = real_dtype(preferred_element_type)
    conv = partial(P.conv_general_dilated_p.bind, preferred_element_type=dtype, **params)
    shared = conv(lax.add(a.re, a.im), b.re)
    re = lax.sub(shared, conv(a.im, lax.add(b.re, b.im)))
    return Complex(re, lax.add(shared, conv(a.re, lax.sub(b.im, b.re))))


def bilinear(product: Any, a: Any, b: Any) -> Complex:
    """A product of two operands, at least one of them complex. Four real products are more accurate than three."""
    if not isinstance(a, Complex):
        return Complex(product(a, b.re), product(a, b.im))
    if not isinstance(b, Complex):
        return Complex(product(a.re, b), product(a.im, b))
    return Complex(
        lax.sub(product(a.re, b.re), product(a.im, b.im)),
        lax.add(product(a.re, b.im), product(a.im, b.re)),
    )


@on_complex(P.mul_p)
def mul(a: Complex, b: Complex, **_: Any) -> Complex:
    return bilinear(lax.mul, a, b)


@on_complex(P.gather_p)
def gather(operand: Complex, indices: Any, *, fill_value: Any, mode: Any, **params: Any) -> Complex:
    """What is out of bounds reads as NaN + 0j unless a fill value is given."""
    fill = np.nan if fill_value is None else fill_value
    bind = partial(P.gather_p.bind, mode=mode, **params)
    return Complex(
        bind(operand.re, indices, fill_value=np.real(fill)), bind(operand.im, indices, fill_value=np.imag(fill))
    )


def _scatter(scatter: Any) -> Any:
    def rule(operand: Complex, indices: Any, updates: Complex, *, dimension_numbers: Any, indices_are_sorted: bool,
             unique_indices: bool, mode: Any, **_: Any) -> Complex:  # fmt: skip
        def one(x: Any, u: Any) -> Any:
            return scatter(x, indices, u, dimension_numbers, indices_are_sorted=indices_are_sorted,
                           unique_indices=unique_indices, mode=mode)  # fmt: skip

        return partwise(one, operand, updates)

    return rule


RULES[P.scatter_p] = _scatter(lax.scatter)
RULES[P.scatter_add_p] = _scatter(lax.scatter_add)
RULES[lax.scatter_sub_p] = _scatter(lax.scatter_sub)
