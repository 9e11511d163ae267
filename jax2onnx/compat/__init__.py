"""Everything that differs between JAX releases or is not public in JAX, in one place: a file for each subject."""

from jax2onnx.compat import definitions, dims, equations, evaluation, kinds, programs, sources

__all__ = ["definitions", "dims", "equations", "evaluation", "kinds", "programs", "sources"]
