"""What is said where JAX cannot decide, which constraint helps, and what happens at sizes that are not allowed."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax.export import symbolic_shape

import jax2onnx
from jax2onnx import runtime, sizes
from tests.compare import factorisation_difference
from tests.helpers import check, check_run, quick
from tests.symbolic.sizes import check_at_sizes, floats


def last_two(x):
    return jnp.linspace(0.0, 1.0, x.shape[0])  # asks whether there is more than one


def merged(x):
    return x.reshape(-1, 8)


def message_of(fn, *inputs, **options):
    with pytest.raises(jax2onnx.Jax2OnnxError) as raised:
        jax2onnx.to_onnx(fn, list(inputs), **options)
    return str(raised.value)


def test_a_comparison_names_the_constraint_that_decides_it():
    message = message_of(last_two, "f32[T]")
    line = last_two.__code__.co_firstlineno + 1
    assert f"test_errors.py:{line}:" in message
    assert "comparison 'T' > '1' is inconclusive" in message
    assert 'constraints=["T >= 2"]' in message
    assert "http" not in message
    check_at_sizes(last_two, "f32[T]", constraints=["T >= 2"], sizes=[{"T": n} for n in (2, 3, 8)], atol=1e-6)


def test_the_numbers_of_a_constraint_are_taken_together():
    def shifted(x):
        return lax.dynamic_slice_in_dim(x, 1, x.shape[0] - 4)

    message = message_of(shifted, "f32[T]")
    assert 'constraints=["T >= 4"]' in message and 'constraints=["T <= 3"]' in message
    check_at_sizes(shifted, "f32[T]", constraints=["T >= 4"], sizes=[{"T": n} for n in (5, 6, 9)])


def test_a_remainder_names_the_constraint_that_makes_it_zero():
    message = message_of(merged, "f32[B,4]")
    (constraint,) = re.findall(r'constraints=\["([^"]*== 0)"\]', message)
    check_at_sizes(merged, "f32[B,4]", constraints=[constraint], sizes=[{"B": n} for n in (2, 4, 10)])


def test_a_number_that_has_to_be_known():
    message = message_of(lambda x: sum(x[i] for i in range(x.shape[0])), "f32[T]")
    assert "test_errors.py" in message and "give the dimension a fixed size" in message
    message = message_of(lambda x: np.zeros(x.shape) + x, "f32[T]")
    assert "test_errors.py" in message and "give the dimension a fixed size" in message
    message = message_of(lambda x: x / x.shape[0].astype(x.dtype), "f32[T]")  # as in jax.scipy.signal.detrend
    assert "test_errors.py" in message and "give the dimension a fixed size" in message


ADVICE = {
    "an index": (lambda x: x[x.shape[0] - 1], "x[-1]"),
    "half of it as an index": (lambda x: x.at[x.shape[0] // 2].set(0.0), "jnp.asarray"),
    "a root": (lambda x: x * x.shape[0] ** 0.5, "jax.numpy"),
    "sections": (lambda x: jnp.split(x, x.shape[0]), "give the dimension a fixed size"),
    "unequal sections": (lambda x: jnp.array_split(x, 3), "give the dimension a fixed size"),
    "halves": (lambda x: jax.nn.glu(x, axis=0), '"T % 2 == 0"'),
    "axes without names": (lambda x: jnp.squeeze(x[:, :1]), "jnp.squeeze(x, axis=0)"),
    "labels": (lambda x: jnp.einsum("ij,ki->jk", x, jnp.ones((3, 5))), "Give the dimension that size"),
}


@pytest.mark.parametrize("name", ADVICE)
def test_what_jax_says_without_a_line_or_an_advice(name):
    fn, advice = ADVICE[name]
    message = message_of(fn, "f32[T,4]")
    assert f"test_errors.py:{fn.__code__.co_firstlineno}:" in message and advice in message


def test_advice_that_was_taken():
    check_at_sizes(lambda x: x[jnp.asarray(x.shape[0] - 1)], "f32[T,4]", empty="")
    check_at_sizes(lambda x: x.at[jnp.asarray(x.shape[0] // 2)].set(0.0), "f32[T,4]", empty="")
    even = [{"T": t} for t in (2, 6)]
    check_at_sizes(lambda x: jax.nn.glu(x, axis=0), "f32[T,4]", constraints=["T % 2 == 0"], sizes=even)
    check_at_sizes(lambda x: jnp.squeeze(x[:, :1], axis=1), "f32[T,4]")


def test_errors_that_are_not_about_dimensions_stay_what_they_are():
    with pytest.raises(IndexError, match="valid indices"):
        jax2onnx.to_onnx(lambda x: x[object()], ["f32[T,4]"])
    with pytest.raises(AssertionError, match="mine"):
        jax2onnx.to_onnx(failing, ["f32[T,4]"])


def failing(x):
    raise AssertionError("mine")


def test_a_numpy_array_that_is_cut_at_a_symbolic_dimension():
    table = np.ones((8, 4), np.float32)
    message = message_of(lambda x: x + table[: x.shape[0]], "f32[T,4]", constraints=["T <= 8"])
    assert "test_errors.py" in message and "jnp.asarray" in message
    with pytest.raises(TypeError, match="slice indices"):  # no dimension is to blame
        jax2onnx.to_onnx(lambda x: x + table[:2.0], [(8, 4)])


def test_a_dimension_that_may_be_larger_than_a_table():
    table = jnp.asarray(floats(8, 4))

    def positions(x):
        return x + table[: x.shape[1]]

    message = message_of(positions, "f32[B,T,4]")
    assert "test_errors.py" in message and "min(8, T)" in message and 'constraints=["T <= 8"]' in message
    allowed = [{"B": 2, "T": n} for n in (1, 3, 8)]
    check_at_sizes(positions, "f32[B,T,4]", constraints=["T <= 8"], sizes=allowed)
    first = lambda x: x[:8] + table  # noqa: E731
    assert 'if it is the second, constraints=["T >= 8"]' in message_of(first, "f32[T,4]")
    check_at_sizes(first, "f32[T,4]", constraints=["T >= 8"], sizes=[{"T": 8}, {"T": 9}])


def test_a_decomposition_names_the_constraint_that_decides_it():
    """JAX's types promise two vectors; whether there are so many is first asked where eigh is written out."""

    def middle(x):
        return lax.linalg.eigh(x, subset_by_index=(1, 3))

    message = message_of(middle, "f32[N,N]")
    assert f"test_errors.py:{middle.__code__.co_firstlineno + 1}:" in message
    assert message.startswith("eigh of these symbolic sizes") and 'add constraints=["N >= 3"]' in message
    model = jax2onnx.to_onnx(middle, ["f32[N,N]"], constraints=["N >= 3"])
    for n in (3, 4, 7):
        x = floats(n, n) + floats(n, n).T
        want = [part[..., 1:3] for part in lax.linalg.eigh(x)]  # JAX itself computes all of them on a CPU
        assert factorisation_difference("eigh", x, run(model, x), want, 1e-5) is None


