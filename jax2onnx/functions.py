"""`@onnx_function`: calls that stay visible in the model as calls of an ONNX function.

A decorated function behaves as before. While it is traced, its calls are marked by the name of a `jax.jit`, which
survives grad and vmap; the lowering makes a function of each marked call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from jax2onnx.errors import InputError

MARK = "onnx_function:"
DEFAULT_NAMESPACE = "custom"
_OPERATORS = ("ai.onnx", "com.microsoft", "com.ms.", "jax2onnx.")


class Marked(NamedTuple):
    """What the name of a marked call says."""

    namespace: str
    name: str
    is_shared: bool

    def __str__(self) -> str:
        return f"{MARK}{self.namespace}:{self.name}:{int(self.is_shared)}"


def parse_mark(name: str) -> Marked | None:
    """The content of the name of a call, if it is marked."""
    start = name.find(MARK)  # a transformation may have put something before it
    if start < 0:
        return None
    namespace, own, is_shared = name[start + len(MARK) :].split(":")[:3]
    return Marked(namespace, own, is_shared[:1] == "1")


def onnx_function(
    target: Any = None,
    *,
    unique: bool = False,
    namespace: str | None = None,
    name: str | None = None,
    type: str | None = None,
) -> Any:
    """Make each call of a function, or of the instances of a class, a call of an ONNX function.

    Args:
        target: the function or class to decorate.
        unique: let calls that differ only in their weights share one function, which takes the weights as inputs.
        namespace: the domain of the function.
        name: its name; the default is that of the function or class.
        type: another word for `name`.

    Example:
        >>> import jax.numpy as jnp
        >>> from jax2onnx import onnx_function, to_onnx
        >>> @onnx_function
        ... def twice(x):
        ...     return x + x
        >>> model = to_onnx(lambda x: twice(jnp.sin(x)), [(3,)])
        >>> [node.op_type for node in model.graph.node]
        ['Sin', 'twice']
    """

    def decorate(target: Any) -> Any:
        mark = Marked(namespace or DEFAULT_NAMESPACE, name or type or target.__name__, unique)
        for option, text in (("namespace", mark.namespace), ("name", mark.name)):
            if ":" in text:
                raise InputError(f"{option} is {text!r}; it cannot have a colon.")
        if mark.namespace.startswith(_OPERATORS):  # those of the same name would be run in place of the function
            raise InputError(f"namespace is {mark.namespace!r}, which has operators of its own: give another one.")
        if inspect.isclass(target):
            setattr(target, "__call__", marked(target.__call__, mark))  # noqa: B010  (mypy knows no other way)
            return target
        return marked(target, mark)

    return decorate if target is None else decorate(target)


_ARRAY = object()


def marked(fn: Callable[..., Any], mark: Marked) -> Callable[..., Any]:
    """`fn`, whose calls carry `mark` while they are traced."""

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        is_traced = [isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves]
        if not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return fn(*args, **kwargs)

        def body(*arrays: Any) -> Any:
            rest = iter(arrays)
            filled = [next(rest) if traced else leaf for leaf, traced in zip(leaves, is_traced, strict=True)]
            filled_args, filled_kwargs = jax.tree.unflatten(tree, filled)
            results, result_tree = jax.tree.flatten(fn(*filled_args, **filled_kwargs))
            # Sizes, numbers and texts stay what they are.
            returned[:] = [(result_tree, [_ARRAY if isinstance(r, jax.Array) else r for r in results])]
            return [r for r in results if isinstance(r, jax.Array)]

        body.__name__ = body.__qualname__ = str(mark)
        returned: list[Any] = []
        made = iter(jax.jit(body)(*(leaf for leaf, traced in zip(leaves, is_traced, strict=True) if traced)))
        ((result_tree, results),) = returned
        return jax.tree.unflatten(result_tree, [next(made) if r is _ARRAY else r for r in results])

    return call
