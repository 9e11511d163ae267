"""Attention becomes one node, as each library writes it: the operator or, with a mask, a function around it."""

from __future__ import annotations

import functools
from typing import Any

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from flax import nnx

from jax2onnx.opsets import newest
from tests.helpers import check, check_run, quick

B, T, H, D = 3, 6, 2, 4


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


X = normal(B, T, H * D)
HARD = X.copy()
HARD[0, 2, 3], HARD[1, 1, :2] = np.nan, [np.inf, -1e30]
Q, K, V = (normal(B, n, H, D, seed=n) for n in (T, 5, 5))


def ops(model) -> list[str]:
    return [node.op_type for node in model.graph.node]


def of_nnx() -> Any:
    graph, state = nnx.split(nnx.MultiHeadAttention(H, H * D, decode=False, rngs=nnx.Rngs(0)))
    return lambda x: nnx.merge(graph, state)(x)


def of_linen() -> Any:
    module = nn.MultiHeadDotProductAttention(H)
    variables = module.init(jax.random.key(0), X)
    return lambda x: module.apply(variables, x)


def of_haiku() -> Any:
    run = lambda x: hk.MultiHeadAttention(H, D, w_init=hk.initializers.RandomNormal())(x, x, x)  # noqa: E731
    transformed = hk.without_apply_rng(hk.transform(run))
    weights = transformed.init(jax.random.key(0), X)
    return lambda x: transformed.apply(weights, x)


def of_keras() -> Any:
    layer = keras.layers.MultiHeadAttention(H, D)
    layer.build(X.shape, X.shape)
    return lambda x: layer(x, x)


def of_equinox() -> Any:
    layer = eqx.nn.MultiheadAttention(H, H * D, key=jax.random.key(0))
    return jax.vmap(lambda x: layer(x, x, x))


def by_hand(x: Any) -> Any:
    q, k, v = (a.reshape(B, T, H, D) for a in jnp.split(x @ normal(H * D, 3 * H * D), 3, -1))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(jnp.float32(3))
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v).reshape(B, T, H * D)


LAYERS = {
    "nnx": (of_nnx, 9),
    "linen": (of_linen, 9),
    "haiku": (of_haiku, 9),
    "keras": (of_keras, 9),
    "equinox": (of_equinox, 5),
    "by hand": (lambda: by_hand, 3),
}


@pytest.mark.parametrize("name", quick(list(LAYERS)[::2], LAYERS))
def test_layer(name):
    make, count = LAYERS[name]
    layer = make()
    model = check(layer, X)
    assert ops(model).count("Attention") == 1
    assert len(ops(model)) == count
    check_run(model, layer, HARD)


def attend(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.dot_product_attention(q, k, v, scale=0.3)


def test_keys_of_another_number_than_queries():
    assert ops(check(attend, Q, K, V)) == ["Reshape", "Reshape", "Reshape", "Attention", "Reshape"]


def apart(qkv: Any) -> tuple[Any, Any, Any]:
    parts = qkv.reshape(*qkv.shape[:2], 3, H, D)
    return parts[:, :, 0], parts[:, :, 1], parts[:, :, -1]


def heads_in_front(qkv: Any) -> tuple[Any, Any, Any]:
    q, k, v = qkv.reshape(*qkv.shape[:2], 3, H, D).transpose(2, 0, 3, 1, 4)
    return tuple(x.transpose(0, 2, 1, 3) for x in (q, k, v))


def in_front(qkv: Any) -> tuple[Any, Any, Any]:
    q, k, v = qkv.reshape(*qkv.shape[:2], 3, H, D).transpose(2, 0, 1, 3, 4)
    return q, k, v


@pytest.mark.parametrize("dims", [None, [("B", "T", H * D)]])
@pytest.mark.parametrize("split", [apart, heads_in_front, in_front])
def test_queries_keys_and_values_of_one_product(split, dims):
    weights = normal(H * D, 3 * H * D, seed=7)

    def layer(x: Any) -> Any:
        return attend(*split(x @ weights)).reshape(x.shape)

    model = check(layer, X, dims=dims, rtol=1e-5, atol=1e-5)
    found = [*ops(model), *(n.op_type for node in model.graph.node for a in node.attribute for n in a.g.node)]
    assert found.count("Split") == 1 and found.count("Attention") == 1 and "Slice" not in found
    assert not {"Transpose", "Gather", "Reshape"} & set(found)


def test_what_is_picked_and_joined_otherwise():
    """A group that is not of the last columns, groups that are joined with others, and one that is used twice."""

    def fn(x: Any) -> Any:
        groups = x.reshape(B, T, 2, 2, 2)
        return (
            groups[:, :, 1].reshape(B, T * 4),
            groups[:, 1].reshape(B, 8),
            groups[:, :, 0].reshape(B, T, 4),
            groups[1],
        )

    check(fn, X)
    check(lambda x: tuple(x.reshape(B, T, 2, 4).transpose(2, 1, 0, 3)[i] for i in (0, 1, 1)), X)
    check(lambda x: (y := x.reshape(B, T, 2, 4).transpose(2, 1, 0, 3), y[0], y[1]), X)
    check(lambda x: (y := x.reshape(B, T, 2, 4).transpose(2, 1, 0, 3))[0].sum() + y[:, 1].sum(), X, rtol=1e-5)


def weights_too(q: Any, k: Any, v: Any) -> Any:
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), -1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v), weights


