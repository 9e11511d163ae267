"""`python -m jax2onnx` does what the program `jax2onnx` does."""

from jax2onnx.cli import command

if __name__ == "__main__":
    command()
