"""The rewriter: which rules are asked of which nodes."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import time
from collections import Counter
from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from jax2onnx import optimize, to_onnx
from jax2onnx.attributes import attributes_of, values_of
from jax2onnx.graphs import detach, use_instead
from jax2onnx.optimize import integers, simplify
from jax2onnx.optimize.engine import Rewriter, RuleSet, first
from jax2onnx.optimize.rule_sets import Rule


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


def test_settled_rules_are_asked_once_something_has_changed() -> None:
    settled, others, asked = RuleSet(), RuleSet(), []

    @settled.rewrites("Tanh")
    def ask(r: Rewriter, node: ir.Node) -> None:
        asked.append(node.outputs[0].uses()[0].node.op_type)

    @others.rewrites("Exp")
    def make(r: Rewriter, node: ir.Node) -> ir.Value:
        return r.op("Sin", node.inputs[0], like=node.outputs[0])

    Rewriter(chain("Tanh", "Cos", "Tanh", "Neg"), [settled, others], settled=[settled]).run()
    assert asked == []
    Rewriter(chain("Tanh", "Cos", "Exp", "Tanh", "Neg"), [settled, others], settled=[settled]).run()
    assert asked == ["Neg"]  # not what came before the change, and is not next to it


def test_rules_that_have_nothing_to_do_are_asked_once_each() -> None:
    """However many rounds follow, with more rules each: nothing changes between them."""
    asked: list[str] = []

    def noting(rule: Rule) -> Rule:
        @functools.wraps(rule)
        def noted(r: Rewriter, node: ir.Node) -> Any:
            asked.append(rule.__name__)
            return rule(r, node)

        return noted

    def noted(rule_set: RuleSet) -> RuleSet:
        copy = RuleSet()
        copy.by_op = {op: [r._replace(rule=noting(r.rule)) for r in rules] for op, rules in rule_set.by_op.items()}
        return copy

    model = to_onnx(lambda x: jnp.sin(x) * 1.5 + x, [(2,)], return_mode="ir")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("TIDY", "MOVE", "RECOGNISE"):
            patch.setattr(optimize, name, [noted(rule_set) for rule_set in getattr(optimize, name)])
        optimize.optimize(model)
    assert asked and len(asked) == len(set(asked))


def test_all_inputs_of_a_wide_node_are_replaced_in_linear_time() -> None:
    old, new = (ir.Value(name=n, shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.FLOAT)) for n in "ab")
    node = ir.Node("", "Concat", [old] * 50_000, [ir.AttrInt64("axis", 0)])
    start = time.process_time()
    use_instead(old.uses(), new)
    assert not old.uses() and len(new.uses()) == 50_000 and set(node.inputs) == {new}
    detach(node)
    assert not new.uses() and set(node.inputs) == {None}
    assert time.process_time() - start < 5  # one by one, they take minutes


def test_a_node_is_given_the_attributes_of_another_as_they_are() -> None:
    model = chain("Exp")
    (exp,) = model.graph
    exp.attributes.add(ir.AttrInt64s("axes", [1, 2]))
    rules = RuleSet()

    @rules.rewrites("Exp")
    def replaced(r: Rewriter, node: ir.Node) -> ir.Value:
        return r.op("Sin", node.inputs[0], like=node.outputs[0], **attributes_of(node), keepdims=0)

    Rewriter(model, [rules]).run()
    (sin,) = model.graph
    assert sin.attributes["axes"] is exp.attributes["axes"] and values_of(sin) == {"axes": (1, 2), "keepdims": 0}


def test_functions_do_not_see_constants_of_the_main_graph() -> None:
    """Not even those that are equal to their own."""
    main, function = chain("Exp"), chain("Exp").graph
    body = ir.Function("test", "f", graph=function, attributes=[])
    model = ir.Model(main.graph, ir_version=10, functions=[body])
    rules = RuleSet()

    @rules.rewrites("Exp")
    def doubled(r: Rewriter, node: ir.Node) -> ir.Value:
        return r.op("Add", node.inputs[0], r.const([1, 2], np.float32), like=node.outputs[0])

    Rewriter(model, [rules]).run()
    assert names(model) == ["Add"] and len(model.graph.initializers) == 1
    assert [node.op_type for node in body] == ["Constant", "Add"]


def test_no_two_rules_have_the_same_name() -> None:
    """What they did is counted by their names."""
    modules = [importlib.import_module(m.name) for m in pkgutil.iter_modules(optimize.__path__, "jax2onnx.optimize.")]
    sets = [found for module in modules for found in vars(module).values() if isinstance(found, RuleSet)]
    rules = {registered.rule for rule_set in sets for of_op in rule_set.by_op.values() for registered in of_op}
    names = Counter(rule.__name__ for rule in rules)
    assert len(names) > 100 and {name for name, count in names.items() if count > 1} == set()


@pytest.mark.parametrize(
    ("text", "rules", "shape"),
    [
        ("y = Expand(x, a) z = Expand(y, b)", simplify.RULES, "3, 2, 9000"),  # a 1 in b is what y has there
        ("w = Cast<to=2>(x) y = Cast<to=6>(w) z = Mod(y, c)", integers.LAST, "1, 9000"),  # of negative divisors
    ],
)
def test_operands_that_no_lowering_writes(text: str, rules: RuleSet, shape: str) -> None:
    """Other rules may."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 23]> g (int32[1, 9000] x) => (int32[{shape}] z)
        <int64[2] a = {{2, 9000}}, int64[3] b = {{3, 1, 9000}}, int32 c = {{-7}}> {{ {text} }}"""
    )
    rewritten = ir.from_proto(onnx.shape_inference.infer_shapes(model))
    Rewriter(rewritten, [rules]).run()
    x = np.arange(9000, dtype=np.int32)[None]
    sessions = [onnxruntime.InferenceSession(m.SerializeToString()) for m in (model, ir.to_proto(rewritten))]
    want, got = (session.run(None, {"x": x})[0] for session in sessions)
    np.testing.assert_array_equal(got, want)
