"""How JAX itself defines primitives in terms of others."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax._src import core
from jax._src.interpreters import mlir
from jax._src.lax import lax as lax_definitions
from jax._src.lax import special
from jax._src.lax.scaled_dot import _scaled_dot_impl, scaled_dot_p
from jax._src.random import core as random_core
from jax._src.random import philox2x32, philox4x32, threefry4x32

_LAX_FOLDER = os.path.dirname(lax_definitions.__file__) + os.sep


def own_definition(primitive: core.Primitive) -> Callable[..., Any] | None:
    """How a primitive says it is computed, in JAX; None if it does not.

    Those of other libraries are executed by a function of theirs. JAX's own, and some of others, are executed by
    compiling them: either a function in JAX says what is compiled, or nothing does. Those for sparse arrays and kernels
    have a definition next to them, which is not public, in a module that is there if they are used.
    """
    name = primitive.name
    sparse = sys.modules.get(f"jax.experimental.sparse.{name.partition('_')[0]}")
    if sparse is not None and vars(sparse).get(f"{name}_p") is primitive:
        return vars(sparse)[f"_{name}_impl"]
    kernels = sys.modules.get("jax._src.pallas.hlo_interpreter")
    if kernels is not None and name == "pallas_call":
        return lambda *args, interpret, **params: kernels.pallas_call_hlo_interpret(*args, **params)
    impl = inner = primitive.__dict__.get("impl")
    while isinstance(inner, functools.partial):
        inner = inner.func
    module = getattr(inner, "__module__", None) or "jax"
    return _compiled_function(primitive) if module.partition(".")[0] == "jax" else impl


def _compiled_function(primitive: core.Primitive) -> Callable[..., Any] | None:
    """The function in JAX that a primitive is compiled as, if it is one. Not public: where such rules are kept."""
    for rules in (mlir._platform_specific_lowerings["cpu"], mlir._lowerings):
        rule = getattr(rules.get(primitive), "rule", None)
        if getattr(rule, "__qualname__", "").startswith(mlir.lower_fun.__qualname__ + "."):
            return inspect.getclosurevars(rule).nonlocals.get("fun")  # type: ignore[arg-type]
    return None


def is_own_function(jaxpr: Any, name: str) -> bool:
    """Whether a jaxpr comes from the function of this name in JAX's definitions of `jax.lax`."""
    traced, _, place = jaxpr.debug_info.func_src_info.partition(" at ")
    return traced == name and place.startswith(_LAX_FOLDER)


def gamma_sampler(keys: Any, a: Any, *, log_space: bool) -> Any:
    """JAX's definition of the primitive `random_gamma`, for all samples at once."""
    return random_core._gamma_impl(keys, a, log_space=log_space, use_vmap=True)


def generator_definitions() -> dict[core.Primitive, Callable[..., Any]]:
    """JAX's own definitions of the newer bit generators."""
    return {
        philox2x32.philox2x32_p: philox2x32._philox2x32_lowering,
        philox4x32.philox4x32_p: philox4x32._philox4x32_lowering,
        threefry4x32.threefry4x32_p: threefry4x32._threefry4x32_lowering,
    }


def special_definitions() -> dict[core.Primitive, Callable[..., Any]]:
    """JAX's own definitions of special functions, which iterate until they converge: of the operands and `dtype`."""
    return {
        special.igamma_p: special.igamma_impl,
        special.igammac_p: special.igammac_impl,
        special.igamma_grad_a_p: special.igamma_grad_a_impl,
        special.regularized_incomplete_beta_p: special.regularized_incomplete_beta_impl,
    }


def product_definitions() -> dict[core.Primitive, Callable[..., Any]]:
    """JAX's own definitions, in terms of `dot_general`, of products that only some devices have as such."""
    return {
        lax_definitions.ragged_dot_general_p: lax_definitions._ragged_dot_general_impl,
        scaled_dot_p: _scaled_dot_impl,
    }


# XLA's digamma had no value at 0 before JAX 0.11.
DIGAMMA_OF_ZERO = np.nan if jax.__version_info__ < (0, 11) else -np.inf
