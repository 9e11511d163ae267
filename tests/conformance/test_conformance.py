"""The runner itself, and a sample of the cases (`make conformance` runs them all)."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tests.conformance import report
from tests.conformance.judge import Result
from tests.conformance.pool import judge_all

ROOT = Path(__file__).parents[2]


def judge_some(name, enter):
    """Stands for the real thing: one case kills its process, one never ends, the others are fine."""
    enter("run")
    if name == "deadly":
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "endless":
        time.sleep(1000)
    return Result(name, "group", "ok")


def test_a_crash_or_an_endless_loop_costs_only_its_case():
    names = ["a", "deadly", "b", "endless", "c", "d"]
    results = {r.name: r for r in judge_all(dict.fromkeys(names, "group"), judge_some, workers=2, timeout=2.0)}
    verdicts = {name: results[name].verdict for name in names}
    assert verdicts == {"a": "ok", "deadly": "crash", "b": "ok", "endless": "timeout", "c": "ok", "d": "ok"}
    assert results["deadly"].reason == "SIGSEGV in the stage run"
    assert results["endless"].reason == "more than 2 s, in the stage run"


def test_report(tmp_path):
    reasons = [
        "output 0: 3 of 4 values differ, first at (1, 2): 3 instead of 4",
        "output 1: 1 of 9 values differ, first at (0,): -1.5e-7 instead of nan",
    ]
    wrong = [Result(f"w{i}", "sort", "wrong", reason) for i, reason in enumerate(reasons)]
    run = report.finished([Result("b", "sort", "ok"), Result("a", "abs", "ok", export_seconds=21.0), *wrong])
    report.save(run, tmp_path / "results.json")
    assert report.read(tmp_path / "results.json") == run
    summary = report.summary(run)
    assert summary.startswith("2 ok, 2 wrong of 4 cases")
    assert "2 wrong    output #: # of # values differ, first at (…): # instead of #" in summary
    assert "1 over 20 s, the slowest 21.0 s (a)" in summary
    table = report.table([run, report.finished([Result("a", "abs", "ok")])])
    assert "- 2 of 4 (50%) with" in table
    assert "| abs | 1/1 | 1/1 |  |" in table
    assert "| sort | 1/3 |  | wrong |" in table
    assert "- 2 wrong: output #: # of # values differ, first at (…): # instead of #. In: sort (2)" in table


def run(tmp_path, *options):
    """The results of a run of the command."""
    results = tmp_path / "results.json"
    command = [sys.executable, "-m", "tests.conformance", *options, "--results", str(results)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(results.read_text())["cases"]


def test_sample(tmp_path):
    """A case of each group: none may be worse than unsupported."""
    cases = run(tmp_path, "--sample", "1")
    assert len(cases) > 125
    assert [case for case in cases if case["verdict"] not in ("ok", "convert")] == []


def test_sample_with_symbolic_axes(tmp_path):
    """What JAX can export with symbolic leading axes, we can."""
    groups = (
        "argmax conv_general_dilated cumsum dot_general dynamic_update_slice fft gather lu pad reduce_and"
        " reduce_window_max scatter_add select_and_scatter_add sort top_k"
    ).split()
    cases = run(tmp_path, "--sample", "2", "--workers", "1", "--symbolic", "--group", *groups)
    verdicts = Counter(case["verdict"] for case in cases)
    assert [case for case in cases if case["verdict"] not in ("ok", "static")] == []
    assert verdicts["ok"] > 2 * verdicts["static"]
