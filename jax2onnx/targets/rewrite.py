"""The legalizing pass: a node that the runtime has no kernel for is computed in another dtype or by other operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from jax2onnx.errors import UNKNOWN_LINE, UnsupportedError
from jax2onnx.graphs import DOMAIN, bodies, is_used
from jax2onnx.naming import NAME, SOURCE
from jax2onnx.targets.carriers import INT64, MODE, MODE_DEFAULT
from jax2onnx.targets.emitter import Emitter, graph_of, new_node
from jax2onnx.targets.plans import CONTROL_FLOW, EXEMPT, FUNCTIONS, Plan, no_kernel, plan_for

FOLD_BYTES = 1024
"""Constants up to this size are cast while exporting; for larger ones the file holds the original and a Cast."""


class Legalizer:
    """Rewrites one graph, with all graphs inside it, for one target. `root` is the main graph or a function of `model`.

    `functions` are those that were made for expansions, by what they compute; `expanding` if `root` is one of them.
    """

    def __init__(
        self,
        target: str,
        model: ir.Model,
        root: ir.Graph | ir.Function,
        functions: dict[Any, ir.Function],
        *,
        expanding: bool = False,
    ):
        self.target = target
        self.model = model
        self.root = root
        self.functions = functions
        self.expanding = expanding
        self.opset = root.opset_imports.get("", 0)
        # What Cast(value, to=dtype) gives, for all casts known so far. They stand next to the value's producer, so they
        # can be used wherever the value can.
        self.images: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}
        self.constants: dict[Any, ir.Value] = {}
        self.back_casts: list[ir.Node] = []

    def run(self) -> None:
        """Legalize all nodes."""
        self._visit_graph(self.root)
        self._drop_unused()

    def _visit_graph(self, graph: ir.Graph | ir.Function) -> None:
        for node in graph:
            if node.domain == "":
                try:
                    self.visit(node)
                except UnsupportedError as error:
                    raise error.at(node.metadata_props.get(SOURCE, UNKNOWN_LINE)) from None
            for body in bodies(node):
                self._visit_graph(body)

    def visit(self, node: ir.Node) -> Sequence[ir.Value]:
        """Legalize one node, and return the values that now stand for its outputs."""
        op = node.op_type
        mode = _mode(node) if op in MODE else ""
        inputs = tuple([None if v is None else v.dtype for v in node.inputs])
        try:
            plan = plan_for(self.target, op, mode, self.opset, inputs, tuple([v.dtype for v in node.outputs]))
        except UnsupportedError as error:
            raise UnsupportedError(f"{error} The node is {node.name or op!r}.") from None
        if plan is None:
            return self._reuse_cast(node) if op == "Cast" and self.images else node.outputs
        if plan.expansion is None:
            return self._carry(node, plan)
        if plan.expansion in EXEMPT and EXEMPT[plan.expansion](node):
            return node.outputs
        if plan.expansion in FUNCTIONS and not self.expanding:
            results: Sequence[ir.Value] | None = self._call(node)
        else:
            results = plan.expansion(Emitter(self, node), node)
        if results is None:
            if not plan.runs:
                raise no_kernel(self.target, op, self.opset, [*inputs, *[v.dtype for v in node.outputs]])
            return node.outputs
        for old, new in zip(node.outputs, results, strict=True):
            _replace(old, new)
        graph_of(node).remove(node, safe=True)
        return results

    # ------------------------------------------------------------------------------------------------- functions

    def _call(self, node: ir.Node) -> Sequence[ir.Value]:
        """Call a function that computes what the node computes, before it. Equal nodes share it."""
        operands = [v for v in node.inputs if v is not None and not _is_parameter(v)]
        types = tuple(
            None if v is None else _content(v) if _is_parameter(v) else (v.dtype, str(v.shape)) for v in node.inputs
        )
        attributes = tuple(sorted((name, str(a.value)) for name, a in node.attributes.items()))
        key = (node.op_type, len(node.outputs), types, attributes)
        if key not in self.functions:
            self.functions[key] = self._function(node)
        function = self.functions[key]
        self.root.opset_imports.setdefault(function.domain, 1)
        self.model.graph.opset_imports.setdefault(function.domain, 1)
        results = [ir.Value(shape=v.shape, type=v.type) for v in node.outputs]
        call = ir.Node(function.domain, function.name, operands, outputs=results, name=node.name)
        call.metadata_props.update(node.metadata_props)
        graph_of(node).insert_before(node, call)
        return results

    def _function(self, node: ir.Node) -> ir.Function:
        """A function of the model that computes what the node computes, for this target."""
        inner = [
            None if v is None else ir.Value(name=f"input_{i}", shape=v.shape, type=v.type)
            for i, v in enumerate(node.inputs)
        ]
        known = [
            ir.Node("", "Constant", [], [ir.AttrTensor("value", v.const_value)], outputs=[copy])
            for v, copy in zip(node.inputs, inner, strict=True)
            if v is not None and copy is not None and _is_parameter(v)
        ]
        for constant in known:
            constant.outputs[0].const_value = constant.attributes["value"].as_tensor()
        results = [ir.Value(name=f"output_{i}", shape=v.shape, type=v.type) for i, v in enumerate(node.outputs)]
        body = ir.Node("", node.op_type, inner, list(node.attributes.values()), outputs=results)
        inputs = [v for v in inner if v is not None and v.producer() is None]
        graph = ir.Graph(inputs, results, nodes=[*known, body], opset_imports={"": self.opset})
        taken = {name for domain, name, _ in self.model.functions if domain == DOMAIN}
        name = node.op_type
        while name in taken:
            name = f"{node.op_type}_{len(taken) + 1}" if name == node.op_type else f"{name}_"
        function = ir.Function(DOMAIN, name, graph=graph, attributes=[])
        self.model.functions[function.identifier()] = function
        Legalizer(self.target, self.model, function, self.functions, expanding=True).run()
        return function

    # ---------------------------------------------------------------------------------------------------- casts

    def _carry(self, node: ir.Node, plan: Plan) -> Sequence[ir.Value]:
        """Compute `node` in the dtypes of the plan."""
        if node.op_type in CONTROL_FLOW:
            self._carry_into_bodies(node, plan)
        before = Emitter(self, node)
        for i, dtype in plan.inputs:
            image = self.image(before.operands[i], dtype)
            if plan.flip:
                image = before.Add(image, before.const(TOP_BIT), shape=image.shape)
            node.replace_input_with(i, image)
        results = list(node.outputs)
        for i, dtype in plan.outputs:
            wide = node.outputs[i]
            narrow = ir.Value(shape=wide.shape, type=wide.type)
            _replace(wide, narrow)
            wide.type = ir.TensorType(dtype)
            source, last = wide, node
            if plan.flip:
                source = ir.Value(shape=wide.shape, type=wide.type)
                last = _insert_after(node, new_node("Add", [wide, before.const(TOP_BIT)], source, node))
            back = _insert_after(last, _cast(source, narrow, node))
            self.back_casts.append(back)
            results[i] = narrow
            if plan.exact:
                self.images[narrow, dtype] = wide
            elif "saturate" in back.attributes:
                (results[i],) = self.visit(back)
        if plan.outputs and node.op_type == "EyeLike":
            node.attributes["dtype"] = ir.AttrInt64("dtype", int(plan.outputs[0][1]))
        return results

    def _carry_into_bodies(self, node: ir.Node, plan: Plan) -> None:
        """Let the bodies of a node take and give values in the dtypes of the plan."""
        for body in bodies(node):
            for i, dtype in plan.inputs:
                wide = body.inputs[i]
                narrow = ir.Value(shape=wide.shape, type=wide.type)
                wide.replace_all_uses_with(narrow, replace_graph_outputs=True)
                wide.type = ir.TensorType(dtype)
                back = _cast(wide, narrow, body[0])
                body.insert_before(body[0], back)
                self.back_casts.append(back)
                self.images[narrow, dtype] = wide
            for i, dtype in plan.outputs:
                place = i + CONTROL_FLOW[node.op_type]
                body.outputs[place] = self.image(body.outputs[place], dtype)

    def image(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """`value` cast to `dtype`. The cast stands right after the value itself: outside of loops that only use it."""
        known = self.images.get((value, dtype))
        if known is not None:
            return known
        content = value.const_value
        if value.is_initializer() and content is not None and content.nbytes <= FOLD_BYTES:
            image = self.constant(content.numpy().astype(dtype.numpy()), value.meta.get(NAME))
        else:
            image = ir.Value(shape=value.shape, type=ir.TensorType(dtype))
            producer = value.producer()
            if producer is not None:
                _insert_after(producer, _cast(value, image, producer))
            else:
                graph = value.graph
                assert graph is not None, value
                graph.insert_before(graph[0], _cast(value, image, graph[0]))
        self.images[value, dtype] = image
        return image

    def _reuse_cast(self, node: ir.Node) -> Sequence[ir.Value]:
        """Drop a Cast whose result is already there."""
        source, result = node.inputs[0], node.outputs[0]
        assert source is not None
        image = self.images.get((source, ir.DataType(node.attributes.get_int("to"))))
        if image is None or image is result or result.is_graph_output() or "saturate" in node.attributes:
            return node.outputs
        result.replace_all_uses_with(image)
        graph_of(node).remove(node, safe=True)
        return [image]

    def constant(self, array: np.ndarray, name: str | None = None) -> ir.Value:
        """A known array: an initializer of the main graph; in a function body, the result of a Constant node.

        `name` is the name that it has in the program.
        """
        key = (array.dtype, array.shape, array.tobytes())
        if key in self.constants:
            return self.constants[key]
        tensor = ir.Tensor(array)
        value = ir.Value(shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
        if isinstance(self.root, ir.Graph):
            taken = {v.name for v in (*self.root.inputs, *self.root.outputs)}
            value.name = f"legal_{len(self.constants)}"
            while value.name in taken or value.name in self.root.initializers:
                value.name += "_"
            if name is not None:
                value.meta[NAME] = name
            self.root.register_initializer(value)
        else:
            node = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], outputs=[value])
            self.root.insert_before(self.root[0], node)
        self.constants[key] = value
        return value

    def _drop_unused(self) -> None:
        """Remove the casts back that nobody uses, and the constants that were replaced by their images."""
        for node in self.back_casts:
            if node.graph is not None and not is_used(node.outputs[0]):
                node.graph.remove(node, safe=True)
        for value, _ in self.images:
            if value.is_initializer() and not value.is_graph_input() and not is_used(value):
                graph, name = value.graph, value.name
                assert graph is not None
                assert name is not None
                graph.initializers.pop(name, None)


def _is_parameter(value: ir.Value) -> bool:
    """Is a value rather part of an operation than data: known integers such as axes?"""
    content = value.const_value
    return content is not None and content.dtype == INT64 and content.size <= 16


def _content(value: ir.Value) -> Any:
    assert value.const_value is not None
    return value.const_value.numpy().tobytes(), str(value.shape)


TOP_BIT = np.array(-(2**63))


def _mode(node: ir.Node) -> str:
    """What the node does, as its attribute says."""
    name = MODE[node.op_type]
    attribute = node.attributes.get(name)
    return MODE_DEFAULT.get(name, "") if attribute is None else str(attribute.value)


def _cast(value: ir.Value, result: ir.Value, like: ir.Node) -> ir.Node:
    """The Cast from `value` to `result`. JAX never saturates; ONNX by default does, for float8 only."""
    attributes: dict[str, Any] = {"to": int(result.dtype or 0)}
    if (result.dtype or ir.DataType.FLOAT).name.startswith("FLOAT8"):
        attributes["saturate"] = 0
    return new_node("Cast", [value], result, like, attributes)


def _insert_after(place: ir.Node, node: ir.Node) -> ir.Node:
    graph_of(place).insert_after(place, node)
    return node


def _replace(old: ir.Value, new: ir.Value) -> None:
    """Let `new` stand for `old` everywhere, also as a graph output; it takes over the name."""
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    new.name = old.name
    old.name = f"{old.name}_wide"