def over_queries(q: Any, k: Any, v: Any) -> Any:
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), -2)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def scaled_by_head(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * np.float32([0.5, 2]).reshape(1, H, 1, 1)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)


@pytest.mark.parametrize("fn", [weights_too, over_queries, scaled_by_head])
def test_others_stay_plain(fn):
    assert "Attention" not in ops(check(fn, Q, K, V))


@pytest.mark.parametrize("scale", [-0.5, -1, 0])
def test_scores_that_are_turned_around_stay_plain(scale):
    model = check(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, scale=scale), Q, K, V)
    assert "Attention" not in ops(model)
    assert not check(lambda x: causal(x, scale=scale), X).functions


def causal(x: Any, fill: float = -1e9, scale: float = 0.5) -> Any:
    q, k, v = (a.reshape(*x.shape[:2], H, D) for a in jnp.split(x @ normal(H * D, 3 * H * D), 3, -1))
    scores = jnp.where(jnp.tri(x.shape[1], dtype=bool), jnp.einsum("bqhd,bkhd->bhqk", q, k) * scale, fill)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v).reshape(x.shape)


def causal_nnx(x: Any) -> Any:
    return nnx.MultiHeadAttention(H, H * D, decode=False, rngs=nnx.Rngs(0))(x, mask=nnx.make_causal_mask(x[..., 0]))


@functools.cache
def weights_of(library: str) -> Any:
    """Drawn once, not by each program."""
    with jax.ensure_compile_time_eval():
        if library == "equinox":
            return eqx.nn.MultiheadAttention(H, H * D, key=jax.random.key(0))
        return nn.MultiHeadDotProductAttention(H).init(jax.random.key(0), X)


def causal_linen(x: Any) -> Any:
    module = nn.MultiHeadDotProductAttention(H)
    return module.apply(weights_of("linen"), x, mask=nn.make_causal_mask(x[..., 0]))


def causal_keras(x: Any) -> Any:
    layer = keras.layers.MultiHeadAttention(H, D, kernel_initializer=keras.initializers.GlorotUniform(0))
    layer.build(X.shape, X.shape)
    return layer(x, x, use_causal_mask=True)


def causal_equinox(x: Any) -> Any:
    layer = weights_of("equinox")
    return jax.vmap(lambda x: layer(x, x, x, mask=jnp.tri(x.shape[0], dtype=bool)))(x)


def causal_jax(x: Any) -> Any:
    heads = x.reshape(*x.shape[:2], H, D)
    return jax.nn.dot_product_attention(heads, heads * 2, heads - 1, is_causal=True)


CAUSAL = [causal, causal_nnx, causal_linen, causal_keras, causal_equinox, causal_jax]


@pytest.mark.parametrize("dims", [None, [("B", T, H * D)], [("B", "T", H * D)]])
@pytest.mark.parametrize("layer", quick(CAUSAL[::2], CAUSAL))
def test_causal_attention(layer, dims):
    """A score that is masked does not matter, even if it is NaN or infinite. Empty arrays are not attended to."""
    model = check(layer, X, dims=dims, rtol=1e-5, atol=1e-6)
    assert ops(model).count("CausalAttention") == 1 and "Softmax" not in ops(model)
    overflowing = X.copy()
    overflowing[:, -1] = 3e38
    for x in (HARD, overflowing, 0 * X, *([X[:0], X[:1], X[:, :1], X[:, :0]][: 2 * len(dims or [])])):
        check_run(model, layer, x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fill", [-np.inf, float(np.finfo(np.float32).min), -1e4])
def test_scores_that_are_below_those_that_are_masked(fill):
    """Then the latter count. (Where all that is not masked is -inf, the result is NaN.)"""
    model = check(lambda x: causal(x, fill), X, rtol=1e-5, atol=1e-6)
    assert ops(model).count("CausalAttention") == 1
    for size in (30, 300, 1e5, 1e18, 1e19):
        x = X * np.float32(size)
        x[0, 0, 0] = -x[0, 0, 0]
        check_run(model, lambda x: causal(x, fill), x, rtol=1e-4, atol=1e-5)


def test_layers_share_a_function():
    def fn(x: Any) -> Any:
        for _ in range(3):
            x = x + causal(x + causal(x, -1e9), -1e8)
        return x

    model = check(fn, X, rtol=1e-4, atol=1e-5)
    assert sorted({o for o in ops(model) if "Attention" in o}) == ["CausalAttention", "CausalAttention_2"]
    assert len(model.functions) == 2


def attend_to(x: Any, mask: Any, fill: float = float(np.finfo(np.float32).min), inverse: bool = False) -> Any:
    q, k, v = (a.reshape(*x.shape[:2], H, D) for a in jnp.split(x @ normal(H * D, 3 * H * D), 3, -1))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.5
    scores = jnp.where(mask, fill, scores) if inverse else jnp.where(mask, scores, fill)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v).reshape(x.shape)


