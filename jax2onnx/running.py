"""Call an exported model like the function it was exported from, with pytrees in and out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import onnx

from jax2onnx.errors import InputError
from jax2onnx.structure import assign, names, rebuild

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
    from jax2onnx import runtime
    from jax2onnx.boundary import at_boundary
    from jax2onnx.sizes import check_of

    session = runtime.session(model)
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
        feeds = {name: at_boundary(value) for name, value in values.items()}
        check_sizes(feeds)
        outputs = dict(zip(output_names, runtime.run(session, feeds), strict=True))
        return rebuild(results, outputs)

    call.__doc__ = f"Takes {', '.join(names(arguments)) or 'nothing'}; gives {', '.join(output_names)}."
    return call
