"""The square of the absolute value of a complex number: the power spectrum of a signal needs no root."""

from __future__ import annotations

import onnx_ir as ir

from jax2onnx.optimize.engine import Rewriter, RuleSet
from jax2onnx.optimize.queries import dims, producer, scalar
from jax2onnx.optimize.signs import is_square

RULES = RuleSet()


@RULES.rewrites("Mul", "Pow", given=lambda origins: origins[0] == "Mul", needs=("Sqrt",))
def square_without_root(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """|x + iy| ** 2 = x * x + y * y. The root is taken of numbers without large squares; its square may have one."""
    modulus, y = node.inputs[0], node.outputs[0]
    if modulus is None or not is_square(node) or set(modulus.consumers()) != {node} or modulus.is_graph_output():
        return None
    parts = _parts_of_modulus(modulus)
    if parts is None or any(dims(part) != dims(y) for part in parts):
        return None
    return r.op("Add", *(r.op("Mul", part, part, like=y) for part in parts), like=y)


def _parts_of_modulus(value: ir.Value) -> list[ir.Value] | None:
    """x and y if `value` is large * sqrt(1 + ratio ** 2), where large and ratio are those of |x| and |y|."""
    product = producer(value, "Mul")
    for large, root in (product.inputs, product.inputs[::-1]) if product is not None else ():
        largest, rooted = producer(large, "Max"), producer(root, "Sqrt")
        total = producer(rooted.inputs[0], "Add") if rooted is not None else None
        for one, squared in (total.inputs, total.inputs[::-1]) if total is not None else ():
            square = producer(squared, "Mul")
            if largest is None or square is None or scalar(one) != 1 or not is_square(square):
                continue
            if (smallest := _smaller(square.inputs[0], large)) is not None:
                parts = [producer(x, "Abs") for x in largest.inputs]
                if set(smallest.inputs) == set(largest.inputs) and None not in parts:
                    return [part.inputs[0] for part in parts]  # type: ignore[union-attr, misc]
    return None


def _smaller(ratio: ir.Value | None, large: ir.Value | None) -> ir.Node | None:
    """The Min of `small` if `ratio` is small == large ? 1 : small / large."""
    choice = producer(ratio, "Where")
    if choice is None or scalar(choice.inputs[1]) != 1:
        return None
    equal, quotient = producer(choice.inputs[0], "Equal"), producer(choice.inputs[2], "Div")
    if equal is None or quotient is None or quotient.inputs[1] is not large:
        return None
    small = quotient.inputs[0]
    return producer(small, "Min") if set(equal.inputs) == {small, large} else None
