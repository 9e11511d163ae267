"""Measure exports and models against JAX, and print a table of ratios.

    python -m benchmarks                     all models
    python -m benchmarks gpt2-small mlp-200  some of them

Per model: the time of an export over the time of `jax.make_jaxpr` (both in a new process), nodes, and the latency in
ONNX Runtime over that of `jax.jit` (same threads, interleaved runs, medians).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from typing import Any

THREADS = 2


def measure(name: str, runs: int) -> dict[str, Any]:
    """All numbers of one model."""
    import jax
    import numpy as np
    import onnxruntime as ort

    from benchmarks.models import MODELS
    from jax2onnx import to_onnx

    fn, args = MODELS[name]()
    wide = any(a.dtype == np.float64 for a in args)
    jax.config.update("jax_enable_x64", wide)
    to_onnx(lambda x: x + 1, [(2,)])  # load the libraries
    start = time.perf_counter()
    jaxpr = jax.make_jaxpr(lambda *a: fn(*a))(*args)
    trace = time.perf_counter() - start
    jax.clear_caches()
    start = time.perf_counter()
    proto = to_onnx(fn, args, enable_double_precision=wide)
    export = time.perf_counter() - start
    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = ort.InferenceSession(proto.SerializeToString(), options)
    feeds = {i.name: a for i, a in zip(session.get_inputs(), args, strict=True)}
    compiled = jax.jit(fn)
    want = np.asarray(jax.tree.leaves(compiled(*args))[0])
    got = session.run(None, feeds)[0]
    times: dict[str, list[float]] = {"onnx": [], "jax": []}
    for _ in range(runs):
        start = time.perf_counter()
        session.run(None, feeds)
        times["onnx"].append(time.perf_counter() - start)
        start = time.perf_counter()
        jax.block_until_ready(compiled(*args))
        times["jax"].append(time.perf_counter() - start)
    onnx_time, jax_time = (statistics.median(times[k]) for k in ("onnx", "jax"))
    return {
        "model": name,
        "equations": len(jaxpr.jaxpr.eqns),
        "trace s": round(trace, 2),
        "export / trace": round(export / trace, 2),
        "nodes": sum(1 for _ in _all_nodes(proto.graph)),
        "transposes": sum(n.op_type == "Transpose" for n in _all_nodes(proto.graph)),
        "jit ms": round(jax_time * 1e3, 2),
        "onnx / jit": round(onnx_time / jax_time, 2),
        "error": float(f"{np.max(np.abs(got - want)) / max(np.max(np.abs(want)), 1e-30):.1e}"),
    }


def _all_nodes(graph: Any) -> Any:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from _all_nodes(attribute.g)


def main() -> None:
    """Run each model in a process of its own and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help="names of models (default: all)")
    parser.add_argument("--runs", type=int, default=15, help="runs per latency")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.runs)))
        return
    from importlib.metadata import version

    from benchmarks.models import MODELS

    versions = ", ".join(f"{p} {version(p)}" for p in ("jax", "onnx", "onnxruntime"))
    print(f"Python {platform.python_version()}, {versions}, {os.cpu_count()} cores, {THREADS} threads\n")
    rows = []
    for name in options.models or MODELS:
        command = [sys.executable, "-m", "benchmarks", "--one", name, "--runs", str(options.runs)]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
        rows.append(json.loads(output.splitlines()[-1]))
        if len(rows) == 1:
            print("| " + " | ".join(rows[0]) + " |")
            print("|" + "---|" * len(rows[0]))
        print("| " + " | ".join(map(str, rows[-1].values())) + " |", flush=True)


if __name__ == "__main__":
    main()
