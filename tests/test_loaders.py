"""Weights that are read from checkpoints, and from several devices, while a model is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from safetensors.numpy import save_file

from jax2onnx import InputError, load, to_onnx
from jax2onnx.loaders import orbax, safetensors


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


PARAMS = {
    "dense": {"kernel": normal(30, 40), "bias": normal(40)},
    "layers": [{"w": normal(40, 50, dtype=ml_dtypes.bfloat16)}, {"w": normal(50, 60, dtype=np.float16)}],
    "table": np.arange(60, dtype=np.int32),
    "scale": np.float32(3),
}
X = normal(2, 30)


def apply(params: Any, x: Any) -> Any:
    x = jnp.tanh(x @ params["dense"]["kernel"] + params["dense"]["bias"]) * params["scale"]
    for layer in params["layers"]:
        x = x @ layer["w"].astype(jnp.float32)
    return x + params["table"]


def specs(tree: Any) -> Any:
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a), a.dtype), tree)


def flat(separator: str) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(PARAMS)
    return {jax.tree_util.keystr(path, simple=True, separator=separator): np.asarray(a) for path, a in leaves}


def check_loaded(load_weight: Any, folder: Path) -> None:
    """An export with the weights that are read gives the bytes of one with the weights themselves."""
    for limit in (None, 0):
        options = {"return_mode": "file", "external_data_limit": limit, "max_shard_size": 5000 if limit == 0 else None}
        to_onnx(apply, [("B", 30)], weights=PARAMS, output_path=folder / "given.onnx", **options)
        path = to_onnx(
            apply, [X], weights=specs(PARAMS), load_weight=load_weight, output_path=folder / "read.onnx", **options
        )
        np.testing.assert_array_equal(load(path)(X), load(folder / "given.onnx")(X))
        data = sorted(folder.glob("read.onnx-*.data"))
        assert [f.read_bytes() for f in data] == [f.read_bytes() for f in sorted(folder.glob("given.onnx-*.data"))]
        assert len(data) == (0 if limit is None else 3)


@pytest.mark.parametrize("separator", [".", "/"])
def test_a_safetensors_file(separator: str, tmp_path: Path) -> None:
    save_file(flat(separator), tmp_path / "weights.safetensors", metadata={"format": "np"})
    check_loaded(safetensors(tmp_path / "weights.safetensors"), tmp_path)


def test_safetensors_in_several_files(tmp_path: Path) -> None:
    """As large models come: an index, which says which file has which tensor."""
    (tmp_path / "checkpoint").mkdir()
    tensors = flat(".")
    shards = {f"model-0000{i + 1}-of-00003.safetensors": list(tensors)[i::3] for i in range(3)}
    for file, names in shards.items():
        save_file({f"params.{name}": tensors[name] for name in names}, tmp_path / "checkpoint" / file)
    index = {"weight_map": {f"params.{name}": file for file, names in shards.items() for name in names}}
    path = tmp_path / "checkpoint" / "model.safetensors.index.json"
    with pytest.raises(InputError, match="3 safetensors files"):
        safetensors(path.parent)
    path.write_text(json.dumps(index))
    check_loaded(safetensors(path), tmp_path)
    np.testing.assert_array_equal(safetensors(path.parent)("params/dense/kernel"), PARAMS["dense"]["kernel"])


def test_every_dtype_of_safetensors(tmp_path: Path) -> None:
    names = "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 float32 float64 complex64"
    tensors = {name: np.arange(3).astype(jnp.dtype(name)) for name in names.split()}
    tensors |= {"empty": np.zeros((0, 3), np.float32), "scalar": np.asarray(2.0)}
    save_file(tensors, tmp_path / "all.safetensors")
    read = safetensors(tmp_path / "all.safetensors")
    for name, array in tensors.items():
        assert read(f"params/{name}").dtype == array.dtype
        np.testing.assert_array_equal(read(f"params/{name}"), array)


@pytest.mark.parametrize("ocdbt", [True, False])
@pytest.mark.parametrize("zarr3", [True, False])
def test_an_orbax_checkpoint(ocdbt: bool, zarr3: bool, tmp_path: Path) -> None:
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=ocdbt, use_zarr3=zarr3)
    with ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(tmp_path / "checkpoint", PARAMS)
    check_loaded(orbax(tmp_path / "checkpoint"), tmp_path)


def test_an_orbax_checkpoint_of_the_state_of_a_module(tmp_path: Path) -> None:
    model = nnx.Sequential(nnx.Linear(3, 40, rngs=nnx.Rngs(0)), nnx.Linear(40, 20, rngs=nnx.Rngs(1)))
    graph, state = nnx.split(model)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "run" / "7", state)
    with pytest.raises(InputError, match=r"Did you mean one of .*7"):
        orbax(tmp_path / "run")

    def call(state: Any, x: Any) -> Any:
        return nnx.merge(graph, state)(x)

    exported = to_onnx(
        call, [("B", 3)], weights=jax.eval_shape(lambda: state), load_weight=orbax(tmp_path / "run" / "7")
    )
    assert {"state/layers/0/kernel", "state/layers/1/kernel"} <= {i.name for i in exported.graph.initializer}
    np.testing.assert_allclose(load(exported)(normal(2, 3)), model(normal(2, 3)), rtol=1e-5, atol=1e-5)


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    save_file(flat(".") | {"scale": normal(3), "table": normal(60)}, tmp_path / "w.safetensors")
    (tmp_path / "text.safetensors").write_text("no tensors in here, but some text")
    read = safetensors(tmp_path / "w.safetensors")
    with pytest.raises(InputError, match=r"no weight 'params/dense/weight'\. It has 'dense\.(bias|kernel)'"):
        read("params/dense/weight")
    with pytest.raises(InputError, match=r"'params/scale' was read with the shape \(3,\), but is \(\)"):
        to_onnx(apply, [X], weights=specs(PARAMS), load_weight=read)
    with pytest.raises(InputError, match="'params/table' was read as float32, which int32 cannot hold"):
        to_onnx(apply, [X], weights=specs(PARAMS) | {"scale": np.float32(3)}, load_weight=read)
    with pytest.raises(InputError, match="'w' is of the type complex64"):
        to_onnx(lambda w: w.real, [], weights=jax.ShapeDtypeStruct((3,), np.complex64), load_weight=read)
    with pytest.raises(InputError, match="not a safetensors file"):
        safetensors(tmp_path / "text.safetensors")
    with pytest.raises(InputError, match="There is no file"):
        safetensors(tmp_path / "none.safetensors")
    with pytest.raises(InputError, match="no _METADATA"):
        orbax(tmp_path)
    save_file({"a.b": X, "a/b": X}, tmp_path / "twice.safetensors")
    with pytest.raises(InputError, match="has both"):
        safetensors(tmp_path / "twice.safetensors")


def test_a_path_that_may_be_two_weights_is_not_guessed(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"kernel": normal(30), "w.kernel": normal(30), "bias": normal(30)}, file)
    load_weight = safetensors(file)
    np.testing.assert_array_equal(load_weight("w/bias"), normal(30))
    with pytest.raises(InputError, match=r"has both 'w\.kernel' and 'kernel': 'w/kernel' may be any of them"):
        load_weight("w/kernel")


def run(script: str, *arguments: object, **environment: str) -> str:
    """What a script prints, in a process of its own."""
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent), **environment},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_arrays_that_are_spread_over_devices(tmp_path: Path) -> None:
    """Every way to cut an array over eight devices; none is put together in JAX's memory."""
    script = """
        import sys
        import jax, numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        from jax2onnx import load, streaming, to_onnx

        mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("a", "b"))
        x = np.random.default_rng(0).normal(size=(8, 512, 80)).astype(np.float32)
        for size in (1 << 22, 50_000):
            streaming.PIECE_BYTES = size
            for spec in [P(), P("a"), P(("b", "a")), P("b", "a"), P(None, ("b", "a")), P(None, "a", "b")]:
                array = jax.device_put(x, NamedSharding(mesh, spec))
                tensor = streaming.from_devices(array)
                assert b"".join(p.tobytes() for p in streaming.pieces_of(tensor)) == x.tobytes(), spec
                np.testing.assert_array_equal(tensor.numpy(), x)
        w = jax.device_put(x, NamedSharding(mesh, P("a", "b")))
        kept = [shard.data for shard in w.addressable_shards]
        row = np.ones((3, 80), np.float32)
        want = row @ x.reshape(-1, 80).T
        for fn, options in [
            (lambda y: y @ w.reshape(-1, 80).T, {}),
            (lambda w, y: y @ w.reshape(-1, 80).T, {"weights": w}),
        ]:
            path = to_onnx(fn, [("B", 80)], return_mode="file", output_path=sys.argv[1], **options)
            np.testing.assert_allclose(load(path)(row), want, rtol=1e-4, atol=1e-4)
        assert w._npy_value is None and all(data._npy_value is None for data in kept)
    """
    run(script, tmp_path / "m.onnx", XLA_FLAGS="--xla_force_host_platform_device_count=8", JAX_PLATFORMS="cpu")


