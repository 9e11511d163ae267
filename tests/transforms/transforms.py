"""What users do to functions: each transform makes one program, with its inputs, of a function and its arguments.

A transform takes the function, its arguments and the positions of those that it is differentiated by; it gives back a
program and its inputs. A program computes several variants at once, so that each needs one export and one compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Fn = Callable[..., Any]
Args = Sequence[np.ndarray]
Program = tuple[Fn, list[Any]]


def batch(x: np.ndarray, size: int, axis: int = 0) -> np.ndarray:
    """Variants of an array in a new axis: its elements in other orders, so that indices stay what they were."""
    x = np.asarray(x)
    variants = [np.roll(x.reshape(-1), 2 * k + (k > 0)).reshape(x.shape) for k in range(max(size, 1))]
    return np.stack(variants, axis)[(slice(None),) * (axis % (x.ndim + 1)) + (slice(size),)]


def batches(args: Args, size: int, axis: int = 0) -> list[np.ndarray]:
    return [batch(x, size, axis) for x in args]


def is_inexact(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def inexact(tree: Any) -> list[Any]:
    """The results that have derivatives."""
    return [y for y in jax.tree.leaves(tree) if is_inexact(y)]


def loss(fn: Fn) -> Fn:
    """The results of `fn` as one number, each element with a weight of its own."""

    def total(*args: Any) -> Any:
        results = inexact(fn(*args))
        weights = [(jnp.arange(y.size) % 7 - 2.5).reshape(y.shape).astype(y.dtype) for y in results]
        return sum(jnp.real(y * w).sum() for y, w in zip(results, weights, strict=True))

    return total


def replaced(args: Sequence[Any], argnums: Sequence[int], by: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments, with others at `argnums`."""
    new = dict(zip(argnums, by, strict=True))
    return tuple(new.get(i, x) for i, x in enumerate(args))


def ones(fn: Fn) -> Fn:
    """Ones in the shape of what `fn` returns."""
    return lambda *args: jax.tree.map(lambda s: jnp.ones(s.shape, s.dtype), jax.eval_shape(fn, *args))


def plain(fn: Fn, args: Args, argnums: Sequence[int]) -> Program:
    return fn, list(args)


def known(fn: Fn, args: Args, argnums: Sequence[int]) -> Program:
    """All arguments known while exporting, all but one, and all but one in a batch and in a loop."""

    def program(*args_again: Any) -> Any:
        constants = [jnp.asarray(x) for x in args]
        some = [replaced(constants, [i], [x]) for i, x in enumerate(args_again)]
        step = [lambda count, x, i=i: (count, fn(*replaced(constants, [i], [x]))) for i in range(len(args))]
        return (
            fn(*constants),
            [fn(*each) for each in some],
            [
                jax.vmap(lambda x, i=i: fn(*replaced(constants, [i], [x])))(jnp.stack([x, x]))
                for i, x in enumerate(args_again)
            ],
            [lax.scan(body, 0, jnp.stack([x, x, x])) for body, x in zip(step, args_again, strict=True)],
        )

    return program, list(args)


def vmap(fn: Fn, args: Args, argnums: Sequence[int]) -> Program:
    """The batch in front, at the end and in between; on all arguments, on each alone, on all but the first."""
    rank = len(args)
    middle = [min(1, np.ndim(x)) for x in args]
    axes: list[tuple[int | None, ...]] = [(0,) * rank, (-1,) * rank, tuple(middle)]
    if rank > 1:
        axes += [tuple(0 if i == k else None for i in range(rank)) for k in range(rank)]
        axes.append((None, *middle[1:]))
    mapped = [(a, [x if i is None else batch(x, 2, i) for x, i in zip(args, a, strict=True)]) for a in axes]
    return lambda *inputs: [jax.vmap(fn, a)(*xs) for (a, _), xs in zip(mapped, inputs, strict=True)], [
        tuple(xs) for _, xs in mapped
    ]


def nested_vmap(fn: Fn, args: Args, argnums: Sequence[int]) -> Program:
    """A batch of the last argument inside of one of the others; a batch of batches."""
    rest = len(args) - 1
    inner = jax.vmap(fn, (*[None] * rest, 0))
    outer = jax.vmap(inner, (*[0] * rest, None)) if rest else jax.vmap(inner)
    last = batch(args[-1], 3) if rest else batch(batch(args[-1], 3), 2)
    return lambda a, b: (outer(*a), jax.vmap(jax.vmap(fn, -1, -1))(*b)), [
        (*batches(args[:-1], 2), last),
        tuple(batch(batch(x, 2), 2, -1) for x in args),
    ]


def vmap_of_one_and_none(fn: Fn, args: Args, argnums: Sequence[int]) -> Program:
    return lambda one, none: (jax.vmap(fn)(*one), jax.vmap(fn)(*none)), [
        tuple(batches(args, 1)),
        tuple(batches(args, 0)),
    ]


