"""What the caller says about the inputs, in any of the accepted forms, becomes pytrees of `jax.ShapeDtypeStruct`.

    input_specs([("B", 128), "i32[B,T]", {"mask": jax.ShapeDtypeStruct(("B", "T"), bool)}])

An input is one of

- an array, or a Python number (a 0-d input);
- a `jax.ShapeDtypeStruct`, whose shape may contain strings;
- a shape: a tuple or list of ints, strings, `jax.export` dimensions and None (a dimension without a name);
- a string in JAX's notation: "f32[B,128]", "bf16[]", "key<fry>[]";
- a pytree of those. A tuple that can be read as a shape is a shape; `()` is the shape of a scalar, but in a pytree with
  arrays (the state of an optimizer, say) it is a structure without any.

Equal names are one dimension wherever they appear, also next to the caller's own symbolic dimensions.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import tree_util
from jax.export import SymbolicScope, is_symbolic_dim
from jax.typing import DTypeLike

from . import compat
from .dimensions import Dim, make_scope, names_in, parse_dim
from .errors import InputError

_SHORT_DTYPES = {"f": "float", "i": "int", "u": "uint", "c": "complex", "bf": "bfloat", "pred": "bool"}
_KEY_IMPLEMENTATIONS = {"fry": "threefry2x32", "rbg": "rbg", "urbg": "unsafe_rbg"}

_ARRAYS = (jax.Array, np.ndarray, np.generic)
_NUMBERS = (bool, int, float, complex)


def input_specs(
    inputs: Sequence[Any], default_dtype: DTypeLike = np.float32, constraints: Iterable[str] = ()
) -> list[Any]:
    """The inputs as pytrees of `jax.ShapeDtypeStruct`, their symbolic dimensions all in one scope.

    Shapes get `default_dtype`; a dtype in a `ShapeDtypeStruct` or a string is kept. Arrays and numbers get the dtype
    that JAX gives them: 64 bits only if x64 is on, or if `default_dtype` or another input asks for 64 bits.
    """
    if isinstance(inputs, (str, dict, jax.Array, np.ndarray, jax.ShapeDtypeStruct)) or not isinstance(inputs, Sequence):
        raise InputError(f"inputs is a list or tuple with one entry per argument, not {_describe(inputs)}.")
    entries = [tree_util.tree_flatten_with_path(entry, is_leaf=_shapes_in(entry)) for entry in inputs]
    leaves = [
        [_Leaf(f"inputs[{i}]{tree_util.keystr(path)}", leaf, default_dtype) for path, leaf in found]
        for i, (found, _) in enumerate(entries)
    ]
    flat = [leaf for found in leaves for leaf in found]
    scope = _common_scope(flat, constraints if isinstance(constraints, str) else list(constraints))
    nameless = _fresh_names(flat)
    x64_is_on = jax.dtypes.canonicalize_dtype(np.float64) == np.float64
    wide = x64_is_on or np.dtype(default_dtype).itemsize == 8 or any(leaf.wants_x64 for leaf in flat)
    specs = [[leaf.spec(scope, nameless, wide) for leaf in found] for found in leaves]
    _check_dimensions_can_be_read(specs)
    return [tree_util.tree_unflatten(tree, found) for (_, tree), found in zip(entries, specs, strict=True)]


def needs_x64(specs: Any) -> bool:
    """Whether a pytree of arrays or `ShapeDtypeStruct` has a 64-bit dtype, which JAX only has with x64 on."""
    return any(_is_64_bit(leaf.dtype) for leaf in tree_util.tree_leaves(specs))


def input_leaves(inputs: Sequence[Any]) -> list[Any]:
    """What the caller gave for each of the arrays in `input_specs(inputs)`."""
    return [leaf for entry in inputs for leaf in tree_util.tree_leaves(entry, is_leaf=_shapes_in(entry))]


def is_value(leaf: Any) -> bool:
    """Whether a leaf has values, not just a shape and a dtype."""
    return isinstance(leaf, (*_ARRAYS, *_NUMBERS))


def parse_dtype(text: str) -> Any:
    """A dtype in JAX's short notation (f32, bf16, i8, c64, bool, key<fry>) or by its full name."""
    if match := re.fullmatch(r"key<(\w+)>", text):
        implementation = _KEY_IMPLEMENTATIONS.get(match[1], match[1])
        try:
            return jax.eval_shape(lambda: jax.random.key(0, impl=implementation)).dtype
        except ValueError as error:
            raise InputError(f"{text!r} is not a kind of PRNG key that JAX knows.") from error
    match = re.fullmatch(r"(pred|bf|f|i|u|c)(\d\w*)?", text)
    name = _SHORT_DTYPES[match[1]] + (match[2] or "") if match else text
    try:
        return _checked_dtype(jax.numpy.dtype(name))
    except TypeError:
        raise InputError(f"{text!r} is not a dtype; JAX writes them f32, bf16, i32, u8, bool, c64, ...") from None


