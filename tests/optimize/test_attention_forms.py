"""Attention with biases, masks of all kinds, shared keys and caches: one node, and right on hard inputs."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2onnx import runtime
from tests.compare import assert_same
from tests.helpers import check, check_run, quick

B, T, H, K, D = 2, 64, 4, 2, 8
LOWEST = float(np.finfo(np.float32).min)
INF, NAN = np.inf, np.nan


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


Q, KEYS, VALUES = normal(B, T, H, D), normal(B, T, H, D, seed=1), normal(B, T, H, D, seed=2)
WEIGHTS = normal(3, H * D, H * D, seed=4) / 8
HARD = Q.copy()
HARD[0, 2, 3, 1], HARD[1, 1, :2, 0] = NAN, [INF, 1e4]
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def ops(model) -> list[str]:
    return [node.op_type for node in model.graph.node]


def check_all(fn: Any, *cases: Any, dims: Any = None) -> Any:
    """`check` of the first case, and of the others with the same model and the same compiled function."""
    model = check(fn, *cases[0], dims=dims, **CLOSE)
    session, compiled = runtime.session(model), jax.jit(fn)
    for case in cases[1:]:
        feeds = {spec.name: np.asarray(x) for spec, x in zip(session.get_inputs(), case, strict=True)}
        assert_same(session.run(None, feeds), jax.tree.leaves(compiled(*case)), **CLOSE)
    return model


def attend(q: Any, k: Any, v: Any, bias: Any = None, mask: Any = None, fill: float = LOWEST, scale: float = 0.3) -> Any:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * scale
    scores = scores if bias is None else scores + bias
    scores = scores if mask is None else jnp.where(mask, scores, fill)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)


def biased(q: Any, bias: Any) -> Any:
    return attend(q, KEYS, VALUES, bias)


def rows(shape: tuple[int, ...]) -> list[np.ndarray]:
    """Biases in which a row is all that is hard: nothing but infinities or the lowest numbers, or some of them."""
    found = []
    lower = np.nextafter(np.float32(LOWEST), np.float32(0))
    for start, rest in [(-INF, -INF), (LOWEST, LOWEST), (LOWEST, -INF), (lower, LOWEST), (-3e38, -3e38), (-1e9, -1e9)]:
        bias = normal(*shape, seed=3)
        bias[..., 1 % shape[-2], :] = rest
        bias[..., 1 % shape[-2], 2] = start
        found.append(bias)
    for number in (NAN, INF, -INF, LOWEST):
        found.append(normal(*shape, seed=3))
        found[-1][..., 0, 1] = number
    return found


SHAPES = [(1, H, T, T), (B, 1, T, T), (T, T), (B, 1, 1, T), (H, T, T)]


@pytest.mark.parametrize("shape", quick(SHAPES[::3], SHAPES))
def test_bias(shape):
    """It is added to all scores. What it makes infinite is, and what is NaN."""
    bias = normal(*shape)
    model = check_all(biased, (Q, bias), *((Q, b) for b in rows(shape)), (HARD, bias), (HARD, rows(shape)[0]))
    assert ops(model).count("BiasedAttention") == 1 and "Softmax" not in ops(model)


@pytest.mark.parametrize("start", [1, 9])
def test_bias_that_is_known(start):
    bias = rows((1, H, T, T))[start]
    is_lacking = not (bias > LOWEST).any(-1).all()
    model = check_all(lambda q: biased(q, bias), (Q,), (HARD,))
    assert ops(model).count("BiasedAttention" if is_lacking else "Attention") == 1


@pytest.mark.parametrize("shape", [(1, H, "T", "T"), ("B", 1, 1, "T")])
def test_bias_of_sizes_that_vary(shape):
    def fn(q, bias):
        return attend(q, q * 2, q - 1, bias)

    def case(b: int, t: int) -> Any:
        return Q[:b, :t], normal(*({"B": b, "T": t}.get(size, size) for size in shape))

    model = check_all(fn, *(case(*sizes) for sizes in ((B, T), (0, T), (B, 0), (1, 1))), dims=[("B", "T", H, D), shape])
    assert ops(model).count("BiasedAttention") == 1


@pytest.mark.parametrize("dtype", [np.int32, np.bool_])
def test_bias_of_padding(dtype):
    """Where it is known to be far above the lowest number, nothing is asked."""

    def fn(q, mask):
        return biased(q, (1.0 - mask[:, None].astype(jnp.float32)) * -1e9)

    mask = np.ones((B, T, T), dtype)
    mask[0, :, 3:] = mask[1] = 0
    assert "Attention" in ops(check_all(fn, (Q, mask), (HARD, mask)))


def test_bias_of_padding_for_all_queries():
    """It is expanded to both lengths, once for all layers."""

    def fn(x, mask):
        bias = (1.0 - mask[:, None, None].astype(jnp.float32)) * -10000.0
        for _ in range(2):
            q = x.reshape(B, T, H, D)
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, q) + bias
            x = x + jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), q).reshape(B, T, H * D)
        return x

    mask = np.ones((B, T), np.int32)
    mask[0, 3:] = mask[1] = 0
    model = check_all(fn, *((x.reshape(B, T, H * D), mask) for x in (Q, HARD)))
    assert ops(model).count("Attention") == 2 and ops(model).count("Expand") == 1


@pytest.mark.parametrize("fill", [-1e9, -100.0])
def test_bias_of_padding_that_is_never_too_low(fill):
    def fn(q, there):
        return biased(q, jnp.where(there, 0.0, fill)[:, None, None, :])

    masks = [np.arange(T) < np.array([[5], [T]]), np.zeros((B, T), bool)]
    check_all(fn, *((q, mask) for q in (Q, HARD) for mask in masks))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_bias_of_padding_that_was_in_half_precision(dtype):
    """-1e9 is -inf there: a row of which everything is masked is NaN."""

    def fn(q, there):
        return biased(q, jnp.where(there, 0.0, -1e9).astype(dtype).astype(jnp.float32)[:, None, None, :])

    masks = [np.arange(T) < np.array([[5], [T]]), np.zeros((B, T), bool)]
    check_all(fn, *((q, mask) for q in (Q, HARD) for mask in masks))


def test_bias_with_queries_keys_and_values_in_one():
    """They are cut out of what was projected, as they are without a bias."""
    weights, bias = normal(H * D, 3 * H * D) / (H * D), normal(H, T, T)  # so that rounding is not magnified

    def fn(x):
        q, k, v = (x @ weights).reshape(B, T, 3, H, D).transpose(2, 0, 3, 1, 4)
        return (jax.nn.softmax(q @ k.swapaxes(-1, -2) + bias, -1) @ v).swapaxes(1, 2).reshape(B, T, H * D)

    found = ops(check_all(fn, *((x.reshape(B, T, H * D),) for x in (Q, HARD))))
    assert found.count("Attention") == 1 and not {"Gather", "Reshape"} & set(found)


def test_several_biases():
    def fn(q, bias, padding):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, KEYS) + bias + jnp.where(padding, 0, -1e9)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), VALUES)

    padding = normal(B, 1, 1, T) > 0
    model = check_all(fn, *((Q, bias, padding) for bias in (normal(1, H, T, T), *rows((1, H, T, T)))))
    assert ops(model).count("BiasedAttention") == 1 and "Softmax" not in ops(model)


def some(*shape: int) -> np.ndarray:
    """A mask with all kinds of rows: nothing, everything, and something in between."""
    mask = np.random.default_rng(5).random(shape) > 0.4
    mask[..., 0, :], mask[..., -1, :] = False, True
    return mask


def test_biases_of_axes_in_another_order():
    """The scores are moved, or their axes joined, between two biases: these cannot be added as they are."""
    q = normal(2, 2, 2 * T, D)
    moved = lambda s, b, c: ((s + b).swapaxes(0, 1) + c).swapaxes(0, 1)  # noqa: E731
    joined = lambda s, b, c: ((s + b).reshape(4, 1, *s.shape[2:]) + c).reshape(s.shape)  # noqa: E731
    for add, first, second in ((moved, (2, 1), (2, 1)), (joined, (1, 2), (4, 1))):
        biases = normal(*first, 2 * T, 2 * T), normal(*second, 1, 2 * T)
        check(lambda q, *b, add=add: jax.nn.softmax(add(q @ q.swapaxes(2, 3), *b), -1) @ q, q, *biases, **CLOSE)


@pytest.mark.parametrize("fill", quick([-INF, -1e9], [-INF, -1e9, -1e4, LOWEST]))
def test_masks_of_everything(fill):
    """Where all scores are replaced by -inf, the result is NaN, else the mean of all values."""

    def fn(q, mask):
        return attend(q, KEYS, VALUES, mask=mask, fill=fill)

    mask = some(B, 1, T, T)
    sizes = (1, 0, 30, 1e5, 1e18)
    model = check_all(fn, *((x, m) for m in (mask, mask & False, mask | True) for x in (*(n * Q for n in sizes), HARD)))
    assert ops(model).count("MaskedAttention") == 1


def cleared(q: Any, mask: Any, fill: float) -> Any:
    """As in Keras: the weights of what is masked are made 0, which they are already if a score is left."""
    scores = jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, KEYS) * 0.3, fill)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(mask, jax.nn.softmax(scores, -1), 0), VALUES)


def left_out(q: Any, mask: Any, _: float) -> Any:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, KEYS) * 0.3
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1, where=mask), VALUES)


@pytest.mark.parametrize("fill", quick([-1e9], [-1e9, -INF]))
@pytest.mark.parametrize("form", [cleared, left_out])
def test_weights_that_are_cleared(form, fill):
    """Of a row that is masked as a whole, the result is 0."""
    mask = some(B, 1, T, T)
    sizes = (1, 0, 1e5)
    cases = [(x, m) for m in (mask, mask & False, mask | True) for x in (*(n * Q for n in sizes), HARD)]
    model = check_all(lambda q, mask: form(q, mask, fill), *cases)
    assert ops(model).count("MaskedAttention") == 1 and "Softmax" not in ops(model)


@pytest.mark.parametrize("form", [cleared, left_out])
def test_weights_that_are_cleared_above_the_diagonal(form):
    model = check_all(lambda q: form(q, np.tri(T, dtype=bool), -1e9), (Q,), (0 * Q,), (1e5 * Q,), (HARD,))
    assert ops(model).count("CausalAttention") == 1 and "Softmax" not in ops(model)


def test_weights_that_are_cleared_elsewhere_than_masked():
    """By another mask, the other way around, on the other side of the diagonal, and to another number."""
    mask, other, lower = some(B, 1, T, T), some(B, H, 1, T), np.tri(T, dtype=bool)
    masked = lambda q, mask: jax.nn.softmax(jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, KEYS), -1e9), -1)  # noqa: E731
    finish = lambda weights: jnp.einsum("bhqk,bkhd->bqhd", weights, VALUES)  # noqa: E731

    def fn(q, mask, other):
        return (
            finish(jnp.where(other, masked(q, mask), 0)),
            finish(jnp.where(mask, 0, masked(q, mask))),
            finish(jnp.where(mask, masked(q, mask), 0.5)),
            finish(jnp.triu(masked(q, lower))),
            finish(jnp.tril(masked(q, mask))),
            finish(jnp.tril(masked(q, lower), -1)),
        )

    check_all(fn, (Q, mask, other), (HARD, mask, other))


@pytest.mark.parametrize("mask", [np.tri(T, k=1), np.tri(T, k=-1), np.tri(T).T, np.arange(T) > T - 2])
def test_known_masks(mask):
    model = check_all(lambda q: attend(q, KEYS, VALUES, mask=mask > 0, fill=-INF), (Q,), (HARD,))
    assert ops(model).count("MaskedAttention") == 1


@pytest.mark.parametrize("fill", quick([-1e9], [-INF, -1e9, LOWEST]))
def test_bias_and_mask(fill):
    """A bias matters where scores are not masked, and may make them less than those that are."""

    def fn(q, bias, mask):
        return attend(q, KEYS, VALUES, bias, mask, fill)

    bias, mask = normal(B, H, T, T), some(1, 1, T, T)
    biases = bias, *rows((B, H, T, T)), bias - 1e9, bias - 2e9
    model = check_all(fn, *((Q, b, mask) for b in biases), *((HARD, b, mask | True) for b in biases))
    assert ops(model).count("MaskedAttention") == 1


@pytest.mark.parametrize("dims", [None, [("B", "T", H, D)]])
def test_slopes_of_distances(dims):
    """As causal attention, with a bias that grows with the distance."""

    def fn(q):
        places = jnp.arange(q.shape[1])
        bias = (2.0 ** -np.arange(1, H + 1))[:, None, None].astype(np.float32) * (places - places[:, None])
        return attend(q, q * 2, q - 1, bias, jnp.tri(q.shape[1], dtype=bool), -INF)

    model = check_all(fn, (Q,), (HARD,), dims=dims)
    assert ops(model).count("CausalAttention") == 1 and "Softmax" not in ops(model)


def shared(q: Any, k: Any, v: Any, mask: Any = None, fill: float = -1e9) -> Any:
    return attend(q, *(jnp.repeat(x, H // K, 2) for x in (k, v)), mask=mask, fill=fill)


def broadcast(q: Any, k: Any, v: Any, mask: Any = None, fill: float = -1e9) -> Any:
    def repeat(x: Any) -> Any:
        return jnp.broadcast_to(x[:, :, :, None], (*x.shape[:3], H // K, D)).reshape(*x.shape[:2], H, D)

    return attend(q, repeat(k), repeat(v), mask=mask, fill=fill)


def heads_first(q: Any, k: Any, v: Any, mask: Any = None, fill: float = -1e9) -> Any:
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    scores = q @ jnp.repeat(k, H // K, 1).swapaxes(-1, -2) * 0.3
    scores = scores if mask is None else jnp.where(mask, scores, fill)
    return (jax.nn.softmax(scores) @ jnp.repeat(v, H // K, 1)).transpose(0, 2, 1, 3)


def groups(q: Any, k: Any, v: Any, mask: Any = None, fill: float = -1e9) -> Any:
    scores = jnp.einsum("btkgh,bskh->bkgts", q.reshape(*q.shape[:2], K, H // K, D), k) * 0.3
    scores = scores if mask is None else jnp.where(mask, scores, fill)
    return jnp.einsum("bkgts,bskh->btkgh", jax.nn.softmax(scores, -1), v).reshape(q.shape)


def one_head(q: Any, k: Any, v: Any, mask: Any = None, fill: float = -1e9) -> Any:
    scores = jnp.einsum("bqhd,bkd->bhqk", q, k[:, :, 1]) * 0.3
    scores = scores if mask is None else jnp.where(mask, scores, fill)
    return jnp.einsum("bhqk,bkd->bqhd", jax.nn.softmax(scores, -1), v[:, :, 1])


def of_jax(q: Any, k: Any, v: Any, mask: Any = None, fill: float = -1e9) -> Any:
    return jax.nn.dot_product_attention(q, k, v, mask=mask)


FORMS = [shared, broadcast, heads_first, groups, one_head, of_jax]


@pytest.mark.parametrize("dims", [None, [("B", "T", H, D), ("B", "T", K, D), ("B", "T", K, D)]])
@pytest.mark.parametrize("form", quick([shared, groups, of_jax], FORMS))
def test_heads_that_share_keys(form, dims):
    """In all of these forms keys and values are not repeated."""

    def causal(q, k, v):
        return form(q, k, v, mask=jnp.tri(q.shape[1], dtype=bool))

    arrays = HARD, KEYS[:, :, :K], VALUES[:, :, :K]
    for fn, name in ((form, "Attention"), (causal, "CausalAttention")):
        model = check_all(fn, arrays, *([] if dims is None else [[x[:1, :1] for x in arrays]]), dims=dims)
        calls = [*ops(model), *(n.op_type for node in model.graph.node for a in node.attribute for n in a.g.node)]
        assert calls.count(name) == 1 and not {"Expand", "Transpose", "Softmax", "Tile"} & set(calls)
    with_mask = check(form, *arrays, some(B, 1, 1, T, T) if form is groups else some(B, 1, T, T), **CLOSE)
    assert ops(with_mask).count("MaskedAttention") == 1


def test_heads_in_front_need_not_be_moved():
    def fn(q, k, v, bias):
        return jax.nn.softmax(q @ k.swapaxes(-1, -2) * 0.3 + bias) @ v

    arrays = [x.transpose(0, 2, 1, 3).copy() for x in (HARD, KEYS, VALUES)]
    model = check_all(fn, *((*arrays, bias) for bias in (normal(1, H, T, T), rows((1, H, T, T))[0])))
    assert ops(model) == ["BiasedAttention"]


@pytest.mark.parametrize("batch", [1, 2])
def test_what_is_between_products_is_one_node(batch):
    """An axis of size 1 is in nobody's way."""

    def fn(x):
        q, k, v = (jnp.reshape(x @ w, (batch, T, H, D)) for w in WEIGHTS)
        return jnp.reshape(attend(q, k, v, mask=np.tri(T, dtype=bool)), (batch, T, H * D)) @ WEIGHTS[0]

    assert ops(check(fn, normal(batch, T, H * D), **CLOSE)) == ["MatMul"] * 3 + ["CausalAttention", "MatMul"]


