"""Convolutions, products, and functions of single elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.transforms.values import BF16, Family, bools, complexes, floats, hurting, index, whole

CLOSE = 1e-4  # sums in another order


def convolution(strides: Sequence[int] = (1, 1), padding: Any = "SAME", **params: Any) -> Any:
    return lambda x, w: lax.conv_general_dilated(x, w, strides, padding, **params)


def each(*functions: Callable[..., Any]) -> Any:
    return lambda *args: [f(*args) for f in functions]


LAST = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
CONVOLUTIONS = {
    "convolution": Family(convolution(), [floats(1, 2, 4, 5), floats(3, 2, 2, 3)], [0, 1], CLOSE),
    "channels last": Family(
        convolution((2, 1), "VALID", **LAST), [floats(1, 4, 5, 2), floats(2, 3, 2, 3)], [0, 1], CLOSE
    ),
    "axes in disorder": Family(
        convolution((1, 2), ((1, 0), (0, 2)), dimension_numbers=("HNWC", "IWOH", "CNHW")),
        [floats(4, 1, 5, 2), floats(2, 3, 3, 2)],
        [0, 1],
        CLOSE,
    ),
    "dilated": Family(
        convolution((1, 2), ((1, 2), (0, 1)), lhs_dilation=(2, 1), rhs_dilation=(1, 2)),
        [floats(1, 2, 4, 5), floats(3, 2, 2, 2)],
        [0, 1],
        CLOSE,
    ),
    "in groups": Family(convolution(feature_group_count=2), [floats(2, 4, 3, 3), floats(4, 2, 2, 2)], [0, 1], CLOSE),
    "each channel": Family(
        convolution(feature_group_count=3, **LAST), [floats(1, 4, 3, 3), floats(2, 2, 1, 3)], [0, 1], CLOSE
    ),
    "in groups of the batch": Family(
        convolution(batch_group_count=2), [floats(4, 2, 3, 3), floats(4, 2, 2, 2)], [0, 1], CLOSE
    ),
    "padded negatively": Family(
        convolution((2, 1), ((-1, 1), (0, -2)), lhs_dilation=(2, 2)),
        [floats(1, 2, 4, 5), floats(3, 2, 2, 3)],
        [0, 1],
        CLOSE,
    ),
    "of float64": Family(
        convolution((2, 1)), [floats(1, 2, 4, 5, dtype=np.float64), floats(3, 2, 2, 3, dtype=np.float64)], [0, 1]
    ),
    "of bfloat16": Family(
        convolution((2, 1), preferred_element_type=np.float32),
        [floats(1, 2, 4, 5, dtype=BF16) / 4, floats(3, 2, 2, 3, dtype=BF16) / 4],
        [0, 1],
        0.2,
    ),
    "of int8": Family(
        each(convolution(), convolution(preferred_element_type=np.int32)),
        [whole(1, 2, 4, 5, dtype=np.int8), whole(3, 2, 2, 3, dtype=np.int8)],
        beyond_jax=["known"],  # what XLA evaluates while compiling saturates, what it compiles wraps
    ),
    "of int64, in groups": Family(
        convolution((1, 2), ((1, 0), (2, 1)), feature_group_count=2, lhs_dilation=(2, 1)),
        [whole(1, 2, 4, 5, dtype=np.int64), whole(4, 1, 2, 3, dtype=np.int64)],
    ),
    "of complex numbers": Family(convolution(), [complexes(1, 2, 3, 3), complexes(2, 2, 2, 2)], [0, 1], CLOSE),
    "of nothing": Family(
        lambda x, w: [convolution()(x, w), convolution()(jnp.zeros((1, 2, 3, 3)), w[:0])],
        [floats(0, 2, 4, 5), floats(3, 2, 2, 3)],
        [0, 1],
        CLOSE,
    ),
    "to nothing": Family(convolution(padding="VALID"), [floats(1, 2, 1, 5), floats(3, 2, 2, 3)], [0, 1], CLOSE),
    "without channels": Family(convolution(), [floats(1, 0, 3, 3), floats(3, 0, 2, 2)], [0, 1], CLOSE),
    "of one": Family(convolution(), [floats(1, 1, 1, 1), floats(1, 1, 1, 1)], [0, 1], CLOSE),
    "over one axis": Family(
        convolution((2,), ((2, 0),), rhs_dilation=(2,), dimension_numbers=("NWC", "WIO", "NWC")),
        [floats(2, 6, 3), floats(2, 3, 4)],
        [0, 1],
        CLOSE,
    ),
    "over no axis": Family(convolution((), ()), [floats(2, 3), floats(4, 3)], [0, 1], CLOSE),
    "transposed": Family(
        lambda x, w: lax.conv_transpose(x, w, (2, 1), "SAME", (1, 2), transpose_kernel=True, **LAST),
        [floats(1, 3, 4, 3), floats(3, 2, 2, 3)],
        [0, 1],
        CLOSE,
    ),
    "local": Family(
        lambda x, w: lax.conv_general_dilated_local(x, w, (1, 1), "VALID", (2, 2)),
        [floats(1, 2, 3, 4), floats(3, 8, 2, 3)],
        [0, 1],
        CLOSE,
    ),
    "jnp.convolve": Family(
        lambda x, w: (jnp.convolve(x, w), jnp.correlate(x, w, "same")), [floats(7), floats(3)], [0, 1], CLOSE
    ),
}

PRODUCTS = {
    "dot_general": Family(
        lambda x, y: (
            lax.dot_general(x, y, (((2,), (1,)), ((0,), (3,)))),
            lax.dot_general(x, y, (((2, 0), (1, 3)), ((1,), (2,)))),
            lax.dot_general(x, y, (((), ()), ((), ()))),
        ),
        [floats(2, 3, 4), floats(2, 4, 3, 2)],
        [0, 1],
        CLOSE,
    ),
    "dot of nothing": Family(lambda x, y: (x @ y, y @ x), [floats(2, 0), floats(0, 2)], [0, 1], CLOSE),
    "dot of one": Family(lambda x, y: x @ y, [floats(1, 1), floats(1, 1)], [0, 1], CLOSE),
    "dot of vectors": Family(jnp.dot, [floats(5, dtype=np.float64), floats(5, dtype=np.float64)], [0, 1]),
    "dot of bfloat16": Family(
        lambda x, y: (x @ y, lax.dot(x, y, preferred_element_type=np.float32)),
        [floats(2, 4, dtype=BF16), floats(4, 3, dtype=BF16)],
        [0, 1],
        0.1,
    ),
    "dot of int8": Family(
        lambda x, y: (x @ y, lax.dot(x, y, preferred_element_type=np.int32)),
        [whole(2, 4, dtype=np.int8), whole(4, 3, dtype=np.int8)],
    ),
    "dot of uint64": Family(lambda x, y: x @ y, [whole(2, 4, dtype=np.uint64), whole(4, 3, dtype=np.uint64)]),
    "dot of bool": Family(lambda x, y: x @ y, [bools(2, 4), bools(4, 3)]),
    "dot of complex numbers": Family(lambda x, y: x @ y, [complexes(2, 4), complexes(4, 3)], [0, 1], CLOSE),
    "dot of NaN": Family(lambda x, y: x @ y, [hurting(2, 4), hurting(4, 3)], [0, 1]),
    "einsum": Family(
        lambda x, y: [jnp.einsum(s, x, y) for s in ("bij,bjk->bik", "bij,bkj->", "bij,bjk->bijk", "iib,bij->ji")],
        [floats(2, 2, 2), floats(2, 2, 2)],
        [0, 1],
        CLOSE,
    ),
    "products of other kinds": Family(
        lambda x, y: (jnp.outer(x, y), jnp.inner(x, y), jnp.cross(x, y), jnp.kron(x, y), jnp.polyval(x, y)),
        [floats(3), floats(3) + 1],
        [0, 1],
        CLOSE,
    ),
    "ragged_dot": Family(
        lax.ragged_dot,
        [floats(6, 3), floats(3, 3, 2), index(2, 0, 3)],
        [0, 1],
        CLOSE,
        beyond_jax=["known", "vmap", "nested_vmap", "jacobians"],
    ),
}

FUNCTIONS: dict[str, list[Callable[..., Any]]] = {
    "exponentials": [jnp.exp, jnp.exp2, jnp.expm1, lambda x: jnp.log(x * x + 1), lambda x: jnp.log1p(x * x)],
    "circular": [jnp.sin, jnp.cos, jnp.arctan, lambda x: jnp.arcsin(x / 9), lambda x: jnp.arccos(x / 9)],
    "hyperbolic": [
        jnp.sinh,
        jnp.cosh,
        jnp.tanh,
        jnp.arcsinh,
        lambda x: jnp.arctanh(x / 9),
        lambda x: jnp.arccosh(x * x + 2),
    ],
    "roots": [lambda x: jnp.sqrt(x * x + 1), lambda x: lax.rsqrt(x * x + 1), jnp.cbrt, lambda x: 1 / x],
    "powers": [lambda x: x**3, lambda x: lax.integer_pow(x, -2), lax.square, lambda x: (x * x + 1) ** x],
    "rounding": [
        jnp.round,
        jnp.floor,
        jnp.ceil,
        jnp.trunc,
        jnp.sign,
        jnp.abs,
        lax.round,
    ],
    "activations": [
        jax.nn.softplus,
        jax.nn.gelu,
        jax.nn.silu,
        jax.nn.relu6,
        jax.nn.elu,
        jax.nn.log_sigmoid,
        lax.logistic,
    ],
    "bounds": [lambda x: lax.clamp(x * 0 - 1, x, x * x), lambda x: jnp.clip(x, -1, 2), jax.nn.relu, jnp.nan_to_num],
}
PAIRS: dict[str, list[Callable[..., Any]]] = {
    "arithmetic": [lax.add, lax.sub, lax.mul, lax.div, lax.max, lax.min],
    "remainders": [lax.rem, jnp.mod, jnp.fmod, jnp.remainder],
    "powers of pairs": [
        lambda x, y: jnp.power(jnp.abs(x), y),
        lambda x, y: jnp.float_power(x * x + 1, y),
        lambda x, y: jax.scipy.special.xlogy(x, y * y + 1),
    ],
    "angles and logarithms": [jnp.arctan2, jnp.hypot, jnp.logaddexp, jnp.logaddexp2],
    "signs": [jnp.copysign, jnp.fmax, jnp.fmin, jnp.heaviside, lambda x, y: jnp.signbit(x)],
}
DISCRETE = [
    jnp.nextafter,
    lax.eq,
    lax.lt,
    jnp.floor_divide,
    lambda x, y: (jnp.isfinite(y), jnp.frexp(x)),
]
INTEGER: dict[str, list[Callable[..., Any]]] = {
    "integer arithmetic": [lax.add, lax.sub, lax.mul, lax.div, lax.rem, lax.max, lax.min, jnp.mod, jnp.floor_divide],
    "integer bits": [
        lax.bitwise_and,
        lax.bitwise_xor,
        lax.shift_left,
        lax.shift_right_logical,
        lax.shift_right_arithmetic,
        lambda x, y: (lax.population_count(x), lax.clz(jnp.abs(y)), ~x, jnp.abs(x), jnp.sign(x), lax.integer_pow(y, 3)),
        lambda x, y: (x.astype(np.float32), y.astype(BF16), lax.lt(x, y), lax.clamp(y, x, x)),
    ],
}
TOLERANCES = {np.float32: 3e-5, np.float64: None, np.float16: 2e-2, BF16: 0.1}


def name(dtype: Any) -> str:
    return np.dtype(dtype).name


ELEMENTWISE = {
    **{
        f"{family} in {name(dtype)}": Family(each(*functions), [floats(7, dtype=dtype)], [0], tolerance)
        for family, functions in FUNCTIONS.items()
        for dtype, tolerance in TOLERANCES.items()
    },
    **{
        f"{family} in {name(dtype)}": Family(
            each(*functions), [floats(7, dtype=dtype), floats(8, dtype=dtype)[:7]], [0, 1], tolerance
        )
        for family, functions in PAIRS.items()
        for dtype, tolerance in TOLERANCES.items()
    },
    **{
        f"without derivatives, in {name(dtype)}": Family(
            each(*DISCRETE), [hurting(12, dtype=dtype), hurting(13, dtype=dtype)[:12]]
        )
        for dtype in (np.float32, np.float64, BF16)
    },
    **{
        f"{family} in {name(dtype)}": Family(
            each(*functions),
            [whole(9, dtype=dtype), whole(9, dtype=dtype, low=-3 if np.iinfo(dtype).min else 0, high=9)],
            # XLA divides the smallest integer by -1 while compiling, which the processor does not
            beyond_jax=["known"] if family == "integer arithmetic" and np.iinfo(dtype).min else [],
        )
        for family, functions in INTEGER.items()
        for dtype in (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
    },
    "of bool": Family(
        each(lax.bitwise_and, lax.bitwise_xor, lax.lt, lax.max, jnp.add, jnp.multiply), [bools(6), bools(7)[:6]]
    ),
}

FAMILIES = {f"convolution, {k}": v for k, v in CONVOLUTIONS.items()} | PRODUCTS | ELEMENTWISE
