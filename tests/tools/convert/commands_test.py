"""Import and export by the command line: there and back, and what is refused."""

import json

import numpy as np
import pytest

from configs import default
from tests.tools.convert.llama import CONFIG, SHAPES, checkpoint
from tests.whole.command_line import call
from transformer_jax.checkpoint import arrays
from transformer_jax.config.build import built
from transformer_jax.config.load import load
from transformer_jax.data.prepare.tokenizer import OWN_IDS
from transformer_jax.models.layers.embeddings import TIED_EMBEDDINGS
from transformer_jax.tools.convert import FAMILIES, safetensors, special_tokens, tensors
from transformer_jax.tools.convert.commands import export
from transformer_jax.tools.convert.family import Lengths, Settings

NEVER = [0, 1, *range(5, 12)]
# Of every family, under all names that they have for them.
SIZES: dict[str, int] = dict.fromkeys(
    """n_embd n_positions n_layer n_head vocab_size max_position_embeddings num_hidden_layers
    hidden_size num_attention_heads intermediate_size num_layers d_model num_heads d_kv d_ff
    encoder_attention_heads decoder_attention_heads encoder_ffn_dim decoder_ffn_dim
    encoder_layers decoder_layers head_dim""".split(),
    8,
)


def test_there_and_back(tmp_path, capsys):
    folder = checkpoint(tmp_path / "theirs", bad_words_ids=[[i] for i in NEVER])
    work, back = tmp_path / "ours", tmp_path / "back"
    assert call("--mode=import", f"--checkpoint={folder}", f"--workdir={work}") == 0
    (tmp_path / "lines").write_text("w5 w6\nw7\n")
    arguments = f"--input={tmp_path}/lines", f"--output={tmp_path}/written"
    greedy = "--config.decode.method=greedy", "--config.decode.extra_length=4"
    assert call("--mode=generate", f"--workdir={work}", *arguments, *greedy) == 0
    assert len((tmp_path / "written").read_text().splitlines()) == 2
    assert call("--mode=export", f"--workdir={work}", f"--output={back}") == 0
    found = {name: t.read() for name, t in safetensors.find(back).items()}
    assert found.keys() == SHAPES.keys()
    for name, tensor in safetensors.find(folder).items():
        np.testing.assert_array_equal(found[name], tensor.read(), err_msg=name)
    config = json.loads((back / "config.json").read_text())
    assert {key for key, value in CONFIG.items() if config[key] != value} == set()
    tokenizer = special_tokens.tokenizer(back)
    assert tokenizer is not None and tokenizer.special.ends == (2, 3)
    assert tokenizer.decode([5, 3, 6]) == tokenizer.decode([5])
    # After the lines themselves, what is left to be written.
    written = (tmp_path / "written").read_text().split()
    assert [word for word in written if word != "w4"] == ["w5", "w6", "w7"]
    assert tokenizer.special.never == tuple(NEVER)

    capsys.readouterr()
    assert call("--mode=train", f"--workdir={work}") == 1
    assert "was imported: to train from it, choose another" in capsys.readouterr().err
    assert call("--mode=import", f"--checkpoint={folder}", f"--workdir={work}") == 1
    assert "holds checkpoints already: choose another --workdir" in capsys.readouterr().err
    assert call("--mode=import", f"--checkpoint={folder}", f"--workdir={tmp_path}/lines") == 1
    assert "lines is not a folder: choose another" in capsys.readouterr().err
    assert call("--mode=export", f"--workdir={work}", f"--output={back}") == 1
    assert "exists already: choose another" in capsys.readouterr().err


def test_what_was_imported_without_a_tokenizer_is_refused_before_one_is_trained(tmp_path, capsys):
    folder, work = checkpoint(tmp_path / "theirs"), tmp_path / "ours"
    (folder / "tokenizer.json").unlink()
    assert call("--mode=import", f"--checkpoint={folder}", f"--workdir={work}") == 0
    assert "has no tokenizer.json" in capsys.readouterr().out
    cache = f"--config.data.cache_dir={tmp_path / 'cache'}"
    (tmp_path / "lines").write_text("w5 w6\n")
    for flags in (
        ("--mode=generate", f"--input={tmp_path}/lines"),
        ("--mode=export", f"--output={tmp_path / 'back'}"),
        ("--mode=evaluate",),
        ("--mode=train",),
    ):
        assert call(f"--workdir={work}", cache, *flags) == 1
        error = capsys.readouterr().err
        assert "was imported without a tokenizer: have save_pretrained" in error
        assert "Training the tokenizer" not in error
    start = f"--config.checkpoint.init_from={work}"
    own = f"--config={work / 'config.json'}", f"--workdir={tmp_path / 'tuned'}"
    assert call("--mode=train", *own, start, cache) == 1
    assert "has no tokenizer.json: restore it, or, where it was imported" in capsys.readouterr().err
    assert not (tmp_path / "cache" / "tokenizers").exists()


