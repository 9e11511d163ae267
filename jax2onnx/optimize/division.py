"""Division by known numbers, and by fewer numbers than are divided, as XLA does it: multiplication by the reciprocals.

A quotient in JAX is not always the correctly rounded one: x / 127.5 is x * (1 / 127.5), and so it is for a scalar that
is not known. The last bit is nothing to worry about, until it is rounded, compared, or decides which random number is
next.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from jax2onnx.attributes import attributes_of
from jax2onnx.optimize import fold
from jax2onnx.optimize.engine import Rewriter, RuleSet, some
from jax2onnx.optimize.queries import KNOWN, aligned_dims, constant, dims, only_user, producer, scalar, splat

LAST = RuleSet()
"""Formulas have quotients."""

DTYPES = (ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""In bfloat16, XLA divides."""

SMALL_BYTES = 1 << 20
"""Larger constants may not be in memory yet, and are not read for this."""


@LAST.rewrites("Div")
def multiply_by_reciprocals(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """x / y = x * (1 / y). As in XLA, a product with a condition is a choice: 0 where it does not hold, even of NaN."""
    x, divisor = node.inputs
    y = node.outputs[0]
    if x is None or divisor is None or y.dtype not in DTYPES:
        return None
    tensor = divisor.const_value
    known = constant(divisor) if tensor is not None and tensor.nbytes <= SMALL_BYTES else None
    if known is not None:
        with np.errstate(all="ignore"):
            inverse = r.moved(np.reciprocal(known), divisor)
    elif _is_spread(divisor, y):
        inverse = r.op("Reciprocal", divisor, like=divisor)
    else:
        return None
    cast = producer(x, "Cast")
    condition = cast.inputs[0] if cast is not None else None
    is_choice = condition is not None and condition.dtype == ir.DataType.BOOL and dims(x) == dims(y)
    if is_choice and splat(condition) is None:  # XLA computes with what it knows
        return r.op("Where", condition, inverse, r.const(np.zeros((), y.dtype.numpy())), like=y)
    return r.op("Mul", x, inverse, like=y)


def _is_spread(x: ir.Value, over: ir.Value) -> bool:
    """Is an array repeated to be as large as another?"""
    full = aligned_dims(x, len(dims(over)))
    return any(a == 1 and b != 1 for a, b in zip(full, dims(over), strict=True))


@LAST.rewrites("Mul", "Div", given=some(KNOWN), needs=("MatMul",))
def scale_doubles_apart(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """ONNX Runtime makes a matrix product and a factor one node, whose factor has single precision."""
    y = node.outputs[0]
    x = next((x for x, factor in (node.inputs, node.inputs[::-1]) if scalar(factor) is not None), None)
    if x is None or y.dtype != ir.DataType.DOUBLE or dims(x) != dims(y) or not (_is_product(x) or _is_multiplied(y)):
        return None
    return _apart(r, node, x)


@LAST.rewrites("Mul", given=some(KNOWN), needs=("Conv",))
def scale_counts_apart(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """ONNX Runtime makes a factor a part of the kernel before it, also of one that a program may count on."""
    for x, factor in (node.inputs, node.inputs[::-1]):
        conv, numbers = producer(x, "Conv"), constant(factor)
        kernel = conv.inputs[1] if conv is not None else None
        if x is None or kernel is None or kernel.const_value is None or numbers is None or only_user(x) is None:
            continue
        return None if fold.can_be_scaled(kernel, numbers) else _apart(r, node, x)
    return None


def _apart(r: Rewriter, node: ir.Node, x: ir.Value) -> ir.Value:
    """A node with something between it and its operand x, so that ONNX Runtime does not make them one."""
    y, axis = node.outputs[0], r.const([0], np.int64)
    apart = r.op("Unsqueeze", x, axis, like=x, shape=[1, *dims(x)])
    operands = [apart if operand is x else operand for operand in node.inputs]
    result = r.op(node.op_type, *operands, like=y, shape=[1, *dims(y)], **attributes_of(node))
    return r.op("Squeeze", result, axis, like=y)


def _is_product(x: ir.Value) -> bool:
    source = producer(x, "MatMul", "Transpose")
    return source is not None and (source.op_type == "MatMul" or _is_product(source.inputs[0]))  # type: ignore[arg-type]


def _is_multiplied(y: ir.Value) -> bool:
    users = [use.node for use in y.uses()]
    return any(n.op_type == "MatMul" or (n.op_type == "Transpose" and _is_multiplied(n.outputs[0])) for n in users)
