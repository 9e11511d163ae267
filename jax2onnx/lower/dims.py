"""Shape arithmetic with symbolic dimensions: the one place where a dimension expression becomes ONNX nodes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from jax2onnx import compat
from jax2onnx.dimensions import NOTE, is_static
from jax2onnx.graphs import static_shape
from jax2onnx.lower.dtypes import INT64

if TYPE_CHECKING:
    from jax2onnx.lower.context import Builder, Val


def plain(shape: Sequence[Any]) -> tuple[Any, ...]:
    """A shape without NumPy's integers, which come from the parameters of a user's equations."""
    for dim in shape:  # a loop is faster, and this is asked of every value
        if type(dim) is not int:
            return tuple([int(d) if isinstance(d, np.integer) else d for d in shape])
    return tuple(shape)


def onnx_shape(shape: Sequence[Any]) -> ir.Shape:
    """The shape that a viewer shows: numbers, expressions such as `B` or `T + 1`, None for what depends on the data."""
    for dim in shape:
        if type(dim) is not int:
            return ir.Shape(d if isinstance(d, int) else None if d is None else str(d) for d in plain(shape))
    return static_shape(tuple(shape))


class Dims:
    """The dimension variables of one graph or function, where to read them, and the expressions built so far."""

    def __init__(self, g: Builder):
        self._g = g
        self._sources: dict[str, Callable[[], Val]] = {}
        self._missing: list[str] = []
        self._plain: set[str] = set()  # variables that are the size of an axis, without arithmetic
        self._vectors: dict[Any, Val] = {}  # an expression -> an int64 vector of one element
        self._scalars: dict[Any, Val] = {}
        self._shapes: dict[tuple[Any, ...], Val] = {}

    def declare(self, x: Val) -> None:
        """Let the dimension variables in the shape of the graph input `x` be read from it."""
        for axis, dim in enumerate(x.shape):
            if isinstance(dim, int):
                continue
            solved = compat.dims.solve_dim(dim)
            if solved is None:
                continue
            var, factor, offset = solved
            is_plain = (factor, offset) == (1, 0)
            if var not in self._sources or (is_plain and var not in self._plain):
                self._sources[var] = functools.partial(self._read, x, axis, factor, offset)
            if is_plain:
                self._plain.add(var)

    def define(self, var: str, vector: Val) -> None:
        """Let the dimension variable `var` be the only element of `vector`."""
        self._sources[var] = lambda: vector

    def missing(self) -> list[str]:
        """The dimension variables that a function needs as further inputs."""
        return self._missing

    def _read(self, x: Val, axis: int, factor: int, offset: int) -> Val:
        g = self._g
        size = g.op("Shape", x, start=axis, end=axis + 1)
        if offset:
            size = g.Sub(size, self.number(offset))
        return g.Div(size, self.number(factor)) if factor != 1 else size

    def number(self, n: int) -> Val:
        """A known dimension as an int64 vector of one element."""
        return self._g.const(np.asarray([n], np.int64))

    def scalar(self, dim: Any) -> Val:
        """A dimension as an int64 scalar."""
        if isinstance(dim, int):
            return self._g.const(np.asarray(dim, np.int64))
        if dim not in self._scalars:
            self._scalars[dim] = self._g.reshape(self.one(dim), ())
        return self._scalars[dim]

    def vector(self, dims: Sequence[Any]) -> Val:
        """Dimensions as an int64 vector."""
        dims = tuple(int(d) if isinstance(d, np.integer) else d for d in dims)
        if is_static(dims):
            return self._g.const(np.asarray(dims, np.int64))
        if len(dims) == 1:
            return self.one(dims[0])
        if dims not in self._shapes:
            parts: list[Val] = []
            run: list[int] = []  # consecutive numbers become one constant
            for dim in dims:
                if isinstance(dim, int):
                    run.append(dim)
                    continue
                parts += [self._g.const(np.asarray(run, np.int64))] if run else []
                parts.append(self.one(dim))
                run = []
            parts += [self._g.const(np.asarray(run, np.int64))] if run else []
            self._shapes[dims] = self._g.op("Concat", *parts, axis=0, out=((len(dims),), INT64))
        return self._shapes[dims]

    def one(self, dim: Any) -> Val:
        """A dimension as an int64 vector of one element, computed once."""
        if isinstance(dim, int):
            return self.number(dim)
        if isinstance(dim, str):
            return self._variable(dim)
        if dim not in self._vectors:
            self._vectors[dim] = self._compute(dim)
            self._vectors[dim].value.meta[NOTE] = str(dim)
        return self._vectors[dim]

    def known(self) -> dict[int, Any]:
        """The dimensions that have been computed, by the ids of the values that hold them."""
        computed = [*self._vectors.items(), *self._scalars.items()]
        return {id(v.value): dim for dim, v in computed if not isinstance(dim, str)}

    def _compute(self, dim: Any) -> Val:
        g = self._g
        terms = compat.dims.dim_terms(dim)
        total: Val | None = None
        for factors, coefficient in terms:
            negative = coefficient < 0 and total is not None
            k = -coefficient if negative else coefficient
            product: Val | None = None
            for factor, power in factors:
                value = self._factor(factor)
                for _ in range(power):
                    product = value if product is None else g.Mul(product, value)
            if product is None:
                product = self.number(k)
            elif k != 1:
                product = g.Mul(product, self.number(k))
            total = product if total is None else g.Sub(total, product) if negative else g.Add(total, product)
        assert total is not None, dim
        return total

    def _variable(self, var: str) -> Val:
        g = self._g
        if var not in self._vectors:
            if var not in self._sources and g.is_function:
                # A function sees only its inputs: the caller passes what it needs.
                self._missing.append(var)
                self.define(var, g.input((1,), INT64, f"dim_{var}"))
            if var not in self._sources:
                raise KeyError(f"the dimension {var!r} does not occur alone in the shape of any input")
            self._vectors[var] = self._sources[var]()
        return self._vectors[var]

    def _factor(self, factor: Any) -> Val:
        g, var = self._g, factor.to_var()
        if var is not None:
            return self._variable(var)
        a, b = (self.one(compat.dims.simplest_dim(o)) for o in factor.operands)
        if factor.operation in ("mod", "floordiv") and not isinstance(factor.operands[1], int):
            is_divisor = is_never_negative(factor.operands[1]) or compat.dims.is_at_least(factor.operands[1], 0)
            b = g.Max(b, 1) if is_divisor else b  # also where there are no elements
        match factor.operation:
            case "max":
                return g.Max(a, b)
            case "min":
                return g.Min(a, b)
            case "mod":
                return g.Mod(a, b)  # the sign of the divisor, as in Python
            case "floordiv" if all(map(is_never_negative, factor.operands)):
                return g.Div(a, b)
            case "floordiv":
                # ONNX Div truncates: take away the remainder (which has the divisor's sign) first
                return g.Div(g.Sub(a, g.Mod(a, b)), b)
        raise NotImplementedError(f"dimension operation {factor.operation}")


def is_never_negative(dim: Any) -> bool:
    """Is it plain that an expression is 0 or more, also where variables are 0, which JAX does not expect?"""
    if isinstance(dim, int):
        return dim >= 0
    return all(
        coefficient >= 0 and all(f.to_var() is not None or all(map(is_never_negative, f.operands)) for f, _ in factors)
        for factors, coefficient in compat.dims.dim_terms(dim)
    )