def test_an_import_that_was_broken_off_may_be_run_again(tmp_path, capsys, monkeypatch):
    folder, work = checkpoint(tmp_path / "theirs"), tmp_path / "ours"
    flags = "--mode=import", f"--checkpoint={folder}", f"--workdir={work}"
    with monkeypatch.context() as patch:
        patch.setattr(arrays, "save", lambda *_: 1 / 0)
        assert call(*flags) == 1
    (work / "checkpoints" / "0.tmp").mkdir(parents=True, exist_ok=True)  # as a kill leaves it
    assert call(*flags) == 0
    assert call(*flags) == 1
    assert "holds checkpoints already" in capsys.readouterr().err


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
        ({"model_type": "mamba"}, "model_type='mamba' is not one of gpt2, bert, t5, marian, llama"),
        ({"hidden_size": None}, "there is no 'hidden_size', which a llama has"),
        ({"attention_bias": True}, "attention_bias=True has no counterpart here, only False"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' has no counterpart here, only 'silu'"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type='yarn' has no counterpart"),
        ({"num_key_value_heads": 3}, "model.num_kv_heads=3 does not divide model.num_heads=4"),
        ({"intermediate_size": 7}, r"has the shape \(6, 8\), expected \(7, 8\) by config.json"),
        ({"num_hidden_layers": 3}, "the checkpoint lacks model.layers.2.*and 5 more tensors"),
        ({"num_hidden_layers": 10**6}, "1000000 layers, but the files hold 21 tensors"),
        ({"bad_words_ids": [[1, 2]]}, r"of bad_words_ids, \[1, 2\] has no counterpart here"),
        ({"bad_words_ids": [[12]]}, "bad_words_ids=12 is no id of its tokenizer.json"),
        ({"num_hidden_layers": 1}, "has model.layers.1.*which the model does not"),
        ({"tie_word_embeddings": True}, "lm_head.weight and model.embed_tokens.weight are one"),
        ({"without": ("model.norm.weight",)}, "the checkpoint lacks model.norm.weight"),
        ({"bos_token_id": None}, "names bos_token_id"),
        ({"bos_token_id": 12}, "bos_token_id=12 is no id of its tokenizer.json, which has 12"),
        ({"eos_token_id": "</s>"}, "eos_token_id='</s>' is no id"),
        ({"eos_token_id": []}, "names eos_token_id"),
        ({"rope_theta": "x"}, "rope_theta='x' is not a number"),
        ({"rope_parameters": 1}, "rope_parameters=1 is not an object"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_scaling=.*has no counterpart"),
        ({"quantization_config": {}}, "the weights are quantised"),
        ({"words": 20}, "has 20 tokens, and the model 12"),
        ({"nan_in": "model.norm.weight"}, "'model.norm.weight' has values that are not finite"),
    ],
)
def test_what_has_no_counterpart_is_refused_and_nothing_is_written(
    tmp_path, capsys, settings, words
):
    folder, work = checkpoint(tmp_path / "theirs", **settings), tmp_path / "ours"
    assert call("--mode=import", f"--checkpoint={folder}", f"--workdir={work}") == 1
    *progress, error = capsys.readouterr().err.splitlines()  # how long it took, on a slow machine
    assert error.startswith("error: ") and all("Reading the tensors" in line for line in progress)
    with pytest.raises(ValueError, match=words):
        raise ValueError(error)
    assert not work.exists()


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights=False"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ("gpt2", {"activation_function": "tanh"}, "activation_function='tanh'"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("bert", {"hidden_act": "relu"}, "hidden_act='relu'"),
        ("bert", {"is_decoder": True}, "is_decoder=True"),
        ("t5", {"relative_attention_num_buckets": 64}, "relative_attention_num_buckets=64"),
        ("t5", {"feed_forward_proj": "gated-silu"}, "feed_forward_proj='gated-silu'"),
        (
            "t5",
            {"tie_word_embeddings": False, "scale_decoder_outputs": True},
            "scale_decoder_outputs=True",
        ),
        ("marian", {"decoder_ffn_dim": 7}, "decoder_ffn_dim=7"),
        ("marian", {"decoder_vocab_size": 7}, "decoder_vocab_size=7"),
        ("marian", {"share_encoder_decoder_embeddings": 1.5}, "share_encoder_decoder"),
        ("marian", {"tie_word_embeddings": False}, "tie_word_embeddings=False"),
    ],
)
def test_each_family_refuses_what_it_has_no_counterpart_for(kind, settings, words):
    FAMILIES[kind].settings(Settings(SIZES | {"model_type": kind}, "config.json", {}))
    with pytest.raises(ValueError, match=words):
        FAMILIES[kind].settings(Settings(SIZES | settings, "config.json", {}))


@pytest.mark.parametrize("tied", TIED_EMBEDDINGS)
@pytest.mark.parametrize("kind", FAMILIES)
def test_each_way_to_tie_embeddings_is_exported_whole_or_refused(kind, tied):
    changes = FAMILIES[kind].settings(Settings(SIZES, "config.json", {}))
    changes |= {"model.tied_embeddings": tied, "model.embedding_scale": 1.0}
    config = load(default.__file__, changes)
    with built(config, None) as run:
        ours, params = run.model.config, run.abstract_state().params
    try:
        theirs = FAMILIES[kind].config(ours, OWN_IDS, Lengths(8, 8))
    except ValueError as error:
        assert f"model.tied_embeddings={tied!r}" in str(error)
        assert tied != "all"
        return
    paths = {path for row in FAMILIES[kind].rows(ours) for path in row.ours}
    assert paths == {*arrays.flat(params)}
    assert theirs["tie_word_embeddings"] == TIED_EMBEDDINGS[tied].logits


def test_old_names_of_norms_are_known():
    tensor = safetensors.Tensor(None, np.dtype("f4"), (1,), 0)  # pyright: ignore[reportArgumentType]
    names = {"transformer.ln_f.gamma": tensor, "transformer.ln_f.beta": tensor}
    assert [*tensors.named(names, FAMILIES["gpt2"])] == ["ln_f.weight", "ln_f.bias"]
