"""What writes the nodes of an expansion."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from jax2onnx.targets import table
from jax2onnx.targets.plans import no_kernel

if TYPE_CHECKING:
    from jax2onnx.targets.rewrite import Legalizer


class Emitter:
    """Emits the nodes of an expansion: `e.Add(x, 1.0)` puts an Add before the node that is being replaced.

    A Python number takes the dtype of the first operand that is a value. A result has the dtype of that operand and the
    shape of the first result of the node that is being replaced, unless said otherwise.
    """

    def __init__(self, legalizer: Legalizer, node: ir.Node):
        self.legalizer = legalizer
        self.node = node
        self.opset = legalizer.opset
        # Of the node that is being replaced: its operands, and the type of its first result.
        self.operands: tuple[Any, ...] = tuple(node.inputs)
        self.dims = dims_of(node.outputs[0])
        self.dtype = dtype_of(node.outputs[0])

    def __getattr__(self, op: str) -> Callable[..., Any]:
        if not op[0].isupper():
            raise AttributeError(op)
        return functools.partial(self.emit, op)

    def emit(
        self, op: str, *operands: Any, shape: Any = None, dtype: ir.DataType | None = None, **attributes: Any
    ) -> ir.Value:
        """Insert a node with one result, which is legalized in its turn."""
        result = self.raw(op, *operands, shape=shape, dtype=dtype, **attributes)
        node = result.producer()
        assert node is not None
        return self.legalizer.visit(node)[0]

    def raw(
        self, op: str, *operands: Any, shape: Any = None, dtype: ir.DataType | None = None, **attributes: Any
    ) -> ir.Value:
        """Insert a node with one result as it is: its kernel is right for what it is used for."""
        like = next((dtype_of(o) for o in operands if isinstance(o, ir.Value)), self.dtype)
        inputs = [o if o is None or isinstance(o, ir.Value) else self.const(o, like) for o in operands]
        result = ir.Value(shape=ir.Shape(self.dims if shape is None else shape), type=ir.TensorType(dtype or like))
        node = new_node(op, inputs, result, self.node, attributes)
        graph_of(self.node).insert_before(self.node, node)
        return result

    def cast(self, x: ir.Value, dtype: ir.DataType) -> ir.Value:
        """`x` in another dtype (`x` itself if it has it)."""
        if x.dtype == dtype:
            return x
        if not table.has_kernel(self.legalizer.target, "Cast", self.opset, {"T1": dtype_of(x), "T2": dtype}):
            raise no_kernel(self.legalizer.target, "Cast", self.opset, [x.dtype, dtype])
        return self.legalizer.image(x, dtype)

    def const(self, content: Any, dtype: ir.DataType | None = None) -> ir.Value:
        """A known array or number."""
        array = (
            np.asarray(content)
            if dtype is None or isinstance(content, np.ndarray)
            else np.asarray(content, dtype.numpy())
        )
        return self.legalizer.constant(array)


def dims_of(value: ir.Value) -> list[Any]:
    """The dimensions of a value: ints, and symbolic ones."""
    assert value.shape is not None, value
    return list(value.shape)


def dtype_of(value: ir.Value) -> ir.DataType:
    """The dtype of a value."""
    assert value.dtype is not None, value
    return value.dtype


def new_node(
    op: str,
    inputs: Sequence[ir.Value | None],
    output: ir.Value,
    like: ir.Node,
    attributes: dict[str, Any] | None = None,
) -> ir.Node:
    """A new node in the place of `like`: it keeps the named scope and the provenance."""
    scope, slash, _ = (like.name or "").rpartition("/")
    return ir.Node(
        "",
        op,
        inputs,
        ir.convenience.convert_attributes(attributes or {}),
        outputs=[output],
        name=f"{scope}{slash}{op}",
        metadata_props=dict(like.metadata_props),
    )


def graph_of(node: ir.Node) -> ir.Graph:
    assert node.graph is not None, node
    return node.graph