def test_a_decomposition_for_any_size_and_for_one_that_is_known_to_be_larger():
    def f(x):
        return jnp.linalg.svd(x, compute_uv=False)

    check_at_sizes(f, "f32[N,3]", constraints=["N >= 3"], sizes=[{"N": n} for n in (3, 7)], rtol=1e-4, atol=1e-5)
    check_at_sizes(f, "f32[N,3]", empty="", rtol=1e-4, atol=1e-5)


def test_constraints_as_strings_and_from_jax():
    def f(x):
        b, t = x.shape
        halves = x.reshape(b // 8, 8, t)[:, :4]
        return halves, x[:, 1:], jnp.arange(1024)[:t] * 1.0

    sizes = [{"B": 8, "T": 2}, {"B": 16, "T": 3}, {"B": 24, "T": 9}]
    check_at_sizes(f, "f32[B,T]", constraints=["B % 8 == 0", "T >= 2", "T <= 1024"], sizes=sizes)
    given = symbolic_shape("B, T", constraints=["mod(B, 8) == 0", "T >= 2", "T <= 1024"])
    check_at_sizes(f, jax.ShapeDtypeStruct(given, jnp.float32), sizes=sizes)


def test_what_is_assumed_around_an_export():
    def last_of_each(x):
        return last_two(x), last_two(x.T)

    message = message_of(last_two, ("T",))
    assert "jax2onnx.assuming(" in message
    with jax2onnx.assuming("T >= 2"):
        model = check(last_two, np.ones(3, np.float32), dims=[("T",)])
        both = check(last_of_each, np.ones((2, 4), np.float32), dims=[("T", "B")], constraints=["B >= 2"])
        assert "which no input has" in message_of(last_two, ("B",))
    for size in (2, 5):
        check_run(model, last_two, np.ones(size, np.float32))
        check_run(both, last_of_each, np.ones((size, 3), np.float32))
    assert message_of(last_two, ("T",)) == message


def run(model, x):
    return runtime.run(model, [x])


def test_sizes_outside_of_the_constraints():
    """A size that the program cannot have fails. One that the constraints forbid although the program works, works."""
    model = jax2onnx.to_onnx(lambda x: x.reshape(x.shape[0] // 4, 4), ["f32[B]"], constraints=["B % 4 == 0"])
    with pytest.raises(runtime.ERRORS):
        run(model, np.ones(6, np.float32))
    table = jnp.ones((16, 2))
    model = jax2onnx.to_onnx(lambda x: table[: x.shape[0]] + x, ["f32[T,2]"], constraints=["T <= 16"])
    with pytest.raises(runtime.ERRORS):
        run(model, np.ones((17, 2), np.float32))


def message_of_sizes(call, *args, **kwargs):
    with pytest.raises(jax2onnx.InputError) as raised:
        call(*args, **kwargs)
    return str(raised.value)


def test_what_runs_a_model_checks_its_constraints(tmp_path):
    def f(x, *, y):
        return {"sum": x[:, 2:].sum() + y.sum()}

    constraints = ["B % 4 == 0", "T > 2", "T <= 2*B"]
    path = tmp_path / "model.onnx"
    jax2onnx.to_onnx(
        f, ["f32[B,T]"], {"y": jax.ShapeDtypeStruct((3,), jnp.float32)}, constraints=constraints, return_mode="file",
        output_path=path,
    )  # fmt: skip
    call = jax2onnx.load(path)
    three = np.ones(3, np.float32)
    assert call(np.ones((4, 8), np.float32), y=three)["sum"] == 27
    for shape, broken in [
        ((6, 8), "B % 4 == 0, but B is 6"),
        ((4, 2), "T > 2, but T is 2"),
        ((4, 9), "T <= 2*B, but B is 4 and T is 9"),
    ]:
        assert broken in message_of_sizes(call, np.ones(shape, np.float32), y=three)
        assert broken in message_of_sizes(jax2onnx.allclose, f, path, [np.ones(shape, np.float32)], {"y": three})


def test_what_runs_a_model_checks_that_equal_names_are_equal_sizes():
    given = symbolic_shape("B, 2*H, H + 1, B*H", constraints=["mod(B, 2) == 0"])
    specs = [jax.ShapeDtypeStruct(given[:2], jnp.float32), jax.ShapeDtypeStruct(given[2:], jnp.float32)]
    call = jax2onnx.load(jax2onnx.to_onnx(lambda x, y: (x[0, 0] + y[0, 0], x.shape[0]), specs))

    def sizes(*shapes):
        return [np.ones(shape, np.float32) for shape in shapes]

    assert call(*sizes((2, 6), (4, 6)))[0] == 2
    assert "axis 0 of y is 5; it must be H + 1, where B is 2, H is 3" in message_of_sizes(call, *sizes((2, 6), (5, 6)))
    assert "axis 1 of y is 7; it must be B*H" in message_of_sizes(call, *sizes((2, 6), (4, 7)))
    assert "axis 1 of x is 7; it must be 2*H" in message_of_sizes(call, *sizes((2, 7), (4, 6)))
    assert "but B is 3" in message_of_sizes(call, *sizes((3, 6), (4, 9)))
    with pytest.raises(jax2onnx.InputError, match=r"does not take x: float32\[2, 6, 1\]"):
        call(*sizes((2, 6, 1), (4, 6)))


SAME = {
    "two names": (["f32[B,T]", "f32[B,S]"], ["S == T", "S >= 3"], "T is 2"),
    "the other way round": (["f32[B,T]", "f32[B,S]"], ["T == S", "S >= 3"], "S is 2"),
    "a multiple": (["f32[B,2*T]", "f32[B,S]"], ["S == 2*T", "S >= 4"], "T is 1"),
    "a number": (["f32[B,T]", "f32[B,4]"], ["T == 4"], "4"),
    "in a row": (["f32[B,T]", "f32[B,S]"], ["T == U", "U == S", "S >= 3"], "is 2"),
}


@pytest.mark.parametrize("name", SAME)
def test_names_that_are_said_to_be_the_same(name):
    """One of them is in no shape then, but still in the constraints that the model tells."""
    specs, constraints, expected = SAME[name]
    inputs = [*specs, "f32[U]"] if "U" in " ".join(constraints) else specs
    fn = lambda x, y, *_: x + y  # noqa: E731
    call = jax2onnx.load(jax2onnx.to_onnx(fn, inputs, constraints=constraints, verify=True))
    x, rest = floats(2, 4), [np.ones(4, np.float32)] * (len(inputs) - 2)
    np.testing.assert_array_equal(call(x, x, *rest), x + x)
    rest = [np.ones(2, np.float32)] * len(rest)
    with pytest.raises(jax2onnx.InputError, match=expected):
        call(x[:, :2], x[:, :2], *rest)


def accumulated(x):
    return lax.scan(lambda h, row: (jnp.tanh(h + row), h), jnp.zeros(4), x)[1]


PER_HEAD = floats(3, 4, 5)


def add_up(total, row):
    return total + jnp.tanh(total) * row, total


NOT_EMPTY = {
    "steps": (lambda x: lax.scan(add_up, jnp.zeros(4), x), "f32[T,4]", ["T >= 1"]),
    "every other step": (lambda x: lax.scan(add_up, jnp.zeros(4), x[::2]), "f32[T,4]", ["floordiv(T + 1, 2) >= 1"]),
    "a step more": (lambda x: lax.map(jnp.sum, jnp.pad(x, ((0, 1), (0, 0)))), "f32[T,4]", []),
    "sums in batches": (lambda x: jnp.einsum("btd,bte->bde", x, x + 1), "f32[B,T,4]", ["T >= 1"]),
    "a matrix for each head": (lambda x: jnp.einsum("bhd,hde->bhe", x, PER_HEAD), "f32[B,3,4]", ["B >= 1"]),
    "a matrix on the left": (lambda x: jnp.einsum("ij,bjk->bik", PER_HEAD[0].T, x), "f32[B,4,3]", ["B >= 1"]),
    "a matrix on the right": (lambda x: x @ PER_HEAD[0], "f32[B,T,4]", []),
    "a matrix on the right of turned ones": (lambda x: x.swapaxes(1, 2) @ PER_HEAD[0], "f32[B,4,T]", ["B >= 1"]),
    "a matrix that is turned": (lambda x: x @ x[0].T, "f32[B,3,3]", ["B >= 1"]),
    "sums of integers": (lambda x: (x.astype(int).sum(2), x.astype(int).sum((1, 2))), "f32[B,T,4]", []),
    "sums of integers in batches": (lambda x: x.astype(int).sum(1), "f32[B,4,T]", ["B >= 1"]),
    "turned around": (lambda x: jnp.roll(x, 1, 0) + jnp.roll(x, -5, 0), "f32[T,4]", []),
    "turned around with its ends": (lambda x: jnp.roll(jnp.concatenate([x[-2:], x, x[:2]]), 1), "f32[T]", []),
    "transposed": (lambda x: lax.conv_transpose(x, PER_HEAD, (2,), "VALID"), "f32[B,T,4]", ["T >= 1"]),
    "images": (lambda x: lax.conv_general_dilated(x, PER_HEAD, (1,), "SAME"), "f32[B,4,T]", ["T >= 1"]),
    "windows": (lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3), (1, 1), "SAME"), "f32[2,T]", ["T >= 1"]),
    "steps in steps": (lambda x: lax.map(accumulated, x), "f32[B,T,4]", ["B >= 1", "T >= 1"]),
    "steps in a branch": (lambda x: lax.cond(x.sum() >= 0, accumulated, jnp.sin, x), "f32[T,4]", ["T >= 1"]),
    "steps in a function": (jax2onnx.onnx_function(accumulated), "f32[T,4]", ["T >= 1"]),
    "the first": (lambda x: (x[:, 0], x.at[:, 1:].mul(2.0)), "f32[B,T]", ["T >= 1"]),
    "rows that are written": (lambda x: x.at[:1].set(x[-1:] + 1.0), "f32[T,4]", ["T >= 1"]),
    "rows of positions": (lambda x: jnp.take_along_axis(x, jnp.argsort(x, 1), 1)[::-1], "f32[B,T]", []),
    "positions in a branch": (lambda x: lax.cond(x.sum() > 0, lambda: x.at[:1].add(1.0), lambda: x), "f32[T,4]", []),
    "attention": (lambda x: jax.nn.dot_product_attention(x, x, x, is_causal=True), "f32[B,T,2,4]", []),
}


@pytest.mark.parametrize("name", quick([*[*NOT_EMPTY][5:13], *[*NOT_EMPTY][-5:-1]], NOT_EMPTY))
def test_sizes_that_must_not_be_zero(name):
    """Where ONNX Runtime would crash, be wrong or refuse, the model says so; elsewhere 0 is as good as any size."""
    fn, spec, expected = NOT_EMPTY[name]
    model = jax2onnx.to_onnx(fn, [spec])
    assert json.loads(next(p.value for p in model.metadata_props if p.key == sizes.CONSTRAINTS)) == expected
    call = jax2onnx.load(model)
    names = re.findall("[BT]", spec)
    for empty in names:
        shape = [0 if d == empty else 2 if d in names else int(d) for d in spec[4:-1].split(",")]
        x = np.ones(shape, np.float32)
        if any(empty in text for text in expected):
            assert f"but {empty} is 0" in message_of_sizes(call, x)
        else:
            check_run(model, fn, x)


WINDOWS = {
    "pool": (lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3), (1, 2), "VALID"), "floordiv(N - 3, 2) + 1 >= 1"),
    "sums": (lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3), (1, 2), "VALID"), "floordiv(N - 3, 2) + 1 >= 1"),
    "convolution": (lambda x: lax.conv(x[:, None], PER_HEAD[:, :1, :3], (1,), "VALID"), "max(N - 2, 0) >= 1"),
}


