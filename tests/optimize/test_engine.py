"""The rewriter: which rules are asked of which nodes."""

from __future__ import annotations

import onnx_ir as ir

from jax2onnx.optimize.engine import Rewriter, RuleSet, first


def chain(*op_types: str) -> ir.Model:
    """A model that applies these operators one after the other."""
    x = ir.Value(name="x", shape=ir.Shape([2]), type=ir.TensorType(ir.DataType.FLOAT))
    nodes, value = [], x
    for op_type in op_types:
        nodes.append(ir.Node("", op_type, [value]))
        value = nodes[-1].outputs[0]
        value.shape, value.type = x.shape, x.type
    return ir.Model(ir.Graph([x], [value], nodes=nodes, opset_imports={"": 23}), ir_version=10)


def names(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def test_a_rule_is_asked_where_it_may_apply() -> None:
    """Not where another operator comes before the node, nor in a model without an operator that it needs."""
    rules, asked = RuleSet(), []

    @rules.rewrites("Tanh", given=first("Exp"))
    def behind(r: Rewriter, node: ir.Node) -> None:
        asked.append("behind")

    @rules.rewrites("Tanh", needs=("Sin", "Cos"))
    def with_an_angle(r: Rewriter, node: ir.Node) -> None:
        asked.append("with_an_angle")

    for op_types, expected in (
        (("Neg", "Tanh"), []),
        (("Exp", "Tanh"), ["behind"]),
        (("Cos", "Neg", "Tanh"), ["with_an_angle"]),
        (("Exp", "Tanh", "Sin"), ["behind", "with_an_angle"]),
    ):
        asked.clear()
        Rewriter(chain(*op_types), [rules]).run()
        assert asked == expected


def test_a_rule_is_asked_once_another_has_made_what_it_needs() -> None:
    rules = RuleSet()

    @rules.rewrites("Tanh", needs=("Sin",))
    def simplify(r: Rewriter, node: ir.Node) -> ir.Value:
        return r.op("Abs", node.inputs[0], like=node.outputs[0])

    @rules.rewrites("Exp")
    def make(r: Rewriter, node: ir.Node) -> ir.Value:
        return r.op("Sin", node.inputs[0], like=node.outputs[0])

    model = chain("Tanh", "Exp", "Tanh")
    Rewriter(model, [rules]).run()
    assert names(model) == ["Abs", "Sin", "Abs"]
