"""Primitives: which there are in this JAX, and what kind some are of."""

from __future__ import annotations

from typing import Any

from jax._src import core
from jax._src.hijax import call_hi_primitive_p  # noqa: F401  (not public: JAX's own high-level primitives)
from jax._src.interpreters import mlir
from jax._src.random import core as random_core
from jax._src.random import prng
from jax.extend.core import primitives as primitives_module

add_any_p = primitives_module.add_jaxvals_p


def primitives(*names: str) -> list[core.Primitive]:
    """The primitives of these names that this JAX has: some come and go between releases, some are not public."""
    tables = [mlir._lowerings, *mlir._platform_specific_lowerings.values()]
    return list(dict.fromkeys(p for table in tables for p in table if p.name in names))


CALL_PRIMITIVES = frozenset(
    [
        primitives_module.call_p,
        primitives_module.closed_call_p,
        *primitives(
            "jit",
            "remat2",
            "remat_opt",
            "custom_jvp_call",
            "custom_vjp_call",
            "custom_vmap_call",
            "custom_partitioning",
            "composite",
            "eval_jaxpr",
            "linear_call",
        ),
    ]
)

DIMENSION_PRIMITIVES = frozenset(primitives("dim_as_value"))

PRINTS = primitives("dce_sink", "debug_callback", "debug_print", "inspect_sharding", "shape_assertion")

CHECKS = primitives("check")

CALLBACKS = primitives("pure_callback", "io_callback")


def callback_module(params: dict[str, Any]) -> str:
    """The module of the Python function that a callback calls. Not public: how JAX wraps it."""
    return str(getattr(params["callback"].callback_func, "__module__", ""))


random_clone_p = random_core.random_clone_p

iota_2x32_shape_p = prng.iota_2x32_shape_p


def key_data_type(aval: Any) -> core.ShapedArray | None:
    """The type of the integers behind an array of typed PRNG keys; None for any other type."""
    if isinstance(aval, core.ShapedArray) and isinstance(aval.dtype, prng.KeyTy):
        return core.physical_aval(aval)
    return None