def derivatives(fn: Fn, args: Args, argnums: Sequence[int]) -> Program:
    """Backwards, forwards, linearized (and that transposed), and of second order."""

    def program(*args: Any) -> Any:
        def f(*some: Any) -> list[Any]:
            return inexact(fn(*replaced(args, argnums, some)))

        some = [args[i] for i in argnums]
        tangents = [x * 2 + 1 for x in some]
        linear = jax.linearize(f, *some)[1]
        curved = jax.grad(loss(lambda *some: [y * y for y in f(*some)]), tuple(range(len(some))))
        return (
            jax.grad(loss(fn), tuple(argnums))(*args),
            jax.jvp(fn, args, tuple(x * 2 + 1 if i in argnums else zero(x) for i, x in enumerate(args))),
            jax.linear_transpose(linear, *some)(linear(*tangents)),
            jax.jvp(curved, tuple(some), tuple(tangents))[1],
        )

    return program, list(args)


def zero(x: Any) -> Any:
    return jnp.zeros_like(x) if is_inexact(x) else np.zeros(x.shape, jax.dtypes.float0)


def jacobians(fn: Fn, args: Args, argnums: Sequence[int]) -> Program:
    """Batches of derivatives, which JAX makes by vmap."""

    def program(args: Any, batched: Any) -> Any:
        def f(x: Any) -> list[Any]:
            return inexact(fn(*replaced(args, argnums[:1], [x])))

        x = args[argnums[0]]
        holomorphic = bool(jnp.iscomplexobj(x))
        gradients = jax.vmap(jax.grad(loss(fn), tuple(argnums)))(*batched)
        return [jac(f, holomorphic=holomorphic)(x) for jac in (jax.jacrev, jax.jacfwd)], gradients

    return program, [tuple(args), tuple(batches(args, 2))]


def scan(fn: Fn, args: Args, argnums: Sequence[int]) -> Program:
    """The arguments as what is scanned (backwards), as carries, and the results as carries and outputs."""

    def carried(carry: Any, _: Any) -> Any:
        return tuple(jnp.roll(x, 1) for x in carry), fn(*carry)

    def program(args: Any, xs: Any) -> Any:
        return (
            lax.scan(lambda count, x: (count + 1, fn(*x)), jnp.int32(0), xs, reverse=True),
            lax.scan(carried, args, length=3),
            lax.scan(lambda before, x: (fn(*x), before), fn(*args), xs),
        )

    return program, [tuple(args), tuple(batches(args, 3))]


def branches(fn: Fn, args: Args, argnums: Sequence[int]) -> Program:
    """Either branch; many branches, of which one is chosen by a number out of range; a batch of predicates."""

    def program(true: Any, many: Any, predicates: Any, args: Any, first: Any) -> Any:
        nothing = ones(fn)
        return (
            lax.cond(true, fn, nothing, *args),
            lax.cond(true, nothing, fn, *args),
            lax.switch(many, [nothing, nothing, fn], *args),
            jax.vmap(lambda p, x: lax.cond(p, fn, nothing, x, *args[1:]))(predicates, first),
        )

    return program, [np.bool_(True), np.int32(7), np.array([True, False]), tuple(args), batch(args[0], 2)]


def loops(fn: Fn, args: Args, argnums: Sequence[int]) -> Program:
    """A number of steps that is not known, none at all, and another one for each element of a batch."""

    def repeated(steps: Any, args: Any) -> Any:
        def step(state: Any) -> Any:
            i, args, _ = state
            return i + 1, tuple(jnp.roll(x, i) for x in args), fn(*args)

        return lax.while_loop(lambda state: state[0] < steps, step, (jnp.int32(0), tuple(args), ones(fn)(*args)))[1:]

    return lambda two, none, each, args, batched: (
        repeated(two, args),
        repeated(none, args),
        jax.vmap(repeated)(each, batched),
    ), [np.int32(2), np.int32(0), np.int32([2, 0, 1]), tuple(args), tuple(batches(args, 3))]


def derivatives_of_control_flow(fn: Fn, args: Args, argnums: Sequence[int]) -> Program:
    """Through a checkpoint, a branch, and a scan of what is closed over and what is scanned."""

    def branch(many: Any, args: Any) -> Any:
        return lax.switch(many, [lambda *args: jax.tree.map(jnp.zeros_like, fn(*args)), fn], *args)

    def scanned(args: Any, xs: Any) -> Any:
        @jax.checkpoint
        def step(factor: Any, x: Any) -> Any:
            closed_over = replaced(args, argnums, [args[i] * factor.astype(args[i].dtype) for i in argnums])
            return factor * 0.75, (fn(*closed_over), fn(*x))

        return lax.scan(step, jnp.float32(1), xs, reverse=True)[1]

    def program(many: Any, args: Any, xs: Any) -> Any:
        def of_branch(some: Any) -> Any:
            return loss(lambda args: branch(many, args))(replaced(args, argnums, some))

        def of_scan(some: Any, some_xs: Any) -> Any:
            return loss(scanned)(replaced(args, argnums, some), replaced(xs, argnums, some_xs))

        some, some_xs = ([values[i] for i in argnums] for values in (args, xs))
        gradients = jax.grad(loss(jax.checkpoint(fn)), tuple(argnums))(*args)
        return gradients, jax.grad(of_branch)(some), jax.grad(of_scan, (0, 1))(some, some_xs)

    return program, [np.int32(7), tuple(args), tuple(batches(args, 2))]


Transform = Callable[[Fn, Args, Sequence[int]], Program]
OF_ALL: list[Transform] = [plain, known, vmap, nested_vmap, vmap_of_one_and_none, scan, branches, loops]
OF_DIFFERENTIABLE: list[Transform] = [derivatives, jacobians, derivatives_of_control_flow]
