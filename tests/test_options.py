"""Options of a wrong type are named, before anything is traced."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jax2onnx import InputError, to_onnx


@pytest.mark.parametrize(
    "option",
    [
        {"inputs_as_nchw": "image"},
        {"outputs_as_nchw": 1},
        {"input_names": "x"},
        {"output_names": "y"},
        {"input_params": [1]},
        {"lowerings": [1]},
        {"model_name": 3},
        {"external_data_limit": "1MB"},
        {"max_shard_size": 0},
        {"max_shard_size": float("nan")},
        {"external_data_limit": True},
        {"constraints": "B >= 2"},
        {"input_params": {1: 2}},
        {"lowerings": {"sin": lambda g, x: x}},
        {"lowerings": {jax.lax.sin_p: 3}},
        {"model_name": "half a pair: \ud800"},
        {"load_weight": {"w": 1}},
        {"progress": True},
        {"verify": "no"},
        {"weights_as_inputs": None},
        {"enable_double_precision": "float64"},
        {"loosen_internal_shapes": 2},
        {"record_primitive_calls_file": 3},
    ],
)
def test_an_option_of_a_wrong_type_is_named(option):
    with pytest.raises(InputError, match=f"^{next(iter(option))}(\\[sin\\])? is "):
        to_onnx(lambda x: pytest.fail("it was traced"), [("B",)], **option)


def test_options_that_contradict_each_other(tmp_path):
    path = tmp_path / "m.onnx"
    with pytest.raises(InputError, match="load_weight reads what the model holds, but with weights_as_inputs"):
        to_onnx(lambda w, x: w * x, [(2,)], weights=np.ones(2), weights_as_inputs=True, load_weight=lambda name: None)
    with pytest.raises(InputError, match="are both"):
        to_onnx(
            lambda x: x,
            [(2,)],
            return_mode="file",
            output_path=path,
            record_primitive_calls_file=f"{tmp_path}/./m.onnx",
        )
    with pytest.warns(UserWarning, match=r"return_mode is \"proto\": nothing is written") as caught:
        to_onnx(lambda x: x, [(2,)], output_path=path)
    assert [warning.filename for warning in caught] == [__file__]
    assert not list(tmp_path.iterdir())


def test_names_that_cannot_be_written():
    with pytest.raises(InputError, match="cannot be the name of an input"):
        to_onnx(lambda x: x, [(2,)], input_names=["\ud800"])
    with pytest.raises(InputError, match="output_path is"):
        to_onnx(lambda x: x, [(2,)], return_mode="file", output_path="\ud800.onnx")


def test_a_report_that_cannot_be_written_is_an_error_at_once(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        to_onnx(lambda x: pytest.fail("traced"), [("B",)], record_primitive_calls_file=tmp_path / "no" / "calls.json")


def test_a_small_weight_that_cannot_be_read_is_its_own_error(tmp_path):
    def read(name):
        raise OSError("no disk")

    weights = jax.ShapeDtypeStruct((4,), np.float32)
    with pytest.raises(OSError, match="no disk"):
        to_onnx(
            lambda w, x: x * w,
            [("B", 4)],
            weights=weights,
            load_weight=read,
            return_mode="file",
            output_path=tmp_path / "m.onnx",
        )
    assert not list(tmp_path.iterdir())
