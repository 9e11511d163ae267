"""Random programs of nested control flow: loops, branches, vmaps and calls that use each other's values.

`program(random)` makes a `Block` and `run(block, values)` executes it in JAX. A block is a list of statements; each
adds its results to the values that later ones, and all bodies inside them, can use. Integers and booleans decide where
a program goes, and no float ever becomes one, so that rounding cannot change the path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

Type = tuple[str, tuple[int, ...]]
FLOAT, INT, BYTE, BOOL = "float32", "int32", "uint8", "bool"
SCALAR, VECTOR = (), (2,)

UNARY: dict[str, list[Callable]] = {
    FLOAT: [jnp.sin, jnp.tanh, jnp.negative, lambda x: x * 0.5],
    INT: [jnp.negative, lambda x: x + 3, lambda x: x * 5, lambda x: x ^ 6, lambda x: x % 3],
    BYTE: [lambda x: x + 100, lambda x: x * 3, jnp.invert],
    BOOL: [jnp.logical_not],
}
BINARY: dict[str, list[Callable]] = {
    FLOAT: [lambda a, b: jnp.tanh(a * b), lambda a, b: (a + b) * 0.5, lambda a, b: (a - b) * 0.5],
    INT: [jnp.add, jnp.multiply, jnp.bitwise_xor, jnp.maximum],
    BYTE: [jnp.add, jnp.subtract, jnp.minimum],
    BOOL: [jnp.logical_and, jnp.logical_or, jnp.logical_xor],
}
INPUTS: list[Type] = [(FLOAT, VECTOR), (FLOAT, SCALAR), (INT, SCALAR), (INT, VECTOR), (BOOL, SCALAR), (BYTE, VECTOR)]


class Block(NamedTuple):
    """Statements, and which of all values then there are its results."""

    statements: list[Statement]
    results: list[int]


class Statement(NamedTuple):
    """What a statement computes from all values so far, and the types of what it adds to them."""

    text: str
    execute: Callable[[list[Any]], list[Any]]
    types: list[Type]


def run(block: Block, values: Sequence[Any]) -> list[Any]:
    """Execute a block."""
    values = list(values)
    for statement in block.statements:
        values += statement.execute(values)
    return [values[i] for i in block.results]


def text(block: Block, indent: str = "  ") -> str:
    """A block in words, to see what failed."""
    lines = "".join(f"{indent}{s.text}\n".replace("\n  ", f"\n{indent}  ") for s in block.statements)
    return f"{lines}{indent}-> {block.results}"


def program(random: Random) -> Block:
    """A program on values of the types `INPUTS`."""
    return _Maker(random).block(INPUTS, depth=3, results=None)


def inputs(random: Random) -> list[np.ndarray]:
    """Values for the inputs of a program."""
    return [
        np.asarray([random.randrange(-4, 5) for _ in range(int(np.prod(shape)))]).astype(dtype).reshape(shape)
        for dtype, shape in INPUTS
    ]


class _Maker:
    def __init__(self, random: Random):
        self.random = random

    def block(self, types: Sequence[Type], depth: int, results: Sequence[Type] | None) -> Block:
        """A block on values of `types`, with results of the given types (or some of any type)."""
        types = list(types)
        statements = []
        plain = [self.unary, self.binary, self.compare, self.select, self.reshape, self.constant]
        nested = [self.scan, self.scan, self.fori, self.while_, self.cond, self.vmap, self.jit]
        for _ in range(self.random.randint(2, 4) if results is None else self.random.randint(0, 3)):
            makers = nested if depth and self.random.random() < 0.2 + 0.2 * depth else plain
            statement = self.random.choice(makers)(types, depth)
            statements.append(statement)
            types += statement.types
        if results is None:
            return Block(statements, list(range(len(types)))[-8:])
        return Block(statements, [self.pick(types, t) for t in results])

    def pick(self, types: Sequence[Type], wanted: Type) -> int:
        """A value of a type, rather a late one than an early one."""
        found = [i for i, t in enumerate(types) if t == wanted]
        return self.random.choice(found[-2:] if self.random.random() < 0.7 else found)

    def some(self, types: Sequence[Type], at_most: int) -> list[int]:
        """A few values of any type."""
        late = self.random.random() < 0.5
        return [
            self.random.randrange(len(types) // 2 if late else 0, len(types))
            for _ in range(self.random.randint(0, at_most))
        ]

    # ------------------------------------------------------------------------------------------ plain operations

    def unary(self, types: list[Type], depth: int) -> Statement:
        i = self.random.randrange(len(types))
        dtype, shape = types[i]
        fns = [*UNARY[dtype], *([lambda x: x[::-1]] if shape else [])]
        k = self.random.randrange(len(fns))
        return Statement(f"unary {k} of {i}", lambda v: [fns[k](v[i])], [types[i]])

    def binary(self, types: list[Type], depth: int) -> Statement:
        i = self.random.randrange(len(types))
        j = self.pick(types, types[i])
        fns = BINARY[types[i][0]]
        k = self.random.randrange(len(fns))
        return Statement(f"binary {k} of {i}, {j}", lambda v: [fns[k](v[i], v[j])], [types[i]])

    def compare(self, types: list[Type], depth: int) -> Statement:
        i, j = self.pick(types, (INT, SCALAR)), self.pick(types, (INT, SCALAR))
        return Statement(f"less {i}, {j}", lambda v: [v[i] < v[j]], [(BOOL, SCALAR)])

    def select(self, types: list[Type], depth: int) -> Statement:
        which, i = self.pick(types, (BOOL, SCALAR)), self.random.randrange(len(types))
        j = self.pick(types, types[i])
        return Statement(f"where {which}, {i}, {j}", lambda v: [jnp.where(v[which], v[i], v[j])], [types[i]])

    def reshape(self, types: list[Type], depth: int) -> Statement:
        i = self.random.randrange(len(types))
        dtype, shape = types[i]
        if shape:
            return Statement(f"last of {i}", lambda v: [v[i][-1]], [(dtype, SCALAR)])
        return Statement(f"broadcast {i}", lambda v: [jnp.broadcast_to(v[i], VECTOR)], [(dtype, VECTOR)])

    def constant(self, types: list[Type], depth: int) -> Statement:
        dtype, shape = self.random.choice(INPUTS)
        array = np.full(shape, self.random.randrange(0, 5)).astype(dtype)
        return Statement(f"constant {dtype}{shape} {array}", lambda v: [jnp.asarray(array)], [(dtype, shape)])

    # ------------------------------------------------------------------------------------------ control flow

    def scan(self, types: list[Type], depth: int) -> Statement:
        carries, scanned = self.some(types, 3), self.some(types, 2)
        count = self.random.random() < 0.3
        length = self.random.choice([0, 1, 2, 3, 20, 20])
        reverse = self.random.random() < 0.4
        carry_types, slice_types = [types[i] for i in carries], [types[i] for i in scanned]
        inner = [*types, *carry_types, *slice_types, *([(INT, SCALAR)] if count else [])]
        stacked = [self.random.choice(inner) for _ in range(self.random.randint(0, 3))]
        body = self.block(inner, depth - 1, [*carry_types, *stacked])

        def execute(v: list[Any]) -> list[Any]:
            def step(carry: Any, xs: Any) -> Any:
                out = run(body, [*v, *carry, *xs])
                return out[: len(carry)], out[len(carry) :]

            xs = [jnp.stack([v[i], UNARY[v[i].dtype.name][0](v[i])] * 10)[:length] for i in scanned]
            xs += [jnp.arange(length, dtype=INT)] if count else []
            final, ys = lax.scan(step, [v[i] for i in carries], xs, length=length, reverse=reverse)
            return [*final, *(y[0] if length else jnp.zeros(y.shape[1:], y.dtype) for y in ys)]

        name = f"scan length={length} reverse={reverse} carries={carries} xs={scanned} count={count}\n{text(body)}"
        return Statement(name, execute, [*carry_types, *stacked])

    def fori(self, types: list[Type], depth: int) -> Statement:
        carries = self.some(types, 3)
        traced = self.pick(types, (INT, SCALAR)) if self.random.random() < 0.6 else None
        lower, upper = self.random.randint(-2, 2), self.random.randint(-2, 4)
        carry_types = [types[i] for i in carries]
        body = self.block([*types, *carry_types, (INT, SCALAR)], depth - 1, carry_types)

        def execute(v: list[Any]) -> list[Any]:
            end = upper if traced is None else v[traced] % 4
            return lax.fori_loop(lower, end, lambda i, c: run(body, [*v, *c, i]), [v[i] for i in carries])

        name = f"fori {lower} to {upper if traced is None else f'{traced} % 4'} carries={carries}\n{text(body)}"
        return Statement(name, execute, carry_types)

    def while_(self, types: list[Type], depth: int) -> Statement:
        carries = self.some(types, 3)
        carry_types = [types[i] for i in carries]
        inner = [*types, *carry_types, (INT, SCALAR)]
        # Not `n + 2`: XLA of JAX 0.10 runs such a loop once too little if all else in it is dead code.
        limit, doubles = self.random.randint(0, 4), self.random.random() < 0.5
        condition = self.block(inner, 0, [(BOOL, SCALAR)]) if self.random.random() < 0.7 else None
        body = self.block(inner, depth - 1, carry_types)

        def execute(v: list[Any]) -> list[Any]:
            def goes_on(state: Any) -> Any:
                n, carry = state
                early = n < limit
                return early if condition is None else early & run(condition, [*v, *carry, n])[0]

            def step(state: Any) -> Any:
                n, carry = state
                return n * 2 + 1 if doubles else n + 1, run(body, [*v, *carry, n])

            n, final = lax.while_loop(goes_on, step, (jnp.int32(0), [v[i] for i in carries]))
            return [n, *final]

        extra = "" if condition is None else f" and\n{text(condition)}\n  do"
        name = f"while less than {limit} doubles={doubles} carries={carries}{extra}\n{text(body)}"
        return Statement(name, execute, [(INT, SCALAR), *carry_types])

    def cond(self, types: list[Type], depth: int) -> Statement:
        results = [self.random.choice(types) for _ in range(self.random.randint(0, 3))]
        branches = [self.block(types, depth - 1, results) for _ in range(self.random.randint(1, 4))]
        by_index = len(branches) != 2 or self.random.random() < 0.5
        which = self.pick(types, (INT if by_index else BOOL, SCALAR))

        def execute(v: list[Any]) -> list[Any]:
            fns = [lambda block=block: run(block, v) for block in branches]
            return lax.switch(v[which], fns) if by_index else lax.cond(v[which], *fns)

        name = "".join([f"{'switch' if by_index else 'cond'} {which}", *(f"\n{text(b)}\n  --" for b in branches)])
        return Statement(name, execute, results)

    def vmap(self, types: list[Type], depth: int) -> Statement:
        mapped = self.pick(types, (self.random.choice([INT, FLOAT, BYTE]), VECTOR))
        results = [(self.random.choice([FLOAT, INT, BYTE, BOOL]), SCALAR) for _ in range(self.random.randint(1, 2))]
        inner = [*types, (types[mapped][0], SCALAR)]
        results = [r for r in results if r in inner]
        body = self.block(inner, depth - 1, results)

        def execute(v: list[Any]) -> list[Any]:
            return jax.vmap(lambda x: run(body, [*v, x]))(v[mapped])

        return Statement(f"vmap over {mapped}\n{text(body)}", execute, [(dtype, VECTOR) for dtype, _ in results])

    def jit(self, types: list[Type], depth: int) -> Statement:
        results = [self.random.choice(types) for _ in range(self.random.randint(1, 3))]
        body = self.block(types, depth - 1, results)
        return Statement(f"jit\n{text(body)}", lambda v: jax.jit(lambda: run(body, v))(), results)
