"""Gather, scatter and friends on symbolic dimensions: bounds and windows that depend on them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax2onnx
from tests.helpers import check_run
from tests.symbolic.sizes import check_at_sizes, floats


def indices(low=-4, high=6):
    """Replaces integer arguments by numbers of which many are out of range."""

    def change(args):
        random = np.random.default_rng(3)
        return [random.integers(low, high, a.shape).astype(a.dtype) if a.dtype == np.int32 else a for a in args]

    return change


def test_gathers():
    def f(x, i):
        b, t, _ = x.shape
        return (
            x[i],
            x[:, i],
            x[:, i, 2],
            x[i, 0],
            x.at[i].get(mode="fill", fill_value=-1.0),
            x.at[:, i].get(mode="clip"),
            jnp.take(x, i, axis=1),
            jnp.take(x.ravel(), i),
            x[jnp.arange(b), i[0] * jnp.ones(b, jnp.int32)],
            x[jnp.arange(b)[:, None], jnp.arange(t)[None] // 2],
            x[..., i[:1]],
        )

    check_at_sizes(f, "f32[B,T,4]", "i32[N]", empty="", args=indices())


def test_negative_indices_are_left_to_the_operator():
    """An index into an axis of any size is clipped once; the wrapping of negative ones costs no comparison."""

    def f(x, i):
        rows = x[i], x[i[0]], x.at[i].add(1.0), lax.dynamic_index_in_dim(x, i[0], 0)
        longer = jnp.concatenate([x, x[:, :2]], axis=1)[:, i]  # of T + 2 columns
        return *rows, longer, lax.dynamic_update_index_in_dim(x, 2 * x[0], i[0], 0)

    at = [{"B": b, "T": t, "N": n} for b, t, n in ((2, 4, 7), (1, 3, 1), (5, 2, 12), (8, 6, 3))]
    model = check_at_sizes(f, "f32[B,T]", "i32[N]", constraints=["T >= 2"], sizes=at, args=indices(-10, 10))
    assert not {"Less", "Where", "Max", "Min"} & {node.op_type for node in model.graph.node}


def test_gathers_along_an_axis():
    def f(x, i):
        return (
            jnp.take_along_axis(x, i, axis=1),
            jnp.take_along_axis(x, i, axis=1, mode="clip"),
            jnp.take_along_axis(x, jnp.argsort(x, axis=1), axis=1),
            jax.vmap(lambda row, j: row[j])(x, i),
        )

    check_at_sizes(f, "f32[B,T]", "i32[B,K]", empty="B K", args=indices())


def test_embedding_with_learned_positions():
    table, positions = jnp.asarray(floats(11, 6)), jnp.asarray(floats(16, 6, seed=1))

    def f(tokens):
        t = tokens.shape[1]
        return table[tokens] + positions[:t], table[tokens] * 2 + positions[jnp.arange(t)]

    check_at_sizes(f, "i32[B,T]", constraints=["T <= 16"])


def test_one_hot():
    def f(i):
        return (
            jax.nn.one_hot(i, 5),
            jax.nn.one_hot(i, 5, axis=0, dtype=jnp.int32),
            jax.nn.one_hot(i, i.shape[1]),
        )

    check_at_sizes(f, "i32[B,T]", args=indices())


def test_scatters():
    def f(x, i):
        b, t = x.shape
        return (
            x.at[i].set(1.0),
            x.at[i].add(2.0),
            x.at[:, i].max(0.5),
            x.at[:, i].multiply(3.0, mode="drop"),
            x.at[i, 0].add(jnp.arange(i.shape[0], dtype=jnp.float32)),
            x.at[:, 0].set(7.0),
            x.at[:, -1].add(1.0),
            x.at[jnp.asarray(b - 1)].set(0.0),
            x.at[:, ::2].set(-1.0),
            x.at[:, 1:].add(1.0),
            x.at[jnp.arange(b), jnp.arange(b)].set(9.0, mode="drop"),
            jnp.zeros(t).at[jnp.clip(i, 0, t - 1)].add(1.0),
            jax.ops.segment_sum(jnp.ones(i.shape[0]), i, num_segments=t),
            jnp.bincount(jnp.abs(i), length=5),
        )

    def unique(args):
        x, i = indices()(args)
        return x, np.random.default_rng(0).permutation(np.arange(i.shape[0]) - 2).astype(np.int32)

    check_at_sizes(f, "f32[B,T]", "i32[N]", empty="N", args=unique)


def test_dynamic_slices():
    def f(x, i):
        b, n, _ = x.shape
        return (
            lax.dynamic_slice(x, (0, i, 0), (b, 2, 4)),
            lax.dynamic_slice_in_dim(x, i, n - 1, axis=1),
            lax.dynamic_slice(x, (i, i, 1), (1, n // 2, 3)),
            lax.dynamic_index_in_dim(x, i, axis=1, keepdims=False),
            x[:, i],
            x[i],
        )

    def at_some_place(args):
        return args[0], np.int32([-2, 1, 9][args[0].shape[0] % 3])

    sizes = [{"B": 1, "N": 3}, {"B": 2, "N": 2}, {"B": 3, "N": 5}, {"B": 4, "N": 8}]
    check_at_sizes(f, "f32[B,N,4]", "i32[]", constraints=["N >= 2"], sizes=sizes, args=at_some_place)


def test_kv_cache_update_at_a_traced_position():
    def f(cache, new, position, queries):
        cache = lax.dynamic_update_slice(cache, new, (0, position, 0))
        rows = jax.vmap(lambda c, n: lax.dynamic_update_slice_in_dim(c, n, position, 0))(cache, 2 * new)
        visible = jnp.arange(cache.shape[1]) <= position
        scores = jnp.where(visible, queries @ cache.mT, -jnp.inf)
        return cache, jax.nn.softmax(scores) @ rows, cache.at[:, position].set(1.0)

    def at_some_position(args):
        cache, new, _, queries = args
        return cache, new, np.int32([0, 3, 20][queries.shape[0] % 3]), queries

    check_at_sizes(f, "f32[B,8,4]", "f32[B,1,4]", "i32[]", "f32[B,Q,4]", empty="Q", args=at_some_position)


def test_cache_of_symbolic_length():
    def f(cache, new, position):
        t = cache.shape[1]
        updated = lax.dynamic_update_slice(cache, new, (0, position, 0))
        whole = lax.dynamic_update_slice_in_dim(jnp.zeros((cache.shape[0], t + 3, 4)), cache, position, axis=1)
        return updated, whole, jnp.concatenate([cache, new], axis=1)[:, 1:]

    check_at_sizes(f, "f32[B,T,4]", "f32[B,1,4]", "i32[]", empty="B")


def test_searches():
    def f(x):
        return jnp.searchsorted(jnp.arange(4.0), x, side="right"), jnp.digitize(x, jnp.arange(3.0)), (x > 0).sum()

    check_at_sizes(f, "f32[T]", empty="")


EVEN_STEPS = {
    "the last": (lambda x: x[:, -1], ["Gather"]),
    "the last row": (lambda x: x[-1], ["Gather"]),
    "as a part": (lambda x: x[:, -1:], ["Slice"]),
    "backwards": (lambda x: x[:, ::-1], ["Slice"]),
    "every other": (lambda x: x[:, ::2], ["Slice"]),
    "every third, later": (lambda x: x[:, 1::3], ["Slice"]),
    "the other ones": (lambda x: x[:, 1::2], ["Slice"]),
    "from the middle": (lambda x: x[:, x.shape[1] // 2 :: 2], None),
    "of the first half": (lambda x: x[:, : x.shape[1] // 2 : 2], None),
    "every other, backwards": (lambda x: x[:, ::-2], None),
    "from the last, backwards": (lambda x: x[:, -1::-3], None),
    "an even number": (lambda x: x[:, jnp.arange(x.shape[1] // 2) * 2 + 1], None),
    "a table": (lambda x: x[:, (jnp.arange(x.shape[1])[:, None] * 0 + jnp.arange(x.shape[1])).reshape(-1)], None),
    "in between, none of two": (lambda x: x[:, -3:-2:2], None),
    "in between, backwards": (lambda x: x[:, -2:-3:-2], None),
    "one of the last": (lambda x: x[:, -2], None),  # the first, if there is one
}


@pytest.mark.parametrize("name", EVEN_STEPS)
def test_elements_in_even_steps_are_slices(name):
    fn, expected = EVEN_STEPS[name]
    sizes = [{"B": b, "T": t} for b, t in ((2, 5), (1, 1), (3, 2), (2, 4), (1, 7))]
    model = check_at_sizes(fn, "f32[B,T,4]", sizes=sizes, rtol=0, atol=0)
    if expected is not None:
        assert [node.op_type for node in model.graph.node] == expected


def test_the_first_rows_of_a_table():
    table = floats(50, 16)
    readers = [
        lambda x: x + jnp.take(table, jnp.arange(x.shape[1]), axis=0),
        lambda x: x + jnp.asarray(table)[jnp.arange(x.shape[1])[None]],
    ]
    for fn in readers:
        sizes = [{"B": 2, "T": t} for t in (1, 7, 50)]
        model = check_at_sizes(fn, "f32[B,T,16]", constraints=["T <= 50"], sizes=sizes, empty="B", rtol=0, atol=0)
        assert [node.op_type for node in model.graph.node] == ["Shape", "Slice", "Add"]
        model = check_at_sizes(fn, "f32[B,T,16]", sizes=[*sizes, {"B": 1, "T": 60}], empty="B", rtol=0, atol=0)
        assert "Less" not in {node.op_type for node in model.graph.node}  # none of the numbers is negative


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.bool_, jnp.float16])
def test_counters_in_narrow_types_are_not_even_steps(dtype):
    sizes = [{"B": 1, "T": t} for t in (2, 5, 300)]
    for last in (jnp.int32, jnp.uint8):
        fn = lambda x, last=last: x[:, jnp.arange(x.shape[1]).astype(dtype).astype(last)]  # noqa: E731
        check_at_sizes(fn, "f32[B,T,4]", sizes=sizes, rtol=0, atol=0)


@pytest.mark.parametrize("mode", ["drop", "clip"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.int32])
def test_nothing_is_written_where_nothing_is(dtype, mode):
    """In an axis that turns out to be empty, no index is inside: not even -1, which the last of none is clipped to."""
    places = np.array([0, -1, 5, -1], np.int32)

    def fn(x, i):
        rest = x[1:].astype(dtype)
        written = [getattr(rest.at[j], name)(2, mode=mode) for j in (places, i) for name in ("add", "multiply", "max")]
        return rest.at[places[:1]].set(7, mode=mode), *written

    sizes = [{"T": t, "N": 4} for t in (1, 2, 7)]
    check_at_sizes(fn, "f32[T,3]", "i32[N]", sizes=sizes, empty="N", rtol=0, atol=0)


def test_columns_are_picked_from_between_parts_of_unknown_sizes():
    """What is before and behind a block that is written has a size only when the model runs."""

    def f(x, i):
        written = lax.dynamic_update_slice_in_dim(x, x[..., :1] + 1, i, axis=2)
        return written[..., ::-2], written[..., 1]

    for i in (-9, -1, 0, 2, 9):
        check_at_sizes(f, "f32[2*B,T,4]", "i32[]", args=lambda a, i=i: [a[0], np.int32(i)], rtol=0, atol=0)


def test_rows_that_turn_out_to_have_no_elements_are_written():
    """How many of them there are is only known when the model runs, and so is how long they are."""
    sizes = [{"B": 2, "N": 3, "T": t} for t in (1, 4)]
    for spec in ("f32[B,2,N,T]", "f32[B,2,T,T]"):
        check_at_sizes(lambda x: jnp.insert(x, 1, 0.0, axis=2), spec, sizes=sizes, rtol=0, atol=0)
        model = jax2onnx.to_onnx(lambda x: jnp.insert(x, 1, 0.0, axis=2), [spec])
        for n in (0, 3) if "N" in spec else (0,):
            check_run(model, lambda x: jnp.insert(x, 1, 0.0, axis=2), floats(2, 2, n, 0))


WRITES = {
    "the last": (lambda x: x.at[-1].set(1.0), ["Shape", "Sub", "Expand", "ScatterND"]),
    "the first, of an array": (lambda x: x.at[jnp.asarray([0])].set(1.0), ["Expand", "ScatterND"]),
    "one of the last": (lambda x: x.at[-2].set(1.0), None),  # there may be one only
    "the next": (lambda x: x.at[jnp.arange(x.shape[0]) + 1].set(x), None),
}


@pytest.mark.parametrize("name", WRITES)
def test_positions_that_are_certainly_inside_are_not_checked(name):
    fn, expected = WRITES[name]
    model = check_at_sizes(fn, "f32[T,4]", sizes=[{"T": t} for t in (1, 2, 7)], rtol=0, atol=0)
    if expected is not None:
        assert [node.op_type for node in model.graph.node] == expected
