"""Keras 3 on the JAX backend: a layer or model, or a function that calls one, as `model.export` hands us.

It is traced in Keras's own stateless scope, in which what a layer writes to its variables (batch statistics, the state
of a recurrent layer, the seed of a generator) does not reach them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import Any

import keras

from jax2onnx.frontends import Source, arrays_inside, held_by


def source_of(target: Any) -> Source | None:
    """The call of a layer, or a function that holds on to layers; weights have the paths that Keras gives them."""
    layers = list(_layers_inside(target))
    if not layers or keras.backend.backend() != "jax":
        return None

    @functools.wraps(target.__call__ if isinstance(target, keras.Layer) else target)
    def call(*args: Any, **kwargs: Any) -> Any:
        with keras.StatelessScope():
            return target(*args, **kwargs)

    if isinstance(target, keras.Layer):
        call.__signature__ = inspect.signature(target.call)  # type: ignore[attr-defined]
    arrays = {} if isinstance(target, keras.Layer) else dict(arrays_inside(target))
    return Source(call, arrays | {v.path: v.value for layer in layers for v in layer.variables})


def _layers_inside(target: Any) -> Iterator[keras.Layer]:
    """The layer that is called: the target itself, or one that it is bound to or holds on to."""
    if isinstance(target, keras.Layer):
        yield target
        return
    if isinstance(target, functools.partial):
        for value in (target.func, *target.args, *target.keywords.values()):
            yield from _layers_inside(value)
    if inspect.ismethod(target):
        yield from _layers_inside(target.__self__)
    yield from (value for value in held_by(target).values() if isinstance(value, keras.Layer))
