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
    ],
)
def test_an_option_of_a_wrong_type_is_named(option):
    with pytest.raises(InputError, match=f"^{next(iter(option))} is "):
        to_onnx(lambda x: pytest.fail("it was traced"), [("B",)], **option)


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
