"""What torch.save writes is read as torch reads it; what does more than hold tensors is refused."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.tools.convert import llama
from tests.whole.command_line import call
from transformer_jax.tools.convert import pickled, safetensors

# A dict of one tensor: two numbers from the first of a storage on.
TENSOR = (
    b"}(Vx\nctorch._utils\n_rebuild_tensor_v2\n((Vstorage\nctorch\nFloatStorage\nV0\nVcpu\nI2\ntQ"
    b"I0\n(I2\nt(I1\ntI00\n}tRu."
)


def zipped(path, program, kind=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", kind) as file:
        file.writestr("any/data.pkl", program)
        file.writestr("any/data/0", np.array([1.5, -2], "f4").tobytes())


def test_tensors_are_those_of_torch(tmp_path):
    torch = pytest.importorskip("torch")
    state = torch.nn.Linear(3, 2).state_dict()  # a dict with what it says of itself
    numbers = torch.arange(24.0)
    state |= {
        "turned": numbers.reshape(4, 6).T[1:, ::2],
        "shared": numbers[5:],
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "number": torch.tensor(3.5),
        "none": torch.zeros(0, 2),
        "spread": torch.ones(1, 3).expand(4, 3),
        "half": numbers[3:].half(),
        "bfloat16": numbers.bfloat16() / 3,
        **{name: numbers[3:9].to(getattr(torch, name)) for name in ("float64", "int32", "int64")},
        **{name: numbers[:3].to(getattr(torch, name)) for name in ("uint8", "bool")},
    }
    torch.save(state, tmp_path / "pytorch_model.bin")
    tensors = pickled.tensors(tmp_path / "pytorch_model.bin")
    assert tensors.keys() == state.keys()
    for name, tensor in state.items():
        array = tensors[name].read()
        assert array.shape == tensor.shape and str(tensor.dtype).endswith(array.dtype.name)
        np.testing.assert_array_equal(array.astype("f8"), tensor.detach().double(), err_msg=name)


def test_a_pickled_checkpoint_is_imported_where_it_is_asked_for(tmp_path, capsys):
    torch = pytest.importorskip("torch")
    folder, work = llama.checkpoint(tmp_path / "theirs"), tmp_path / "ours"
    whole = safetensors.find(folder)
    state = {name: torch.from_numpy(np.array(tensor.read())) for name, tensor in whole.items()}
    files = {name: f"pytorch_model-{len(name) % 2}.bin" for name in state}
    for file in {*files.values()}:
        torch.save({name: x for name, x in state.items() if files[name] == file}, folder / file)
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": files}))
    others = {pickled.ONE_FILE: pickled.tensors}
    paths = {tensor.path for tensor in safetensors.find(folder, others).values()}
    assert paths == {folder / safetensors.ONE_FILE}
    (folder / safetensors.ONE_FILE).unlink()
    flags = "--mode=import", f"--checkpoint={folder}", f"--workdir={work}"
    assert call(*flags) == 1
    assert "may run any program: --pickled reads the tensors" in capsys.readouterr().err
    assert call(*flags, "--pickled") == 0
    assert call("--mode=export", f"--workdir={work}", f"--output={tmp_path / 'back'}") == 0
    for name, tensor in safetensors.find(tmp_path / "back").items():
        np.testing.assert_array_equal(tensor.read(), state[name].numpy(), err_msg=name)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (b"cos\nmkdir\n(Vexecuted\ntR.", "x.bin asks for os.mkdir, which no tensor"),
        (b"(Vexecuted\nios\nmkdir\n.", "x.bin asks for os.mkdir"),
        (b"\x80\x04\x8c\x02os\x8c\x05mkdir\x93\x8c\x08executed\x85R.", "asks for os.mkdir"),
        (b"ccollections\nOrderedDict.fromkeys\n.", "asks for collections.OrderedDict.fromkeys"),
        (b"ctorch\nCharStorage\n.", "asks for torch.CharStorage"),
        (b"\x82\x01.", "not a whole file of PyTorch 1.6 or later"),
        (TENSOR.replace(b"R", b"R}(Vread\nI1\nub"), "not a whole file"),  # changed afterwards
        (TENSOR[:-9], "not a whole file"),
        (TENSOR.replace(b"V0", b"V7"), "not a whole file .*any/data/7"),
        (TENSOR.replace(b"(I1\nt", b"(I2\nt"), "lies outside of its storage"),
        (TENSOR.replace(b"tQI0", b"tQI-1"), "lies outside of its storage"),
        (TENSOR.replace(b"Vcpu\nI2", b"Vcpu\nI3"), "storage 0 does not have 3 numbers"),
        (b"}(Vx\nI1\nu.", "'x' is no tensor, but a int"),
        (b"I1\n.", "'the whole' is no tensor, but a int"),
    ],
)
def test_a_pickle_that_is_no_dict_of_tensors_is_refused(tmp_path, monkeypatch, program, words):
    monkeypatch.chdir(tmp_path)
    zipped(Path("x.bin"), program)
    with pytest.raises(ValueError, match=words):
        pickled.tensors(Path("x.bin"))
    assert not Path("executed").exists()


def test_a_pickle_by_hand_is_read_and_none_that_is_cut_off_or_compressed(tmp_path):
    path = tmp_path / "x.bin"
    zipped(path, TENSOR)
    np.testing.assert_array_equal(pickled.tensors(path)["x"].read(), [1.5, -2])
    for size in (0, 20, 300):
        path.write_bytes(path.read_bytes()[:size])
        with pytest.raises(ValueError, match="x.bin: not a whole file of PyTorch 1.6 or later"):
            pickled.tensors(path)
    zipped(path, TENSOR, zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match="data.pkl is compressed"):
        pickled.tensors(path)
