"""Files are complete or absent, the same bytes each time, and written without a second copy of the weights."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from jax2onnx import streaming
from jax2onnx.emit import check_emit_options, check_output_path, emit
from jax2onnx.errors import InputError


def weight_array(seed: int, shape: tuple[int, ...] = (40, 50), dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def make_model(*tensors: np.ndarray | ir.TensorProtocol) -> ir.Model:
    """A model with one Identity node and one output per weight."""
    values, nodes = [], []
    for i, given in enumerate(tensors):
        tensor = ir.tensor(given) if isinstance(given, np.ndarray) else given
        value = ir.Value(
            name=f"w{i}", const_value=tensor, shape=ir.Shape(tensor.shape), type=ir.TensorType(tensor.dtype)
        )
        node = ir.node("Identity", [value], name=f"n{i}")
        node.outputs[0].name = f"y{i}"
        node.outputs[0].shape, node.outputs[0].type = value.shape, value.type
        values.append(value)
        nodes.append(node)
    graph = ir.Graph(
        [], [n.outputs[0] for n in nodes], nodes=nodes, initializers=values, opset_imports={"": 21}, name="g"
    )
    return ir.Model(graph, ir_version=10, producer_name="test", metadata_props={"b": "2", "a": "1"})


def read(path: Path) -> list[np.ndarray]:
    model = onnx.load(path)
    onnx.checker.check_model(os.fspath(path), full_check=True)
    return [ir.from_proto(t).numpy() for t in model.graph.initializer]


def files(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


MIXED = [
    weight_array(0),
    np.array(3, np.int64),
    weight_array(1, (700,), ml_dtypes.bfloat16),
    np.zeros((0, 5), np.float32),
    weight_array(2, (3, 5, 70), np.float64).transpose(2, 0, 1),
    np.arange(5000) % 3 == 0,
    (np.arange(6001) % 7).astype(ml_dtypes.int4),
]


@pytest.mark.parametrize("chunk", [1 << 24, 1000])
def test_a_file_has_the_bytes_of_the_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(streaming, "PIECE_BYTES", chunk)
    path = tmp_path / "m.onnx"
    assert emit(make_model(*MIXED), "file", path) == str(path)
    proto = emit(make_model(*MIXED), "proto")
    assert isinstance(proto, onnx.ModelProto)
    assert path.read_bytes() == proto.SerializeToString(deterministic=True)
    assert files(tmp_path) == ["m.onnx"]


def test_ir_mode_gives_the_model_itself() -> None:
    model = make_model(*MIXED)
    assert emit(model, "ir") is model


def test_a_name_without_suffix_is_taken_as_it_is(tmp_path: Path) -> None:
    emit(make_model(*MIXED), "file", tmp_path / "plain", external_data_limit=0)
    assert files(tmp_path) == ["plain", "plain.data"]


def test_external_data_above_the_limit_only(tmp_path: Path) -> None:
    size = len(emit(make_model(*MIXED), "proto").SerializeToString())
    emit(make_model(*MIXED), "file", tmp_path / "m.onnx", external_data_limit=size)
    assert files(tmp_path) == ["m.onnx"]
    emit(make_model(*MIXED), "file", tmp_path / "m.onnx", external_data_limit=size - 1)
    assert files(tmp_path) == ["m.onnx", "m.onnx.data"]
    for got, expected in zip(read(tmp_path / "m.onnx"), MIXED, strict=True):
        np.testing.assert_array_equal(got, expected)
        assert got.dtype == expected.dtype


def test_small_tensors_stay_in_the_model(tmp_path: Path) -> None:
    emit(make_model(np.arange(8.0), np.zeros(2, np.int64)), "file", tmp_path / "m.onnx", external_data_limit=0)
    assert files(tmp_path) == ["m.onnx"]


def test_external_data_is_aligned_and_repeatable(tmp_path: Path) -> None:
    tensors = [weight_array(0, (1025,), np.int8), weight_array(1, (513, 513)), weight_array(2)]
    contents = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        emit(make_model(*tensors), "file", tmp_path / name / "m.onnx", external_data_limit=0)
        contents.append([(tmp_path / name / file).read_bytes() for file in files(tmp_path / name)])
    assert contents[0] == contents[1]
    proto = onnx.load(tmp_path / "a" / "m.onnx", load_external_data=False)
    offsets = [int(e.value) for t in proto.graph.initializer for e in t.external_data if e.key == "offset"]
    assert [offset % unit for offset, unit in zip(offsets, (64, 4096, 64), strict=True)] == [0, 0, 0]


def test_shards(tmp_path: Path) -> None:
    tensors = [weight_array(i) for i in range(5)]  # 8000 bytes each
    emit(make_model(*tensors), "file", tmp_path / "m.onnx", external_data_limit=0, max_shard_size=17000)
    assert files(tmp_path) == ["m.onnx", *(f"m.onnx-0000{i}-of-00003.data" for i in (1, 2, 3))]
    for got, expected in zip(read(tmp_path / "m.onnx"), tensors, strict=True):
        np.testing.assert_array_equal(got, expected)
    emit(make_model(*tensors), "file", tmp_path / "m.onnx", external_data_limit=0, max_shard_size=1)
    assert len(files(tmp_path)) == 6
    emit(make_model(*tensors), "file", tmp_path / "m.onnx")
    assert files(tmp_path) == ["m.onnx"]


def test_a_stale_sidecar_is_removed_and_other_files_are_left(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    (tmp_path / "m.onnx.other.data").write_text("mine")
    emit(make_model(*MIXED), "file", path, external_data_limit=0)
    emit(make_model(MIXED[0]), "file", path)
    assert files(tmp_path) == ["m.onnx", "m.onnx.other.data"]


def test_a_data_file_of_something_else_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "train"
    (tmp_path / "train.data").write_text("precious")
    with pytest.raises(InputError, match=r"train\.data"):
        emit(make_model(*MIXED), "file", path, external_data_limit=0)
    emit(make_model(*MIXED), "file", path)
    assert files(tmp_path) == ["train", "train.data"]
    assert (tmp_path / "train.data").read_text() == "precious"


class BombError(Exception):
    pass


def exploding(value: np.ndarray) -> ir.LazyTensor:
    def explode() -> ir.TensorProtocol:
        raise BombError

    return ir.LazyTensor(explode, ir.DataType.FLOAT, ir.Shape(value.shape))


@pytest.mark.parametrize("limit", [None, 0])
def test_a_failure_while_writing_leaves_the_folder_as_it_was(tmp_path: Path, limit: int | None) -> None:
    path = tmp_path / "m.onnx"
    emit(make_model(*MIXED), "file", path, external_data_limit=0)
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    with pytest.raises(BombError):
        emit(make_model(weight_array(7), exploding(weight_array(8))), "file", path, external_data_limit=limit)
    assert {name: (tmp_path / name).read_bytes() for name in files(tmp_path)} == before


def test_a_full_disk_is_named_and_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    """In a process of its own, which may write files of 20 kB only."""
    program = """
