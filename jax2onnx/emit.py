"""The last stage: an `onnx_ir.Model` becomes a `ModelProto`, stays as it is, or goes to disk.

Files are complete or absent (see `replacement.py`). Weights are streamed from their own buffers (see `wire.py`), so
writing needs no second copy of the model in memory.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from .errors import InputError
from .options import check_choices, check_sizes, is_text
from .replacement import Output, Replacement, temporary
from .streaming import pieces_of
from .wire import model_pieces, size, skeleton

ReturnMode = Literal["proto", "ir", "file"]
ExportMode = Literal["standard", "web"]
Progress = Callable[[int, int], None]  # bytes done, bytes in all
Check = Callable[[onnx.ModelProto | str], object]

PROTOBUF_LIMIT = 2**31 - 1
"""Protobuf, and with it every ONNX reader, refuses a message longer than this."""


def emit(
    model: ir.Model,
    return_mode: ReturnMode = "proto",
    output_path: str | os.PathLike[str] | None = None,
    *,
    export_mode: ExportMode = "standard",
    external_data_limit: int | None = None,
    max_shard_size: int | None = None,
    progress: Progress | None = None,
    check: Check | None = None,
) -> onnx.ModelProto | ir.Model | str:
    """Give `model` in the form asked for: "proto", "ir", or "file" (the path that was written, as a string).

    A file holds everything up to `external_data_limit` bytes (default: protobuf's 2 GB); above it, weights go to
    `<output_path>.data` beside it, or to `<output_path>-00001-of-0000N.data` of at most `max_shard_size` bytes each.
    With `export_mode="web"` the model is always one self-contained file.

    `check` is called with the model (a `ModelProto`, or the path of a file that is not yet at its final place). What it
    raises ends the export, and nothing is written.
    """
    check_emit_options(return_mode, output_path, export_mode, external_data_limit, max_shard_size)
    if return_mode != "file":
        proto = _to_proto(model) if return_mode == "proto" or check is not None else None
        if check is not None and proto is not None:
            check(proto)
        return model if proto is None or return_mode == "ir" else proto
    assert output_path is not None
    path = os.fspath(output_path)
    limit = PROTOBUF_LIMIT if external_data_limit is None else min(external_data_limit, PROTOBUF_LIMIT)
    _write(model, os.path.realpath(path), export_mode == "web", limit, max_shard_size, progress, check)
    return path


def check_emit_options(
    return_mode: str,
    output_path: str | os.PathLike[str] | None,
    export_mode: str = "standard",
    external_data_limit: int | None = None,
    max_shard_size: int | None = None,
) -> None:
    """Raise `InputError` for options that cannot work, before any time is spent on tracing."""
    check_choices(return_mode=(return_mode, ("proto", "ir", "file")), export_mode=(export_mode, ("standard", "web")))
    if export_mode == "web" and (external_data_limit is not None or max_shard_size is not None):
        raise InputError('export_mode="web" writes one self-contained file; it takes no external data options.')
    check_sizes(external_data_limit=(external_data_limit, 0), max_shard_size=(max_shard_size, 1))
    if return_mode == "file":
        if output_path is None:
            raise InputError('return_mode="file" needs an output_path.')
        check_output_path(output_path)


def check_output_path(path: str | os.PathLike[str], option: str = "output_path") -> None:
    """Raise `InputError` if a file cannot be written to `path`. Leaves no trace."""
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    if not isinstance(name, str) or "\0" in name or not is_text(name, os.fsencode):
        raise InputError(f"{option} is {path!r}; it is a string or a pathlib.Path.")
    if not name:
        raise InputError(f"{option} is empty.")
    target = os.path.realpath(name)
    folder = os.path.dirname(target)
    if os.path.isdir(target) or not os.path.basename(name):  # realpath takes "new/" for "new"
        raise InputError(f"Cannot write to {name!r}: it is a folder; give the name of a file in it.")
    if os.path.exists(target) and not stat.S_ISREG(os.stat(target).st_mode):
        raise InputError(f"Cannot write to {name!r}: it is not a regular file.")
    if not os.path.isdir(folder):
        where = folder if os.path.islink(name) else os.path.dirname(name)
        raise InputError(f"Cannot write to {name!r}: the folder {where!r} does not exist.")
    # Permission bits do not tell the truth for root, network shares and read-only mounts. Trying does.
    try:
        probe = temporary(target)
        os.mkdir(probe)
        os.rmdir(probe)
    except OSError as error:
        raise InputError(f"Cannot write to {name!r}: {error.strerror or error}.") from error


def _to_proto(model: ir.Model) -> onnx.ModelProto:
    total = sum(
        value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None
    )
    if total > PROTOBUF_LIMIT:
        raise InputError(
            f'The weights are {total:,} bytes, more than the 2 GB a ModelProto can hold. Use return_mode="file", which '
            'puts them beside the model, or return_mode="ir".'
        )
    proto, weights = _skeleton(model)
    for position, tensor in weights.items():
        proto.graph.initializer[position].raw_data = b"".join(_chunks(tensor))
    return proto


def _skeleton(model: ir.Model) -> tuple[onnx.ModelProto, dict[int, ir.TensorProtocol]]:
    try:
        return skeleton(model)
    except ir.serde.SerdeError as error:
        raise _origin(error) from None  # that of a weight that could not be read, say


def _origin(error: BaseException) -> BaseException:
    """The first in a chain of errors, each the cause of the next."""
    return error if error.__cause__ is None else _origin(error.__cause__)


@dataclass
class _DataFile:
    """One file of external data: tensors and where in it they start."""

    name: str
    tensors: list[tuple[int, ir.TensorProtocol]]

    @property
    def size(self) -> int:
        offset, last = self.tensors[-1]
        return offset + last.nbytes


def _write(
    model: ir.Model,
    target: str,
    self_contained: bool,
    limit: int,
    max_shard_size: int | None,
    progress: Progress | None,
    check: Check | None,
) -> None:
    proto, weights = _skeleton(model)
    pieces = model_pieces(proto, weights)
    data_files: list[_DataFile] = []
    if size(pieces) > limit and weights and not self_contained:
        data_files = _move_out(proto, weights, os.path.basename(target) + ".data", max_shard_size)
        pieces = model_pieces(proto, {})
    if size(pieces) > PROTOBUF_LIMIT:
        advice = ' Use export_mode="standard", which puts the weights beside the model.' if self_contained else ""
        raise InputError(f"One file can hold 2 GB; this model needs {size(pieces):,} bytes.{advice}")

    folder = os.path.dirname(target)
    new_data = [os.path.join(folder, file.name) for file in data_files]
    stale = _data_files_of(target)
    for path in new_data:
        if os.path.exists(path) and path not in stale:
            raise InputError(
                f"{path!r} exists, but {target!r} does not use it: it may hold the weights of another model. Move it "
                "away, or write to another path."
            )
    total = size(pieces) + sum(file.size for file in data_files)
    report = _Counter(total, progress)
    with Replacement(target) as files:
        for file, path in zip(data_files, new_data, strict=True):
            with files.open(path) as stream:
                for offset, tensor in file.tensors:
                    padding = bytes(offset - stream.tell())
                    stream.write(padding)
                    report(len(padding))
                    _write_tensor(stream, tensor, report)
        with files.open(target) as stream:
            for piece in pieces:
                if isinstance(piece, bytes):
                    stream.write(piece)
                    report(len(piece))
                else:
                    _write_tensor(stream, piece, report)
        if check is not None:
            check(files.staged(target))
        files.commit(remove=[path for path in stale if path not in new_data])


def _move_out(
    proto: onnx.ModelProto, weights: dict[int, ir.TensorProtocol], name: str, max_shard_size: int | None
) -> list[_DataFile]:
    """Give each weight a place in an external file and note it in `proto`."""
    shards: list[list[tuple[int, int]]] = [[]]  # per file: initializer position and offset
    end = 0
    for position, tensor in weights.items():
        start = _align(end, tensor.nbytes)
        if max_shard_size is not None and start + tensor.nbytes > max_shard_size and shards[-1]:
            shards.append([])
            start = 0
        shards[-1].append((position, start))
        end = start + tensor.nbytes
    files = []
    for number, shard in enumerate(shards, 1):
        stem = name.removesuffix(".data")
        file_name = name if len(shards) == 1 else f"{stem}-{number:05d}-of-{len(shards):05d}.data"
        for position, offset in shard:
            message = proto.graph.initializer[position]
            message.data_location = onnx.TensorProto.EXTERNAL
            entries = {"location": file_name, "offset": str(offset), "length": str(weights[position].nbytes)}
            for key, value in entries.items():
                message.external_data.add(key=key, value=value)
        files.append(_DataFile(file_name, [(offset, weights[position]) for position, offset in shard]))
    return files


def _align(offset: int, size: int) -> int:
    """Large tensors start on a page, so that a runtime can map them; others on a cache line."""
    unit = 4096 if size >= 1 << 20 else 64
    return -(-offset // unit) * unit


def _data_files_of(target: str) -> list[str]:
    """The external data files that the model now at `target` uses and that carry its name."""
    folder, base = os.path.split(target)
    if not os.path.isfile(target):
        return []
    named = {name for name in os.listdir(folder) if name.startswith(base) and name.endswith(".data")}
    if not named:
        return []
    with open(target, "rb") as stream:
        try:
            proto = onnx.ModelProto.FromString(stream.read())
        except DecodeError:
            return []
    used = {
        entry.value for tensor in proto.graph.initializer for entry in tensor.external_data if entry.key == "location"
    }
    return [os.path.join(folder, name) for name in sorted(named & used)]


class _Counter:
    """Adds up the bytes written and reports them."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.done, self.total, self.progress = 0, total, progress

    def __call__(self, size: int) -> None:
        self.done += size
        if self.progress is not None:
            self.progress(self.done, self.total)


def _write_tensor(stream: Output, tensor: ir.TensorProtocol, report: _Counter) -> None:
    written = 0
    for chunk in _chunks(tensor):
        stream.write(chunk)
        report(len(chunk))
        written += len(chunk)
    if written != tensor.nbytes:  # a lazy tensor that gave something else than it had announced
        raise ValueError(f"The tensor {tensor.name!r} should have {tensor.nbytes} bytes, but gave {written}.")


def _chunks(tensor: ir.TensorProtocol) -> Iterator[bytes | memoryview]:
    """The raw bytes of a tensor, without copying it as a whole."""
    if tensor.dtype.bitwidth < 8 or sys.byteorder == "big":
        yield tensor.tobytes()  # needs packing or swapping
        return
    for piece in pieces_of(tensor):
        yield piece.reshape(-1).view(np.uint8).data