def test_one_head():
    def fn(q, k, v):
        return jax.nn.softmax(q @ k.swapaxes(-1, -2) * 0.3) @ v

    assert ops(check(fn, *(x[:, :, 0] for x in (HARD, KEYS, VALUES)), **CLOSE)) == ["Attention"]


@pytest.mark.parametrize("fill", quick([-INF], [LOWEST, -1e9, -INF]))
def test_one_step_with_a_cache(fill):
    """Neither cache is moved or repeated, and what is behind the position in it does not matter.

    The heads that share keys are queries of one head, which is faster: so the one query is moved, and the result.
    """

    def fn(q, k, v, keys, values, position):
        keys, values = (
            jax.lax.dynamic_update_slice(cache, x, (0, position, 0, 0)) for cache, x in ((keys, k), (values, v))
        )
        return shared(q, keys, values, mask=jnp.arange(keys.shape[1]) <= position, fill=fill), keys, values

    step = Q[:, :1], KEYS[:, :1, :K], VALUES[:, :1, :K]
    keys, values = normal(B, 1024, K, D), normal(B, 1024, K, D, seed=1)
    after = keys.copy()
    after[:, 4:] = NAN
    cases = [(*step, k, values, np.int32(i)) for k, i in ((keys, 2), (after, 0), (after, 3), (after, 9999), (keys, -1))]
    model = check_all(fn, *cases)
    assert ops(model).count("MaskedAttention") == 1 and "Expand" not in ops(model)
    sizes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.value_info}
    moved = [math.prod(sizes[n.output[0]]) for n in model.graph.node if n.op_type == "Transpose"]
    assert moved == [B * H * D] * 2


