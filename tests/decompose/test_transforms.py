"""The families that are defined in JAX or numerically delicate, taken through JAX's transformations.

One table of programs, one of transformations: each program is batched, differentiated once and twice, put into the
bodies of loops and branches, and differentiated there; also with empty matrices and arrays of one element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
import pytest
from jax import lax
from jax.scipy import special, stats

from tests.helpers import check

Args = list[np.ndarray]

# ------------------------------------------------------------------------------------------------------- programs


class Program(NamedTuple):
    """A function of arrays with these shapes, in which `n` is the size to try, and which it is differentiated by."""

    fn: Callable[..., Any]
    shapes: list[tuple]
    dtype: str = "float32"
    by: tuple[int, ...] | None = None  # None: all arguments; (): not at all
    sizes: tuple[int, ...] = (0, 1)


def adjoint(a: Any) -> Any:
    return jnp.conj(a).mT


def definite(a: Any) -> Any:
    return a @ adjoint(a) + jnp.eye(a.shape[-1], dtype=a.dtype)


def regular(a: Any) -> Any:
    return a + 4 * jnp.eye(a.shape[-1], dtype=a.dtype)


def separated(a: Any) -> Any:
    """A Hermitian matrix with eigenvalues that are not close to each other: derivatives divide by their distances."""
    return a + adjoint(a) + jnp.diag(4 * jnp.arange(a.shape[-1])).astype(a.dtype)


def eigh(a: Any) -> Any:
    w, v = jnp.linalg.eigh(separated(a))
    return w, (v * jnp.tanh(w)) @ adjoint(v)  # the vectors themselves are not unique


def svd(a: Any) -> Any:
    u, s, vt = jnp.linalg.svd(a, full_matrices=False)
    return s, (u * jnp.tanh(s)[..., None, :]) @ vt


def eig(a: Any) -> Any:
    w, v = lax.linalg.eig(separated(a) + a, compute_left_eigenvectors=False, enable_eigvec_derivs=True)
    return jnp.linalg.solve(v.mT, (v * jnp.tanh(w / 8)).mT).mT  # v f(w) v^-1


def schur(a: Any) -> Any:
    t, q = jsp.linalg.schur(a)
    return q @ t @ adjoint(q)


def tridiagonal(below: Any, diagonal: Any, above: Any, b: Any) -> Any:
    return lax.linalg.tridiagonal_solve(below.at[0].set(0), diagonal + 4, above.at[-1].set(0), b)


def linear_solve(a: Any, b: Any) -> Any:
    a = regular(a)
    return lax.custom_linear_solve(
        lambda x: a @ x, b, lambda _, b: jnp.linalg.solve(a, b), lambda _, b: jnp.linalg.solve(a.T, b)
    )


def positive(x: Any) -> Any:
    return jnp.abs(x) + 0.3


def unit(x: Any) -> Any:
    return 0.45 * jnp.tanh(x) + 0.5


SQUARE, TALL, WIDE, VECTOR = ("n", "n"), ("n+2", "n"), ("n", "n+2"), ("n",)

LINALG = {
    "cholesky": Program(lambda a: jnp.linalg.cholesky(definite(a)), [SQUARE], "complex64"),
    "cho_solve": Program(
        lambda a, b: jsp.linalg.cho_solve(jsp.linalg.cho_factor(definite(a)), b), [SQUARE, VECTOR], "float64"
    ),
    "qr": Program(lambda a: jnp.linalg.qr(regular(a)), [SQUARE], "complex128"),
    "qr of tall": Program(jnp.linalg.qr, [TALL], "float64"),
    "qr of wide": Program(jnp.linalg.qr, [WIDE], "float64", by=()),
    "qr with pivoting": Program(lambda a: jsp.linalg.qr(a, pivoting=True, mode="economic"), [TALL], by=()),
    "lu": Program(lambda a: jsp.linalg.lu(a), [SQUARE], "float64"),
    "lu of wide": Program(lambda a: jsp.linalg.lu(a), [WIDE], "complex64"),
    "eigh": Program(eigh, [SQUARE], "complex64"),
    "eigvalsh": Program(lambda a: jnp.sin(jnp.linalg.eigvalsh(separated(a))), [SQUARE]),
    "svd": Program(svd, [TALL], "float64"),
    "svd of wide": Program(svd, [WIDE], "complex64"),
    "singular values": Program(lambda a: jnp.linalg.svd(a, compute_uv=False), [SQUARE]),
    "eig": Program(eig, [SQUARE], "float64", sizes=(1,)),
    "eigvals": Program(lambda a: jnp.sum(jnp.tanh(jnp.linalg.eigvals(a) / 4)), [SQUARE], by=()),
    "schur": Program(schur, [SQUARE], by=()),
    "hessenberg": Program(lambda a: jsp.linalg.hessenberg(a, calc_q=True), [SQUARE], "complex64", by=()),
    "triangular_solve": Program(
        lambda a, b: lax.linalg.triangular_solve(regular(a), b, lower=True, transpose_a=True, conjugate_a=True),
        [SQUARE, (3, "n")],
        "complex64",
    ),
    "tridiagonal_solve": Program(tridiagonal, [VECTOR, VECTOR, VECTOR, ("n", 2)], sizes=(1, 3)),
    "householder_product": Program(lax.linalg.householder_product, [TALL, VECTOR], by=()),
    "custom_linear_solve": Program(linear_solve, [SQUARE, VECTOR]),
    "expm": Program(jsp.linalg.expm, [SQUARE], "complex64"),
    "sqrtm": Program(lambda a: jsp.linalg.sqrtm(definite(a)), [SQUARE], by=(), sizes=(1,)),
    "determinants": Program(
        lambda a: (jnp.linalg.det(a), jnp.linalg.slogdet(regular(a))), [SQUARE], "float64", sizes=(1,)
    ),
    "inv": Program(lambda a: jnp.linalg.inv(regular(a)), [SQUARE], "complex128"),
    "solve": Program(lambda a, b: jnp.linalg.solve(regular(a), b), [SQUARE, ("n", 2)]),
    "pinv": Program(jnp.linalg.pinv, [WIDE], "float64"),
    "lstsq": Program(lambda a, b: jnp.linalg.lstsq(a, b)[0], [TALL, ("n+2", 2)], "float64", sizes=(1,)),
    "norms": Program(
        lambda a: [jnp.linalg.norm(a, o) for o in ("fro", "nuc", 2, -2, 1)], [WIDE], "float64", sizes=(1,)
    ),
    "logpdf of a normal distribution": Program(
        lambda x, m, a: stats.multivariate_normal.logpdf(x, m, definite(a)), [VECTOR, VECTOR, SQUARE], "float64"
    ),
}

SPECIAL = {
    "gamma": Program(
        lambda x: (special.gammaln(x), special.gamma(x), special.digamma(x), special.factorial(positive(x))), [VECTOR]
    ),
    "zeta": Program(
        lambda s, q: (special.zeta(positive(s) + 1, positive(q)), stats.t.logpdf(s, 3)), [VECTOR] * 2, by=(1,)
    ),
    "polygamma": Program(lambda x: special.polygamma(jnp.arange(x.size) % 4, positive(x)), [VECTOR], "float64"),
    "incomplete gamma": Program(
        lambda a, x: [f(positive(a), positive(x)) for f in (special.gammainc, special.gammaincc)], [VECTOR] * 2
    ),
    "incomplete beta": Program(
        lambda a, b, x: special.betainc(positive(a), positive(b), unit(x)), [VECTOR] * 3, "float64", by=(2,)
    ),
    "bessel": Program(
        lambda x: (special.i0(x), special.i0e(x), special.i1(x), special.i1e(x), special.bessel_jn(positive(x), v=2)),
        [VECTOR],
    ),
    "error functions": Program(
        lambda x: (special.erf(x), special.erfc(x), special.erfinv(x / 4), special.ndtri(unit(x)), special.log_ndtr(x)),
        [VECTOR],
        "float64",
    ),
    "exponential integrals": Program(lambda x: (special.expi(positive(x)), special.spence(positive(x))), [VECTOR]),
    "entropies": Program(
        lambda x, y: (
            special.entr(positive(x)),
            special.xlogy(x, positive(y)),
            special.kl_div(positive(x), positive(y)),
        ),
        [VECTOR] * 2,
    ),
    "hypergeometric": Program(lambda a, b, x: special.hyp1f1(positive(a), positive(b), x), [VECTOR] * 3, "float64"),
    "gradient of gamma samples": Program(
        lambda a, x: lax.random_gamma_grad(positive(a), positive(x)), [VECTOR] * 2, by=()
    ),
    "logsumexp": Program(lambda x: (special.logsumexp(x), jax.nn.logsumexp(x, b=x, return_sign=True)), [VECTOR]),
    "elementary": Program(
        lambda x, y: (
            jnp.atan2(x, y),
            jnp.hypot(x, y),
            jnp.cbrt(x),
            jnp.expm1(x),
            jnp.log1p(positive(x)),
            jnp.logaddexp(x, y),
        ),
        [VECTOR] * 2,
    ),
    "complex elementary": Program(
        lambda z: [f(z) for f in (jnp.exp, jnp.log, jnp.sqrt, jnp.tan, jnp.asinh, jnp.acos, jnp.atanh, jnp.log1p)],
        [VECTOR],
        "complex64",
    ),
    "complex arithmetic": Program(
        lambda z, w: (z / w, z**w, z**3, abs(z), jnp.angle(w), jnp.sign(z), jnp.prod(z), jnp.vdot(z, w), jnp.var(z)),
        [VECTOR] * 2,
        "complex64",
    ),
}

FOURIER = {
    "fft": Program(lambda z: (jnp.fft.fft(z), jnp.fft.ifft(z, 5, norm="ortho")), [("n", 3)], "complex64"),
    "rfft": Program(lambda x: (jnp.fft.rfft(x, 7), jnp.fft.ihfft(x, 4)), [VECTOR]),
    "irfft": Program(lambda z: (jnp.fft.irfft(z, 6), jnp.fft.hfft(z, 7)), [VECTOR], "complex64"),
    "fft of two axes": Program(lambda z: (jnp.fft.fft2(z), jnp.fft.irfft2(z)), [("n", 4)], "complex128", sizes=(1,)),
    "fft of three axes": Program(lambda x: (jnp.fft.rfftn(x), jnp.fft.ifftn(x)), [(2, "n", 3)]),
    "cosine transform": Program(lambda x: jsp.fft.dct(x, norm="ortho"), [VECTOR], sizes=(1,)),
}

CUMULATIVE = {
    "cumulative sums": Program(lambda x: (lax.cumsum(x, 0), lax.cumlogsumexp(x, 1, reverse=True)), [("n", 3)]),
    "cumulative products": Program(lambda x: (lax.cumprod(x, 0, reverse=True), jnp.nancumprod(x)), [("n", 3)]),
    "cumulative extremes": Program(lambda x: (lax.cummax(x, 0), lax.cummin(x, 1, reverse=True)), [("n", 3)]),
    "cumulative complex": Program(lambda z: (lax.cumsum(z, 0), lax.cumprod(z, 0)), [("n", 3)], "complex64"),
    "cumulative associative scan": Program(lambda x: lax.associative_scan(jnp.multiply, x, reverse=True), [("n", 3)]),
}

SUMS = {**LINALG, **FOURIER}
"""What is summed from larger numbers: its errors are of their size. Others are compared element by element."""

PROGRAMS = {**SUMS, **SPECIAL, **CUMULATIVE}


def arguments(program: Program, n: int) -> Args:
    rng, dtype = np.random.default_rng(0), np.dtype(program.dtype)
    shapes = [tuple(eval(d, {"n": n}) if isinstance(d, str) else d for d in s) for s in program.shapes]
    parts = [rng.standard_normal((*shape, 2)) for shape in shapes]
    return [(p[..., 0] + 1j * p[..., 1] if dtype.kind == "c" else p[..., 0]).astype(dtype) for p in parts]


# ------------------------------------------------------------------------------------------------ transformations


def several(args: Args, count: int, axis: int = 0) -> Args:
    """Different arguments, along a new axis."""
    return [np.stack([np.roll(a, i, -1) * a.dtype.type(1 + i / 4) for i in range(count)], axis) for a in args]


def total(outputs: Any) -> Any:
    """A real number that depends on all results."""
    weights = iter(np.linspace(1, 2, 99))
    floats = [x for x in jax.tree.leaves(outputs) if jnp.issubdtype(x.dtype, np.inexact)]
    return sum(jnp.sum(jnp.real(x) + (jnp.imag(x) / 2 if jnp.iscomplexobj(x) else 0)) * next(weights) for x in floats)


def batched(fn: Callable, args: Args, by: tuple) -> tuple[Callable, tuple]:
    """Over the first and the last axis, over one argument only, and twice."""
    three = several(args, 3)

    def run(one: Any, first: Any, last: Any, both: Any) -> Any:
        only_one = (0, *[None] * (len(one) - 1))
        return (
            jax.vmap(fn)(*first),
            jax.vmap(fn, in_axes=-1, out_axes=-1)(*last),
            jax.vmap(fn, in_axes=only_one)(first[0], *one[1:]),
            jax.vmap(fn, in_axes=only_one[::-1])(*one[:-1], first[-1]),
            jax.vmap(jax.vmap(fn, out_axes=-1))(*both),
        )

    return run, (args, three, several(args, 2, -1), [np.stack([a, a[::-1]]) for a in three])


def differentiated(fn: Callable, args: Args, by: tuple) -> tuple[Callable, tuple]:
    """Forward and backward."""

    def run(*args: Any) -> Any:
        def of(*chosen: Any) -> Any:
            full = list(args)
            for i, x in zip(by, chosen, strict=True):
                full[i] = x
            return fn(*full)

        chosen = [args[i] for i in by]
        _, tangents = jax.jvp(of, chosen, [x * 0.3 + 0.1 for x in chosen])
        gradient = jax.grad(lambda *xs: total(of(*xs)), range(len(by)))(*chosen)
        return [t for t in jax.tree.leaves(tangents) if t.dtype != jax.dtypes.float0], gradient

    return run, tuple(args)


def differentiated_twice(fn: Callable, args: Args, by: tuple) -> tuple[Callable, tuple]:
    """All derivatives by the real part of one argument, and the second ones of a number."""
    i = by[-1]

    def run(*args: Any) -> Any:
        def of(x: Any) -> list:
            x = lax.complex(x, jnp.imag(args[i])) if jnp.iscomplexobj(args[i]) else x
            return [y for y in jax.tree.leaves(fn(*args[:i], x, *args[i + 1 :])) if y.dtype != np.int32]

        x = jnp.real(args[i])
        return jax.jacfwd(of)(x), jax.hessian(lambda x: total(of(x)))(x)

    return run, tuple(args)


def in_bodies(fn: Callable, args: Args, by: tuple) -> tuple[Callable, tuple]:
    """Of a scan (per step, and carried), of a while loop and of branches."""

    def run(which: Any, args: Any, steps: Any) -> Any:
        blank = jax.tree.map(jnp.zeros_like, jax.eval_shape(fn, *args))

        def changed(i: Any) -> list:
            return [(a * (1 + i / 8)).astype(a.dtype) for a in args]

        def step(carry: Any, i: Any) -> Any:
            return fn(*changed(i)), jax.tree.map(jnp.sum, carry)

        return (
            lax.scan(lambda carry, xs: (carry, fn(*xs)), 0, steps)[1],
            lax.scan(step, blank, jnp.arange(2)),
            lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, fn(*changed(s[0]))), (jnp.int32(0), blank)),
            lax.cond(which, lambda: fn(*args), lambda: blank),
            lax.cond(which, lambda: blank, lambda: fn(*changed(1))),
        )

    return run, (np.bool_(True), args, several(args, 2))


def differentiated_in_bodies(fn: Callable, args: Args, by: tuple) -> tuple[Callable, tuple]:
    """Gradients in a batch, in a scan, of a scan, carried through a loop, and in one of two branches of a batch."""

    def run(which: Any, args: Any, steps: Any) -> Any:
        gradient = jax.grad(lambda *xs: total(fn(*xs)), by)

        def sum_of_steps(steps: Any) -> Any:
            return lax.scan(lambda carry, xs: (carry + total(fn(*xs)), None), total([steps]) * 0, steps)[0]

        def descend(_: Any, chosen: Any) -> Any:
            full = [chosen[by.index(i)] if i in by else a for i, a in enumerate(args)]
            return tuple((c - g / 16).astype(c.dtype) for c, g in zip(chosen, gradient(*full), strict=True))

        def branch(which: Any, *xs: Any) -> Any:
            return lax.cond(which, gradient, lambda *xs: tuple(2 * xs[i] for i in by), *xs)

        whole = [jax.grad(lambda s, i=i: sum_of_steps([*steps[:i], s, *steps[i + 1 :]]))(steps[i]) for i in by]
        return (
            jax.vmap(gradient)(*steps),
            lax.scan(lambda carry, xs: (carry, gradient(*xs)), 0, steps)[1],
            whole,
            lax.fori_loop(0, 2, descend, tuple(args[i] for i in by)),
            jax.vmap(branch)(jnp.stack([which, ~which]), *steps),
        )

    return run, (np.bool_(True), args, several(args, 2))


TRANSFORMS = {
    f.__name__: f for f in (batched, differentiated, differentiated_twice, in_bodies, differentiated_in_bodies)
}


def transformed(name: str, transform: str, n: int) -> tuple[Callable, tuple]:
    program = PROGRAMS[name]
    args = arguments(program, n)
    return TRANSFORMS[transform](program.fn, args, tuple(range(len(args))) if program.by is None else program.by)


# ---------------------------------------------------------------------------------------------------------- tests

QUICK = {("solve", "batched"), ("eigvalsh", "differentiated_twice")}
CASES = [(name, t) for name, p in PROGRAMS.items() for t in TRANSFORMS if p.by != () or not t.startswith("diff")]


@pytest.mark.parametrize(
    ("name", "transform"), [c if c in QUICK else pytest.param(*c, marks=pytest.mark.slow) for c in CASES]
)
def test_transformed(name: str, transform: str) -> None:
    fn, args = transformed(name, transform, 4)
    check(fn, *args, to_scale=name in SUMS)


SMALL = [(name, n) for name, program in PROGRAMS.items() for n in program.sizes]
QUICK_SMALL = {("eigh", 0), ("eigvalsh", 1)}


@pytest.mark.parametrize(
    ("name", "n"), [c if c in QUICK_SMALL else pytest.param(*c, marks=pytest.mark.slow) for c in SMALL]
)
def test_small(name: str, n: int) -> None:
    """Empty matrices, matrices and arrays of one element: batched, in bodies, and differentiated twice."""
    fn, args = everything(name, n)
    check(fn, *args, to_scale=name in SUMS)


def everything(name: str, n: int) -> tuple[Callable, tuple]:
    transforms = ["batched", "in_bodies", *(["differentiated_twice"] if PROGRAMS[name].by != () else [])]
    programs = [transformed(name, transform, n) for transform in transforms]
    fns, arguments = [fn for fn, _ in programs], [args for _, args in programs]
    return lambda *args: [fn(*xs) for fn, xs in zip(fns, args, strict=True)], tuple(arguments)
