"""The cases: JAX's test harnesses for the CPU, their arguments, and what JAX computes for them."""

from __future__ import annotations

import copy
import functools
import hashlib
import os
import pickle
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.export
import jaxlib
import numpy as np

from jax2onnx import compat
from jax2onnx.specs import input_specs

BUILD = Path(__file__).parents[2] / "build" / "conformance"


@functools.cache
def load() -> dict[str, Any]:
    """All harnesses for the CPU, by their full names.

    Which harnesses there are is decided while their module is imported, with x64 on or off; its one random choice
    is drawn from numpy's global state. Meant for a process of its own, since it leaves x64 on.
    """
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    np.random.seed(0)
    from jax._src.internal_test_util.test_harnesses import all_harnesses

    return {harness.fullname: harness for harness in all_harnesses if harness.filter("cpu")}


def with_dynamic_arrays(harness: Any) -> Any:
    """The case with arrays that it holds fixed, such as the indices of a scatter, as arguments."""
    from jax._src.internal_test_util.test_harnesses import StaticArg

    changed = copy.copy(harness)
    changed.arg_descriptors = [
        a.value if isinstance(a, StaticArg) and isinstance(a.value, np.ndarray) else a for a in harness.arg_descriptors
    ]
    return changed


def arguments(harness: Any, seed: int) -> list[Any]:
    """The dynamic arguments, the same for each run with this seed."""
    return harness.dyn_args_maker(np.random.RandomState(zlib.adler32(f"{seed} {harness.fullname}".encode())))


def with_symbolic_axes(harness: Any, args: list[Any]) -> list[Any] | None:
    """Specs like `args` with as many symbolic leading axes as JAX can export the case with; None if with none at all.

    All leading axes are tried first, those of the same size under the same name, then each one alone.
    """
    flat, tree = jax.tree.flatten(args)
    able = [i for i, leaf in enumerate(flat) if np.ndim(leaf) and np.shape(leaf)[0] > 1]
    for chosen in [able, *([i] for i in able if len(able) > 1)]:
        shapes = [_named_first(np.shape(leaf)) if i in chosen else np.shape(leaf) for i, leaf in enumerate(flat)]
        given = [jax.ShapeDtypeStruct(s, leaf.dtype) for s, leaf in zip(shapes, flat, strict=True)]
        specs = input_specs(jax.tree.unflatten(tree, given))
        if chosen and _is_exported_by_jax(harness, specs):
            return specs
    return None


def _named_first(shape: tuple[int, ...]) -> tuple[Any, ...]:
    return (f"N{shape[0]}", *shape[1:])


def _is_exported_by_jax(harness: Any, specs: list[Any]) -> bool:
    try:
        jax.export.export(jax.jit(harness.dyn_fun))(*specs)
    except Exception:  # there are many ways to say no
        return False
    return True


def has_64_bits(harness: Any, args: list[Any]) -> bool:
    """Whether an argument or a result of the case, with x64 on, is of a 64-bit type."""
    with compat.evaluation.x64(True):
        results = jax.eval_shape(harness.dyn_fun, *args)
    wide = ("int64", "uint64", "float64", "complex128")
    return any(str(leaf.dtype) in wide for leaf in jax.tree.leaves((args, results)))


def expected(harness: Any, args: list[Any], x64: bool, cache: bool = True) -> list[np.ndarray]:
    """The outputs of `jax.jit` for the case. Compiling takes most of the time of a run, so the numbers are kept."""
    contents = (jax.__version__, jaxlib.__version__, harness.fullname, x64, jax.tree.map(np.asarray, args))
    path = BUILD / "expected" / f"{hashlib.sha256(pickle.dumps(contents)).hexdigest()}.pickle"
    if cache and path.exists():
        return pickle.loads(path.read_bytes())
    with compat.evaluation.x64(x64):
        leaves = jax.tree.leaves(jax.jit(harness.dyn_fun)(*args))
    keys = [jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) for x in leaves]
    outputs = [np.asarray(jax.random.key_data(x) if key else x) for x, key in zip(leaves, keys, strict=True)]
    if cache:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(pickle.dumps(outputs))
        temporary.replace(path)
    return outputs
