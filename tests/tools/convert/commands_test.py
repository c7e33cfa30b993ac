"""Import and export by the command line: there and back, and what is refused."""

import contextlib
import dataclasses
import fcntl
import functools
import json
import os
import re
import shutil

import numpy as np
import pytest

from tests.tools.convert.families_test import SIZES
from tests.tools.convert.llama import CONFIG, SHAPES, checkpoint
from tests.tools.convert.safetensors_test import entry, raw
from tests.whole.command_line import call, message_of
from transformer_jax.checkpoint import arrays
from transformer_jax.config.build import build
from transformer_jax.config.load import load
from transformer_jax.configs import default
from transformer_jax.models.layers.embeddings import TIED_EMBEDDINGS
from transformer_jax.runs import manifest
from transformer_jax.tools.convert import FAMILIES, safetensors, sentences, special_tokens, tensors
from transformer_jax.tools.convert.commands import export
from transformer_jax.tools.convert.family import Settings

# The families whose models tell tokens.
TOKENS = {"tokens", "masked_tokens"}
WRITERS = [kind for kind, family in FAMILIES.items() if TOKENS & family.heads.keys()]
NEVER = [0, 1, *range(5, 12)]


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """A checkpoint of theirs, and the work directory that was made of it."""
    home = tmp_path_factory.mktemp("imported")
    folder = checkpoint(home / "theirs", bad_words_ids=[[i] for i in NEVER])
    assert call("--mode=import", f"--checkpoint={folder}", f"--workdir={home / 'ours'}") == 0
    return folder, home / "ours"


@pytest.mark.long
def test_there_and_back(imported, tmp_path, capsys):
    (folder, work), back = imported, tmp_path / "back"
    (tmp_path / "lines").write_text("w5 w6\nw7\n")
    arguments = f"--input={tmp_path}/lines", f"--output={tmp_path}/written"
    greedy = "--config.decode.method=greedy", "--config.decode.extra_length=4"
    assert call("--mode=generate", f"--workdir={work}", *arguments, *greedy) == 0
    assert len((tmp_path / "written").read_text().splitlines()) == 2
    assert call("--mode=export", f"--workdir={work}", f"--output={back}") == 0
    weights = {name: t.read() for name, t in safetensors.find(back).items()}
    assert weights.keys() == SHAPES.keys()
    for name, tensor in safetensors.find(folder).items():
        np.testing.assert_array_equal(weights[name], tensor.read(), err_msg=name)
    config = json.loads((back / "config.json").read_text())
    assert {key for key, value in CONFIG.items() if config[key] != value} == set()
    tokenizer = special_tokens.tokenizer(back, "decoder_only")
    assert tokenizer is not None and tokenizer.special.ends == (2, 3)
    assert tokenizer.decode([5, 3, 6]) == tokenizer.decode([5])
    # After the lines themselves, what is left to be written.
    written = (tmp_path / "written").read_text().split()
    assert [word for word in written if word != "w4"] == ["w5", "w6", "w7"]
    assert tokenizer.special.never == tuple(NEVER)

    again = f"import --checkpoint={folder}"
    for command, words in (
        (f"train --workdir={work}", "was imported: to train from it, choose another"),
        (f"{again} --workdir={work}", "holds checkpoints already: choose another --workdir"),
        (f"{again} --workdir=@/lines", "lines is not a folder: choose another"),
        (f"export --workdir={work} --output=@/back", "exists already: choose another"),
    ):
        assert words in message_of(tmp_path, capsys, f"--mode={command}")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("logits", np.zeros((1, 3, 12), "f4"), "logits is the first that differs .* by .* Nothing"),
        ("logits", np.zeros((1, 3, 11), "f4"), r"logits is float32 of \(1, 3, 11\), expected "),
        ("logits", np.zeros((1, 3, 12), "f2"), "logits is float16 of .* dtype=torch.float32"),
        ("hidden_states.3", np.zeros((1, 3, 8), "f4"), "holds hidden_states.3, .* hidden_states.2"),
        ("input_ids", np.array([[1, 12, 3]]), r"input_ids of \(1, 3\) are no rows .* below 12"),
        ("attention_mask", np.array([[0, 1, 1]]), "attention_mask has no ones and then zeros"),
        ("decoder_input_ids", np.array([[1]]), "holds decoder_input_ids, and the model computes"),
    ],
)
def test_a_reference_of_another_model_is_refused(tmp_path, capsys, name, value, words):
    parts = {"input_ids": np.array([[5, 6, 7]]), "logits": np.zeros((1, 3, 12), "f4"), name: value}
    header, data = {}, b""
    for key, x in parts.items():
        end = len(data) + x.nbytes
        dtype = {"f": "F", "i": "I"}[x.dtype.kind] + str(8 * x.itemsize)
        header[key], data = entry(dtype, x.shape, len(data), end), data + x.tobytes()
    raw(tmp_path / "reference", header, data)
    checkpoint(tmp_path / "theirs")
    flags = "--mode=import --checkpoint=@/theirs --workdir=@/ours --verify=@/reference"
    assert re.search(words, message_of(tmp_path, capsys, flags))
    assert not (tmp_path / "ours").exists()


