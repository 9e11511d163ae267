"""Ready-made values for `load_weight`: weights that are read from a checkpoint, one at a time, when a model is written.

    specs = jax.eval_shape(init, key)
    to_onnx(apply, inputs, weights=specs, load_weight=safetensors("model.safetensors"), ...)

A weight is found by its path in the pytree: `params/dense/kernel` is the tensor of that name, or `dense/kernel`,
without the name of the argument. Whether the parts of a name are joined by slashes or dots makes no difference.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jax2onnx.errors import InputError
from jax2onnx.weights import Loader


def safetensors(path: str | os.PathLike[str]) -> Loader:
    """Weights in safetensors files: one file, an index of several (`*.index.json`), or a folder with one of these."""
    places = {name: (file, *place) for file in _files(Path(path)) for name, place in _header(file).items()}
    names = _Names(places, path)

    def load(name: str) -> np.ndarray:
        file, dtype, shape, start, end = places[names[name]]
        if start == end:
            return np.empty(shape, dtype)
        return np.memmap(file, np.uint8, "r", start, (end - start,)).view(dtype).reshape(shape)

    return load


def orbax(path: str | os.PathLike[str]) -> Loader:
    """Weights in an Orbax checkpoint: the folder that has the file `_METADATA`."""
    import tensorstore

    folder = Path(path).absolute()
    if not (folder / "_METADATA").is_file():
        inside = [str(found.parent) for found in sorted(folder.glob("**/_METADATA"))]
        hint = f" Did you mean one of {', '.join(inside)}?" if inside else ""
        raise InputError(f"{os.fspath(path)!r} is not the folder of an Orbax checkpoint: it has no _METADATA.{hint}")
    metadata = json.loads((folder / "_METADATA").read_text())
    keys = [[part["key"] for part in entry["key_metadata"]] for entry in metadata["tree_metadata"].values()]
    names = _Names([".".join(parts) for parts in keys], path)

    def load(name: str) -> np.ndarray:
        stored = names[name]
        place: dict[str, Any] = {"driver": "file", "path": str(folder / stored)}
        if metadata["use_ocdbt"]:
            place = {"driver": "ocdbt", "base": {"driver": "file", "path": str(folder)}, "path": stored}
        driver = "zarr3" if metadata["use_zarr3"] else "zarr"
        return tensorstore.open({"driver": driver, "kvstore": place}, open=True, read=True).result().read().result()

    return load


class _Names:
    """Finds the name that a weight has in a checkpoint."""

    def __init__(self, stored: Iterable[str], path: str | os.PathLike[str]) -> None:
        self._stored: dict[str, str] = {}
        self._path = os.fspath(path)
        for name in stored:
            if self._stored.setdefault(_plain(name), name) != name:
                raise InputError(f"{self._path!r} has both {name!r} and {self._stored[_plain(name)]!r}.")

    def __getitem__(self, name: str) -> str:
        own = _plain(name)
        _, _, without_argument = own.partition("/")
        found = [self._stored[candidate] for candidate in (own, without_argument) if candidate in self._stored]
        if len(found) > 1:
            raise InputError(f"{self._path!r} has both {found[0]!r} and {found[1]!r}: {name!r} may be any of them.")
        if found:
            return found[0]
        close = difflib.get_close_matches(without_argument or own, self._stored, n=3, cutoff=0.5)
        hint = f" It has {', '.join(repr(self._stored[name]) for name in close)}." if close else ""
        raise InputError(f"{self._path!r} has no weight {name!r}.{hint}")


def _plain(name: str) -> str:
    """A name as it is compared. (That an array is the `value` of a variable says nothing, as in `paths.py`.)"""
    return name.replace(".", "/").removesuffix("/value")


def _files(path: Path) -> list[Path]:
    """The safetensors files that a path stands for."""
    if path.is_dir():
        found = sorted(path.glob("*.safetensors.index.json")) or sorted(path.glob("*.safetensors"))
        if len(found) != 1:
            raise InputError(f"{str(path)!r} has {len(found)} safetensors files; name the one to read, or the index.")
        (path,) = found
    if not path.is_file():
        raise InputError(f"There is no file {str(path)!r}.")
    if path.suffix != ".json":
        return [path]
    return [path.parent / name for name in sorted(set(json.loads(path.read_text())["weight_map"].values()))]


# https://github.com/huggingface/safetensors#format
_DTYPES = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16, "U32": np.uint32,
    "I32": np.int32, "U64": np.uint64, "I64": np.int64, "F16": np.float16, "BF16": ml_dtypes.bfloat16,
    "F32": np.float32, "F64": np.float64, "C64": np.complex64, "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2, "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}  # fmt: skip


def _header(file: Path) -> dict[str, tuple[np.dtype, tuple[int, ...], int, int]]:
    """What is in a file: per name the dtype and shape, and from where to where its bytes go."""
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        if not 2 <= size <= file.stat().st_size - 8:
            raise InputError(f"{str(file)!r} is not a safetensors file.")
        header = json.loads(stream.read(size))
    found = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in _DTYPES:
            raise InputError(f"{str(file)!r} has {name!r} as {entry['dtype']}, which JAX does not have.")
        start, end = (8 + size + offset for offset in entry["data_offsets"])
        found[name] = np.dtype(_DTYPES[entry["dtype"]]), tuple(entry["shape"]), start, end
    return found