import resource, sys, jax, jax.numpy as jnp, numpy as np
from jax2onnx import to_onnx
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
large = np.ones((100, 100), np.float32)
def export(**options):
    try:
        to_onnx(lambda x: sum(jnp.sin(x) @ large for _ in range(100)), [(100,)], **options)
    except OSError as error:
        print(error.filename)
for limit in (None, 0):
    export(return_mode="file", output_path="m.onnx", external_data_limit=limit)
export(record_primitive_calls_file="calls.json")
"""
    (tmp_path / "m.onnx").write_text("old")
    (tmp_path / "calls.json").write_text("old")
    (tmp_path / "calls.json.tmp").write_text("precious")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert [Path(line).name for line in done.stdout.split()] == ["m.onnx", "m.onnx.data", "calls.json"]
    assert {name: (tmp_path / name).read_text() for name in files(tmp_path)} == {
        "calls.json": "old",
        "calls.json.tmp": "precious",
        "m.onnx": "old",
    }


def test_a_lazy_tensor_that_lies_is_found_out(tmp_path: Path) -> None:
    lie = ir.LazyTensor(lambda: ir.tensor(weight_array(0)), ir.DataType.DOUBLE, ir.Shape((40, 50)))
    with pytest.raises(ValueError, match="should have 16000 bytes, but gave 8000"):
        emit(make_model(lie), "file", tmp_path / "m.onnx")
    assert files(tmp_path) == []


def test_a_failure_at_any_rename_never_mixes_old_and_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail, and separately "stop the machine", at each rename: a model that is there has its own data."""
    old, new = weight_array(1), weight_array(2)
    real_replace = os.replace
    for crash in (False, True):
        for fail_at in range(5):
            folder = tmp_path / f"{crash}-{fail_at}"
            folder.mkdir()
            path = folder / "m.onnx"
            emit(make_model(old), "file", path, external_data_limit=0)
            calls = 0

            def replace(a: str, b: str, fail_at: int = fail_at, crash: bool = crash) -> None:
                nonlocal calls
                calls += 1
                if calls == fail_at + 1 or (crash and calls > fail_at):
                    raise OSError("stop")
                real_replace(a, b)

            with monkeypatch.context() as patch:
                patch.setattr(os, "replace", replace)
                if fail_at == 4:
                    emit(make_model(new), "file", path, external_data_limit=0)
                else:
                    with pytest.raises(OSError, match="stop"):
                        emit(make_model(new), "file", path, external_data_limit=0)
            if fail_at == 4:
                np.testing.assert_array_equal(read(path)[0], new)
            elif not crash or path.exists():
                np.testing.assert_array_equal(read(path)[0], old)
            if not crash:
                assert files(folder) == ["m.onnx", "m.onnx.data"]


