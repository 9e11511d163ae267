"""Run in the environment of another exporter: `python others.py EXPORTER MODEL PATH` exports, and says what that took.

Nothing of our package is imported here. The JAX models are read from `models.py` beside this file; torch has the same
architectures with weights of its own.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def _load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def with_jax2onnx(name: str, path: str) -> float:
    """Export a JAX model with the `jax2onnx` that is installed."""
    import jax

    from jax2onnx import to_onnx

    fn, args = _load("models").MODELS[name]()
    wide = any(a.dtype == "float64" for a in args)
    jax.config.update("jax_enable_x64", wide)
    specs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in args]
    to_onnx(lambda x: x + 1, [(2,)])
    start = time.perf_counter()
    to_onnx(fn, specs, enable_double_precision=wide, return_mode="file", output_path=path)
    return time.perf_counter() - start


def with_torch(name: str, path: str) -> float:
    """Export torch's form of a model."""
    import torch

    model, args = _load("torch_models").MODELS[name]()
    model.eval()
    start = time.perf_counter()
    torch.onnx.export(model, args, path, dynamo=True, external_data=False)
    return time.perf_counter() - start


if __name__ == "__main__":
    exporter, model_name, output = sys.argv[1:]
    sys.path = [p for p in sys.path if Path(p or ".").resolve() not in (HERE, HERE.parent)]
    memory = _load("memory").PeakMemory()
    with memory:
        seconds = {"jax2onnx": with_jax2onnx, "torch": with_torch}[exporter](model_name, output)
    print(json.dumps({"export": seconds, "memory": memory.growth}))
