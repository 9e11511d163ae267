"""What is said to a function that needs the values of arrays while it is traced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax2onnx import InputError, to_onnx

TABLE = np.eye(4, dtype=np.float32)


def branch(x):
    return x if x[0] > 0 else -x


def table(x):
    return TABLE[x.astype(int)]


def numpy_function(x):
    return np.sort(x)


def entry_of_list(x):
    return [x, -x][x[0].astype(int)]


def size(x):
    return jnp.zeros(int(x[0]))


def selection(x):
    return x[x > 0]


def found(x):
    return jnp.nonzero(x)


@pytest.mark.parametrize(
    ("fn", "advice"),
    [
        (branch, "jax.lax.cond"),
        (table, "jnp.asarray(table)[index]"),
        (numpy_function, "use jax.numpy"),
        (entry_of_list, "make the list an array"),
        (size, "give sizes as numbers"),
        (selection, "jnp.where(mask, x, 0)"),
        (found, "give sizes as numbers"),
    ],
)
def test_the_line_and_what_to_write_instead(fn, advice):
    with pytest.raises(InputError) as raised:
        to_onnx(fn, [(3,)])
    message = str(raised.value)
    assert f"test_valueless.py:{fn.__code__.co_firstlineno + 1}," in message
    assert advice in message and "flat_fn" not in message and "\n" not in message


def test_a_number_that_the_function_branches_on_is_still_baked_in():
    model = to_onnx(lambda x, *, n: x * 2 if n > 1 else x, [(3,)], {"n": 3})
    assert [i.name for i in model.graph.input] == ["x"]


KEPT: list = []


def from_an_earlier_call(x):
    KEPT.append(x)
    return KEPT[0] * 2


def from_a_body(x):
    lax.fori_loop(0, 3, lambda i, c: (KEPT.append(c), c + 1)[1], x)
    return KEPT[0] * 2


def as_it_is(x):
    KEPT.append(x)
    return KEPT[0]


@pytest.mark.parametrize(
    ("fn", "where"), [(from_an_earlier_call, "at .*:{line}"), (from_a_body, "at .*:{line}"), (as_it_is, "as a result")]
)
def test_a_traced_array_that_was_put_aside(fn, where):
    KEPT.clear()
    jax.make_jaxpr(fn)(1.0)
    where = where.format(line=fn.__code__.co_firstlineno + 2)
    with pytest.raises(InputError, match=f"uses a traced array {where} "):
        to_onnx(fn, [()])
