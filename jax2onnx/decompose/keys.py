"""Typed PRNG keys as the unsigned integers behind them.

An array of keys of shape S is held as integers of shape (*S, n). What draws from keys is JAX's own definition, on the
integers; what only moves keys about (slicing, stacking, selecting ...) does the same to each of the n integers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, JaxprEqn, Primitive
from jax.extend.core import primitives as P

from jax2onnx.compat.kinds import key_data_type, prng, random_clone_p
from jax2onnx.compat.programs import Inventory
from jax2onnx.decompose.representation import Representation, eliminate


def eliminate_keys(closed: ClosedJaxpr, inventory: Inventory | None = None) -> ClosedJaxpr:
    """The same program without typed PRNG keys: its inputs, outputs and constants hold their integers instead."""
    return eliminate(_KEYS, closed, inventory)


class Keys(NamedTuple):
    """The integers of an array of keys, along the last axis."""

    data: Any


def _parts_of(aval: Any) -> tuple[ShapedArray, ...] | None:
    data = key_data_type(aval)
    return None if data is None else (data,)


def _key_impl(eqn: JaxprEqn) -> Any:
    """The generator that the first key among the operands of an equation belongs to."""
    return next(v.aval.dtype._impl for v in eqn.invars if key_data_type(v.aval))


def _seed(eqn: JaxprEqn, seeds: Any, *, impl: Any) -> Keys:
    return Keys(prng.random_seed_impl_base(seeds, impl=impl))


def _split(eqn: JaxprEqn, keys: Keys, *, shape: tuple) -> Keys:
    return Keys(prng.random_split_impl_base(_key_impl(eqn), keys.data, eqn.invars[0].aval.ndim, shape=shape))


def _fold_in(eqn: JaxprEqn, keys: Keys, messages: Any) -> Keys:
    return Keys(prng.random_fold_in_impl_base(_key_impl(eqn), keys.data, messages, eqn.invars[0].aval.shape))


def _bits(eqn: JaxprEqn, keys: Keys, *, bit_width: int, shape: tuple) -> Any:
    ndim = eqn.invars[0].aval.ndim
    return prng.random_bits_impl_base(_key_impl(eqn), keys.data, ndim, bit_width=bit_width, shape=shape)


def _equal(eqn: JaxprEqn, a: Keys, b: Keys) -> Any:
    """One of them may be a single key."""
    shape = (*eqn.outvars[0].aval.shape, *_key_impl(eqn).key_shape)
    x, y = (lax.broadcast_in_dim(k.data, shape, range(len(shape) - k.data.ndim, len(shape))) for k in (a, b))
    return lax.reduce_and(lax.eq(x, y), [len(shape) - 1])


def _unequal(eqn: JaxprEqn, a: Keys, b: Keys) -> Any:
    return lax.bitwise_not(_equal(eqn, a, b))


def _move(eqn: JaxprEqn, *operands: Any, **params: Any) -> Any:
    """Do to each integer of the keys what the primitive does to the keys."""
    move = partial(eqn.primitive.bind, **params)
    in_axes = [-1 if isinstance(x, Keys) else None for x in operands]
    for _ in _key_impl(eqn).key_shape:
        move = jax.vmap(move, in_axes, out_axes=-1)
    results = move(*(x.data if isinstance(x, Keys) else x for x in operands))
    return [Keys(x) for x in results] if eqn.primitive.multiple_results else Keys(results)


# The most common moves, which vmap would surround with transposes.


def _squeeze(eqn: JaxprEqn, keys: Keys, *, dimensions: tuple) -> Keys:
    return Keys(lax.squeeze(keys.data, dimensions))


def _reshape(eqn: JaxprEqn, keys: Keys, *, new_sizes: tuple, **_: Any) -> Keys:
    return Keys(lax.reshape(keys.data, (*new_sizes, *_key_impl(eqn).key_shape)))


def _broadcast_in_dim(
    eqn: JaxprEqn, keys: Keys, *sizes: Any, shape: tuple, broadcast_dimensions: tuple, **_: Any
) -> Keys:
    shape = (*shape, *_key_impl(eqn).key_shape)
    return Keys(
        lax.broadcast_in_dim(keys.data, shape, (*broadcast_dimensions, *range(eqn.outvars[0].aval.ndim, len(shape))))
    )


def _concatenate(eqn: JaxprEqn, *keys: Keys, dimension: int) -> Keys:
    return Keys(lax.concatenate([k.data for k in keys], dimension))


_RULES: dict[Primitive, Callable[..., Any]] = {
    P.random_seed_p: _seed,
    P.random_split_p: _split,
    P.random_fold_in_p: _fold_in,
    P.random_bits_p: _bits,
    prng.random_wrap_p: lambda eqn, data, impl: Keys(data),
    prng.random_unwrap_p: lambda eqn, keys: keys.data,
    random_clone_p: lambda eqn, keys: keys,
    P.squeeze_p: _squeeze,
    P.reshape_p: _reshape,
    P.broadcast_in_dim_p: _broadcast_in_dim,
    P.concatenate_p: _concatenate,
    P.eq_p: _equal,
    P.ne_p: _unequal,
}


def _rule(eqn: JaxprEqn) -> Callable[..., Any] | None:
    if eqn.primitive in _RULES:
        return partial(_RULES[eqn.primitive], eqn)
    moves_keys = all(key_data_type(v.aval) for v in eqn.outvars) and any(key_data_type(v.aval) for v in eqn.invars)
    return partial(_move, eqn) if moves_keys else None


_KEYS = Representation(
    kind="PRNG keys",
    parts_of=_parts_of,
    hold=Keys,
    split=lambda keys, aval: (jax.random.key_data(keys),),
    packed=key_data_type,
    pack_constant=lambda keys, aval: jax.random.key_data(keys),
    pack=lambda data: data,
    unpack=lambda data: (data,),
    rule=_rule,
)