def test_what_was_imported_without_a_tokenizer_is_refused_before_one_is_trained(tmp_path, capsys):
    folder, work = checkpoint(tmp_path / "theirs"), tmp_path / "ours"
    (folder / "tokenizer.json").unlink()
    assert call("--mode=import", f"--checkpoint={folder}", f"--workdir={work}") == 0
    assert "has no tokenizer.json" in capsys.readouterr().out
    cache = "--config.data.cache_dir=@/cache"
    (tmp_path / "lines").write_text("w5 w6\n")
    for command in ("generate --input=@/lines", "export --output=@/back", "evaluate", "train"):
        error = message_of(tmp_path, capsys, f"--workdir=@/ours {cache} --mode={command}")
        assert "was imported without a tokenizer: have save_pretrained" in error
        assert "Training the tokenizer" not in error
    start = "--config=@/ours/config.json --workdir=@/tuned --config.checkpoint.init_from=@/ours"
    error = message_of(tmp_path, capsys, f"{start} {cache}")
    assert "has no tokenizer.json: restore it, or, where it was imported" in error
    assert not (tmp_path / "cache" / "tokenizers").exists()


def test_an_import_replaces_no_checkpoint_that_was_trained(imported, tmp_path, capsys):
    """Even where config.json is not there, as in an import that was broken off."""
    work = shutil.copytree(imported[1], tmp_path / "ours")
    (work / "config.json").unlink()
    progress = work / "checkpoints" / "0" / "progress.json"
    progress.write_text(progress.read_text().replace('"imported"', '"0123456789abc"'))
    manifest.write(progress.parent)
    flags = f"--mode=import --checkpoint={imported[0]} --workdir={work}"
    assert "holds checkpoints already" in message_of(tmp_path, capsys, flags)


def test_export_touches_nothing_of_others(imported, tmp_path, capsys, monkeypatch):
    mine = tmp_path / "mine"
    thesis = tmp_path / "mine.incomplete" / "thesis.tex"
    thesis.parent.mkdir()
    thesis.write_text("mine")
    export = "--mode=export", f"--workdir={imported[1]}"
    with monkeypatch.context() as patch:
        patch.setattr(special_tokens, "save", lambda *_: 1 / 0)
        assert call(*export, f"--output={mine}") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"mine.incomplete"}
    unfinished = tmp_path / ".mine.unfinished_export"
    unfinished.mkdir()
    other = os.open(unfinished, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    assert call(*export, f"--output={mine}") == 1
    assert "another export to" in capsys.readouterr().err
    os.close(other)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for name in ("mine", "link"):
        assert call(*export, f"--output={tmp_path / name}") == 0
    files = [{path.name for path in (tmp_path / name).iterdir()} for name in ("mine", "real")]
    assert files[0] == files[1] >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert thesis.read_text() == "mine" and not unfinished.exists()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert call(*export, "--output=.") == 1
    assert "--output=. cannot be replaced: name a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model.positions": "relative", "model.architecture": "decoder_only"}, "no counterpart"),
        ({"model.family": "recurrent"}, "model.family='recurrent'"),
        ({"model.parameterization": "mup", "model.base_width": 64}, "'mup' has multipliers"),
    ],
)
def test_what_no_family_of_theirs_has_is_not_exported(tmp_path, changes, words):
    config = load(default.__file__, changes)
    with pytest.raises(ValueError, match=words):
        export(config, tmp_path, None, str(tmp_path / "theirs"))
    assert not (tmp_path / "theirs").exists()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model_type": "mamba"}, "model_type='mamba' is not one of gpt2, opt, .*, llama"),
        ({"hidden_size": None}, "there is no 'hidden_size', which a llama has"),
        ({"attention_bias": True}, "a llama, lacks model.layers.0.self_attn.q_proj.bias"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' has no counterpart here, only 'silu'"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "rope_type='dynamic' has no counterpart"),
        ({"num_key_value_heads": 3}, "model.num_kv_heads=3 does not divide model.num_heads=4"),
        ({"intermediate_size": 7}, r"has the shape \(6, 8\), expected \(7, 8\) by config.json"),
        ({"num_hidden_layers": 3}, "a llama, lacks model.layers.2.*and 5 more tensors"),
        ({"num_hidden_layers": 10**6}, "1000000 layers, but the files hold 21 tensors"),
        ({"bad_words_ids": [[1, 2]]}, r"of bad_words_ids, \[1, 2\] has no counterpart here"),
        ({"bad_words_ids": [[12]]}, "bad_words_ids=12 is no id of its tokenizer.json"),
        ({"num_hidden_layers": 1}, "has model.layers.1.*which the model does not"),
        ({"tie_word_embeddings": True}, "lm_head.weight and model.embed_tokens.weight are one"),
        ({"without": ("model.norm.weight",)}, "a llama, lacks model.norm.weight"),
        ({"bos_token_id": 12}, "bos_token_id=12 is no id of its tokenizer.json, which has 12"),
        ({"eos_token_id": "</s>"}, "eos_token_id='</s>' is no id"),
        ({"eos_token_id": []}, "names eos_token_id"),
        ({"rope_theta": "x"}, "rope_theta='x' is not a number"),
        ({"rope_parameters": 1}, "rope_parameters=1 is not an object"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rotary_scaling of 'llama3' lacks factor, l"),
        ({"rope_scaling": {"type": "linear"}}, "rotary_scaling of 'linear' lacks factor"),
        ({"rope_parameters": {"factor": 4.0}}, "rope_parameters: factor=4.0 is not known here"),
        ({"rope_interleaved": True}, "rope_interleaved=True has no counterpart"),
        ({"logit_scale": 0.1}, "logit_scale=0.1 is not known here, and may change what the model"),
        ({"auto_map": {"AutoModel": "x.py"}}, "auto_map=.* is not known here"),
        ({"quantization_config": {}}, "the weights are quantised"),
        ({"words": 20}, "has 20 tokens, and the model 12"),
        ({"nan_in": "model.norm.weight"}, "'model.norm.weight' has values that are not finite"),
    ],
)
def test_what_has_no_counterpart_is_refused_and_nothing_is_written(
    tmp_path, capsys, settings, words
):
    checkpoint(tmp_path / "theirs", **settings)
    flags = "--mode=import --checkpoint=@/theirs --workdir=@/ours"
    *progress, error = message_of(tmp_path, capsys, flags).splitlines()
    assert re.search(f"^error: .*{words}", error)
    assert all("Reading the tensors" in line for line in progress)  # how long, on a slow machine
    assert not (tmp_path / "ours").exists()