def some(*shape: int) -> np.ndarray:
    """A mask with all kinds of rows: nothing, everything, and something in between."""
    mask = np.random.default_rng(5).random(shape) > 0.4
    mask[:, :, 0] = False
    mask[..., -1, :] = True
    return mask


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("shape", [(B, 1, T, T), (B, 1, 1, T), (1, H, T, T), (B, H, T, T), (1, 1, T, 1)])
def test_masked_attention(shape, inverse):
    """A score that is masked does not matter; where all are, all values matter alike."""

    def fn(x: Any, mask: Any) -> Any:
        return attend_to(x, mask, inverse=inverse)

    mask = some(*shape)
    model = check(fn, X, mask, rtol=1e-5, atol=1e-6)
    assert ops(model).count("MaskedAttention") == 1 and "Softmax" not in ops(model)
    overflowing = X.copy()
    overflowing[:, -1] = 3e38
    nothing = mask & False
    for x, m in ((HARD, mask), (HARD, ~mask), (overflowing, mask), (0 * X, ~mask), (1e4 * X, ~mask), (X, nothing)):
        check_run(model, fn, x, m, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", [("B", 1, 1, "T"), ("B", 1, "T", "T")])
def test_masked_attention_of_sizes_that_vary(shape):
    mask = some(B, 1, T if shape[2] == "T" else 1, T)
    model = check(attend_to, X, mask, dims=[("B", "T", H * D), shape], rtol=1e-5, atol=1e-6)
    assert ops(model).count("MaskedAttention") == 1
    for n, m in ((0, T), (2, 0), (1, 1), (2, 3)):
        check_run(model, attend_to, X[:n, :m], mask[:n, :, : m if shape[2] == "T" else 1, :m], rtol=1e-5, atol=1e-6)


def test_known_masks():
    for mask in (np.tri(T, k=1), np.tri(T, k=-1), np.tri(T).T, np.arange(T) > 2):
        model = check(lambda x, mask=mask: attend_to(x, mask.astype(bool)), X, rtol=1e-5, atol=1e-6)
        assert ops(model).count("MaskedAttention") == 1
        check_run(model, lambda x, mask=mask: attend_to(x, mask.astype(bool)), HARD, rtol=1e-5, atol=1e-6)


def test_masks_for_each_head_of_all():
    model = check(lambda x, mask: attend_to(x, mask), X, some(1, H, T, T)[0], rtol=1e-5, atol=1e-6)
    assert ops(model).count("MaskedAttention") == 1


def test_masked_scores_that_may_count_stay_plain():
    assert "Softmax" in ops(check(lambda x: causal(x, -5.0), X))


@pytest.mark.parametrize("name", ["nnx", "linen"])
def test_sizes_that_vary(name):
    layer = LAYERS[name][0]()
    model = check(layer, X, dims=[("B", "T", H * D)])
    assert "If" in ops(model)
    assert "Softmax" not in ops(model)
    for x in (HARD, X[:0], X[:, :0], X[:1, :1]):
        check_run(model, layer, x)


def test_keys_that_may_be_missing():
    """Then the function that is called does without the operator."""
    model = check(attend, Q, K, V, dims=[("B", "T", H, D), ("B", "S", H, D), ("B", "S", H, D)])
    assert [f.name for f in model.functions] == ["Attention"] and "Softmax" not in ops(model)
    check_run(model, attend, Q, K[:, :0], V[:, :0])


@pytest.mark.parametrize("dims", [None, [("B", 4, "T", 8)] * 3])
def test_heads_that_are_an_axis_are_not_counted(dims):
    """The newest opset has no number of heads where the operands have an axis of them."""

    def fn(q, k, v):
        weights = jax.nn.softmax(q @ k.swapaxes(2, 3) * 0.3, -1)
        return weights @ v

    operands = np.random.default_rng(0).normal(size=(3, 2, 4, 16, 8)).astype(np.float32)
    model = check(fn, *operands, dims=dims, rtol=1e-5, atol=1e-6, opset=newest())
    assert "Softmax" not in ops(model)


def test_no_attention_before_its_opset():
    assert "Attention" not in ops(check(attend, Q, K, V, opset=22))


@pytest.mark.parametrize("dims", [None, [("B", "T", 6, 4), ("B", "S", 2, 4), ("B", "S", 2, 4)]])
def test_grouped_queries_are_batches_of_products(dims):
    def fn(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, is_causal=True)

    arrays = [normal(2, n, heads, D, seed=n) for n, heads in ((5, 6), (7, 2), (7, 2))]
    arrays[1][0, 6, 0, 0] = np.nan  # a key that is masked for all but the last queries
    model = check(fn, *arrays, dims=dims, opset=22)
    found = [n.op_type for n in model.graph.node]
    assert found.count("Transpose") == 4
    assert found.count("Reshape") == 2
    if dims is not None:
        check_run(model, fn, *(a[:1, :3] for a in arrays))


@pytest.mark.parametrize(
    "equation",
    [
        "bktgh,bksh->gbkts",
        "bktgh,bksh->gbkst",
        "bktgh,bksh->bgkts",
        "bktgh,bksh->tbkgs",
        "btkgh,bskh->gbkts",
        "bktgh,bksh->bktgs",
        "gbkts,bskh->btkgh",
        "gbkts,bskh->gbkth",
        "gkbts,bskh->btkgh",
        "gjbkts,bkhs->bhkjgt",
        "bktgjh,bksh->jgbkts",
        "bktgjh,bksh->tbksjg",
    ],
)
def test_products_with_several_axes_of_rows(equation):
    sizes = dict(zip("bktgjhs", (2, 3, 5, 4, 2, 6, 7), strict=True))
    shapes = [[sizes[c] for c in term] for term in equation.split("->")[0].split(",")]
    arrays = [np.random.default_rng(i).integers(-4, 5, s).astype(np.float32) for i, s in enumerate(shapes)]
    for scale in (1, 0.5):
        check(lambda a, b, scale=scale: jnp.einsum(equation, a, b) * scale, *arrays, rtol=0, atol=0)


def masked(x, mask):
    return jax.nn.softmax(jnp.where(mask, x * 2, -1e9))


@pytest.mark.parametrize(
    ("f", "mask", "perm", "transposes"),
    [
        (lambda x, _: jax.nn.softmax(x), (), (1, 0, 2, 3), 0),
        (masked, (5,), (2, 0, 1, 3), 0),
        (masked, (4, 5), (1, 0, 2, 3), 0),
        (masked, (3, 5), (0, 2, 1, 3), 2),
        (masked, (3, 1, 1, 1), (1, 0, 2, 3), 2),
        (lambda x, _: jax.nn.softmax(x, 1), (), (1, 0, 2, 3), 2),
        (lambda x, _: jax.nn.softmax(x, 2), (), (1, 0, 2, 3), 0),
    ],
)
def test_axes_that_are_moved_there_and_back_stay(f, mask, perm, transposes):
    def there_and_back(x, mask):
        return jnp.transpose(f(jnp.transpose(x, perm), mask), np.argsort(perm))

    def onwards(x, mask):
        return jnp.transpose(there_and_back(x, mask), (0, 3, 1, 2))

    arrays = normal(2, 3, 4, 5), normal(*mask) > 0
    assert ops(check(there_and_back, *arrays)).count("Transpose") == transposes
    assert ops(check(onwards, *arrays)).count("Transpose") == max(1, transposes)


@pytest.mark.parametrize("dims", [None, [("B", "T", 4, 8), ("B", "S", 2, 8), ("B", "S", 2, 8)]])
def test_softmax_of_groups_of_heads(dims: Any) -> None:
    """Under vmap, the maximum is taken before the axes are moved, and subtracted after that."""
    q, k, v = normal(3, 5, 4, 8), normal(3, 7, 2, 8, seed=1), normal(3, 7, 2, 8, seed=2)
    q[0, 1, 2], k[1, 2, 0, 3] = np.nan, np.inf
    model = check(jax.nn.dot_product_attention, q, k, v, dims=dims, rtol=1e-5, atol=1e-6, opset=22)
    assert ops(model).count("Softmax") == 1
    assert len(ops(model)) <= 12
