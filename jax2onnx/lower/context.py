"""The builder that lowering rules emit nodes with, and the values they hold.

A `Val` is an ONNX value together with what JAX knows of it: its shape (ints and `jax.export` dimension expressions),
its dtype and, if it is known while exporting, its content. A `Builder` collects the nodes of one graph; a child builder
collects a Loop, Scan or If body, whose nodes may simply use values of the graphs around it. What a rule emits in a loop
body goes as far out as its operands allow, so that what does not change from step to step is computed once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from jax2onnx import compat, opsets
from jax2onnx.attributes import as_attribute, as_tensor
from jax2onnx.dimensions import is_static
from jax2onnx.errors import InputError
from jax2onnx.lower import dims as dims_
from jax2onnx.lower.dtypes import BOOL, INT64, bit_width, is_float, tensor_type
from jax2onnx.lower.infer import INFER
from jax2onnx.naming import array_key
from jax2onnx.reshapes import reshape_operand, unit_axes

if TYPE_CHECKING:
    from jax2onnx.lower.interleave import Spread
    from jax2onnx.lower.session import Session

# Attributes that became an operand at some opset. Rules always write the attribute; the builder moves it.
OPERAND_SINCE = {
    "axes": {
        **dict.fromkeys(["Squeeze", "Unsqueeze", "ReduceSum"], 13),
        **dict.fromkeys(
            [
                "ReduceMax",
                "ReduceMin",
                "ReduceProd",
                "ReduceMean",
                "ReduceL1",
                "ReduceL2",
                "ReduceLogSum",
                "ReduceLogSumExp",
                "ReduceSumSquare",
            ],
            18,
        ),
    },
    "axis": {"CumSum": 11, "CumProd": 26},
}

POINTWISE = frozenset(
    (
        "Add Sub Mul Div Mod Pow Max Min And Or Xor Equal Less LessOrEqual Greater GreaterOrEqual Where BitwiseAnd"
        " BitwiseOr BitwiseXor BitShift Abs Neg Exp Log Sin Cos Tan Tanh Sqrt Reciprocal Floor Ceil Round Sign Erf"
        " Sigmoid Not BitwiseNot Cast IsNaN IsInf"
    ).split()
)
"""Operators that treat each element alone: what is repeated along an axis need be computed only once."""

_BUILDER = "builder"
"""The key under which a graph remembers its builder."""

SMALL_CONSTANT_BYTES = 1024
"""Constants up to this size are compared by content and shared."""
WORTH_A_NODE = 512
"""So many bytes less in a constant are worth a node that expands it (which is mostly not needed)."""


class Val:
    """A value of the ONNX graph with its JAX type.

    `home` is the builder of the graph that it belongs to; `const` is its content if that is known while exporting, and
    `name` what the program calls it. If it was made by an Expand, `small` is what was expanded.

    Many constants are only there to compute others. One that is given without `value` is put into the graph when that
    is asked for.
    """

    __slots__ = ("columns", "const", "dtype", "home", "name", "shape", "small", "spread", "value")

    def __init__(
        self,
        value: ir.Value | None,
        shape: tuple[Any, ...],
        dtype: np.dtype,
        home: Builder,
        const: np.ndarray | None = None,
        name: str | None = None,
    ):
        if value is not None:
            self.value = value
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.home = home
        self.const = const
        self.small: Val | None = None
        self.spread: Spread | None = None
        self.columns: Sequence[Val] | None = None

    def __getattr__(self, attribute: str) -> Any:
        if attribute != "value":
            raise AttributeError(attribute)
        assert self.const is not None
        self.value = self.home.session.initializer(as_tensor(self.const), self.shape, self.dtype, self.name)
        return self.value

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __repr__(self) -> str:
        return f"Val({self.value.name}: {self.dtype}{list(self.shape)})"


class Builder:
    """Emits the nodes of one graph. `g.Op(operands, attribute=...)` appends the ONNX operator `Op`.

    An operand may be a `Val`, None (left out), an array, a Python number (it takes the dtype of the first `Val`), or a
    tuple of dimensions, which becomes an int64 vector: a constant, or nodes that compute it from symbolic dimensions.
    """

    def __init__(
        self,
        session: Session,
        parent: Builder | None = None,
        *,
        is_function: bool = False,
        is_branch: bool = False,
    ):
        self.session = session
        self.is_function = is_function
        outer = None if is_function else parent  # a function body cannot see beyond itself
        # Constants and dimension arithmetic live in the outermost graph.
        self.root: Builder = self if outer is None else outer.root
        self.depth: int = 0 if outer is None else outer.depth + 1
        # How far out its nodes may go. Those of a branch stay there: they are for when it is taken.
        self.outermost: Builder = self if outer is None or is_branch else outer.outermost
        self.reaches: set[Builder] = set()  # the graphs around this one that it takes values from
        self.stays = False  # whether a node that holds this graph must stay where it is
        self.nodes: list[ir.Node] = []
        self.inputs: list[ir.Value] = []
        self.constants: dict[Any, Val] = {}
        self.dims: dims_.Dims = dims_.Dims(self) if self.root is self else self.root.dims
        self.eqn: Any = None  # the equation that is being lowered
        self.scope = ""  # where in the user's program it is: the named scopes around it

    @property
    def opset(self) -> int:
        """The version of the ONNX operator set that the model is written in."""
        return self.session.opset

    @property
    def avals_out(self) -> list[Any]:
        """The types of the results of the equation that is being lowered."""
        return [v.aval for v in self.eqn.outvars]

    # ------------------------------------------------------------------------------------------------ operators

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        if not op_type[0].isupper():
            raise AttributeError(op_type)
        return functools.partial(self.op, op_type)

    def op(
        self, op_type: str, *args: Any, out: Any = None, domain: str = "", stay: bool = False, **attributes: Any
    ) -> Any:
        """Append a node and return its result, or a list of results if the operator has several.

        `out` is the (shape, dtype) of the result, or a list of them, where the operator is not in `INFER`. The node may
        go to a graph around this one, unless it has to `stay`.
        """
        if out is None and op_type not in INFER:
            where = f" of {self.eqn.primitive}, at {compat.sources.source_line(self.eqn)}," if self.eqn else ""
            raise InputError(
                f"The lowering{where} emits {op_type}. What that gives, if it is an operator, only the lowering can"
                f" know: g.op({op_type!r}, ..., out=(shape, dtype))."
            )
        types: Any = INFER[op_type](*args, **attributes) if out is None else out
        like, repeats = None, False
        for a in args:
            if isinstance(a, Val):
                like = a.dtype if like is None else like
                repeats = repeats or a.small is not None
        if repeats and out is None and op_type in POINTWISE:
            args = tuple(a.small or a if isinstance(a, Val) else a for a in args)
            if INFER[op_type](*args, **attributes) != types:
                return self.expand(self.op(op_type, *args, stay=stay, **attributes), types[0])
        many = isinstance(types, list)
        opset = self.session.opset
        if opset < opsets.DEFAULT and not domain:
            opsets.check_operator(op_type, opset)
        bodies = []
        if attributes:
            for name, since in OPERAND_SINCE.items():
                if name in attributes and opset >= since.get(op_type, 99):
                    moved = attributes.pop(name)
                    args = (*args, moved if isinstance(moved, tuple | list) else np.asarray(moved, np.int64))
            bodies = [a.meta[_BUILDER] for a in attributes.values() if type(a) is ir.Graph]
        operands = [a if a is None or isinstance(a, Val) else self._operand(a, like) for a in args]
        home = self
        if self.depth or bodies:  # what a graph without others around it uses is its own
            sources = {o.home for o in operands if o is not None}
            for body in bodies:
                sources |= body.reaches
            home = self._place(sources, op_type, bodies, stay)
        results = [
            Val(ir.Value(shape=dims_.onnx_shape(shape), type=tensor_type(dtype)), dims_.plain(shape), dtype, home)
            for shape, dtype in (types if many else [types])
        ]
        node = ir.Node(
            domain,
            op_type,
            [None if o is None else o.value for o in operands],
            [as_attribute(name, value) for name, value in attributes.items() if value is not None],
            outputs=[r.value for r in results],
            name=f"{self.scope}/{op_type}" if self.scope else op_type,
            metadata_props=self.session.provenance(self),
        )
        home.nodes.append(node)
        return results if many else results[0]

    def _place(self, sources: set[Builder], op_type: str, bodies: list[Builder], stay: bool) -> Builder:
        """The graph that a node goes to: as far out as the homes of what it uses allow."""
        if op_type == "Loop" or any(body.stays for body in bodies):
            # It may never end: it must not run where the program would not have run it.
            stay = self.stays = True
        place = self if stay else self.outermost
        for source in sources:
            if source.depth > place.depth:
                place = source
        if place.depth:
            place.reaches.update(source for source in sources if source.depth < place.depth)
        return place

    def _operand(self, arg: Any, like: np.dtype | None) -> Val:
        """What is not a value yet, as one."""
        if isinstance(arg, tuple | list):
            return self.shape_of(arg)
        if isinstance(arg, np.ndarray | np.generic):
            return self.const(np.asarray(arg))
        if like is None:
            raise TypeError(f"cannot tell the dtype of the operand {arg!r}")
        return self.const(np.asarray(arg, like))

    # ------------------------------------------------------------------------------------------------ constants

    def const(self, array: Any, name: str | None = None) -> Val:
        """A known array as a value: one initializer per content for small ones, one per array for large ones."""
        root = self.root
        key: Any = id(array)
        if isinstance(array, np.ndarray):  # of which there may be several for the same memory
            small = array.nbytes <= SMALL_CONSTANT_BYTES
            key = (array.dtype, array.shape, array.tobytes() if small else (array_key(array), array.strides))
        if key not in root.constants:
            root.constants[key] = self.session.constant(root, array, name)
        return root.constants[key]

    def known(self, array: np.ndarray, name: str | None = None) -> Val:
        """A computed array as a value. What it repeats is stored once, and expanded, unless it has a `name`: then it is
        a weight in another shape."""
        once = array if name else _once(array)
        if once is array:
            return self.const(array, name)
        value = self.expand(self.const(once), array.shape)
        value.const = array
        return value

    def full(self, shape: Sequence[Any], fill: Any, dtype: np.dtype) -> Val:
        """An array of `shape` filled with the scalar `fill`."""
        return self.expand(self.const(np.asarray(fill, dtype)), shape)

    # ------------------------------------------------------------------------------------------------ dimensions

    def shape_of(self, dims: Sequence[Any]) -> Val:
        """An int64 vector that holds the dimensions `dims`: a constant if they are numbers, else computed once."""
        return self.dims.vector(dims)

    def dim(self, dim: Any) -> Val:
        """An int64 scalar that holds the dimension `dim`."""
        return self.dims.scalar(dim)

    # ------------------------------------------------------------------------------------------------ common forms

    def cast(self, x: Val, dtype: Any) -> Val:
        """`x` in another dtype (nothing if it already has it)."""
        dtype = np.dtype(dtype)
        if x.dtype == dtype:
            return x
        if x.const is not None and x.dtype != BOOL and x.const.size <= 64 and not is_float(x.dtype):
            # ml_dtypes has no casts between types of less than a byte
            wide = x.const.astype(np.int8) if bit_width(x.dtype) < 8 else x.const
            return self.const(wide.astype(dtype))
        return self.Cast(x, to=dtype)

    def reshape(self, x: Val, shape: Sequence[Any]) -> Val:
        """`x` with another shape of the same size."""
        shape = tuple(shape)
        if shape == x.shape:
            return x
        if x.const is not None and x.const.size <= 64 and is_static(shape):
            return self.const(x.const.reshape(shape), x.name)
        operand: Any
        operand, allow_zero = reshape_operand(x.shape, shape)
        if operand is None and (units := unit_axes(x.shape, shape)) is not None:
            removed, added = units
            return self.unsqueeze(self.squeeze(x, removed), added)
        if operand is None:
            operand = self.shape_of(shape)
        else:
            operand = self.const(np.asarray(operand, np.int64))
        return self.op("Reshape", x, operand, allowzero=1 if allow_zero else None, out=(shape, x.dtype))

    def expand(self, x: Val, shape: Sequence[Any]) -> Val:
        """`x` broadcast to `shape` by ONNX's rules (axes are aligned at the end)."""
        shape = tuple(shape)
        if shape == x.shape:
            return x
        small = x.small or x
        result = self.Expand(small, shape)
        result.small = small
        return result

    def transpose(self, x: Val, perm: Sequence[int]) -> Val:
        """`x` with its axes permuted."""
        if list(perm) == sorted(perm):
            return x
        if x.small:
            return self.expand(self.transpose(self.expanded_from(x), perm), [x.shape[i] for i in perm])
        return self.Transpose(x, perm=tuple(perm))

    def squeeze(self, x: Val, axes: Sequence[int]) -> Val:
        """`x` without the size-1 `axes`."""
        if not axes:
            return x
        if x.small:
            return self.expand(self.squeeze(self.expanded_from(x), axes), INFER["Squeeze"](x, axes=axes)[0])
        return self.Squeeze(x, axes=tuple(axes))

    def unsqueeze(self, x: Val, axes: Sequence[int]) -> Val:
        """`x` with size-1 axes inserted, so that they are at `axes` of the result."""
        if not axes:
            return x
        if x.small:
            return self.expand(self._unsqueeze_small(x, axes), INFER["Unsqueeze"](x, axes=axes)[0])
        return self.Unsqueeze(x, axes=tuple(axes))

    def _unsqueeze_small(self, x: Val, axes: Sequence[int]) -> Val:
        """What `x` is expanded from, with those of the new `axes` that are not before all of its own."""
        assert x.small is not None
        rank = x.rank + len(axes)
        added = {axis % rank for axis in axes}
        own = [axis for axis in range(rank) if axis not in added][x.rank - x.small.rank :]
        return self.unsqueeze(x.small, [axis - own[0] for axis in sorted(added) if axis > own[0]]) if own else x.small

    def expanded_from(self, x: Val) -> Val:
        """What `x` is expanded from, with as many axes."""
        assert x.small is not None
        return self.unsqueeze(x.small, range(x.rank - x.small.rank))

    def slice_axis(self, x: Val, axis: int, start: Any, end: Any, step: int = 1) -> Val:
        """`x[..., start:end:step, ...]` along one axis, with 0 <= start <= end <= size."""
        if step == 1 and isinstance(start, int) and start == 0 and end == x.shape[axis]:
            return x
        return self.Slice(x, (start,), (end,), (axis,), *(((step,),) if step != 1 else ()))

    def iota(self, size: Any, dtype: Any = INT64) -> Val:
        """0, 1, ..., size - 1 as a vector."""
        if isinstance(size, int) and size <= 1024:
            return self.const(np.arange(size, dtype=np.int64).astype(dtype))
        zero, one = np.asarray(0, np.int64), np.asarray(1, np.int64)
        return self.cast(self.op("Range", zero, self.dim(size), one, out=((size,), INT64)), dtype)

    # ------------------------------------------------------------------------------------------------ bodies

    def child(self, *, is_branch: bool = False) -> Builder:
        """A builder for the body of a Loop or Scan, or a branch of an If. It may use every value of this graph."""
        body = Builder(self.session, self, is_branch=is_branch)
        body.scope = self.scope
        body.eqn = self.eqn
        return body

    def input(self, shape: Sequence[Any], dtype: np.dtype, name: str | None = None) -> Val:
        """Declare the next input of this graph."""
        value = ir.Value(name=name, shape=dims_.onnx_shape(shape), type=tensor_type(dtype))
        self.inputs.append(value)
        return Val(value, tuple(shape), dtype, self)

    def graph(self, outputs: Sequence[Val], name: str, *, forwards: bool = False) -> ir.Graph:
        """Close this graph with `outputs`. Each has to belong to this very graph.

        Unless it `forwards`, each also has to be the result of a node, and no other output as well: ONNX Runtime
        accepts Scan bodies and If branches without this, but gives wrong numbers. Its Loop is right with both.
        """
        own = {id(o) for node in self.nodes for o in node.outputs}
        results: list[ir.Value] = []
        for output in outputs:
            if not (output.home is self if forwards else id(output.value) in own):
                output = self.Identity(output, stay=True)
            own.discard(id(output.value))
            results.append(output.value)
        graph = ir.Graph(self.inputs, results, nodes=self.nodes, name=name)
        graph.meta[_BUILDER] = self
        return graph

    def lower_jaxpr(self, jaxpr: Any, consts: Sequence[Val], args: Sequence[Val]) -> list[Val]:
        """Lower the equations of a jaxpr into this graph and return its results."""
        return self.session.lower_jaxpr(self, jaxpr, consts, args)

    def call_jax(self, fn: Callable[..., Any], *args: Val) -> Any:
        """Trace a JAX function on values like `args` and lower it here: the escape hatch that keeps rules short."""
        return self.session.call_jax(self, fn, args)


def _once(array: np.ndarray) -> np.ndarray:
    """What `array` is when it is expanded: one number if all are the same, or as much less as it is worth a node."""
    if array.size <= 1 or array.dtype.itemsize not in (1, 2, 4, 8):
        return array
    once = array.view(f"u{array.dtype.itemsize}")  # zeros of both signs differ, and a NaN does not differ from itself
    origin = (0,) * array.ndim
    for axis, n in enumerate(array.shape):
        if n > 1 and once[origin] == once[*origin[:axis], -1, *origin[axis + 1 :]]:  # which mostly settles it
            first = once.take([0], axis)
            if (once == first).all():
                once = first
    if once.size == 1:
        once = once.reshape(())
    elif array.nbytes - once.nbytes < WORTH_A_NODE:
        return array
    while once.ndim and once.shape[0] == 1:
        once = once[0]
    return once.view(array.dtype)