@functools.cache
def random_model(kind, shared):
    """The config of a model of a family that ties embeddings, its shapes, and random parameters."""
    values = SIZES | {"share_encoder_decoder_embeddings": shared, "tie_word_embeddings": True}
    run = build(load(default.__file__, FAMILIES[kind].settings(Settings(values, "", {}))))
    abstract, draw = run.abstract_state.params, np.random.default_rng(0).normal
    params = arrays.map_paths(lambda _, leaf: draw(size=leaf.shape).astype("f4"), abstract)
    leaves = arrays.flat(params)
    for row in FAMILIES[kind].rows(run.model.config):
        if not row.theirs:  # what is fixed there
            leaves[row.ours[0]][...] = row.read()[0]
        elif row.first:
            leaves[row.ours[0]][: row.first] = 1
    return run.model.config, abstract, params


@pytest.mark.parametrize(
    ("kind", "copy", "name"),
    # A head of T5's that differs is one of its own.
    [
        (kind, *pair)
        for kind, family in FAMILIES.items()
        for pair in family.copies
        if (kind, pair[0]) != ("t5", "lm_head.weight")
    ],
)
def test_a_tensor_that_is_there_twice_has_one_content(tmp_path, kind, copy, name):
    """And one that may be there under its other name alone is read from that."""
    ours, abstract, params = random_model(kind, name == "model.shared.weight")
    family = FAMILIES[kind]
    parts = tensors.written(params, family, ours, 8)
    shape, make = parts[name]
    files = [parts | {copy: (shape, make)}]
    if (name, copy) in family.aliases:
        files.append({key: part for key, part in files[0].items() if key != name})
    for file in files:
        safetensors.write(tmp_path / safetensors.ONE_FILE, file)
        weights = tensors.named(safetensors.find(tmp_path), family)
        again, notes = tensors.read(weights, family, ours, abstract)
        assert not notes
        for path, leaf in arrays.flat(again).items():
            np.testing.assert_allclose(leaf, arrays.flat(params)[path], rtol=1e-6, atol=1e-6)
    parts[copy] = shape, lambda: make() + np.float32(1.0)
    safetensors.write(tmp_path / safetensors.ONE_FILE, parts)
    with pytest.raises(ValueError, match=f"{copy} and {name} are one tensor by config"):
        tensors.read(safetensors.find(tmp_path), family, ours, abstract)


