"""When a function needs the value of an array while it is traced: where, and what to write instead."""

from __future__ import annotations

from jax import errors

from jax2onnx.inconclusive import users_line

NEEDS_A_VALUE = (
    errors.ConcretizationTypeError,
    errors.TracerArrayConversionError,
    errors.TracerIntegerConversionError,
    errors.NonConcreteBooleanIndexError,
)

_ADVICE = {
    errors.TracerBoolConversionError: (
        "Python's if, while, and, or and not need one: choose with jnp.where or jax.lax.cond, and repeat with"
        " jax.lax.while_loop."
    ),
    errors.TracerArrayConversionError: (
        "NumPy's functions need one, and so do NumPy arrays that are indexed: use jax.numpy, and"
        " jnp.asarray(table)[index]."
    ),
    errors.TracerIntegerConversionError: (
        "Indices of Python lists need one, and so do sizes and axes: make the list an array by jnp.asarray, and give"
        " sizes as numbers."
    ),
    errors.NonConcreteBooleanIndexError: (
        "The size of x[mask] depends on the mask: use jnp.where(mask, x, 0), or jnp.nonzero with a size."
    ),
    errors.ConcretizationTypeError: (
        "int, float, range and sizes of results need one: compute in jax.numpy, and give sizes as numbers."
    ),
}
"""What needs values, by JAX's error, the special ones first."""


def explain(error: Exception) -> str:
    """A message for the user: the line of the program, what needs a value there, and what to do."""
    reason = str(error).partition("\n")[0].rstrip(".")
    advice = next(text for kind, text in _ADVICE.items() if isinstance(error, kind))
    return (
        f"The function needs the value of an array at {users_line(error)}, but arrays have none while a program is"
        f" exported ({reason}). {advice} What never changes can be given as a keyword argument, in input_params."
    )
