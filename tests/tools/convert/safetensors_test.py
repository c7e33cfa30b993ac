"""Safetensors files come back as they were written, and broken ones end in a message."""

import json

import ml_dtypes
import numpy as np
import pytest

from transformer_jax.tools.convert import safetensors


def write(folder, name="model.safetensors", **tensors):
    folder.mkdir(exist_ok=True)
    parts = {name: (x.shape, lambda x=x: x) for name, x in tensors.items()}
    safetensors.write(folder / name, parts)
    return folder


def raw(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def entry(dtype, shape, start, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def test_a_half_is_read_exactly(tmp_path):
    values = np.array([1 / 3, -2.5e30, 65504.0], "f4").astype(ml_dtypes.bfloat16)
    raw(tmp_path / "model.safetensors", {"x": entry("BF16", [3], 0, 6)}, values.tobytes())
    array = safetensors.find(tmp_path)["x"].read()
    np.testing.assert_array_equal(array.astype(np.float32), values.astype(np.float32))


def test_an_index_names_the_files(tmp_path):
    write(tmp_path, "one.safetensors", a=np.ones((2, 2), "f4"))
    write(tmp_path, "two.safetensors", b=np.zeros(3, "f4"), c=np.ones(1, "f4"))
    files = {"a": "one.safetensors", "b": "two.safetensors"}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": files}))
    tensors = safetensors.find(tmp_path)
    assert {name: tensor.shape for name, tensor in tensors.items()} == {"a": (2, 2), "b": (3,)}
    index.write_text(json.dumps({"weight_map": files | {"d": "two.safetensors"}}))
    with pytest.raises(ValueError, match="two.safetensors: there is no tensor 'd'"):
        safetensors.find(tmp_path)


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        (b"{no json", b"", "not a whole file"),
        (b"[1]", b"", "expected a JSON object"),
        ({"x": entry("F32", [2], 0, 8)}, b"1234", "is cut off: it has .* and 'x' ends at"),
        ({"x": entry("F32", [3], 0, 8)}, b"12345678", r"'x' of shape \(3,\) does not have 8 bytes"),
        ({"x": entry("F8_E4M3", [1], 0, 1)}, b"1", "'x' is of F8_E4M3, expected one of F64, F32"),
        ({"x": {"dtype": "F32"}}, b"", "the header does not describe 'x'"),
    ],
)
def test_a_broken_file_is_told(tmp_path, header, data, words):
    raw(tmp_path / "model.safetensors", header, data)
    with pytest.raises(ValueError, match=words):
        safetensors.find(tmp_path)