@pytest.mark.parametrize("tied", TIED_EMBEDDINGS)
@pytest.mark.parametrize("kind", WRITERS)
def test_each_way_to_tie_embeddings_is_exported_whole_or_refused(kind, tied):
    changes = FAMILIES[kind].settings(Settings(SIZES, "config.json", {}))
    run = build(load(default.__file__, changes | {"model.tied_embeddings": tied}))
    # The scale that goes with it
    scaled = [dataclasses.replace(run.model.config, embedding_scale=scale) for scale in (1.0, None)]
    ours = min(scaled, key=lambda config: len(FAMILIES[kind].unfit(config)))
    try:
        theirs = FAMILIES[kind].config(ours, 8)
    except ValueError as error:
        assert f"model.tied_embeddings={tied!r}" in str(error)
        assert tied != "all" or FAMILIES[kind].ours.get("tied_embeddings")
        return
    paths = {path for row in FAMILIES[kind].rows(ours) for path in row.ours}
    assert paths == {*run.roles}
    assert theirs["tie_word_embeddings"] == TIED_EMBEDDINGS[tied].logits


def pooling(values, folder):
    steps = [{"type": "x.Dense", "path": "1_Dense"}, {"type": "x.Pooling", "path": "2_Pooling"}]
    (folder / "modules.json").write_text(json.dumps(steps))
    (folder / "2_Pooling").mkdir()
    (folder / "2_Pooling" / "config.json").write_text(json.dumps(values))
    return sentences.settings(folder, 8)


def test_positions_of_marian_that_are_no_sinusoids_are_refused(tmp_path):
    name, angles = "model.decoder.embed_positions.weight", np.arange(6)[:, None] / [1, 10, 100, 1e3]
    for shift in (0.0, 0.5):
        table = np.hstack([np.sin(angles), np.cos(angles)]) + shift
        safetensors.write(tmp_path / "model.safetensors", {name: ((6, 8), lambda x=table: x)})
        with pytest.raises(ValueError, match=name) if shift else contextlib.nullcontext():
            FAMILIES["marian"].settings(Settings(SIZES, "", safetensors.find(tmp_path)))


def labels(values, folder):
    return Settings(values, "config.json", {}).labels("classifier.weight")


@pytest.mark.parametrize(
    ("read", "values", "words"),
    [
        (pooling, {"pooling_mode_max_tokens": True}, "vectors by max_tokens have no counterpart"),
        (pooling, {"pooling_mode_cls_token": 1, "pooling_mode_mean_tokens": 1}, "by cls_token and"),
        (pooling, {"pooling_mode": ["mean", "cls"]}, "by mean and cls have no counterpart"),
        (pooling, {"pooling_mode": "lasttoken"}, "vectors by lasttoken have no counterpart"),
        (labels, {"problem_type": "regression"}, "problem_type='regression' has no counterpart"),
        (labels, {"problem_type": "multi_label_classification"}, "problem_type='multi_label"),
        (labels, {"id2label": {"0": "x"}}, "does not name the 1 outputs .* two or more"),
        (labels, {"id2label": {"0": "x", "1": "x"}}, "does not name the 2 outputs"),
    ],
)
def test_vectors_and_classifiers_of_another_kind_are_refused(tmp_path, read, values, words):
    with pytest.raises(ValueError, match=words):
        read(values, tmp_path)


RESNET = "model.backbone.conv_encoder.model"
TIMM = {
    "conv1.weight": "embedder.embedder.convolution.weight",
    "bn1.running_mean": "embedder.embedder.normalization.running_mean",
    "layer1.0.conv2.weight": "encoder.stages.0.layers.0.layer.1.convolution.weight",
    "layer3.11.bn3.bias": "encoder.stages.2.layers.11.layer.2.normalization.bias",
    "layer4.0.downsample.0.weight": "encoder.stages.3.layers.0.shortcut.convolution.weight",
    "layer2.0.downsample.1.bias": "encoder.stages.1.layers.0.shortcut.normalization.bias",
}


@pytest.mark.parametrize(
    ("kind", "old", "name"),
    [
        ("gpt2", "transformer.ln_f.gamma", "transformer.ln_f.weight"),
        ("gpt2", "transformer.ln_f.beta", "transformer.ln_f.bias"),
        *(("detr", f"{RESNET}.{timm}", f"{RESNET}.{name}") for timm, name in TIMM.items()),
    ],
)
def test_a_tensor_is_known_by_its_old_name_or_that_of_timm(kind, old, name):
    tensor = safetensors.Tensor(None, np.dtype("f4"), (1,), 0)  # pyright: ignore[reportArgumentType]
    assert tensors.named({old: tensor}, FAMILIES[kind]) == {name: tensor}
    with pytest.raises(ValueError, match=f"'{name}' is there under an old name too"):
        tensors.named({old: tensor, name: tensor}, FAMILIES[kind])