@pytest.mark.parametrize("name", quick(["pool"], WINDOWS))
def test_sizes_of_which_a_window_has_to_fit(name):
    """JAX would have no window then, where ONNX Runtime fails, or makes one of what there is."""
    fn, needed = WINDOWS[name]
    call = jax2onnx.load(jax2onnx.to_onnx(fn, ["f32[2,N]"], verify=True))
    np.testing.assert_allclose(call(floats(2, 7)), fn(floats(2, 7)), rtol=1e-5)
    assert f"{needed}, but N is 2" in message_of_sizes(call, floats(2, 2))
    model = jax2onnx.to_onnx(fn, ["f32[2,N]"], constraints=["N >= 3"])
    assert [p.value for p in model.metadata_props if p.key == sizes.CONSTRAINTS] == ['["N >= 3"]']


def halved_and_doubled(x):
    small = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 2), "SAME")
    return x + jnp.repeat(small, 2, 1)


def test_sizes_that_jax_takes_to_be_different():
    message = message_of(halved_and_doubled, "f32[B,H]")
    assert f"test_errors.py:{halved_and_doubled.__code__.co_firstlineno + 2}:" in message
    assert "for different sizes" in message and '"32*H"' in message
    check_at_sizes(halved_and_doubled, "f32[B,2*H]", sizes=[{"B": b, "H": h} for b, h in ((2, 1), (1, 3), (3, 4))])
    message = message_of(lambda x, y: x + y, "f32[B,S]", "f32[B,T]")
    assert "takes S and T for different sizes" in message and 'constraints=["S == T"]' in message
    same = [{"B": 2, "S": n, "T": n} for n in (1, 3, 4)]
    check_at_sizes(lambda x, y: x + y, "f32[B,S]", "f32[B,T]", constraints=["S == T"], sizes=same)


