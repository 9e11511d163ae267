"""Turn any JAX program into an ONNX model that computes exactly the same."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jax2onnx.errors import InputError, Jax2OnnxError, UnsupportedError, VerificationError
from jax2onnx.garbage import without_garbage_collection

if TYPE_CHECKING:
    from jax2onnx.api import to_onnx
    from jax2onnx.assumptions import assuming
    from jax2onnx.functions import onnx_function
    from jax2onnx.running import load
    from jax2onnx.verify import allclose

__all__ = [
    "InputError",
    "Jax2OnnxError",
    "UnsupportedError",
    "VerificationError",
    "allclose",
    "assuming",
    "load",
    "onnx_function",
    "to_onnx",
]

_HOMES = {
    "to_onnx": "jax2onnx.api",
    "allclose": "jax2onnx.verify",
    "assuming": "jax2onnx.assumptions",
    "load": "jax2onnx.running",
    "onnx_function": "jax2onnx.functions",
}


def __getattr__(name: str) -> Any:
    """Load the converter when it is first used: onnx-ir alone takes 0.4 s to import."""
    if name not in _HOMES:
        raise AttributeError(f"module 'jax2onnx' has no attribute {name!r}")
    with without_garbage_collection():
        return getattr(import_module(_HOMES[name]), name)
