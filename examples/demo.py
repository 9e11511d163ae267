"""Export a small language model written in plain JAX, check it against JAX in ONNX Runtime, and run it.

Run it with `make demo`, or with `python examples/demo.py`. It writes build/demo/tiny_gpt.onnx, and, if Flax is
installed, build/demo/image_classifier.onnx.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime

from jax2onnx import to_onnx

FOLDER = Path("build") / "demo"
VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS = 256, 128, 64, 4, 2  # tokens are bytes


def init(key: jax.Array) -> dict[str, Any]:
    """Random weights of a small GPT."""

    def matrix(key: jax.Array, rows: int, columns: int) -> jax.Array:
        return jax.random.normal(key, (rows, columns)) / np.sqrt(rows)

    keys = iter(jax.random.split(key, 2 + 4 * LAYERS))
    return {
        "tokens": matrix(next(keys), VOCABULARY, WIDTH),
        "positions": matrix(next(keys), LENGTH, WIDTH),
        "layers": [
            {
                "scale": jnp.ones((2, WIDTH)),
                "qkv": matrix(next(keys), WIDTH, 3 * WIDTH),
                "out": matrix(next(keys), WIDTH, WIDTH),
                "up": matrix(next(keys), WIDTH, 4 * WIDTH),
                "down": matrix(next(keys), 4 * WIDTH, WIDTH),
            }
            for _ in range(LAYERS)
        ],
    }


def layer_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Plain maths: the converter does not know this function."""
    centred = x - x.mean(-1, keepdims=True)
    return scale * centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


def attention(x: jax.Array, layer: dict[str, Any]) -> jax.Array:
    """Causal self-attention."""
    batch, length, _ = x.shape
    q, k, v = jnp.split((x @ layer["qkv"]).reshape(batch, length, HEADS, -1), 3, axis=-1)
    return jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape) @ layer["out"]


def gpt(weights: dict[str, Any], tokens: jax.Array) -> jax.Array:
    """The logits of the next token at each position."""
    x = weights["tokens"][tokens] + weights["positions"][: tokens.shape[1]]
    for layer in weights["layers"]:
        x = x + attention(layer_norm(x, layer["scale"][0]), layer)
        x = x + jax.nn.gelu(layer_norm(x, layer["scale"][1]) @ layer["up"]) @ layer["down"]
    return x @ weights["tokens"].T


def export(name: str, fn: Any, inputs: list[Any], **options: Any) -> str:
    """Export and verify one model, and say what was done."""
    path = str(FOLDER / f"{name}.onnx")
    start = time.perf_counter()
    to_onnx(fn, inputs, model_name=name, return_mode="file", output_path=path, verify=True, **options)
    seconds = time.perf_counter() - start
    nodes, size = len(onnx.load(path).graph.node), os.path.getsize(path)
    print(f"Exported and verified in {seconds:.1f} s: {path} ({size:,} bytes, {nodes} nodes)\n")
    return path


def main() -> None:
    """Export, verify, run."""
    logging.basicConfig(format="%(message)s")
    logging.getLogger("jax2onnx").setLevel(logging.INFO)
    FOLDER.mkdir(parents=True, exist_ok=True)

    print(f"1. A GPT with {LAYERS} layers in plain JAX, for any batch size B and any length T up to {LENGTH}.")
    model = functools.partial(gpt, init(jax.random.key(0)))
    path = export("tiny_gpt", model, ["i32[B,T]"], constraints=[f"T <= {LENGTH}"])

    session = onnxruntime.InferenceSession(path)
    text = "Hello, ONNX! This is JAX."
    tokens = np.frombuffer(text.encode(), np.uint8).astype(np.int32)[None]
    (logits,) = session.run(None, {session.get_inputs()[0].name: tokens})
    error = np.abs(logits - model(tokens)).max()
    print(f"   ONNX Runtime on {text!r}: logits of shape {logits.shape}, at most {error:.1e} away from JAX's.\n")

    if importlib.util.find_spec("flax"):
        from flax import nnx

        print("2. A convolutional network in Flax NNX, for any number of images.")
        rngs = nnx.Rngs(0)
        network = nnx.Sequential(
            nnx.Conv(3, 16, (3, 3), rngs=rngs),
            nnx.BatchNorm(16, use_running_average=True, rngs=rngs),
            nnx.relu,
            functools.partial(nnx.max_pool, window_shape=(2, 2), strides=(2, 2)),
            lambda x: x.reshape(x.shape[0], -1),
            nnx.Linear(16 * 16 * 16, 10, rngs=rngs),
        )
        export("image_classifier", network, [("B", 32, 32, 3)])
    print(f"The models are in {FOLDER.resolve()}; https://netron.app shows them.")


if __name__ == "__main__":
    main()
