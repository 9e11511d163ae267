"""Run an exported model in ONNX Runtime next to JAX and say precisely where they differ.

verify(fn, specs, model)         raises VerificationError, or gives a sentence about what was tried
allclose(fn, "model.onnx", [x])  gives (True or False, a sentence)
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import onnx

from . import compat
from .errors import InputError, VerificationError
from .frontends import source_of
from .running import open_session, runtime_module
from .sampling import sample_arrays, sample_sizes, with_sizes
from .sizes import check_of, constraints_of
from .specs import input_leaves, input_specs, is_value, needs_x64
from .tracing import Program, trace

if TYPE_CHECKING:
    import onnxruntime as ort

log = logging.getLogger("jax2onnx")

# Relative and absolute tolerance per dtype of an output. Others (integers, booleans) must be equal.
_TOLERANCES = {
    "float64": (1e-7, 1e-9),
    "float32": (1e-3, 1e-5),
    "float16": (1e-2, 1e-3),
    "bfloat16": (5e-2, 1e-2),
}
_COARSE = (2.5e-1, 1e-1)  # the 8-bit floats and smaller

Axes = Sequence[int | str] | None


def verify(
    fn: Callable[..., Any],
    specs: Sequence[Any],
    model: onnx.ModelProto | str | os.PathLike[str],
    input_params: Mapping[str, Any] | None = None,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    x64: bool = False,
    inputs_as_nchw: Axes = None,
    outputs_as_nchw: Axes = None,
    precision: np.dtype | None = None,
    given: Sequence[Any] = (),
    runs: int = 3,
) -> str:
    """Compare `model` with `fn` on generated inputs, at several sizes of each symbolic dimension.

    `specs` are pytrees of `jax.ShapeDtypeStruct`, as `specs.input_specs` gives them. Tolerances depend on the dtype of
    an output (or on `precision`, the dtype of stored weights) unless given; the absolute one is relative to the largest
    value of the output where that is above 1. `given` are values for the first leaves, where those have some (weights).
    Raises `VerificationError`, or returns a sentence that says what was tried and how close it was.
    """
    pair = _Pair(
        fn,
        dict(input_params or {}),
        open_session(model, VerificationError),
        inputs_as_nchw or (),
        outputs_as_nchw or (),
    )
    tried, worst, blank = [], 0.0, None
    with compat.evaluation.x64(x64 or needs_x64(specs) or _x64_is_on()):
        for seed, sizes in enumerate(sample_sizes(specs, runs, constraints_of(pair.session) or ())):
            fixed = with_sizes(specs, sizes)
            arrays = jax.tree.leaves(sample_arrays(fixed, seed))
            arrays[: len(given)] = [g if is_value(g) else a for g, a in zip(given, arrays, strict=False)]
            result = pair.compare(fixed, arrays, _by_dtype(rtol, atol, precision))
            at = ", ".join(f"{name}={size}" for name, size in sizes.items())
            if result.difference is not None:
                raise VerificationError(f"{result.difference}{f', with {at}' if at else ''}.")
            tried.append(at)
            worst = max(worst, result.worst)
            blank = result.blank if blank is None else blank & result.blank
    sizes_tried = f" at {'; '.join(tried)}" if any(tried) else ""
    report = f"ONNX Runtime gives what JAX gives{sizes_tried} (largest absolute difference {worst:.3g}).{_about(blank)}"
    if blank:
        log.warning("%s", report)
    return report


def allclose(
    fn: Callable[..., Any],
    onnx_model_path: str | os.PathLike[str],
    inputs: Sequence[Any],
    input_params: Mapping[str, Any] | None = None,
    rtol: float = 1e-3,
    atol: float = 1e-5,
    *,
    enable_double_precision: bool = False,
    inputs_as_nchw: Axes = None,
    outputs_as_nchw: Axes = None,
) -> tuple[bool, str]:
    """Whether the model in a file gives for `inputs` what `fn`, as `to_onnx` takes it, gives, and a sentence about it.

    `inputs` are arrays, or specs as `to_onnx` takes them, for which arrays are generated. `input_params` are keyword
    arguments of `fn`. Arrays are always in the layout of `fn`; those the model wants as NCHW are transposed for it.
    """
    specs = input_specs(inputs, np.float64 if enable_double_precision else np.float32)
    plain = source_of(fn).fn
    pair = _Pair(
        plain,
        dict(input_params or {}),
        open_session(onnx_model_path, VerificationError),
        inputs_as_nchw or (),
        outputs_as_nchw or (),
    )
    with compat.evaluation.x64(enable_double_precision or needs_x64(specs) or _x64_is_on()):
        fixed = with_sizes(specs, sample_sizes(specs, 1, constraints_of(pair.session) or ())[0])
        generated = jax.tree.leaves(sample_arrays(fixed))
        arrays = [
            given if is_value(given) else made for given, made in zip(input_leaves(inputs), generated, strict=True)
        ]
        result = pair.compare(fixed, arrays, lambda want: (rtol, atol))
    if result.difference is not None:
        return False, f"{result.difference}."
    return True, f"All outputs agree (largest absolute difference {result.worst:.3g}).{_about(result.blank)}"


def _about(blank: Set[str] | None) -> str:
    """What to say of outputs of which nothing but NaN and infinities was compared: any model of those agrees."""
    names = ", ".join(map(repr, sorted(blank or ())))
    return f" But of {names} there was no finite number: compare on other inputs, with allclose." if names else ""


def difference(got: np.ndarray, want: np.ndarray, rtol: float, atol: float) -> str | None:
    """How two arrays differ, in words; None if they have one dtype and shape and |got - want| <= atol + rtol * |want|.

    NaN must meet NaN and an infinity the same infinity. Integers and booleans must be equal.
    """
    if got.dtype != want.dtype:
        return f"has dtype {got.dtype.name} instead of {want.dtype.name}"
    if got.shape != want.shape:
        return f"has shape {got.shape} instead of {want.shape}"
    if not jax.numpy.issubdtype(want.dtype, np.floating):
        same = got == want
        error = badness = np.where(same, 0.0, np.abs(got.astype(np.float64) - want.astype(np.float64)))
    else:
        wide_got, wide_want = got.astype(np.float64), want.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            error, allowed = np.abs(wide_got - wide_want), atol + rtol * np.abs(wide_want)
            same = (wide_got == wide_want) | (np.isnan(wide_got) & np.isnan(wide_want))
            same |= np.isfinite(wide_want) & (error <= allowed)
            # A NaN or an infinity in the wrong place is worse than any finite error.
            badness = np.where(np.isfinite(error), error / np.maximum(allowed, np.finfo(np.float64).tiny), np.inf)
    if same.all():
        return None
    at = tuple(int(i) for i in np.unravel_index(np.argmax(np.where(same, -1.0, badness)), same.shape))
    sentence = f"differs in {int((~same).sum())} of {same.size} values, most at {at}: {got[at]} instead of {want[at]}"
    if not np.isfinite(error[at]):
        return sentence
    exact = error[at] if jax.numpy.issubdtype(want.dtype, np.floating) else abs(int(got[at]) - int(want[at]))
    relative = f", relative {exact / abs(float(want[at])):.3g}" if want[at] != 0 else ""
    return f"{sentence} (absolute difference {exact:.3g}{relative})"


@dataclass(frozen=True)
class _Result:
    difference: str | None
    worst: float = 0.0
    blank: Set[str] = frozenset()
    """The outputs that JAX gives no finite number in."""


@dataclass(frozen=True)
class _Pair:
    """A function in JAX and the model of it in ONNX Runtime."""

    fn: Callable[..., Any]
    input_params: dict[str, Any]
    session: ort.InferenceSession
    inputs_as_nchw: Axes
    outputs_as_nchw: Axes

    def compare(self, specs: Sequence[Any], arrays: Sequence[Any], tolerances: Tolerances) -> _Result:
        """Run both on `arrays`, the leaves of arguments like `specs`."""
        program = trace(self.fn, specs, self.input_params)
        values = [*arrays, *self._keyword_values(program)]
        values = [_as_jax(value, aval) for value, aval in zip(values, program.jaxpr.in_avals, strict=True)]
        wanted = [runtime_module().at_boundary(w) for w in compat.evaluation.evaluate_program(program.jaxpr, values)]
        names = [value.name for value in self.session.get_outputs()]
        got = self._run_model(values, program.input_names, len(arrays))
        if len(got) != len(wanted):
            return _Result(f"The model has {len(got)} outputs, the function {len(wanted)}")
        worst, blank = 0.0, set()
        transposed = _positions(self.outputs_as_nchw, names, "output")
        for i, (name, g, w) in enumerate(zip(names, got, wanted, strict=True)):
            w = np.moveaxis(w, -1, 1) if i in transposed else w
            if message := difference(g, w, *tolerances(w)):
                return _Result(f"Output {i} ({name}) {message}")
            worst = max(worst, _largest_difference(g, w))
            if w.size and not np.isfinite(w.astype(np.float64)).any():
                blank.add(name)
        return _Result(None, worst, blank)

    def _keyword_values(self, program: Program) -> list[Any]:
        """The values of the keyword arguments that are inputs of the model, not baked into it."""
        _, traced = jax.tree.unflatten(jax.tree.structure(program.inputs), program.input_names)
        return jax.tree.leaves({name: self.input_params[name] for name in traced})

    def _run_model(self, values: list[Any], names: list[str], positional: int) -> list[np.ndarray]:
        wanted = [value.name for value in self.session.get_inputs()]
        if len(wanted) < len(values):  # keyword arguments that were baked into this model
            keywords = zip(names[positional:], values[positional:], strict=True)
            values = [*values[:positional], *(value for name, value in keywords if name in wanted)]
        if len(wanted) != len(values):
            raise InputError(f"The model has {len(wanted)} inputs ({', '.join(wanted)}), the function {len(names)}.")
        feeds = [runtime_module().at_boundary(value) for value in values]
        for i in _positions(self.inputs_as_nchw, wanted, "input"):
            feeds[i] = np.moveaxis(feeds[i], -1, 1)
        check_of(self.session)(dict(zip(wanted, feeds, strict=True)))
        try:
            return runtime_module().run(self.session, feeds)
        except runtime_module().ERRORS as error:
            raise VerificationError(f"ONNX Runtime fails to run the model: {error}") from error


Tolerances = Callable[[np.ndarray], tuple[float, float]]


def _by_dtype(rtol: float | None, atol: float | None, precision: np.dtype | None = None) -> Tolerances:
    """The tolerances for an output, from its dtype and its largest value, where they are not given."""

    def tolerances(want: np.ndarray) -> tuple[float, float]:
        if not jax.numpy.issubdtype(want.dtype, np.floating):
            return 0.0, 0.0
        relative, absolute = max(_TOLERANCES.get(d.name, _COARSE) for d in (want.dtype, precision or want.dtype))
        sizes = np.abs(want.astype(np.float64))
        largest = sizes.max(initial=1.0, where=np.isfinite(sizes))
        return relative if rtol is None else rtol, absolute * largest if atol is None else atol

    return tolerances


def _largest_difference(got: np.ndarray, want: np.ndarray) -> float:
    with np.errstate(invalid="ignore"):
        error = np.abs(got.astype(np.float64) - want.astype(np.float64))
    return float(error.max(initial=0.0, where=np.isfinite(error)))


def _as_jax(value: Any, aval: Any) -> Any:
    """`value` as an array of the dtype that was traced."""
    return value if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key) else jax.numpy.asarray(value, aval.dtype)


def _positions(chosen: Axes, names: list[str], what: str) -> set[int]:
    positions = set()
    for item in chosen or ():
        if item not in (names if isinstance(item, str) else range(len(names))):
            raise InputError(f"{what}s_as_nchw has {item!r}, but the {what}s are {', '.join(names)}.")
        positions.add(names.index(item) if isinstance(item, str) else item)
    return positions


def _x64_is_on() -> bool:
    return bool(jax.dtypes.canonicalize_dtype(np.float64) == np.float64)
