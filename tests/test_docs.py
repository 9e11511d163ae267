"""The Python code in the documentation runs, from top to bottom, and so do the examples in docstrings."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_code_in_the_documentation_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / name).read_text(encoding="utf-8")
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    assert blocks
    variables: dict[str, object] = {"__name__": name}
    for block in blocks:
        line = text[: block.start(1)].count("\n")
        exec(compile("\n" * line + block[1], str(ROOT / name), "exec"), variables)


def test_examples_in_docstrings_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    paths = [p.relative_to(ROOT) for p in (ROOT / "jax2onnx").rglob("*.py") if ">>> " in p.read_text(encoding="utf-8")]
    assert paths
    for path in paths:
        module = importlib.import_module(".".join(path.with_suffix("").parts))
        results = doctest.testmod(module)
        assert results.attempted and not results.failed, path


def test_links_lead_somewhere() -> None:
    for path in ROOT.glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
            assert target.startswith("http") or (ROOT / target).exists(), f"{path.name}: {target}"


def test_what_is_named_exists() -> None:
    folders = [ROOT / name for name in ("jax2onnx", "scripts", "tests", "docs", "examples", "benchmarks")]
    paths = [f"/{path.relative_to(ROOT)}" for folder in folders for path in [folder, *folder.rglob("*")]]
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for document in ROOT.glob("*.md"):
        text = document.read_text(encoding="utf-8")
        for name in re.findall(r"`([\w/]+(?:\.py|/))`", text):
            assert any(path.endswith(f"/{name.rstrip('/')}") for path in paths), f"{document.name}: {name}"
        for target in re.findall(r"^ +make (\w+)", text, re.MULTILINE):
            assert target in targets, f"{document.name}: make {target}"
