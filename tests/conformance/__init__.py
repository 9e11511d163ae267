"""JAX's own test cases for its primitives, each exported, run in ONNX Runtime and compared with JAX.

`python -m tests.conformance --help` says how to run them.
"""
