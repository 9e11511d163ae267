"""The command line: what it writes and prints, its exit codes, and messages in place of tracebacks."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from jax2onnx import cli, runtime
from jax2onnx.progress import Progress

ROOT = Path(__file__).parent.parent

MODULE = """
import jax
import jax.numpy as jnp

WEIGHTS = jnp.arange(128.0 * 8).reshape(128, 8) / 1000

def dense(x):
    return jnp.tanh(x @ WEIGHTS)

def annotated(x: "f32[B,128]", steps: int = 3):
    return dense(x) * steps

def add(a, b):
    return a + b

def nothing():
    return jnp.arange(3.0)

def scaled(x, *, factor, mode="plus"):
    return x * factor if mode == "plus" else -x * factor

class Net:
    def apply(self, x):
        return x + 1

net = Net()
number = 42

def wrong(x):
    raise ZeroDivisionError("the user's own mistake")

def image(x):
    return x * 2
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A current folder with the module `mine`, which is forgotten afterwards."""
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)


def shape(value: onnx.ValueInfoProto) -> list[int | str]:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


def test_export_and_verify(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["mine", "dense", "--input", "f32[B,128]", "--out", "m.onnx", "--opset", "21", "--verify"]
    assert cli.main(arguments) == 0
    out, err = capsys.readouterr()
    assert re.match(r"Wrote m\.onnx: [\d,]+ bytes, \d+ nodes?, opset 21\.\n", out)
    assert "input  x: float32[B,128]" in out
    assert "ONNX Runtime gives what JAX gives at B=2; B=1; B=3" in err
    assert "\r" not in err  # no progress bar in a pipe
    model = onnx.load("m.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert model.opset_import[0].version == 21
    x = np.random.default_rng(0).normal(size=(5, 128)).astype(np.float32)
    weights = np.arange(128.0 * 8, dtype=np.float32).reshape(128, 8) / 1000
    np.testing.assert_allclose(runtime.run("m.onnx", [x])[0], np.tanh(x @ weights), rtol=1e-5, atol=1e-6)


def test_defaults() -> None:
    assert cli.main(["mine", "annotated", "--quiet"]) == 0
    model = onnx.load("annotated.onnx")
    assert model.graph.name == "annotated"
    assert [shape(value) for value in model.graph.input] == [["B", 128]]
    assert cli.main(["mine", "nothing"]) == 0
    assert len(onnx.load("nothing.onnx").graph.input) == 0


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["mine", "annotated", "--verify", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_several_inputs_share_dimensions() -> None:
    arguments = ["mine", "add", "-i", "f32[T,2*N]", "-i", "f32[T,2*N]", "-c", "T <= 64", "-c", "N % 2 == 0", "--verify"]
    assert cli.main(arguments) == 0
    a, b = onnx.load("add.onnx").graph.input
    assert shape(a) == shape(b)
    assert shape(a)[0] == "T"


def test_names_parameters_and_types() -> None:
    options = ["--input-name", "left", "--input-name", "right", "--output-name", "sum", "--name", "adder", "--float64"]
    assert cli.main(["mine", "add", "-i", "f64[3]", "-i", "i64[3]", *options]) == 0
    graph = onnx.load("add.onnx").graph
    assert graph.name == "adder"
    assert [value.name for value in (*graph.input, *graph.output)] == ["left", "right", "sum"]
    assert graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.DOUBLE
    assert cli.main(["mine", "scaled", "-i", "f32[3]", "-p", "factor=2.5", "-p", "mode=minus", "--verify"]) == 0
    assert [value.name for value in onnx.load("scaled.onnx").graph.input] == ["x", "factor"]


def test_files_and_dotted_names(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "model.py").write_text("from helper import fn\n")
    (tmp_path / "sub" / "helper.py").write_text("def fn(x):\n    return x + 1\n")
    assert cli.main(["sub/model.py", "fn", "-i", "f32[3]"]) == 0
    assert cli.main(["mine", "net.apply", "-i", "f32[3]"]) == 0
    assert (tmp_path / "net.apply.onnx").exists()


def test_functions_provenance_and_noise(tmp_path: Path) -> None:
    lines = [
        "import jax",
        "def drop(x, key):",
        "    with jax.named_scope('layer'):",
        "        return x * jax.random.bernoulli(key, 0.5, x.shape)",
    ]
    (tmp_path / "random_layer.py").write_text("\n".join(lines))
    out = str(tmp_path / "drop.onnx")
    inputs = ["-i", "f32[B,3]", "-i", "key<fry>[]", "--out", out]
    assert (
        cli.main([str(tmp_path / "random_layer.py"), "drop", *inputs, "--noise", "--modules", "--provenance", "source"])
        == 0
    )
    model = onnx.load(out)
    assert [i.name for i in model.graph.input] == ["x", "noise/uniform_0"]
    assert [f.name for f in model.functions] == ["layer"]
    notes = {p.value for p in model.functions[0].node[-1].metadata_props}
    assert any("random_layer.py:4" in note for note in notes)


def test_external_data_and_layout(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["mine", "annotated", "--external-data", "1kB", "-o", "m.onnx"]) == 0
    assert "Wrote m.onnx and m.onnx.data" in capsys.readouterr().out
    assert os.path.getsize("m.onnx.data") == 128 * 8 * 4
    assert cli.main(["mine", "image", "-i", "f32[1,4,5,3]", "--nchw-input", "x", "--verify"]) == 0
    assert shape(onnx.load("image.onnx").graph.input[0]) == [1, 3, 4, 5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine", "add"], r"Give one --input for each argument of add\(a, b\)"),
        (["mine", "add", "-i", "f32[3]"], "cannot be called with 1 inputs"),
        (["mine", "dense", "-i", "f33[3]"], "'f33' is not a dtype"),
        (["mine", "dense", "-i", "f32[B,128]", "-c", "N >= 2"], "'N', which no input has"),
        (["mine", "nope"], "mine has no 'nope'"),
        (["mine", "number"], "is a int, which cannot be called"),
        (["theirs", "fn"], "no module 'theirs'"),
        (["theirs.py", "fn"], "no file 'theirs.py'"),
        (["mine", "annotated", "--opset", "3"], "opset is 3"),
        (["mine", "annotated", "--out", "no/such/folder/m.onnx"], "does not exist"),
        (["mine", "annotated", "--input-name", "a", "--input-name", "b"], "input_names has 2 names"),
        (["mine", "scaled", "-i", "f32[3]", "-p", "factor"], "NAME=VALUE"),
        (["mine", "annotated", "--web", "--external-data", "5"], "self-contained"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = set(os.listdir())
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert re.search(message, err)
    assert err.startswith("jax2onnx: ")
    assert "Traceback" not in err
    assert out == ""
    assert set(os.listdir()) - before <= {"__pycache__"}


@pytest.mark.parametrize(
    "arguments", [[], ["mine"], ["mine", "fn", "--nope"], ["mine", "fn", "--external-data", "big"]]
)
def test_arguments_that_cannot_be_read_exit_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as info:
        cli.main(arguments)
    assert info.value.code == 2


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "jax2onnx", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)


def test_the_users_own_errors_have_no_traceback_unless_asked_for() -> None:
    result = run("mine", "wrong", "-i", "f32[3]")
    assert result.returncode == 1
    assert re.match(r"jax2onnx: ZeroDivisionError: the user's own mistake \(\S*mine\.py:\d+\)\n", result.stderr)
    assert "Traceback" not in result.stderr
    result = run("mine", "wrong", "-i", "f32[3]", "--debug")
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert os.listdir() == ["mine.py"] or set(os.listdir()) == {"mine.py", "__pycache__"}


def test_a_failed_verification_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runtime, "run", lambda *_: [np.zeros((1, 8), np.float32)])
    assert cli.main(["mine", "dense", "-i", "f32[1,128]", "--verify"]) == 1
    assert re.search(r"Output 0 \(\S+\) differs in \d of 8 values, most at \(0, \d\)", capsys.readouterr().err)
    assert not os.path.exists("dense.onnx")


def test_help_is_worth_reading(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as info:
        cli.main(["--help"])
    assert info.value.code == 0
    text = capsys.readouterr().out
    for word in ("f32[B,128]", "--verify", "--constraint", "exit codes", "--external-data", "examples"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 120


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + 20
        while text not in self.getvalue():
            assert time.monotonic() < deadline, self.getvalue()
            time.sleep(0.01)


def test_the_progress_bar_is_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    with Progress("Working") as progress:
        progress.report(1, 2)
        time.sleep(0.3)
    assert pipe.getvalue() == ""

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress("Working") as progress:
        terminal.wait_for("Working ... ")
        progress.report(1, 2)
        terminal.wait_for(f"Working [{'#' * 15}{'.' * 15}] 50%")
    assert terminal.getvalue().endswith("\r\033[K")
    with Progress("Working", quiet=True):
        time.sleep(0.3)
    assert terminal.getvalue().endswith("\r\033[K")


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("17", 17), ("2GB", 2 * 10**9), ("1.5MiB", 1572864), ("3k", 3000), ("1 GiB", 2**30)]
)
def test_sizes(text: str, size: int) -> None:
    assert cli._size(text) == size
