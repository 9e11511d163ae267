"""Lowering one program: walks the equations of a jaxpr and calls the rule of each primitive.

A `Session` holds what one export needs and what its graphs share: the rules, the opset, the initializers. There is
nothing global, so exports can run in parallel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import onnx_ir as ir
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal, Primitive

from jax2onnx import compat
from jax2onnx.attributes import as_tensor
from jax2onnx.errors import InputError, UnsupportedError
from jax2onnx.inconclusive import Inconclusive, explain
from jax2onnx.lower import fold
from jax2onnx.lower.context import Builder, Val
from jax2onnx.lower.dims import onnx_shape
from jax2onnx.lower.dtypes import tensor_type
from jax2onnx.lower.registry import Rule
from jax2onnx.naming import NAME, SOURCE, array_key
from jax2onnx.paths import scope_parts
from jax2onnx.permutations import inverse
from jax2onnx.streaming import from_devices, is_elsewhere

STREAMED_BYTES = 1 << 20
"""Arrays on other devices of more than this are only looked at when they are written."""


class Session:
    """One export: from the core jaxpr of a program to its ONNX graph."""

    def __init__(
        self,
        opset: int,
        lowerings: Mapping[Primitive, Rule],
        decompose: Callable[[ClosedJaxpr], ClosedJaxpr],
        provenance_level: int = 0,
        names: Mapping[Any, str] | None = None,
        optimize_part: Callable[[ir.Graph], None] | None = None,
    ):
        self.opset = opset
        self.lowerings = lowerings
        self.decompose = decompose
        self.provenance_level = provenance_level
        self.initializers: list[ir.Value] = []
        self._names = names or {}  # of arrays of the program, by `array_key`
        self._taken: set[str] = set()
        self.functions: dict[Any, tuple[ir.Function, list[str]]] = {}  # with the dimensions they need
        self.optimize_part = optimize_part
        self.templates: dict[int, Any] = {}  # of repeated equations, by the id of their body
        self._traced: dict[Any, tuple[ClosedJaxpr, Any]] = {}
        self._around: list[Any] = []  # the equations that are being lowered, each in the body of the one before
        self._kept_alive: list[Any] = []  # arrays whose id() is a key of a constants table

    # ------------------------------------------------------------------------------------------------ equations

    def lower_jaxpr(self, g: Builder, jaxpr: Any, consts: Sequence[Val], args: Sequence[Val]) -> list[Val]:
        """Lower the equations of `jaxpr` into the graph of `g`."""
        env: dict[Any, Val] = {}
        env.update(zip(jaxpr.constvars, consts, strict=True))
        env.update(zip(jaxpr.invars, args, strict=True))
        outer_eqn, outer_scope = g.eqn, g.scope
        last_stack = None
        for eqn in jaxpr.eqns:
            operands = [self._literal(g, v) if isinstance(v, Literal) else env[v] for v in eqn.invars]
            name_stack = eqn.source_info.name_stack
            if name_stack is not last_stack:
                last_stack, stack = name_stack, "/".join(scope_parts(str(name_stack)))
                g.scope = outer_scope if not stack else f"{outer_scope}/{stack}" if outer_scope else stack
            g.eqn = eqn
            self._around.append(eqn)
            for var, result in zip(eqn.outvars, self._lower_equation(g, eqn, operands), strict=True):
                env[var] = result
            self._around.pop()
        g.eqn, g.scope = outer_eqn, outer_scope
        return [self._literal(g, v) if isinstance(v, Literal) else env[v] for v in jaxpr.outvars]

    def lower_closed(self, g: Builder, closed: ClosedJaxpr, args: Sequence[Val]) -> list[Val]:
        """Lower a jaxpr with its constants."""
        return self.lower_jaxpr(g, closed.jaxpr, [g.const(compat.evaluation.as_array(c)) for c in closed.consts], args)

    def _literal(self, g: Builder, literal: Any) -> Val:
        value, dtype = literal.val, literal.aval.dtype
        if type(value) not in (int, float) or value == 0:  # zeros of both signs are equal
            return g.const(np.asarray(value, dtype))
        known = g.root.constants.get((value, dtype))
        if known is None:
            known = g.root.constants[value, dtype] = g.const(np.asarray(value, dtype))
        return known

    def _lower_equation(self, g: Builder, eqn: Any, operands: list[Val]) -> Sequence[Val]:
        known = fold.evaluate(eqn, operands)
        if known is not None:
            name = operands[0].name if len(operands) == 1 else None
            grows = name is not None and known[0].size > math.prod(operands[0].shape)
            if not grows or eqn.primitive is not lax.broadcast_in_dim_p:  # the weight itself is expanded
                return [g.known(k, None if grows else name) for k in known]
        try:
            results = self.lowerings[eqn.primitive](g, *operands, **eqn.params)
        except Inconclusive as error:
            message = explain(error, compat.sources.source_line(eqn))
            raise UnsupportedError(f"{eqn.primitive} of these symbolic sizes: {message}") from error
        except UnsupportedError as error:
            raise error.at(compat.sources.source_line(eqn)) from None
        if isinstance(results, Val):
            results = [results]
        if results is None or len(results) != len(eqn.outvars):
            raise InputError(
                f"The lowering of {eqn.primitive} gave {results!r}, which are not the values that it has to return"
                f" ({len(eqn.outvars)}), at {compat.sources.source_line(eqn)}."
            )
        for result, var in zip(results, eqn.outvars, strict=True):
            if result.shape != var.aval.shape or result.dtype != var.aval.dtype:
                raise AssertionError(
                    f"the lowering of {eqn.primitive} gave {result.dtype}{list(result.shape)} where JAX has"
                    f" {var.aval.dtype}{list(var.aval.shape)}, at {compat.sources.source_line(eqn)}"
                )
        if known is not None:
            for result, array in zip(results, known, strict=True):
                result.const = array
        return results

    def call_jax(self, g: Builder, fn: Callable[..., Any], args: Sequence[Val]) -> Any:
        """Trace `fn` on the types of `args`, decompose and lower it here."""
        key = (fn, tuple((a.shape, a.dtype) for a in args))
        if key not in self._traced:
            closed, out = jax.make_jaxpr(fn, return_shape=True)(*(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in args))
            self._traced[key] = (self.decompose(closed), jax.tree.structure(out))
        closed, tree = self._traced[key]
        return jax.tree.unflatten(tree, self.lower_closed(g, closed, args))

    # ------------------------------------------------------------------------------------------------ constants

    def constant(self, root: Builder, array: Any, name: str | None) -> Val:
        """A new initializer of the main graph, or a Constant node of the function whose body `root` builds."""
        self._kept_alive.append(array)
        if is_elsewhere(array) and array.nbytes > STREAMED_BYTES and not root.is_function:
            name = name or self._name_of(array)
            return self.weight(root, from_devices(array), array.shape, array.dtype, name)
        content = np.asarray(array)
        if content.dtype == jax.dtypes.float0:  # no bytes at all
            result = root.expand(root.const(np.asarray(False)), content.shape)
            return Val(result.value, content.shape, content.dtype, root)
        if root.is_function:
            result = root.op("Constant", value=content, out=(content.shape, content.dtype))
            result.const = content
            result.value.const_value = as_tensor(content)
            return result
        name = name or self._name_of(array)
        perm = _order_in_memory(content)
        if perm is not None and array_key(content.transpose(perm)) in self._names:
            # The program transposes one of its arrays before JAX sees it. It may need it the other way, too.
            result = root.transpose(root.const(content.transpose(perm)), inverse(perm))
            result.const = content
            return result
        return Val(None, content.shape, content.dtype, root, content, name)

    def _name_of(self, array: Any) -> str | None:
        return self._names.get(array_key(array)) if self._names else None

    def weight(self, root: Builder, tensor: ir.TensorProtocol, shape: tuple, dtype: np.dtype, name: str | None) -> Val:
        """A new initializer that is read when the model is written."""
        return Val(self.initializer(tensor, shape, dtype, name), shape, dtype, root)

    def initializer(self, tensor: ir.TensorProtocol, shape: tuple, dtype: np.dtype, name: str | None) -> ir.Value:
        """A new initializer of the main graph."""
        value = ir.Value(
            name=self._unique(name or f"const_{len(self.initializers)}"),
            shape=onnx_shape(shape),
            type=tensor_type(dtype),
            const_value=tensor,
        )
        if name:
            value.meta[NAME] = name
        self.initializers.append(value)
        return value

    def reserve(self, names: Sequence[str]) -> None:
        """Names that no initializer may have."""
        self._taken.update(names)

    def _unique(self, name: str) -> str:
        n, base = 1, name
        while name in self._taken:
            name, n = f"{base}_{n}", n + 1
        self._taken.add(name)
        return name

    # ------------------------------------------------------------------------------------------------ provenance

    def provenance(self, g: Builder) -> dict[str, str] | None:
        """Where a node comes from, for its metadata."""
        if not self.provenance_level or g.eqn is None:
            return None
        props = {
            "pkg.jax2onnx.primitive": g.eqn.primitive.name,
            SOURCE: compat.sources.source_line(g.eqn, *reversed(self._around)),
        }
        if self.provenance_level > 1:
            props["pkg.jax2onnx.stack"] = compat.sources.source_stack(g.eqn, *reversed(self._around))
        return props


def _order_in_memory(array: np.ndarray) -> list[int] | None:
    """The axes of a transposed array in the order in which they lie in memory; None for an array that is not one."""
    if array.flags.c_contiguous:
        return None
    perm = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    return perm if array.transpose(perm).flags.c_contiguous else None