class _Leaf:
    """One array-like in what the caller gave: its dtype, and its dimensions as they were written."""

    def __init__(self, where: str, given: Any, default_dtype: DTypeLike) -> None:
        self.where, self.explicit, self.weak = where, False, False
        self.dtype: Any
        self.dims: Sequence[Any]
        if _is_shape(given):
            self.dtype, self.dims = np.dtype(default_dtype), given
        elif isinstance(given, str):
            self.explicit = True
            self.dtype, self.dims = self._parse(given)
        elif isinstance(given, (jax.ShapeDtypeStruct, jax.core.ShapedArray)):
            self.explicit, self.weak = True, bool(given.weak_type)
            self.dtype, self.dims = given.dtype, given.shape
        elif isinstance(given, _ARRAYS):
            self.dtype, self.dims = given.dtype, given.shape
            self.weak = isinstance(given, jax.Array) and bool(given.aval.weak_type)
        elif isinstance(given, _NUMBERS):
            self.weak = not isinstance(given, bool)
            self.dtype, self.dims = np.dtype(type(given)), ()
        else:
            raise InputError(
                f"{where} is {_describe(given)}. An input is an array, a jax.ShapeDtypeStruct, a shape such as "
                '("B", 128), a string such as "f32[B,128]", or a pytree of those that JAX knows.'
            )
        try:
            _checked_dtype(self.dtype)
        except TypeError:
            raise InputError(f"{where} has the dtype {self.dtype}, which JAX does not have.") from None

    def _parse(self, text: str) -> tuple[Any, list[str]]:
        match = re.fullmatch(r"\s*([\w<>]+)\s*\[(.*)\]\s*", text)
        if match is None and "[" not in text:
            raise InputError(
                f"{self.where} is {text!r}, a dimension that is not in a shape. A shape is a tuple of whole numbers and"
                ' names, and inputs is a list of them: [("B", 128)]. Or it is in one string: "f32[B,128]".'
            )
        if match is None:
            raise InputError(f'{self.where} is {text!r}; a spec in JAX\'s notation looks like "f32[B,128]".')
        return parse_dtype(match[1]), list(_split_at_commas(match[2]))

    @property
    def wants_x64(self) -> bool:
        return self.explicit and _is_64_bit(self.dtype)

    def symbolic(self) -> Iterator[Dim]:
        """The dimensions that were made by the caller, with `jax.export`."""
        return (dim for dim in self.dims if is_symbolic_dim(dim))

    def names(self) -> Iterator[str]:
        """The names of all dimensions here."""
        for dim in self.dims:
            if isinstance(dim, str):
                yield from names_in(dim)
            elif is_symbolic_dim(dim):
                yield from compat.dims.dim_names(dim)

    def spec(self, scope: SymbolicScope, nameless: Iterator[str], wide: bool) -> jax.ShapeDtypeStruct:
        shape = tuple(self._dim(next(nameless) if dim is None else dim, scope) for dim in self.dims)
        dtype = self.dtype if self.explicit or wide or _is_key(self.dtype) else _narrow(self.dtype)
        return jax.ShapeDtypeStruct(shape, dtype, weak_type=self.weak)

    def _dim(self, dim: Any, scope: SymbolicScope) -> Dim:
        if isinstance(dim, str):
            dim = parse_dim(dim, scope)
        if is_symbolic_dim(dim):
            return dim
        try:
            size = operator.index(dim)
        except TypeError:
            raise InputError(f"{self.where} has {_describe(dim)} in its shape, not an int or a name.") from None
        if size < 0:
            raise InputError(f"{self.where} has the negative dimension {size}. Give a dimension that may vary a name.")
        return size


