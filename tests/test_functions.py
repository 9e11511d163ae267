"""ONNX functions: marked calls and the module tree."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from jax.extend.core import ClosedJaxpr

from jax2onnx import InputError, onnx_function, to_onnx
from tests.helpers import check, check_run

X = np.random.default_rng(0).normal(size=(2, 5, 4)).astype(np.float32)


def calls(model) -> list[str]:
    return [node.op_type for node in model.graph.node]


def functions(model) -> dict[str, list[str]]:
    return {f.name: [n.op_type for n in f.node if n.op_type != "Constant"] for f in model.functions}


@onnx_function
def twice(x):
    return x + x


@onnx_function(name="shifted", namespace="own")
def shift(x, by, *, negate=False):
    return x - by if negate else x + by


def test_each_call_is_a_function():
    model = check(lambda x: twice(twice(jnp.sin(x))), X)
    assert calls(model) == ["Sin", "twice", "twice_2"]
    assert list(functions(model).values()) == [["Add"], ["Add"]]


def test_name_and_namespace():
    model = check(lambda x: shift(x, 2 * x, negate=True), X)
    assert [(f.domain, f.name) for f in model.functions] == [("own", "shifted")]


@onnx_function(unique=True)
class Block(nnx.Module):
    def __init__(self, seed):
        self.linear = nnx.Linear(4, 4, rngs=nnx.Rngs(seed))
        self.norm = nnx.LayerNorm(4, rngs=nnx.Rngs(seed))

    def __call__(self, x):
        return x + nnx.gelu(self.linear(self.norm(x))) * jnp.arange(x.shape[1], dtype=x.dtype)[:, None]


class Network(nnx.Module):
    def __init__(self):
        self.blocks = nnx.List([Block(i) for i in range(3)])

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize("options", [{"namespace": "com.microsoft"}, {"namespace": "ai.onnx"}, {"name": "a:b"}])
def test_names_that_would_be_read_as_others(options):
    with pytest.raises(InputError, match=next(iter(options))):
        onnx_function(lambda x: jnp.sin(x), **{"name": "Gelu", **options})


def test_results_that_are_no_arrays_stay_as_they_are():
    @onnx_function
    def fn(x):
        return x.shape[0], {"text": "a", "number": 2.0, "none": None, "sin": jnp.sin(x)}

    def whole(x):
        size, results = fn(x)
        assert results["text"] == "a"
        assert results["none"] is None
        return results["sin"] * results["number"] + jnp.arange(size, dtype=x.dtype)

    x = np.linspace(0, 1, 5, dtype=np.float32)
    for transformed in (whole, jax.grad(lambda x: whole(x).sum())):
        assert "fn" in [node.op_type for node in check(transformed, x, dims=[("B",)]).graph.node]
    check(jax.vmap(whole), x[None], dims=[("B", "T")])


def test_equal_calls_share_a_body_and_pass_their_weights():
    model = check(Network(), X, dims=[("B", "T", 4)], rtol=1e-5, atol=1e-5)
    assert calls(model) == ["Block"] * 3
    assert len(model.functions) == 1
    assert "blocks/2/linear/kernel" in [i.name for i in model.graph.initializer]
    check_run(model, Network(), X[:1, :3], rtol=1e-5, atol=1e-5)


def test_functions_with_control_flow():
    @onnx_function
    def running(x):
        return jax.lax.scan(lambda c, a: (c + a, c * a), jnp.zeros(x.shape[1:]), x)[1]

    model = check(lambda x: running(x) + 1, X)
    assert calls(model) == ["running", "Add"]


def test_transformations_of_marked_calls():
    check(lambda x: jax.grad(lambda y: (twice(y) ** 2).sum())(x), X)
    check(lambda x: jax.vmap(twice)(x), X)


class LinenBlock(linen.Module):
    @linen.compact
    def __call__(self, x):
        return x + linen.gelu(linen.Dense(4)(linen.LayerNorm()(x)))


class LinenNetwork(linen.Module):
    @linen.compact
    def __call__(self, x):
        for _ in range(3):
            x = LinenBlock()(x)
        return linen.Dense(2)(x)


def test_modules_become_functions():
    network = LinenNetwork()
    variables = network.init(jax.random.key(0), X)
    model = to_onnx((network, variables), [("B", "T", 4)], functions="modules")
    plain = to_onnx((network, variables), [("B", "T", 4)])
    assert functions(model)["LinenBlock"] == ["LayerNorm", "Dense", "Gelu", "Add"]
    assert functions(model)["LinenNetwork"][:3] == ["LinenBlock"] * 3
    assert plain.graph.node[0].name == "LinenNetwork/LinenBlock_0/LayerNorm_0/LayerNormalization"
    for exported in (model, plain):
        check_run(exported, lambda x: network.apply(variables, x), X, rtol=1e-5, atol=1e-5)


def test_modules_that_differ_in_what_compiled_functions_inside_hold_on_to():
    def compiled(weights):
        return jax.jit(lambda x: jnp.tanh(x @ weights) + 1)

    draw = np.random.default_rng(1)
    weights = [draw.normal(size=(4, 4)).astype(np.float32) for _ in range(2)]
    layers = [compiled(w) for w in (*weights, weights[0].copy())]

    def network(x):
        for i, layer in enumerate(layers):
            with jax.named_scope(f"layer_{i}"):
                x = layer(x) * jnp.cos(x)
        return x

    model = check(network, X, functions="modules")
    assert calls(model) == ["layer", "layer_2", "layer"]
    marked = [onnx_function(layer, unique=True, name="marked") for layer in layers]
    model = check(lambda x: marked[2](marked[1](marked[0](x))), X)
    assert calls(model) == ["marked", "marked_2", "marked"]


def test_one_jaxpr_with_several_constants():
    """Modules and repeated layers that call the same jaxpr differ in the constants that it is closed over with."""
    (call,) = jax.make_jaxpr(jax.jit(lambda x: jnp.tanh(x @ np.eye(4, dtype=np.float32)) + 1))(X[0]).eqns
    weights = np.random.default_rng(2).normal(size=(3, 4, 4)).astype(np.float32)
    bodies = [ClosedJaxpr(call.params["jaxpr"].jaxpr, [w]) for w in weights]

    def network(x, layers):
        for i in layers:
            with jax.named_scope(f"layer_{i}"):
                (x,) = call.primitive.bind(x, **call.params | {"jaxpr": bodies[i]})
                x = jnp.cos(x) * jnp.exp(-x * x) + jnp.sin(x)
        return x

    check(lambda x: network(x, range(3)), X[0], functions="modules")
    check(lambda x: network(x, [i % 3 for i in range(30)] + [0] * 10), X[0], rtol=1e-3)


def test_a_formula_is_no_module():
    """`jnp.einsum` opens a scope that is named by it, in which attention would not be seen as a whole."""
    layer = nnx.MultiHeadAttention(2, 4, rngs=nnx.Rngs(0), decode=False)
    model = check(layer, X, functions="modules", opset=23, rtol=1e-5, atol=1e-5)
    assert set(functions(model)) == {"query", "key", "value", "out"}
    assert "Attention" in calls(model) and "Softmax" not in calls(model)
