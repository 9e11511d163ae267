"""Prints and checks are not part of a model; primitives of other libraries are what those say they are."""

from __future__ import annotations

import functools
import warnings

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax._src import dispatch
from jax.experimental import checkify
from jax.extend.core import Primitive
from jax.interpreters import mlir

import jax2onnx
from jax2onnx.errors import UnsupportedError
from tests.helpers import check
from tests.lower.bodies import count

equinox = pytest.importorskip("equinox")


def test_prints_vanish_with_what_they_need():
    def fn(x):
        jax.debug.print("{}", jnp.cos(x))
        jax.debug.callback(lambda x: None, jnp.tan(x))
        lax.cond(x > 2, lambda: jax.debug.print("large {}", x), lambda: None)

        def step(c, y):
            jax.debug.print("{}", jnp.exp(c))
            return c * 0.5 + y, None

        return lax.scan(step, x, jnp.ones(40))[0], lax.while_loop(lambda c: c < 9, lambda c: step(c, 5)[0], x)

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model = check(fn, np.float32(1))
    assert not {"Cos", "Tan", "Exp", "If"} & set(count(model))


def test_checks_vanish_with_one_warning():
    def fn(x):
        y = equinox.error_if(x, jnp.cos(x) < -2, "never")

        def step(c, z):
            return equinox.error_if(c * z, jnp.tan(c) > 1e9, "rarely"), None

        return lax.scan(step, equinox.error_if(y * 2, y > 100, "large"), jnp.full(40, 0.9))[0]

    with pytest.warns(UserWarning, match=r"without the 3 run-time checks.*test_side_effects\.py:\d+") as caught:
        model = jax2onnx.to_onnx(fn, [()])
    assert len(caught) == 1
    assert not {"Cos", "Tan", "Greater", "If"} & set(count(model))


def test_batched_check():
    def fn(x):
        return jax.vmap(lambda x: equinox.error_if(x * 2, x > 100, "large"))(x)

    with pytest.warns(UserWarning, match="run-time checks"):
        check(fn, np.float32([1, 2, 3]))


def test_check_of_checkify():
    def fn(x):
        checkify.check(jnp.cos(x) < 2, "never")
        return x * 2

    with pytest.warns(UserWarning, match="without the 1 run-time checks"):
        model = jax2onnx.to_onnx(fn, [()])
    assert set(count(model)) == {"Mul"}


def test_functionalised_check_is_computed():
    def fn(x):
        checkify.check(x > 0, "must be positive")
        return jnp.log(x)

    def with_error(x):
        error, y = checkify.checkify(fn)(x)
        return jnp.any(jnp.stack(list(error._pred.values()))), y

    for x in (1.5, -1.5):
        check(with_error, np.float32(x))


def test_other_libraries_primitives():
    def fn(x, key):
        y = equinox.internal.nonbatchable(x * 2)
        any_large = equinox.internal.unvmap_any(y > 3)
        return lax.cond(any_large, lambda: y, lambda: x), equinox.internal.unvmap_max(key)

    check(fn, np.float32([1, 2]), np.int32([3, 4]))


def test_a_primitive_that_defines_itself_in_jax():
    twice_p = Primitive("twice")
    twice_p.def_impl(lambda x, *, by: x * by)
    twice_p.def_abstract_eval(lambda x, *, by: x)
    mlir.register_lowering(twice_p, mlir.lower_fun(lambda x, *, by: x * by, multiple_results=False))
    check(lambda x: lax.scan(lambda c, _: (twice_p.bind(c, by=0.5), c), x, length=40), np.float32([1, 2]))


def test_a_primitive_that_is_compiled_as_a_function_in_jax():
    turned_p = Primitive("turned")
    turned_p.def_impl(functools.partial(dispatch.apply_primitive, turned_p))
    turned_p.def_abstract_eval(lambda x, *, by: x)
    mlir.register_lowering(turned_p, mlir.lower_fun(lambda x, *, by: x * jnp.exp(1j * by), multiple_results=False))
    check(lambda x: jnp.abs(turned_p.bind(x + 1j, by=0.5) + 1), np.float32([1, 2]))


def test_a_primitive_that_does_not_is_unsupported():
    opaque_p = Primitive("opaque")
    opaque_p.def_impl(lambda x: np.sin(np.asarray(x)))
    opaque_p.def_abstract_eval(lambda x: x)
    with pytest.raises(UnsupportedError, match=r"opaque \(1x\), first at .*test_side_effects\.py"):
        jax2onnx.to_onnx(lambda x: opaque_p.bind(x), [(2,)])


def test_callbacks_are_unsupported_for_a_reason():
    def fn(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), np.float32), x)

    with pytest.raises(UnsupportedError, match=r"pure_callback \(1x\).*calls back into Python"):
        jax2onnx.to_onnx(fn, [()])

    def conditional(x):
        return lax.cond(x > 0, fn, lambda x: x, x)  # not a check: it may well return

    with pytest.raises(UnsupportedError, match="pure_callback"):
        jax2onnx.to_onnx(conditional, [()])
