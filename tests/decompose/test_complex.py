"""Complex programs in real arithmetic: the rewrite itself, and what moves numbers about or is linear."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax2onnx import compat
from jax2onnx.decompose import decompose
from jax2onnx.decompose.complex import eliminate_complex
from jax2onnx.decompose.sort import ordered_p
from jax2onnx.errors import UnsupportedError
from tests.decompose.rewriting import assert_same, evaluate, types_in

RNG = np.random.default_rng(0)


def numbers(*shape, dtype="complex64"):
    return (RNG.normal(size=shape) + 1j * RNG.normal(size=shape)).astype(dtype)


def same(fn, *args, tol=1e-5):
    return assert_same(eliminate_complex, fn, *args, rtol=tol, atol=tol)


def same_decomposed(fn, *args, tol=1e-5):
    """For what is defined in JAX, in complex numbers, first."""
    return assert_same(lambda closed: decompose(closed, core={ordered_p}), fn, *args, rtol=tol, atol=tol)


Z, W = numbers(3, 4), numbers(3, 4)


@pytest.mark.parametrize(
    "fn",
    [
        lambda z: (z + 1j, 2 - z, -z, z * 3, z * 1j, z / 2, 1 / z),
        lambda z: (z.real, z.imag, z.conj(), jnp.abs(z), jnp.angle(z)),
        lambda z: (lax.complex(z.real, 2.0), lax.conj(z.real)),
        lambda z: (z == z[0], z != z[:, :1], z == 1),
        lambda z: (z.reshape(2, 6), z.T, z[::-1], z[1], z[:, None], z[1:, ::2], jnp.squeeze(z[:1])),
        lambda z: (jnp.concatenate([z, z], 1), jnp.stack([z, z], 2), jnp.pad(z, 1, constant_values=2j)),
        lambda z: (jnp.where(z.real > 0, z, 1j), jnp.broadcast_to(z[0], (2, 4)), jnp.tile(z, (2, 1))),
        lambda z: (jnp.split(z, 2, axis=1), [*z]),
        lambda z: (lax.dynamic_slice(z, (1, 1), (2, 2)), lax.dynamic_update_slice(z, z[:1, :1] * 2, (5, 1))),
        lambda z: (z.astype("float32"), z.astype("int32"), z.real.astype("complex64"), z.astype(bool)),
        lambda z: (jnp.sum(z, 0), jnp.mean(z), jnp.cumsum(z, 1), lax.cumsum(z, 0, reverse=True)),
        lambda z: (jnp.arange(3, dtype="complex64"), lax.iota("complex64", 4)),
        lambda z: (z[jnp.array([0, 2, 9])], jnp.take(z, jnp.array([5, 1]), 1, fill_value=1 - 2j, mode="fill")),
        lambda z: z.at[0].set(3j).at[jnp.array([1, 1])].add(2j).at[2, 1:].subtract(z[0, 1:]),
        lambda z: (lax.sort(z), jnp.sort_complex(z[0])),
        lambda z: (jnp.max(z, 0), jnp.min(z), jnp.prod(z, 1), jnp.maximum(z, z[0]), jnp.minimum(z, 0)),
        lambda z: lax.clamp(z[0, 0] - 3j, z, z[0, 0] + 0.2j),
        lambda z: (lax.stop_gradient(z), lax.optimization_barrier(z), jax.device_put(z)),
        lambda z: (jnp.isfinite(z), jnp.isnan(z), jnp.round(z), jnp.nan_to_num(z)),
    ],
)
@pytest.mark.filterwarnings("ignore:Casting from complex to real")
def test_one_operand(fn):
    same(fn, Z)
    with jax.enable_x64(True):
        same(fn, Z.astype("complex128"), tol=1e-12)


@pytest.mark.parametrize(
    "fn",
    [
        lambda z, w: (z + w, z - w, z * w, z / w),
        lambda z, w: (z @ w.T, z.conj().T @ w, z.real @ w.T, z @ w.T.imag, jnp.vdot(z, w)),
        lambda z, w: jnp.einsum("ij,ij,kj->ik", z, w, z),
        lambda z, w: (z * w[0], z / w[:, :1], z[0] - w, z + w[0, 0]),
        lambda z, w: lax.conv(z[None], w[:, :3].reshape(3, 3, 1), (1,), "SAME"),
    ],
)
def test_two_operands(fn):
    same(fn, Z, W)


def test_sorting_orders_by_the_real_part_then_by_the_imaginary_part():
    z = np.array([1 + 2j, 1 + 1j, np.nan, 0j, 1 - 1j, complex(0, np.nan), -np.inf], np.complex64)
    keys = np.array([2, 1, 2, 1, 2, 1, 2])
    same(lax.sort, z)
    same(lambda k, z, x: lax.sort((k, z, x), num_keys=2), keys, z, np.arange(7))
    same(lambda k, z: lax.sort((k, z), num_keys=1), keys, z)


def test_updates_of_one_element_are_all_applied():
    indices, updates = jnp.array([[0], [2], [0], [7]]), numbers(4)
    for update in ("multiply", "min", "max"):
        same_decomposed(lambda z, u, update=update: getattr(z.at[indices[:, 0]], update)(u), Z[0], updates)


def test_cumulative_and_windowed():
    same_decomposed(lambda z: (lax.cumprod(z, 1), lax.cummax(z, 0), lax.cummin(z, 1, reverse=True)), Z)
    same_decomposed(lambda z: lax.reduce(z, np.complex64(1), lambda a, b: a * b * 2, (0,)), Z)
    same(lambda z: lax.reduce_window(z, np.complex64(0), lax.add, (2, 2), (1, 2), "SAME"), Z)
    same(lambda z: lax.reduce_window(z, np.complex64(1), lax.mul, (2, 2), (1, 1), "VALID"), Z)


def test_linear_algebra():
    a = numbers(4, 4) + 4 * np.eye(4, dtype=np.complex64)
    same_decomposed(lambda a, b: jnp.linalg.solve(a, b), a, numbers(4, 2), tol=1e-4)
    same_decomposed(lambda a: jnp.linalg.cholesky(a @ a.conj().T), a, tol=1e-3)
    same_decomposed(lambda a: (jnp.linalg.inv(a), jnp.linalg.det(a)), a, tol=1e-3)


def test_derivatives():
    same(jax.grad(lambda x: jnp.sum(jnp.abs(jnp.exp(1j * x) * (1 + 2j)))), Z.real)
    same(jax.grad(lambda z: jnp.sum(jnp.abs(z * z)), holomorphic=False), Z)
    same(jax.vmap(lambda z, w: z @ w), Z, W)
    same(lambda z: jax.jvp(jnp.sin, (z,), (z,)), Z)


def test_control_flow():
    same(lambda z: lax.scan(lambda c, x: (c * x, (c, x.real)), z[0], z), Z)
    same(lambda z, x: lax.scan(lambda c, a: ((c[0] + a[1], c[1] * a[0]), c[0]), (x[0], z[0]), (z, x)), Z, W.real)
    same(lambda z: lax.while_loop(lambda c: c[1] < 5, lambda c: (c[0] * 0.5j * z, c[1] + 1), (z, 0)), Z)
    same(lambda z: lax.while_loop(lambda c: jnp.abs(c) < 100, lambda c: c * (1 + 1j), z[0, 0]), Z)
    for i in range(3):
        same(lambda z, i: lax.switch(i, [lambda z: z + 1, lambda z: z * 2j, jnp.conj], z), Z, i)
    same(lambda z: lax.fori_loop(0, 3, lambda i, c: lax.cond(i > 1, lambda: c, lambda: c * z), z), Z)
    same(lambda z: lax.map(lambda z: z.real * z, z), Z)
    same(jax.jit(lambda z, x: (z, x, jax.jit(lambda y: y * z)(x))), Z, Z.real)


def test_calls_take_the_place_of_what_they_say_about_derivatives():
    square = jax.custom_jvp(lambda z: z * z)
    square.defjvps(lambda t, _, z: 2 * z * t)

    @jax.custom_vjp
    def double(z):
        return 2 * z

    double.defvjp(lambda z: (2 * z, None), lambda _, g: (2 * g,))
    same(lambda z: double(square(z)) + jax.checkpoint(lambda z: z * z)(z), Z)
    same(lambda b: lax.custom_linear_solve(lambda y: 2j * y, b, lambda _, b: b / 2j, lambda _, b: b / 2j), Z)


def test_complex_numbers_inside_only():
    """Nothing complex at the boundary, of the program or of a body."""
    same(lambda x: jax.jit(lambda x: jnp.abs(x + 1j))(x), Z.real)
    same(lambda x: lax.scan(lambda c, y: (c + jnp.abs(c + 1j * y), c), 0.0, x), Z.real[0])


def test_constants():
    large = jnp.asarray(numbers(3, 4))
    same(lambda x: x * large, Z.real)
    same(lambda x: lax.scan(lambda c, y: (c + y * large[0], 0), Z[0], x), Z)
    same(lambda: (large, jnp.complex64(2j), 1j))
    closed = eliminate_complex(jax.make_jaxpr(lambda x: x * large)(Z.real))
    assert [c.shape for c in closed.consts] == [(3, 4, 2)]


def test_a_constant_is_not_copied():
    constant = numbers(3, 4)
    closed = jax.make_jaxpr(lambda z: z)(Z)
    jaxpr = closed.jaxpr.replace(constvars=closed.jaxpr.invars, invars=[])
    new = eliminate_complex(jax.extend.core.ClosedJaxpr(jaxpr, [constant]))
    assert np.shares_memory(new.consts[0], constant)


def test_boundary_has_one_array_with_a_trailing_axis_of_two():
    closed = eliminate_complex(jax.make_jaxpr(lambda z, x: (x, z * x))(Z, Z.real))
    assert [v.aval.shape for v in closed.jaxpr.invars] == [(3, 4, 2), (3, 4)]
    assert [v.aval.shape for v in closed.jaxpr.outvars] == [(3, 4), (3, 4, 2)]
    assert closed.jaxpr.debug_info.arg_names == ("z", "x")


def test_inputs_and_outputs_that_nothing_happens_to():
    same(lambda z, w: (w, z, z, 3, 1j), Z, W)
    same(lambda z: 1.0, Z)


def test_empty_and_single_arrays():
    for shape in [(0, 4), (3, 0), (1, 1), ()]:
        same(lambda z: (z * z, z.sum(), jnp.abs(z)), numbers(*shape))


def test_programs_and_bodies_without_complex_numbers_stay_the_same_objects():
    body = jax.jit(lambda x: jnp.sin(x) * 2)
    closed = jax.make_jaxpr(lambda x: lax.scan(lambda c, y: (c + body(y), c), 0.0, x))(Z.real[0])
    assert eliminate_complex(closed) is closed
    mixed = jax.make_jaxpr(lambda x: (body(x), x + 1j, body(x)))(Z.real)
    old, new = ([e for e in c.eqns if e.primitive.name == "jit"] for c in (mixed, eliminate_complex(mixed)))
    assert all(a is b for a, b in zip(old, new, strict=True))


def test_a_body_that_is_called_twice_stays_one():
    layer = jax.jit(lambda z: z * z + 1)
    closed = eliminate_complex(jax.make_jaxpr(lambda z: layer(layer(z)))(Z))
    first, second = (e.params["jaxpr"] for e in closed.eqns if e.primitive.name == "jit")
    assert first is second


def test_equations_keep_the_users_line_and_scope():
    def fn(z):
        with jax.named_scope("block"):
            return z * z

    eqn = jax.make_jaxpr(fn)(Z).eqns[0]
    products = [e for e in eliminate_complex(jax.make_jaxpr(fn)(Z)).eqns if e.primitive.name == "mul"]
    assert len(products) == 4
    assert {compat.sources.source_line(e) for e in products} == {compat.sources.source_line(eqn)}
    assert {str(e.source_info.name_stack) for e in products} == {"block"}


def test_symbolic_dimensions():
    a, b = jax.export.symbolic_shape("a, b")
    spec = jax.ShapeDtypeStruct((a, b), np.complex64)
    closed = eliminate_complex(jax.make_jaxpr(lambda z: ((z * z) / z.sum(0), z.reshape(-1), jnp.abs(z) * a))(spec))
    assert [v.aval.shape for v in closed.jaxpr.outvars] == [(a, b, 2), (a * b, 2), (a, b)]


def test_a_primitive_without_a_rule_is_named_with_its_line():
    p = jax.extend.core.Primitive("strange")
    p.def_abstract_eval(lambda x: x)
    with pytest.raises(UnsupportedError, match=r"`strange` on complex numbers .* at .*test_complex\.py"):
        eliminate_complex(jax.make_jaxpr(lambda z: p.bind(z))(Z))


def test_effects_of_x64_do_not_leak():
    """float32 stays float32 where 64-bit types are on."""
    with jax.enable_x64(True):
        functions = [jnp.exp, jnp.log, jnp.sqrt, jnp.tanh, jnp.arcsin, jnp.arctan, lambda z: z / z, jnp.abs]
        for fn in functions:
            closed = eliminate_complex(jax.make_jaxpr(fn)(Z))
            assert np.dtype(np.float64) not in types_in(closed)
            assert evaluate(closed, Z)[0].dtype == np.float32
