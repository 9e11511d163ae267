"""Measure exports and models against JAX, and print a table of ratios.

    python -m benchmarks                           all models
    python -m benchmarks gpt2-small mlp-200        some of them
    python -m benchmarks --jax2onnx PYTHON --torch PYTHON
                                                   beside them, what other exporters make of the same architectures:
                                                   each in the Python of a virtual environment that has it

Per model: the time of an export over that of `jax.make_jaxpr`, each as the first thing that a process does (best of
three, "first"), or again and again with cold caches (best of five): to an `onnx_ir.Model`, whose weights are still
where they were ("export"), and to a `ModelProto`, into which they are copied ("proto"); by how
much the peak memory grows while a file is written over the size of the weights, nodes, and the latency in ONNX Runtime
over that of `jax.jit` (same threads, interleaved runs, medians; before each run, what ran last comes to rest). The
error is the largest difference of any result from JAX's, over the largest number in that result. Of other exporters,
"proto" is the time of their export.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

THREADS = 2
ROUNDS = 5
"""Traces and exports of a model, of which the quickest count."""
FIRSTS = 3
"""New processes for each of the two that are timed in one, of which the quickest counts."""
SECONDS = 3
"""For so long, at least, a model and `jax.jit` take turns."""
REST = 0.005
"""Seconds before each timed run: the threads of what ran last still wait busily, on the cores that this one needs."""
OTHERS = Path(__file__).with_name("others.py")


def steps_of(name: str) -> dict[str, Callable[..., Any]]:
    """What is done with a model, and timed."""
    import jax
    import numpy as np

    from benchmarks.models import MODELS
    from jax2onnx import to_onnx

    fn, args = MODELS[name]()
    wide = any(a.dtype == np.float64 for a in args)
    jax.config.update("jax_enable_x64", wide)
    export = functools.partial(to_onnx, fn, args, enable_double_precision=wide)
    return {
        "trace": lambda: jax.make_jaxpr(lambda *a: fn(*a))(*args),
        "export": lambda: export(return_mode="ir"),
        "proto": lambda: export(return_mode="proto"),
        "file": lambda path: export(return_mode="file", output_path=path),
    }


def first(step: str, name: str) -> float:
    """How long the first trace or export takes, of a process that has done nothing before."""
    run = steps_of(name)[step]
    gc.collect()
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def export(name: str, path: str) -> dict[str, Any]:
    """Trace and export a model with cold caches, write it to `path`, and say what that took."""
    import jax

    from benchmarks.memory import PeakMemory
    from jax2onnx import to_onnx

    steps = steps_of(name)
    write = steps.pop("file")
    to_onnx(lambda x: x + 1, [(2,)])  # load the libraries
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for step, run in steps.items():
            jax.clear_caches()
            gc.collect()  # which is not to be paid for by what is measured next
            start = time.perf_counter()
            result = run()
            seconds[step].append(time.perf_counter() - start)
            if step == "trace":
                weights = sum(c.nbytes for c in result.consts)
            del result
    with PeakMemory() as memory:
        write(path)
    return {**{step: min(times) for step, times in seconds.items()}, "memory": memory.growth, "weights": weights}


def latencies(name: str, paths: dict[str, str], runs: int) -> dict[str, dict[str, Any]]:
    """Nodes, time and error of each exported model, beside `jax.jit`."""
    import jax
    import numpy as np
    import onnx
    import onnxruntime as ort
    from onnxruntime.capi import onnxruntime_pybind11_state as failures

    from benchmarks.models import MODELS

    fn, args = MODELS[name]()
    jax.config.update("jax_enable_x64", any(a.dtype == np.float64 for a in args))
    compiled = jax.jit(fn)
    want = [np.asarray(x) for x in jax.tree.leaves(compiled(*args))]
    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    rows, sessions, times = {}, {}, {"jit": []}
    for exporter, path in paths.items():
        nodes = list(_all_nodes(onnx.load(path, load_external_data=False).graph))
        sessions[exporter] = session = ort.InferenceSession(path, options)
        times[exporter] = []
        try:
            got = session.run(None, _feeds(session, args))
        except (failures.InvalidArgument, failures.Fail, failures.RuntimeException) as error:
            sessions.pop(exporter)
            rows[exporter] = {"onnx / jit": "does not run", "error": str(error).splitlines()[0][:60]}
            continue
        rows[exporter] = {
            "nodes": len(nodes),
            "transposes": sum(n.op_type == "Transpose" for n in nodes),
            "error": max(map(_error, got, want)) if exporter != "torch" else None,  # it has weights of its own
        }
    end = time.perf_counter() + SECONDS
    while len(times["jit"]) < runs or time.perf_counter() < end:
        time.sleep(REST)
        start = time.perf_counter()
        jax.block_until_ready(compiled(*args))
        times["jit"].append(time.perf_counter() - start)
        for exporter, session in sessions.items():
            feeds = _feeds(session, args)
            time.sleep(REST)
            start = time.perf_counter()
            session.run(None, feeds)
            times[exporter].append(time.perf_counter() - start)
    jit = statistics.median(times["jit"])
    for exporter, row in rows.items():
        if exporter not in sessions:
            continue
        row["jit ms"] = round(jit * 1e3, 2)
        row["onnx / jit"] = round(statistics.median(times[exporter]) / jit, 2)
    return rows


def _feeds(session: Any, args: list[Any]) -> dict[str, Any]:
    """The arguments in the layout and dtype that a model wants (torch's images are channels-first)."""
    import numpy as np

    feeds = {}
    for spec, array in zip(session.get_inputs(), args, strict=True):
        if array.ndim == 4 and list(spec.shape)[1] == array.shape[3]:
            array = np.ascontiguousarray(array.transpose(0, 3, 1, 2))
        feeds[spec.name] = array.astype(np.int64) if spec.type == "tensor(int64)" else array
    return feeds


def _error(got: Any, want: Any) -> float:
    import numpy as np

    return float(f"{np.max(np.abs(got - want), initial=0) / max(np.max(np.abs(want), initial=0), 1e-30):.1e}")


def _all_nodes(graph: Any) -> Any:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from _all_nodes(attribute.g)


def measure(name: str, runs: int, others: dict[str, str]) -> list[dict[str, Any]]:
    """A row of the table for each exporter that can export the model; each step in a process of its own."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        paths = {"ours": os.path.join(folder, "ours.onnx")}
        this = [sys.executable, "-m", "benchmarks"]
        costs = {"ours": _run([*this, "--export", name, paths["ours"]])}
        rounds = [{step: _run([*this, "--first", step, name]) for step in ("trace", "export")} for _ in range(FIRSTS)]
        for exporter, python in others.items():
            path = os.path.join(folder, f"{exporter}.onnx")
            found = _run([python, str(OTHERS), exporter, name, path], may_fail=True, cwd=folder)
            if found is not None:
                paths[exporter], costs[exporter] = path, found
        measured = _run([*this, "--latencies", name, json.dumps(paths), "--runs", str(runs)])
        for exporter in ["ours", *others]:
            cost = costs.get(exporter)
            row: dict[str, Any] = {"model": name, "exporter": exporter}
            if cost is None:
                rows.append({**row, "proto / trace": "fails"})
                continue
            trace = costs["ours"]["trace"]
            row["trace s"] = round(trace, 2)
            if exporter == "ours":
                row["first / trace"] = round(min(r["export"] for r in rounds) / min(r["trace"] for r in rounds), 1)
                row["export / trace"] = round(cost["export"] / trace, 1)
            row["proto / trace"] = round(cost.get("proto", cost["export"]) / trace, 1)
            weights = costs["ours"]["weights"]
            row["memory / weights"] = round(cost["memory"] / weights, 2) if weights > 10e6 else ""
            rows.append({**row, **measured[exporter]})
    return rows


def _run(command: list[str], may_fail: bool = False, cwd: str | None = None) -> Any:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    if cwd is not None:
        environment.pop("PYTHONPATH", None)  # not our package
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd, check=False)
    if done.returncode and not may_fail:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return None if done.returncode else json.loads(done.stdout.splitlines()[-1])


COLUMNS = (
    "model",
    "exporter",
    "trace s",
    "first / trace",
    "export / trace",
    "proto / trace",
    "memory / weights",
    "nodes",
    "transposes",
    "jit ms",
    "onnx / jit",
    "error",
)


def main() -> None:
    """Measure each model and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help="names of models (default: all)")
    parser.add_argument("--runs", type=int, default=15, help="runs per latency, at least")
    parser.add_argument("--jax2onnx", metavar="PYTHON", help="a Python that has another jax2onnx")
    parser.add_argument("--torch", metavar="PYTHON", help="a Python that has torch and onnxscript")
    parser.add_argument("--export", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--first", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--latencies", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.export:
        print(json.dumps(export(*options.export)))
        return
    if options.first:
        print(json.dumps(first(*options.first)))
        return
    if options.latencies:
        print(json.dumps(latencies(options.latencies[0], json.loads(options.latencies[1]), options.runs)))
        return
    from importlib.metadata import version

    from benchmarks.models import MODELS

    versions = ", ".join(f"{p} {version(p)}" for p in ("jax", "onnx", "onnx-ir", "onnxruntime"))
    print(f"Python {platform.python_version()}, {versions}, {os.cpu_count()} cores, {THREADS} threads\n")
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS))
    others = {name: python for name in ("jax2onnx", "torch") if (python := getattr(options, name))}
    for name in options.models or MODELS:
        for row in measure(name, options.runs, others):
            print("| " + " | ".join(str(row.get(column, "")) for column in COLUMNS) + " |", flush=True)


if __name__ == "__main__":
    main()