@pytest.mark.slow
def test_a_model_of_six_gigabytes_needs_less_than_two(tmp_path: Path) -> None:
    """A language model whose weights are made when they are asked for, each once; the files have what was made."""
    script = """
        import json, math, sys, zlib
        import jax, numpy as np
        from jax import numpy as jnp
        from jax2onnx import to_onnx
        from tests.test_emit import peak_memory

        D, LAYERS, WORDS = 2560, 18, 32000
        shapes = {"up": (D, 4 * D), "down": (4 * D, D), "qkv": (D, 3 * D), "out": (D, D), "scale": (D,)}
        blocks = [{k: jax.ShapeDtypeStruct(s, jnp.float32) for k, s in shapes.items()} for _ in range(LAYERS)]
        specs = {"words": jax.ShapeDtypeStruct((WORDS, D), jnp.float32), "blocks": blocks}
        read, largest = [], 0

        def make(name):
            read.append(name)
            shape = (WORDS, D) if name == "params/words" else shapes[name.split("/")[-1]]
            row = np.random.default_rng(zlib.crc32(name.encode())).random(shape[-1], np.float32)
            return np.tile(row, (*shape[:-1], 1)) if len(shape) > 1 else row

        def model(params, ids):
            x = jnp.take(params["words"], ids, axis=0, mode="clip")
            for p in params["blocks"]:
                y = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * p["scale"]
                q, k, v = jnp.split((y @ p["qkv"]).reshape(*ids.shape, 20, -1), 3, axis=-1)
                x = x + jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape) @ p["out"]
                x = x + jax.nn.gelu(x @ p["up"]) @ p["down"]
            return x @ params["words"].T

        def progress(done, total):
            global largest
            largest = total

        to_onnx(
            model, ["i32[B,T]"], weights=specs, load_weight=make, return_mode="file", output_path=sys.argv[1],
            max_shard_size=2_000_000_000, progress=progress,
        )
        peak = peak_memory()
        print(json.dumps({"peak": peak, "bytes": largest, "read": len(read), "names": len(set(read))}))
    """
    found = json.loads(run(script, tmp_path / "m.onnx", JAX_PLATFORMS="cpu"))
    files = sorted(tmp_path.iterdir())
    assert [f.name for f in files] == ["m.onnx", *(f"m.onnx-0000{i}-of-00004.data" for i in (1, 2, 3, 4))]
    assert sum(f.stat().st_size for f in files) == found["bytes"] > 5.9e9
    assert all(f.stat().st_size <= 2_000_000_000 for f in files)
    for file in files:
        file.unlink()
    assert found["peak"] < 2e9
    assert found["read"] == found["names"] == 1 + 5 * 18