@pytest.mark.parametrize("dims", [None, [("B", "T", H, D), ("B", "P", H, D)]])
def test_keys_from_before(dims):
    def fn(q, past):
        keys = jnp.concatenate([past, q * 2], 1)
        places = jnp.arange(keys.shape[1]) <= jnp.arange(q.shape[1])[:, None] + past.shape[1]
        return attend(q, keys, keys - 1, mask=places, fill=-INF), attend(q[:, :1], keys, keys + 1)

    sizes = () if dims is None else ((1, T), (T, 0), (3, 1))
    model = check_all(fn, (Q, KEYS), (HARD, KEYS), *((Q[:, :t], KEYS[:, :p]) for t, p in sizes), dims=dims)
    assert ops(model).count("MaskedAttention") == 1 and ops(model).count("Attention") == 1


@pytest.mark.parametrize("dims", [None, [("B", "T", H, D)]])
def test_heads_of_queries_as_rows(dims):
    """Scores of which the heads are next to the keys."""

    def fn(q):
        b, t, k = *q.shape[:2], q[:, :, :K] * 2
        scores = jnp.einsum("btkgh,bskh->btkgs", q.reshape(b, t, K, H // K, D), k).reshape(b, t, H, t)
        scores = jnp.where(jnp.tri(t, dtype=bool)[:, None], scores, -1e9)
        weights = jax.nn.softmax(scores, -1).reshape(b, t, K, H // K, t)
        return jnp.einsum("btkgs,bskh->btkgh", weights, k - 1).reshape(b, t, H * D)

    model = check_all(fn, (Q,), (HARD,), dims=dims)
    assert ops(model).count("CausalAttention") == 1 and not {"Transpose", "Softmax"} & set(ops(model))


@pytest.mark.parametrize("masked", [False, True])
def test_groups_of_heads_as_rows(masked):
    """The rows of the scores are the heads that share keys: they are no queries then."""

    def fn(q, k, v):
        b, t = q.shape[:2]
        scores = jnp.einsum("btkgh,bskh->btkgs", q.reshape(b, t, K, H // K, D), k) * 0.3
        scores = jnp.where(jnp.tri(t, dtype=bool)[:, None, None], scores, -1e9) if masked else scores
        return jnp.einsum("btkgs,bskh->btkgh", jax.nn.softmax(scores, -1), v).reshape(b, t, H * D)

    model = check(fn, HARD, KEYS[:, :, :K], VALUES[:, :, :K], **CLOSE)
    assert ops(model).count("CausalAttention" if masked else "Attention") == 1
    assert not {"Transpose", "Softmax"} & set(ops(model))


def test_questions_that_take_longer_than_what_they_save():
    q, k, v = (x[:, :5] for x in (Q, KEYS, VALUES))
    assert "Softmax" in ops(check(lambda q, bias: attend(q, k, v, bias), q, normal(1, H, 5, 5), **CLOSE))
    assert "Softmax" in ops(check(lambda q, m: attend(q, k, v, mask=m, fill=-INF), q, some(B, 1, 5, 5), **CLOSE))


@pytest.mark.parametrize("scale", [-0.3, 0.0])
def test_scales_that_the_operator_does_not_take(scale):
    check(lambda q: attend(q, KEYS, VALUES, scale=scale), Q, **CLOSE)
    check(lambda q: attend(q, KEYS, VALUES, scale=scale, mask=jnp.tri(T, dtype=bool)), Q, **CLOSE)


OTHERS = {
    "values with heads first": ("bqhd,bkhd->bhqk", "bhqk,bhkd->bqhd", Q, KEYS, VALUES.transpose(0, 2, 1, 3)),
    "over queries": ("bqhd,bkhd->bhkq", "bhkq,bkhd->bqhd", Q, KEYS, VALUES),
    "values for queries": ("bqhd,bkhd->bhqk", "bhqk,bqhd->bkhd", Q, KEYS, VALUES),
    "values of all": ("bqhd,bkhd->bhqk", "bhqk,khd->bqhd", Q, KEYS, VALUES[0]),
    "keys of all": ("bqhd,khd->bhqk", "bhqk,bkhd->bqhd", Q, KEYS[0], VALUES),
    "queries of all": ("qhd,bkhd->bhqk", "bhqk,bkhd->bqhd", Q[0], KEYS, VALUES),
    "other groups": (
        "btgkh,bskh->bgkts",
        "bgkts,bskh->btgkh",
        Q.reshape(B, T, 2, K, D),
        KEYS[:, :, :K],
        VALUES[:, :, :K],
    ),
    "sum of values": ("bqhd,bkhd->bhqk", "bhqk,bkhd->bqh", Q, KEYS, VALUES),
    "two lengths": ("bqphd,bkhd->bhqpk", "bhqpk,bkhd->bqphd", Q.reshape(B, 4, T // 4, H, D), KEYS, VALUES),
    "two batches": ("abqd,abkd->abqk", "abqk,abkd->baqd", Q, KEYS, VALUES),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_products_compute_the_same(name):
    of_scores, of_values, q, k, v = OTHERS[name]

    def fn(q):
        return jnp.einsum(of_values, jax.nn.softmax(jnp.einsum(of_scores, q, k), -1), v)

    check(fn, q, **CLOSE)


@pytest.mark.parametrize("may_see", [jnp.less_equal, jnp.greater])
def test_triangle_with_keys_before_queries(may_see: Any) -> None:
    """The mask takes its size from keys and queries, not the other way around."""

    def fn(q, k, v):
        scores = jnp.einsum("bqhd,bkhd->bhkq", q, k) / 4
        mask = may_see(jnp.arange(k.shape[1])[:, None], jnp.arange(q.shape[1]) + 1)
        return jnp.einsum("bhkq,bkhd->bqhd", jax.nn.softmax(jnp.where(mask, scores, -1e9), 2), v)

    def arrays(batch, queries, keys):
        return [normal(batch, n, 3, 16, seed=i) for i, n in enumerate((queries, keys, keys))]

    dims = [("B", "T", 3, 16), ("B", "S", 3, 16), ("B", "S", 3, 16)]
    model = check(fn, *arrays(2, 5, 7), dims=dims, rtol=1e-5, atol=1e-6)
    assert "MaskedAttention" in ops(model)
    for sizes in ((2, 7, 5), (1, 4, 4), (2, 1, 3), (0, 2, 3)):
        check_run(model, fn, *arrays(*sizes), rtol=1e-5, atol=1e-6)
