"""Call an exported model like the function it was exported from, with pytrees in and out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import onnx

from jax2onnx.errors import InputError, Jax2OnnxError
from jax2onnx.structure import assign, names, rebuild

if TYPE_CHECKING:
    import onnxruntime as ort

INPUTS, OUTPUTS = "pkg.jax2onnx.inputs", "pkg.jax2onnx.outputs"
"""The metadata of a model that describe the structure of what goes in and out."""


def load(model: onnx.ModelProto | bytes | str | os.PathLike[str]) -> Callable[..., Any]:
    """A function that runs `model` in ONNX Runtime (on the CPU), with the arguments of the exported function.

    Example:
        >>> import numpy as np
        >>> from jax2onnx import load, to_onnx
        >>> model = load(to_onnx(lambda x: {"double": 2 * x, "half": x / 2}, [(3,)]))
        >>> model(np.ones(3, np.float32))["double"]
        array([2., 2., 2.], dtype=float32)
    """
    from jax2onnx.boundary import at_boundary
    from jax2onnx.sizes import check_of

    runtime = runtime_module()
    session = open_session(model, InputError)
    described = session.get_modelmeta().custom_metadata_map
    if INPUTS not in described or OUTPUTS not in described:
        raise InputError("The model carries no description of its inputs and outputs: jax2onnx did not write it.")
    arguments, keywords = json.loads(described[INPUTS])["tuple"]
    results = json.loads(described[OUTPUTS])
    output_names = [value.name for value in session.get_outputs()]
    check_sizes = check_of(session)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            values = assign(arguments, args) | assign(keywords, kwargs)
        except ValueError as error:
            raise InputError(f"The arguments do not fit the model: {error}.") from None
        feeds = {}
        for name, value in values.items():
            try:
                feeds[name] = at_boundary(value)
            except (TypeError, ValueError):
                raise InputError(f"The argument {name} is {value!r}; it is an array or a number.") from None
        check_sizes(feeds)
        try:
            outputs = dict(zip(output_names, runtime.run(session, feeds), strict=True))
        except runtime.INVALID_ARGUMENT as error:
            given = ", ".join(f"{name}: {feed.dtype}{list(feed.shape)}" for name, feed in feeds.items())
            taken = ", ".join(f"{value.name}: {value.type}{value.shape}" for value in session.get_inputs())
            raise InputError(f"ONNX Runtime does not take {given}. The model takes {taken}. ({error})") from error
        return rebuild(results, outputs)

    call.__doc__ = f"Takes {', '.join(names(arguments)) or 'nothing'}; gives {', '.join(output_names)}."
    return call


def open_session(
    model: onnx.ModelProto | bytes | str | os.PathLike[str], kind: type[Jax2OnnxError]
) -> ort.InferenceSession:
    """A session of ONNX Runtime, or an error of the kind asked for."""
    try:
        return runtime_module().session(model)
    except runtime_module().ERRORS as error:
        raise kind(f"ONNX Runtime does not load the model: {error}") from error


def runtime_module() -> Any:
    """The module that runs models. ONNX Runtime is an extra, and slow to import."""
    try:
        from jax2onnx import runtime
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        raise InputError("Running a model needs ONNX Runtime: pip install onnxruntime") from error
    return runtime
