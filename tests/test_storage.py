"""`weights_dtype`: float32 weights stored in half precision; and models that compute in half themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto

import jax2onnx
from jax2onnx import cli
from tests.frameworks.layers import fill, normal
from tests.helpers import check, check_run, check_valid

HALVES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
HALF_TYPES = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
half = pytest.mark.parametrize("dtype", HALVES, ids=str)


class Block(nn.Module):
    """Convolution, normalization and attention."""

    dtype: Any = None

    @nn.compact
    def __call__(self, x: Any) -> Any:
        y = nn.Conv(8, (3,), dtype=self.dtype, param_dtype=self.dtype or jnp.float32)(x)
        y = nn.LayerNorm(dtype=self.dtype, param_dtype=self.dtype or jnp.float32)(nn.gelu(y))
        y = nn.MultiHeadDotProductAttention(2, dtype=self.dtype, param_dtype=self.dtype or jnp.float32)(y)
        return nn.Dense(4, dtype=self.dtype, param_dtype=self.dtype or jnp.float32)(y)


def block(dtype: Any = None) -> tuple[Block, Any]:
    module = Block(dtype)
    return module, fill(jax.eval_shape(module.init, jax.random.key(0), normal(1, 5, 8)))


def rounded(tree: Any, dtype: np.dtype) -> Any:
    return jax.tree.map(lambda x: x.astype(dtype).astype(x.dtype), tree)


def stored(model: onnx.ModelProto) -> dict[str, int]:
    return {i.name: i.data_type for i in model.graph.initializer}


@half
@pytest.mark.parametrize("functions", [None, "modules"])
def test_weights_are_stored_in_half_and_computed_with_in_float32(dtype: np.dtype, functions: str | None) -> None:
    module, weights = block()
    model = jax2onnx.to_onnx(
        lambda w, x: module.apply(w, x), [("B", 5, 8)], weights=weights, weights_dtype=dtype, functions=functions
    )
    check_valid(model)
    types = stored(model)
    names = {name for name in types if name.startswith("w/")}
    assert len(names) == len(jax.tree.leaves(weights))
    assert {types[name] for name in names} == {HALF_TYPES[dtype.name]}
    assert HALF_TYPES[dtype.name] not in {types[name] for name in types.keys() - names}
    # Weights may be rounded after a constant factor went into them, so this is as close as half precision is.
    tolerance = float(jnp.finfo(dtype).eps)
    check_run(
        model, lambda x: module.apply(rounded(weights, dtype), x), normal(3, 5, 8), rtol=tolerance, atol=tolerance
    )


@half
def test_rounding_is_to_the_nearest_also_in_bodies_and_outputs(dtype: np.dtype) -> None:
    w = {"kernel": normal(4, 4), "start": normal(4, seed=1)}

    def run(w: Any, xs: Any) -> Any:
        step = lambda h, x: (jnp.tanh(h @ w["kernel"] + x), h)  # noqa: E731
        return jax.lax.scan(step, w["start"], xs), w["kernel"]

    model = jax2onnx.to_onnx(run, [("T", 4)], weights=w, weights_dtype=dtype)
    check_valid(model)
    check_run(model, lambda xs: run(rounded(w, dtype), xs), normal(3, 4))


def test_weights_of_a_recurrent_network_are_named_and_stored_in_half() -> None:
    """They are put together from those of the gates."""
    module = nn.RNN(nn.LSTMCell(4))
    variables = fill(jax.eval_shape(module.init, jax.random.key(0), normal(1, 5, 3)))
    model = jax2onnx.to_onnx((module, variables), [("B", 5, 3)], weights_dtype="float16")
    check_valid(model)
    types = {name: dtype for name, dtype in stored(model).items() if dtype != TensorProto.INT64}
    assert types == dict.fromkeys(["RNN/LSTM/W", "RNN/LSTM/R", "RNN/LSTM/B"], TensorProto.FLOAT16)
    check_run(model, lambda x: module.apply(rounded(variables, HALVES[0]), x), normal(2, 5, 3), rtol=1e-3, atol=1e-4)


def test_half_the_size_and_verified(tmp_path: Path) -> None:
    w = {"a": normal(200, 200), "b": normal(200, 200, seed=1)}
    sizes = []
    for dtype in (None, "float16", jnp.bfloat16):
        jax2onnx.to_onnx(
            lambda w, x: jnp.tanh(x @ w["a"]) @ w["b"],
            [("B", 200)],
            weights=jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), w),
            load_weight=lambda name: w[name[-1]],
            weights_dtype=dtype,
            return_mode="file",
            output_path=tmp_path / "model.onnx",
        )
        sizes.append((tmp_path / "model.onnx").stat().st_size)
    assert sizes[0] > 4 * 80_000
    assert max(sizes[1:]) < 2.02 * 80_000
    jax2onnx.to_onnx(lambda w, x: x @ w["a"], [("B", 200)], weights=w, weights_dtype="float16", verify=True)


def test_what_half_precision_cannot_hold_is_an_error() -> None:
    w = np.float32([1, 1e5, np.inf])
    with pytest.raises(jax2onnx.InputError, match="'w' has values that float16 cannot hold"):
        jax2onnx.to_onnx(lambda w, x: x * w, [(3,)], weights=w, weights_dtype="float16")
    model = jax2onnx.to_onnx(lambda w, x: x * w, [(3,)], weights=w, weights_dtype="bfloat16")
    check_run(model, lambda x: x * rounded(w, HALVES[1]), np.float32([1, 2, 3]))


@pytest.mark.parametrize("given", ["float32", "int8", "half a float", np.float64])
def test_other_dtypes(given: Any) -> None:
    with pytest.raises(jax2onnx.InputError, match="float16, bfloat16"):
        jax2onnx.to_onnx(lambda x: x, [(3,)], weights_dtype=given)


@half
def test_models_that_compute_in_half(dtype: np.dtype) -> None:
    """Valid as the standard has it, all in half; and where the runtime has no kernel, in float32 in between."""
    module, weights = block(dtype)
    apply = lambda x: module.apply(weights, x)  # noqa: E731
    tolerance = 4 * float(jnp.finfo(dtype).eps)
    x = normal(2, 5, 8).astype(dtype)
    check(apply, x, rtol=tolerance, atol=tolerance, dims=[("B", 5, 8)])
    pure = jax2onnx.to_onnx(apply, [jax.ShapeDtypeStruct(("B", 5, 8), dtype)], target="onnx")
    check_valid(pure)
    weighty = {i.data_type for i in pure.graph.initializer if len(i.dims) > 1}
    assert weighty == {HALF_TYPES[dtype.name]}


def test_on_the_command_line(tmp_path: Path) -> None:
    source = "import numpy as np\nw = np.ones((3, 2), np.float32)\ndef f(x):\n    return x @ w\n"
    (tmp_path / "halved.py").write_text(source)
    out = str(tmp_path / "f.onnx")
    options = ["--input", "f32[B,3]", "--weights-dtype", "float16", "--verify", "--quiet", "--out", out]
    assert cli.main([str(tmp_path / "halved.py"), "f", *options]) == 0
    assert stored(onnx.load(out)) == {"w": TensorProto.FLOAT16}