def halved_with_pads(x):
    size = -(-x.shape[2] // 2)
    pad = 2 * size - x.shape[2]
    return lax.conv_general_dilated(x, jnp.ones((2, 3, 2)), (2,), [(pad // 2, pad - pad // 2)])


def test_sizes_that_leave_remainders():
    message = message_of(halved_with_pads, "f32[B,3,H]")
    assert f"test_errors.py:{halved_with_pads.__code__.co_firstlineno + 3}:" in message
    assert 'such as "2*H"' in message and "different sizes" not in message
    check_at_sizes(halved_with_pads, "f32[B,3,2*H]", sizes=[{"B": b, "H": h} for b, h in ((2, 1), (1, 3))])
    message = message_of(lambda x: x + jnp.arange(x.shape[0] - 1, -1, -1.0), "f32[T]")
    assert "test_errors.py" in message and "give the dimension a fixed size" in message


def test_the_line_is_neither_a_librarys_nor_pythons():
    layer = nnx.Conv(3, 6, (4,), padding="CIRCULAR", rngs=nnx.Rngs(0))  # wrapped by contextlib
    assert re.search(r"what happens at \S+test_errors.py:", message_of(layer, "f32[B,T,3]"))


@pytest.mark.parametrize("shapes", [("f32[B,3]", "f32[B,4]"), ("f32[B,3,T]", "f32[B,4,S]"), ("f32[3]", "f32[4]")])
def test_sizes_that_are_different(shapes):
    with pytest.raises(TypeError, match="incompatible shapes"):  # no constraint would help
        jax2onnx.to_onnx(lambda x, y: x + y, list(shapes))


def test_what_is_in_parentheses_may_be_no_shape():
    message = message_of(lambda x: jnp.pad(x, (2, 1), mode="reflect"), "f32[H]")
    assert "padding length (= 2)" in message and "Say what you know" in message and "different sizes" not in message
    other_dtype = lambda x: lax.reduce((x, x), (1.0, jnp.int8(0)), lambda a, b: a, (0,))  # noqa: E731
    with pytest.raises(TypeError, match="dtypes should match"):
        jax2onnx.to_onnx(other_dtype, ["f32[H]"])


@pytest.mark.parametrize("fn", [lambda x: lax.associative_scan(jnp.add, x), lambda x: jax.scipy.signal.convolve(x, x)])
def test_functions_of_jax_that_need_a_fixed_size(fn):
    message = message_of(fn, "f32[T]")
    assert "test_errors.py:" in message and "give the dimension a fixed size" in message