def _is_shape(value: Any) -> bool:
    # Only plain tuples and lists: a NamedTuple is a structure with fields. [] is a structure without any.
    if type(value) not in (tuple, list) or (type(value) is list and not value):
        return False
    return all(
        (isinstance(dim, (int, np.integer)) and not isinstance(dim, bool))
        or dim is None
        or (isinstance(dim, str) and "[" not in dim)
        or is_symbolic_dim(dim)
        for dim in value
    )


def _shapes_in(entry: Any) -> Callable[[Any], bool]:
    """What is a shape in one entry of the inputs."""
    if any(isinstance(leaf, (*_ARRAYS, jax.ShapeDtypeStruct)) for leaf in tree_util.tree_leaves(entry)):
        return lambda value: _is_shape(value) and len(value) > 0
    return _is_shape


def _common_scope(leaves: list[_Leaf], constraints: Iterable[str]) -> SymbolicScope:
    scope: SymbolicScope | None = None
    first = ""
    for leaf in leaves:
        for dim in leaf.symbolic():
            if scope is None:
                scope, first = dim.scope, leaf.where
            elif dim.scope is not scope:
                raise InputError(
                    f"The dimension {str(dim)!r} of {leaf.where} and those of {first} come from different calls of "
                    "jax.export.symbolic_shape. Make them in one call, or pass scope= to the second."
                )
    if scope is None:
        scope = make_scope(constraints)
        names = {name for leaf in leaves for name in leaf.names()}
        for constraint in constraints:
            if unknown := sorted(names_in(constraint) - names):
                raise InputError(f"The constraint {constraint!r} is about {unknown[0]!r}, which no input has.")
    elif constraints:
        raise InputError(
            "constraints cannot be added to dimensions that already exist. Give them to jax.export.symbolic_shape, "
            "or use names instead of symbolic dimensions."
        )
    return scope


def _fresh_names(leaves: list[_Leaf]) -> Iterator[str]:
    """Names for the dimensions given as None, different from all others."""
    taken = {name for leaf in leaves for name in leaf.names()}
    names = map("dim{}".format, itertools.count())
    return (name for name in names if name not in taken)


def _check_dimensions_can_be_read(specs: Any) -> None:
    """A model learns the sizes of its dimensions from the shapes it is given: each must be the only unknown of one."""
    dims = [dim for spec in tree_util.tree_leaves(specs) for dim in spec.shape if is_symbolic_dim(dim)]
    known = {solved[0] for dim in dims if (solved := compat.dims.solve_dim(dim)) is not None}
    for dim in dims:
        if missing := sorted(set(compat.dims.dim_names(dim)) - known):
            raise InputError(
                f"The size of the dimension {missing[0]!r} cannot be read from any input: it appears only in "
                f"{str(dim)!r}, with others. (A name has letters, digits and _ only.)"
            )


def _checked_dtype(dtype: Any) -> Any:
    """`dtype`, if JAX has it."""
    if not _is_key(dtype) and not (dtype == np.bool_ or jax.dtypes.issubdtype(dtype, np.number)):
        raise TypeError(dtype)
    if dtype in (np.dtype(np.longdouble), np.dtype(np.clongdouble)):
        raise TypeError(dtype)
    return dtype


def _is_key(dtype: Any) -> bool:
    return bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))


def _is_64_bit(dtype: Any) -> bool:
    return not _is_key(dtype) and dtype != _narrow(dtype)


def _narrow(dtype: Any) -> np.dtype:
    """What JAX makes of a dtype when x64 is off, whatever its setting is now."""
    narrow = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}
    return np.dtype(narrow.get(np.dtype(dtype).name, dtype))


def _split_at_commas(text: str) -> Iterator[str]:
    """The parts of `text` between commas that are not inside parentheses."""
    if not text.strip():
        return
    depth = start = 0
    for at, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _describe(value: Any) -> str:
    text = repr(value)
    return f"a {type(value).__name__} ({text if len(text) <= 60 else text[:57] + '...'})"