@pytest.mark.parametrize("limit", [None, 0])
def test_a_failed_check_leaves_the_folder_as_it_was(tmp_path: Path, limit: int | None) -> None:
    path = tmp_path / "m.onnx"
    emit(make_model(weight_array(1)), "file", path, external_data_limit=limit)
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    checked = []

    def check(model: onnx.ModelProto | str) -> None:
        checked.append(read(Path(model))[0])  # a complete model, with its own data
        raise BombError

    with pytest.raises(BombError):
        emit(make_model(weight_array(2)), "file", path, external_data_limit=limit, check=check)
    np.testing.assert_array_equal(checked[0], weight_array(2))
    assert {name: (tmp_path / name).read_bytes() for name in files(tmp_path)} == before


def test_models_in_memory_are_checked_too() -> None:
    seen: list[onnx.ModelProto | str] = []
    model = make_model(weight_array(1))
    proto = emit(model, "proto", check=seen.append)
    assert emit(model, "ir", check=seen.append) is model
    assert seen == [proto, proto]


def test_permissions_and_links_are_kept(tmp_path: Path) -> None:
    real, link = tmp_path / "real.onnx", tmp_path / "link.onnx"
    emit(make_model(MIXED[0]), "file", real)
    plain = tmp_path / "plain"
    plain.write_text("")
    assert real.stat().st_mode == plain.stat().st_mode
    real.chmod(0o640)
    link.symlink_to(real)
    assert emit(make_model(MIXED[4]), "file", link) == str(link)
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    np.testing.assert_array_equal(read(link)[0], MIXED[4])


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    for limit in (None, 0):
        seen.clear()
        emit(make_model(*MIXED), "file", tmp_path / "m", external_data_limit=limit, progress=lambda *a: seen.append(a))
        assert seen == sorted(seen)
        size = sum((tmp_path / name).stat().st_size for name in files(tmp_path))
        assert seen[-1] == (size, size)


def test_bad_paths(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    bad = {
        "": "empty",
        str(tmp_path): "is a folder",
        f"{tmp_path}/new/": "is a folder",
        "m\0": "it is a string",
        3: "it is a string",
        str(tmp_path / "no" / "m.onnx"): "does not exist",
        str(tmp_path / "file" / "m.onnx"): "does not exist",
        os.devnull: "not a regular file",
    }
    for path, message in bad.items():
        with pytest.raises(InputError, match=message):
            check_output_path(path)
    check_output_path(tmp_path / "m.onnx")
    assert files(tmp_path) == ["file"]


def test_an_unwritable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "mkdir", refuse)  # root may write anywhere, so the refusal is played
    with pytest.raises(InputError, match="Permission denied"):
        check_output_path(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"return_mode": "bytes", "output_path": None}, "return_mode"),
        ({"return_mode": "file", "output_path": None}, "needs an output_path"),
        ({"return_mode": "proto", "output_path": None, "export_mode": "cloud"}, "export_mode"),
        ({"return_mode": "proto", "output_path": None, "external_data_limit": -1}, "external_data_limit"),
        ({"return_mode": "proto", "output_path": None, "max_shard_size": 0}, "max_shard_size"),
        ({"return_mode": "proto", "output_path": None, "export_mode": "web", "max_shard_size": 5}, "self-contained"),
    ],
)
def test_bad_options(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_emit_options(**options)


def huge(size: int) -> ir.TensorProtocol:
    """A weight of `size` bytes that takes no memory."""
    array = np.broadcast_to(np.float32(1.5), (size // 4,))
    return ir.LazyTensor(lambda: ir.tensor(array), ir.DataType.FLOAT, ir.Shape(array.shape))


def test_two_gigabytes_do_not_fit_in_one_message(tmp_path: Path) -> None:
    model = make_model(huge(2**31))
    with pytest.raises(InputError, match='return_mode="file"'):
        emit(model, "proto")
    with pytest.raises(InputError, match='export_mode="standard"'):
        emit(model, "file", tmp_path / "m.onnx", export_mode="web")
    assert files(tmp_path) == []


def peak_memory() -> int:
    """Of this process alone: what `getrusage` says is at least the memory of the process that started it."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def test_writing_needs_little_memory(tmp_path: Path) -> None:
    """300 MB of weights, strided ones among them, are written with less than 15% more memory."""
    script = """
        import sys
        import numpy as np
        from jax2onnx.emit import emit
        from test_emit import make_model, peak_memory
        parts = [np.random.default_rng(i).random((2500, 5000), np.float32) for i in range(5)]
        parts.append(np.random.default_rng(9).random((2500, 5000), np.float32).T)
        size = sum(part.nbytes for part in parts)
        model = make_model(*parts)
        before = peak_memory()
        emit(model, "file", sys.argv[1], external_data_limit=int(sys.argv[2]))
        after = peak_memory()
        print((after - before) / size)
    """
    for limit in (0, 2**31):
        result = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "m.onnx"), str(limit)],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parent,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
        )
        assert float(result.stdout) < 0.15
