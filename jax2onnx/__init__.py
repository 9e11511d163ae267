"""Turn any JAX program into an ONNX model that computes exactly the same."""

from jax2onnx.api import to_onnx
from jax2onnx.errors import InputError, Jax2OnnxError, UnsupportedError, VerificationError
from jax2onnx.verify import allclose

__all__ = ["InputError", "Jax2OnnxError", "UnsupportedError", "VerificationError", "allclose", "to_onnx"]
