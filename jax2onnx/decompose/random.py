"""The bit generators behind jax.random, to the bit.

Everything is done in uint32, also where the algorithm counts in 64 or 128 bits: JAX has no uint64 unless x64 is on.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import primitives as P
from jax.lax import RandomAlgorithm

from jax2onnx import compat
from jax2onnx.compat.definitions import gamma_sampler, generator_definitions
from jax2onnx.compat.kinds import iota_2x32_shape_p, random_clone_p
from jax2onnx.decompose.registry import decomposes
from jax2onnx.errors import UnsupportedError

decomposes(P.random_gamma_p)(gamma_sampler)
decomposes(random_clone_p)(lambda key: key)  # also of a key that is only its integers
for _primitive, _definition in generator_definitions().items():
    decomposes(_primitive)(_definition)


@decomposes(iota_2x32_shape_p)
def iota_2x32_shape(*, shape: tuple) -> tuple[Any, Any]:
    """The running number of each element: its high and its low 32 bits."""
    size = math.prod(shape)
    if isinstance(size, int) and size > 2**32:
        raise UnsupportedError(f"random numbers for an array of {size} elements: more than 2**32 are not supported")
    return lax.full(shape, np.uint32(0)), _running_number(shape)


def _running_number(shape: tuple) -> Any:
    """Of each element, in row-major order."""
    size = math.prod(shape)
    if compat.dims.is_at_least(size, 0):
        return lax.reshape(lax.iota(np.uint32, size), shape)
    number = lax.full(shape, np.uint32(0))  # JAX cannot tell of B*(T - 1) that it is 0 or more, but of each of them
    for axis, length in enumerate(shape):
        number = number * jnp.asarray(length).astype(np.uint32) + lax.broadcasted_iota(np.uint32, shape, axis)
    return number


@decomposes(P.rng_bit_generator_p)
def rng_bit_generator(key: Any, *, shape: tuple, dtype: Any, algorithm: RandomAlgorithm, **_: Any) -> tuple[Any, Any]:
    """XLA's RngBitGenerator on the CPU. The state is a 64-bit key and a 64-bit counter of the blocks drawn so far."""
    key_words, counter = _words(key, [0, 1]), _words(key, [2, 3])
    wide = np.dtype(dtype) == np.uint64
    # The CPU's default is Philox.
    generate = _threefry_bits if algorithm == RandomAlgorithm.RNG_THREE_FRY else _philox_bits
    blocks, bits = generate(key_words, counter, shape, wide)
    counter = _add_wide(counter, _as_uint32(blocks))
    new_key = lax.concatenate([lax.reshape(word, (1,)) for word in (*key_words, *counter)], 0)
    if key.dtype != np.uint32:
        new_key = lax.bitcast_convert_type(lax.reshape(new_key, (2, 2)), key.dtype)
    return new_key, lax.convert_element_type(bits, dtype)


def _threefry_bits(key: list, counter: list, shape: tuple, wide: bool) -> tuple[Any, Any]:
    """A block is one element of 64 bits, or two of 32 bits that are neighbours on one axis: the first of even size."""
    if wide:
        bits = P.threefry2x32_p.bind(*key, *_add_wide(counter, _running_number(shape)))
        return math.prod(shape), _join(*bits)
    dims = shape or (1,)
    even = [i for i, size in enumerate(dims) if size % 2 == 0]
    axis = even[0] if even else max(range(len(dims)), key=lambda i: dims[i])
    half = (*dims[:axis], (dims[axis] + 1) // 2, *dims[axis + 1 :])
    blocks = math.prod(half)
    bits = P.threefry2x32_p.bind(*key, *_add_wide(counter, _running_number(half)))
    pairs = lax.concatenate([lax.expand_dims(x, [axis + 1]) for x in bits], axis + 1)
    whole = lax.reshape(pairs, (*dims[:axis], 2 * half[axis], *dims[axis + 1 :]))
    return blocks, lax.reshape(lax.slice_in_dim(whole, 0, dims[axis], axis=axis), shape)


def _philox_bits(key: list, counter: list, shape: tuple, wide: bool) -> tuple[Any, Any]:
    """A block is four elements of 32 bits or two of 64 bits, in row-major order."""
    size = math.prod(shape)
    per_block = 2 if wide else 4
    blocks = (size + per_block - 1) // per_block
    # The counter has 128 bits, the upper half of which starts as the key.
    low, high = _add_wide(counter, lax.iota(np.uint32, blocks))
    carry = (high < counter[1]) | ((high == counter[1]) & (low < counter[0]))
    upper = _add_wide(key, lax.convert_element_type(carry, np.uint32))
    bits = _philox4x32((low, high, *upper), key)
    elements = [_join(*bits[:2]), _join(*bits[2:])] if wide else bits
    flat = lax.reshape(lax.concatenate([lax.expand_dims(x, [1]) for x in elements], 1), (blocks * per_block,))
    return blocks, lax.reshape(lax.slice_in_dim(flat, 0, size), shape)


def _philox4x32(counter: tuple, key: list) -> tuple:
    """Philox with ten rounds. Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (2011)."""
    rounds = np.arange(10, dtype=np.uint32)
    keys = key[0] + rounds * np.uint32(0x9E3779B9), key[1] + rounds * np.uint32(0xBB67AE85)

    def one_round(x: tuple, key: tuple) -> tuple[tuple, None]:
        high0, low0 = _multiply_wide(x[0], 0xD2511F53)
        high1, low1 = _multiply_wide(x[2], 0xCD9E8D57)
        return (high1 ^ x[1] ^ key[0], low1, high0 ^ x[3] ^ key[1], low0), None

    return lax.scan(one_round, counter, keys)[0]


def _multiply_wide(x: Any, k: int) -> tuple[Any, Any]:
    """The high and low words of x * k."""
    half, mask = np.uint32(16), np.uint32(0xFFFF)
    k_high, k_low = np.uint32(k >> 16), np.uint32(k & 0xFFFF)
    x_high, x_low = lax.shift_right_logical(x, half), x & mask
    middle = x_low * k_high
    carry = lax.shift_right_logical(x_low * k_low, half) + (middle & mask) + x_high * k_low
    high = x_high * k_high + lax.shift_right_logical(middle, half) + lax.shift_right_logical(carry, half)
    return high, x * np.uint32(k)


def _words(key: Any, which: list[int]) -> list:
    """Some of the 32-bit words of a state of 128 bits, the least significant first."""
    if key.dtype != np.uint32:
        key = lax.reshape(lax.bitcast_convert_type(key, np.uint32), (4,))
    return [lax.index_in_dim(key, i, keepdims=False) for i in which]


def _add_wide(words: list, n: Any) -> list:
    """A 64-bit number (low and high word) plus a 32-bit number."""
    low = words[0] + n
    return [low, words[1] + lax.convert_element_type(low < n, np.uint32)]


def _join(low: Any, high: Any) -> Any:
    """A 64-bit number from its words."""
    low, high = (lax.convert_element_type(x, np.uint64) for x in (low, high))
    return lax.shift_left(high, lax.full_like(high, 32)) | low


def _as_uint32(size: Any) -> Any:
    """A dimension, maybe symbolic, as a number to compute with."""
    return np.uint32(size) if isinstance(size, int) else lax.convert_element_type(jax.numpy.asarray(size), np.uint32)
