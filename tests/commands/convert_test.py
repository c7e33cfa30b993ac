"""Import and export by the command line: there and back, and what is refused."""

import json

import numpy as np
import pytest
import tokenizers

from configs import default
from tests.whole.command_line import call
from transformer_jax import overrides
from transformer_jax.commands.convert import export
from transformer_jax.convert import FAMILIES, safetensors, special, tensors
from transformer_jax.convert.family import Settings

CONFIG = {
    "model_type": "llama",
    "vocab_size": 12,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 2,
    "intermediate_size": 6,
    "rms_norm_eps": 0.01,
    "rope_theta": 500.0,
    "max_position_embeddings": 16,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
}
SHAPES = {
    "model.embed_tokens.weight": (12, 8),
    "model.norm.weight": (8,),
    "lm_head.weight": (12, 8),
    **{
        f"model.layers.{layer}.{name}.weight": shape
        for layer in range(2)
        for name, shape in {
            "self_attn.q_proj": (8, 8),
            "self_attn.k_proj": (4, 8),
            "self_attn.v_proj": (4, 8),
            "self_attn.o_proj": (8, 8),
            "mlp.gate_proj": (6, 8),
            "mlp.up_proj": (6, 8),
            "mlp.down_proj": (8, 6),
            "input_layernorm": (8,),
            "post_attention_layernorm": (8,),
        }.items()
    },
}


def random(shape, seed):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def checkpoint(folder, *, without=(), **more):
    """A folder as `save_pretrained` leaves it. more: entries of its config.json."""
    folder.mkdir()
    config = {key: value for key, value in (CONFIG | more).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    found = {name: shape for name, shape in SHAPES.items() if name not in without}
    parts = {
        name: (shape, lambda shape=shape, seed=seed: random(shape, seed))
        for seed, (name, shape) in enumerate(found.items())
    }
    safetensors.write(folder / "model.safetensors", parts)
    library = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({f"w{n}": n for n in range(12)}, unk_token="w0")
    )
    library.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    library.save(str(folder / "tokenizer.json"))
    return folder


def test_there_and_back(tmp_path, capsys):
    folder = checkpoint(tmp_path / "theirs")
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
    differing = {key for key, value in CONFIG.items() if config[key] != value}
    assert differing == {"eos_token_id"} and config["eos_token_id"] == 2
    assert special.tokenizer(back) is not None

    capsys.readouterr()
    assert call("--mode=train", f"--workdir={work}") == 1
    assert "was imported: to train from it, choose another" in capsys.readouterr().err
    assert call("--mode=import", f"--checkpoint={folder}", f"--workdir={work}") == 1
    assert "has a config.json already: choose another --workdir" in capsys.readouterr().err
    assert call("--mode=export", f"--workdir={work}", f"--output={back}") == 1
    assert "exists already: choose another" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model.positions": "relative", "model.architecture": "decoder_only"}, "no counterpart"),
        ({"model.family": "recurrent"}, "model.family='recurrent'"),
    ],
)
def test_what_no_family_of_theirs_has_is_not_exported(tmp_path, changes, words):
    config = overrides.load(default.__file__, changes)
    with pytest.raises(ValueError, match=words):
        export(config, tmp_path, None, str(tmp_path / "theirs"))
    assert not (tmp_path / "theirs").exists()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model_type": "mamba"}, "model_type='mamba' is not one of gpt2, bert, t5, marian, llama"),
        ({"model_type": None}, "model_type=None is not one of"),
        ({"hidden_size": None}, "there is no 'hidden_size', which a llama has"),
        ({"attention_bias": True}, "attention_bias=True has no counterpart here, only False"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' has no counterpart here, only 'silu'"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type='yarn' has no counterpart"),
        ({"num_key_value_heads": 3}, "model.num_kv_heads=3 does not divide model.num_heads=4"),
        ({"intermediate_size": 7}, r"has the shape \(6, 8\), expected \(7, 8\) by config.json"),
        ({"num_hidden_layers": 3}, "the checkpoint lacks model.layers.2.*and 5 more tensors"),
        ({"num_hidden_layers": 1}, "has model.layers.1.*which the model does not"),
        ({"tie_word_embeddings": True}, "has lm_head.weight, which the model does not"),
        ({"without": ("model.norm.weight",)}, "the checkpoint lacks model.norm.weight"),
        ({"bos_token_id": None}, "names bos_token_id"),
    ],
)
def test_what_has_no_counterpart_is_refused_and_nothing_is_written(
    tmp_path, capsys, settings, words
):
    folder, work = checkpoint(tmp_path / "theirs", **settings), tmp_path / "ours"
    assert call("--mode=import", f"--checkpoint={folder}", f"--workdir={work}") == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
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
        ("marian", {"share_encoder_decoder_embeddings": False}, "share_encoder_decoder"),
    ],
)
def test_each_family_refuses_what_it_has_no_counterpart_for(kind, settings, words):
    sizes = dict.fromkeys(
        """n_embd n_positions n_layer n_head vocab_size max_position_embeddings num_hidden_layers
        hidden_size num_attention_heads intermediate_size num_layers d_model num_heads d_kv d_ff
        encoder_attention_heads decoder_attention_heads encoder_ffn_dim decoder_ffn_dim
        encoder_layers decoder_layers""".split(),
        8,
    )
    FAMILIES[kind].settings(Settings(sizes | {"model_type": kind}, "config.json", {}))
    with pytest.raises(ValueError, match=words):
        FAMILIES[kind].settings(Settings(sizes | settings, "config.json", {}))


def test_old_names_of_norms_are_known():
    tensor = safetensors.Tensor(None, np.dtype("f4"), (1,), 0)  # pyright: ignore[reportArgumentType]
    names = {"transformer.ln_f.gamma": tensor, "transformer.ln_f.beta": tensor}
    assert [*tensors.named(names, FAMILIES["gpt2"])] == ["ln_f.weight", "ln_f.bias"]
