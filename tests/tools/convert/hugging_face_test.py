"""Imported models compute what transformers computes, and exported ones load there again."""

import copy
import dataclasses
import functools
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import tokenizers

from tests.docs_test import ROOT, blocks
from tests.tools.convert.families_test import FULL, NEAR, rope
from transformer_jax.commands import restore
from transformer_jax.config.build import built
from transformer_jax.config.load import load
from transformer_jax.configs import default
from transformer_jax.data.prepare.tokenizer import MASK, TOKENIZERS, train_tokenizer
from transformer_jax.devices.mesh import use
from transformer_jax.tools.convert import commands, special_tokens

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
files = pytest.importorskip("safetensors.torch")

torch.set_num_threads(1)  # the models are too small to share
pytestmark = pytest.mark.long

V = 99
LENGTHS = (12, 7)
# Numbers that differ from what either side would take by default, and sizes that differ from each
# other, so that nothing is right by chance.
SIZES = V, 64, 96, 4, 0.01, 40  # vocabulary, width, hidden units, heads, epsilon, positions


def _named(names, **more):
    """The sizes under their names there."""
    return dict(zip(names.split(), SIZES, strict=False)) | more


GPT2 = _named(
    "vocab_size n_embd n_inner n_head layer_norm_epsilon n_positions",
    n_layer=3,
    bos_token_id=5,
    eos_token_id=5,
)
BERT = _named(
    "vocab_size hidden_size intermediate_size num_attention_heads layer_norm_eps"
    " max_position_embeddings",
    num_hidden_layers=3,
)
T5 = _named(
    "vocab_size d_model d_ff num_heads layer_norm_epsilon",
    d_kv=12,
    num_layers=2,
    num_decoder_layers=3,
    decoder_start_token_id=0,
)
T5_1_1 = T5 | dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False)
MARIAN = _named(
    "vocab_size d_model encoder_ffn_dim encoder_attention_heads",
    decoder_ffn_dim=96,
    decoder_attention_heads=4,
    encoder_layers=2,
    decoder_layers=3,
    activation_function="swish",
    pad_token_id=V - 1,
    eos_token_id=0,
    decoder_start_token_id=V - 1,
    forced_eos_token_id=None,
    max_position_embeddings=40,
)
APART = MARIAN | dict(share_encoder_decoder_embeddings=False)
LLAMA = _named(
    "vocab_size hidden_size intermediate_size num_attention_heads rms_norm_eps"
    " max_position_embeddings",
    num_hidden_layers=3,
    num_key_value_heads=2,
    head_dim=12,
    rope_parameters=rope(500.0),
    tie_word_embeddings=False,
)
OPT = _named(
    "vocab_size hidden_size ffn_dim num_attention_heads",
    max_position_embeddings=40,
    num_hidden_layers=3,
    word_embed_proj_dim=64,
)
ROBERTA = BERT | dict(max_position_embeddings=42)
ELECTRA = BERT | dict(embedding_size=64)
DISTILBERT = _named("vocab_size dim hidden_dim n_heads", max_position_embeddings=40, n_layers=3)
BART = {k: v for k, v in MARIAN.items() if not k.endswith("id")} | dict(
    activation_function="gelu", pad_token_id=1, eos_token_id=2, decoder_start_token_id=2
)
MISTRAL = LLAMA | dict(sliding_window=5)
PADDED = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
QWEN = LLAMA | dict(bos_token_id=None, eos_token_id=2)
SOME = dict(use_sliding_window=True, sliding_window=5, max_window_layers=1)
LLAMA_3 = rope(
    500.0, "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=8,
)  # fmt: skip
YARN = rope(
    500.0, "yarn", factor=4.0, original_max_position_embeddings=8, beta_fast=4.0, beta_slow=1.0
)
LINEAR = rope(500.0, "linear", factor=3.0)
LONGROPE = rope(
    500.0, "longrope", short_factor=[1.0, 1.5, 2.0, 2.5, 3.0, 3.5],
    long_factor=[1.0, 2.5, 3.0, 3.5, 4.0, 4.5], original_max_position_embeddings=40,
    partial_rotary_factor=0.75,
)  # fmt: skip
NEOX = BERT | dict(rope_parameters=rope(500.0, partial_rotary_factor=0.5))
GPT_NEO = _named(
    "vocab_size hidden_size intermediate_size num_heads layer_norm_epsilon max_position_embeddings",
    num_layers=3,
    attention_types=[[["global", "local"], 1], [["local"], 1]],
    window_size=5,
    bos_token_id=5,
    eos_token_id=5,
)
BY_KIND = {NEAR: rope(80.0), FULL: rope(500.0)}
GEMMA_2 = LLAMA | dict(
    tie_word_embeddings=True, sliding_window=5, query_pre_attn_scalar=20,
    attn_logit_softcapping=2.0, final_logit_softcapping=3.0,
)  # fmt: skip
GEMMA_3 = LLAMA | dict(
    tie_word_embeddings=True, sliding_window=5, query_pre_attn_scalar=20,
    final_logit_softcapping=None, num_hidden_layers=5, rope_parameters=BY_KIND,
    layer_types=[NEAR, NEAR, FULL, NEAR, NEAR],
)  # fmt: skip
OLMO = {k: v for k, v in LLAMA.items() if k not in ("head_dim", "rms_norm_eps")}
OLMO |= dict(bos_token_id=None, eos_token_id=2, pad_token_id=1)
OLMO_3 = OLMO | dict(
    rms_norm_eps=0.01, sliding_window=5, num_hidden_layers=5,
    rope_parameters={FULL: YARN, NEAR: rope(500.0)},
)  # fmt: skip
MODERNBERT = _named(
    "vocab_size hidden_size intermediate_size num_attention_heads norm_eps"
    " max_position_embeddings",
    num_hidden_layers=4,
    local_attention=8,
    rope_parameters=BY_KIND,
    layer_types=[FULL, NEAR, NEAR, FULL],
    pad_token_id=0, cls_token_id=1, bos_token_id=1, sep_token_id=2, eos_token_id=2,
)  # fmt: skip
# A model's settings, and some of ours with which it would be wrong; first in its name its family.
MODELS = {
    "gpt2": (GPT2, {"model.activation": "gelu"}),
    "bert": (BERT, {"model.norm_epsilon": 1e-5}),
    "t5 1.0": (T5 | {"feed_forward_proj": "relu"}, {"model.embedding_scale": 1.0}),
    "t5 1.1": (T5_1_1, {"model.embedding_scale": None}),
    # As releases from 5 on make it: the head is the table, and logits are not scaled.
    "t5 1.1, tied": (T5_1_1, {"model.embedding_scale": None}),
    "marian, scaled": (MARIAN | {"scale_embedding": True}, {"model.embedding_scale": 1.0}),
    "marian, tables apart": (APART | {"scale_embedding": False}, {"model.activation": "gelu"}),
    "marian, nothing shared, gelu": (
        APART | {"activation_function": "gelu", "tie_word_embeddings": False},
        {"model.activation": "gelu_tanh"},
    ),
    "llama": (LLAMA, {"model.rotary_base": 10_000.0}),
    "llama, tied": (LLAMA | {"tie_word_embeddings": True}, {"model.norm_epsilon": 1e-6}),
    "llama, each head its own keys": (
        # So many ends that a text meets one.
        LLAMA | {"num_key_value_heads": 4, "head_dim": None, "eos_token_id": list(range(2, 40))},
        {"model.norm_epsilon": 1e-6},
    ),
    "llama, llama3": (
        LLAMA | {"rope_parameters": LLAMA_3, "attention_bias": True, "mlp_bias": True},
        {"model.rotary_scaling": ()},
    ),
    "llama, yarn": (LLAMA | {"rope_parameters": YARN}, {"model.rotary_scaling": ()}),
    "llama, linear": (LLAMA | {"rope_parameters": LINEAR}, {"model.rotary_scaling": ()}),
    "mistral": (MISTRAL, {"model.window": 4}, {"model.window": 6}),
    "qwen2": (QWEN | SOME, {"model.layer_pattern": ("window", "full", "full")}),
    "qwen3": (QWEN | SOME, {"model.window": 6}),
    "smollm3": (
        LLAMA
        | {"num_hidden_layers": 5, "no_rope_layers": None, **PADDED, "no_rope_layer_interval": 2},
        {"model.layer_pattern": ("full",)},
    ),
    "phi3": (
        {k: v for k, v in LLAMA.items() if k != "head_dim"}
        | dict(rope_parameters=LONGROPE, sliding_window=5, original_max_position_embeddings=40)
        | PADDED,
        {"model.window": 4},
    ),
    "gemma2": (
        GEMMA_2,
        {"model.attention_softcap": None},
        {"model.logits_softcap": None},
        {"model.layer_pattern": ("full", "window")},
        {"model.activation": "geglu"},
    ),
    "gemma3_text": (
        GEMMA_3,
        {"model.window_rotary_base": None},
        {"model.rotary_base": 80.0, "model.window_rotary_base": 500.0},
    ),
    "olmo": (OLMO, {"model.norm_epsilon": 1e-6}),
    "olmo2": (OLMO | {"rms_norm_eps": 0.01}, {"model.norm_epsilon": 1e-6}),
    "olmo3": (
        OLMO_3,
        {"model.rotary_scaling": ()},
        {"model.layer_pattern": ("full", "window", "window", "window")},
    ),
    "gpt_neox": (
        NEOX,
        {"model.rotary_fraction": 1.0},
        {"model.activation": "gelu_tanh"},
        {"model.residual": "pre_ln"},
    ),
    "gpt_neox, sequential, no biases": (
        NEOX | {"use_parallel_residual": False, "attention_bias": False},
        {"model.activation": "gelu_tanh"},
    ),
    "phi": (NEOX | {"num_key_value_heads": 2, "pad_token_id": 0}, {"model.rotary_fraction": 1.0}),
    "gpt_neo": (GPT_NEO, {"model.attention_score": "scaled_dot_product"}),
    "modernbert": (
        MODERNBERT,
        {"model.window": 4},
        {"model.window": 6},
        {"model.residual": "pre_ln"},
        {"model.activation": "geglu_tanh"},
    ),
    "gemma": (LLAMA | dict(tie_word_embeddings=True), {"model.embedding_scale": 1.0}),
    "opt": (OPT, {"model.activation": "gelu"}),
    "opt, norms after": (OPT | dict(do_layer_norm_before=False), {"model.activation": "gelu"}),
    "opt, narrow table": (
        OPT | dict(do_layer_norm_before=False, word_embed_proj_dim=24),
        {"model.embedding_scale": None},
    ),
    "roberta": (ROBERTA, {"model.norm_epsilon": 1e-12}),
    "distilbert": (DISTILBERT, {"model.norm_epsilon": 1e-5}),
    "electra": (ELECTRA, {"model.activation": "gelu_tanh"}),
    "mt5": (T5, {"model.embedding_scale": None}),
    "mt5, tied": (T5, {"model.embedding_scale": None}),
    "umt5": (T5, {"model.embedding_scale": 1.0}),
    "bart": (BART, {"model.embedding_norm": False}),
    "mbart": (BART | {"scale_embedding": True}, {"model.embedding_scale": 1.0}),
    "m2m_100": (BART, {"model.embedding_scale": 1.0}),
    "pegasus": (BART | {"decoder_start_token_id": 0}, {"model.activation": "relu"}),
}
ENCODERS = "bert", "roberta", "distilbert", "electra", "modernbert"
# Of each family one, with its windows and patterns of layers; and one whose tokens are not all
# written, one of many ends.
WRITERS = [name for name in MODELS if name not in ENCODERS and "," not in name]
WRITERS += ["marian, scaled", "llama, each head its own keys"]


@functools.cache
def _perturbed(name):
    """A model in which no bias is 0 and no scale 1, which would hide lost and swapped ones."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(re.split("[ ,]", name)[0], **MODELS[name][0])
    kind = "MaskedLM" if name in ENCODERS else "CausalLM"
    kind = "Seq2SeqLM" if config.is_encoder_decoder else kind
    model = getattr(transformers, f"AutoModelFor{kind}").from_config(config).eval()
    if name in ("t5 1.1", "mt5"):  # has a head of its own
        model.lm_head.weight = torch.nn.Parameter(torch.randn(V, 64))
    with torch.no_grad():
        for path, tensor in [*model.named_parameters(), *model.named_buffers()]:
            fixed = "inv_freq|embed_scale"
            if name.startswith(("marian", "pegasus", "m2m_100")):  # whose positions are sinusoids
                fixed += "|embed_positions"
            if tensor.is_floating_point() and not re.search(fixed, path):
                tensor.add_(0.1 * torch.randn_like(tensor))
    if name == "marian, scaled":  # as OPUS-MT's, which never write their pad; here more than that
        model.generation_config.bad_words_ids = [[i] for i in range(30, V)]
    return model


class Imported(NamedTuple):
    """The folder `theirs`, and the work directory made of it, with its run and parameters."""

    theirs: Path
    workdir: Path
    run: Any
    params: Any

    def config(self, changes):
        """The config, with other settings."""
        return load(str(self.workdir / "config.json"), changes)


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """A function from the name of a model."""

    @functools.cache
    def run(name):
        folder = tmp_path_factory.mktemp("model")
        theirs, ours = folder / "theirs", folder / "ours"
        _perturbed(name).save_pretrained(theirs)
        words = {f"w{n}": n for n in range(V)} | {"w3": 3}
        library = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w3"))
        library.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        library.save(str(theirs / "tokenizer.json"))
        names = {"unk_token": "w3"}
        if name in ENCODERS:
            names |= {"cls_token": "w1", "sep_token": "w2", "mask_token": "w4"}
        (theirs / "tokenizer_config.json").write_text(json.dumps(names))
        codes: Any = ("w20", "w21") if name in ("mbart", "m2m_100") else ()
        assert commands.import_(ours, str(theirs), *codes) == 0
        return Imported(theirs, ours, *_opened(ours))

    return run


def _opened(workdir):
    """The run of a work directory, and its parameters."""
    with built(load(str(workdir / "config.json")), workdir) as run:
        folders = restore.find(run, workdir, None)
        return run, restore.load_parameters(folders, run.abstract_state.params)


def _batch(lengths=LENGTHS):
    generator, length = np.random.default_rng(0), max(lengths)
    batch = {}
    for side in ("inputs", "targets"):
        real = np.stack([np.arange(length) < n for n in lengths]).astype(np.int32)
        ids = generator.integers(6, V - 2, real.shape).astype(np.int32)
        batch |= {
            side: ids * real,
            f"{side}_segment_ids": real,
            f"{side}_positions": np.arange(length, dtype=np.int32)[None] * real,
        }
    return batch


def _ours(run, params, batch):
    logits = jax.jit(lambda params, batch: run.outputs(params, batch, None, ())[0].arrays())
    with jax.default_matmul_precision("highest"), use(run.mesh):
        return np.asarray(logits(params, batch))


def _theirs(model, batch, bos):
    with torch.no_grad():
        return _forward(model, batch, bos).numpy()


def _forward(model, batch, bos):
    def tensor(x):
        return torch.tensor(np.asarray(x)).long()

    shifted = np.roll(batch["targets"], 1, axis=1)
    shifted[:, 0] = bos
    real = {side: tensor(batch[f"{side}_segment_ids"]) for side in ("inputs", "targets")}
    if model.config.is_encoder_decoder:
        return model(
            input_ids=tensor(batch["inputs"]),
            attention_mask=real["inputs"],
            decoder_input_ids=tensor(shifted),
        ).logits
    if type(model).__name__.endswith("MaskedLM"):
        return model(tensor(batch["inputs"]), attention_mask=real["inputs"]).logits
    return model(tensor(shifted), attention_mask=real["targets"]).logits


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers_and_not_by_chance(imported, name):
    one, batch = imported(name), _batch()
    theirs = _theirs(_perturbed(name), batch, one.run.model.config.bos_id)
    side = "inputs" if name in ENCODERS else "targets"
    real = batch[f"{side}_segment_ids"] > 0
    largest = np.abs(theirs[real]).max()
    assert np.abs(_ours(one.run, one.params, batch) - theirs)[real].max() <= 1e-5 * largest
    for changes in MODELS[name][1:]:
        with built(one.config(changes), one.workdir) as other:
            wrong = _ours(other, one.params, batch)
        assert np.abs(wrong - theirs)[real].max() > 1e-4 * largest, changes


@pytest.mark.parametrize("name", ["gpt2", "bert", "t5 1.1", "marian, scaled"])
def test_a_reference_is_compared_block_by_block(imported, name, tmp_path, monkeypatch, capsys):
    """As the script of docs/using.md writes it; what is changed in it is named."""
    theirs, file = imported(name).theirs, tmp_path / "reference"
    script = next(text for kind, text in blocks(ROOT / "docs/using.md") if kind == "python")
    monkeypatch.setattr(sys, "argv", ["reference.py", str(theirs), str(file)])
    if name != "gpt2":  # the second row is 18 tokens and padding
        mask = ', "attention_mask": (torch.arange(64) < 50).long().view(2, 32)}'
        script = script.replace(".view(2, 32)}", f".view(2, 32){mask}")
    exec(script, {})
    flags = str(theirs), None, None, str(file)
    capsys.readouterr()
    assert commands.import_(tmp_path / "ours", *flags) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "It computes" in line)
    assert float(re.findall(r"is (\S+) of its largest", line)[0]) < 1e-5
    reference = files.load_file(file)
    assert all(block in line for block in reference if not re.search("ids|mask", block))
    changed = [block for block in reference if re.search(r"states\.[12]$|logits", block)]
    assert len(changed) in (3, 5)
    for block in changed:
        wrong = reference[block] * torch.linspace(1, 1.001, reference[block].shape[-1])
        files.save_file(reference | {block: wrong}, file)
        with pytest.raises(ValueError, match=f"{block} is the first that differs .* by .*e-04 of"):
            commands.import_(tmp_path / "other", *flags)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("name", MODELS)
def test_a_line_as_long_as_there_are_positions_is_read_whole(imported, name):
    # T5's have no end; 512 is what it was trained with.
    words = (512 if name.startswith(("t5", "mt5", "umt5")) else 40) - 2
    ((batch, _),) = imported(name).run.data.prompts([" ".join(["w11"] * words)])
    assert np.sum(batch["inputs"] == 11) == words


@pytest.mark.parametrize("name", MODELS)
def test_an_exported_model_loads_there_and_back(imported, name, tmp_path):
    workdir = imported(name).workdir
    # Or their sinusoids are as many more as ours may write.
    config = imported(name).config({"decode.extra_length": 0})
    if name == "opt, narrow table":
        with pytest.raises(ValueError, match="tied_embeddings='none' has no counterpart there"):
            commands.export(config, workdir, None, str(tmp_path / "theirs"))
        return
    assert commands.export(config, workdir, None, str(tmp_path / "theirs")) == 0
    original = _perturbed(name)
    model, report = type(original).from_pretrained(tmp_path / "theirs", output_loading_info=True)
    assert not any(report.values()), report
    if original.can_generate():
        one, other = (m.generation_config.bad_words_ids for m in (original, model))
        assert one == other
    before, after = original.state_dict(), model.state_dict()
    assert before.keys() == after.keys()
    for path in before:
        if torch.equal(before[path], after[path]):
            continue
        # The softmax cancels biases of keys, and texts have no types: see `convert`.
        if path.endswith("c_attn.bias"):
            one, other = (x[path].chunk(3) for x in (before, after))
            assert torch.equal(one[0], other[0]) and torch.equal(one[2], other[2])
        elif re.search("self_attn.q_(proj|norm).weight", path):  # scores divided by another root
            assert name in ("gemma2", "gemma3_text")
        elif path.endswith("norm.weight"):  # 1 + w, rounded
            assert name.startswith("gemma")
            torch.testing.assert_close(before[path], after[path], rtol=0, atol=1e-7)
        elif path.endswith("embed_positions.weight"):  # rows that no token reads
            assert torch.equal(before[path][2:], after[path][2:])
        else:
            lost = ("key.bias", "k_proj.bias", "k_lin.bias", "token_type_embeddings.weight")
            assert path.endswith((*lost, "position_embeddings.weight")), path
    side = "inputs" if name in ENCODERS else "targets"
    real = _batch()[f"{side}_segment_ids"] > 0
    one, other = (_theirs(m.eval(), _batch(), bos=1)[real] for m in (original, model))
    np.testing.assert_allclose(one, other, atol=1e-5 * np.abs(one).max())

    codes: Any = ("w20", "w21") if name in ("mbart", "m2m_100") else ()
    assert commands.import_(tmp_path / "ours", str(tmp_path / "theirs"), *codes) == 0
    again = _opened(tmp_path / "ours")[1]
    jax.tree.map(np.testing.assert_array_equal, again, imported(name).params)
    for name in ("special_ids.json", "tokenizer.json"):
        one, other = (json.loads((w / name).read_text()) for w in (workdir, tmp_path / "ours"))
        other |= {"post_processor": None} if name == "tokenizer.json" else {}  # which export adds
        assert one == other


def test_an_exported_marian_has_sinusoids_for_all_that_ours_reads_and_writes(imported, tmp_path):
    one, most, extra = imported("marian, scaled"), 70, 9
    changes = {
        "data.max_source_length": most,
        "data.row_source_length": most,
        "decode.extra_length": extra,
    }
    for name in ("tokenizer.json", "special_ids.json"):
        shutil.copy(one.workdir / name, tmp_path)
    checkpoint = str(one.workdir / "checkpoints" / "0")
    folder = tmp_path / "theirs"
    assert commands.export(one.config(changes), tmp_path, checkpoint, str(folder)) == 0
    model = transformers.MarianMTModel.from_pretrained(folder).eval()
    batch = _batch((most + extra,))
    theirs = _theirs(model, batch, one.run.model.config.bos_id)
    ours = _ours(one.run, one.params, batch)
    assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("architecture", ["encoder_decoder", "encoder_only", "decoder_only"])
def test_an_exported_tokenizer_gives_what_our_model_reads(tmp_path, kind, architecture):
    lines = ["the animal did not cross", "the street", "a"]
    tokenizer = train_tokenizer(kind, lines, 40, [MASK])
    tokenizer.save(tmp_path / "tokenizer.json")
    config = load(default.__file__, {"model.architecture": architecture})
    with built(config, tmp_path) as run:
        ((batch, numbers),) = run.data.prompts(lines)
    rows = zip(batch["inputs"], batch["inputs_segment_ids"] > 0, numbers, strict=True)
    ours = {int(number): row[real].tolist() for row, real, number in rows if number >= 0}
    (tmp_path / "theirs").mkdir()
    special_tokens.save(tmp_path / "theirs", tokenizer, {}, architecture)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    encoding = theirs(lines)
    assert encoding["input_ids"] == [ours[number] for number in range(len(lines))]
    assert {*encoding} == {"input_ids", "attention_mask"}


@pytest.mark.parametrize("method", ["greedy", "beam"])
@pytest.mark.parametrize("name", WRITERS)
def test_generation_is_token_for_token(imported, name, method):
    """Also past the windows, which are 5, and past the period of a pattern of layers.

    Prompts of several lengths stand in one batch of ours, behind padding.
    """
    workdir, room = imported(name).workdir, 9
    # Their lengths are penalised by another formula.
    changes = {"decode.beam_size": 4, "decode.length_penalty": 0.0} if method == "beam" else {}
    changes |= {"decode.method": method, "decode.extra_length": room}
    lines = [" ".join(f"w{n}" for n in row) for row in ([11, 12, 13], [20, 21, 22, 23, 24])]
    config = imported(name).config(changes)
    with jax.default_matmul_precision("highest"), built(config, workdir) as run:
        trained = restore.trained(run, workdir, restore.find(run, workdir, None))
        ours = [list(map(int, beams[0])) for beams in trained.generate(run.data.prompts(lines))]
        special_tokens = run.data.tokenizer.special
    model = copy.deepcopy(_perturbed(name))
    for number, line in enumerate(lines):
        ids = [int(word[1:]) for word in line.split()]
        decoder = not model.config.is_encoder_decoder
        prompt = [special_tokens.bos, *ids]
        if not decoder:
            prompt = [*special_tokens.source_before, *ids, special_tokens.eos]
            prompt += special_tokens.source_after
        limit = room if decoder else len(prompt) + room
        last = limit - 1 + (len(prompt) if decoder else 1)
        assert decoder or special_tokens.framed == name.startswith(("bart", "mbart", "m2m"))

        def as_ours(ids, scores, last=last):
            """What is never written has no share; the last place is eos, as likely as it is."""
            scores[:, [*special_tokens.never]] = -torch.inf
            scores = scores.log_softmax(-1)
            if ids.shape[1] == last:
                scores[:, torch.arange(scores.shape[1]) != special_tokens.eos] = -torch.inf
            return scores

        with torch.no_grad():
            tokens = model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=limit,
                do_sample=False,
                num_beams=4 if method == "beam" else 1,
                length_penalty=0.0,
                early_stopping="never" if method == "beam" else False,
                eos_token_id=list(special_tokens.ends),
                pad_token_id=special_tokens.eos,
                bad_words_ids=None,
                logits_processor=[as_ours],
                decoder_start_token_id=None if decoder else special_tokens.bos,
                forced_bos_token_id=next(iter(special_tokens.target_first), None),
                use_cache=False,  # which theirs sizes by the encoder's layers
                forced_eos_token_id=None,
            )[0].tolist()
        tokens = tokens[len(prompt) :] if decoder else tokens[1:]
        end = next(place for place, i in enumerate(tokens) if i in special_tokens.ends)
        assert ours[number] == tokens[:end]
        assert not {*special_tokens.never} & {*tokens}


# Without dropout, and as torch.optim.AdamW is called below.
ADAMW = {
    "model.dropout_rate": 0.0,
    "model.embedding_dropout_rate": 0.0,
    "model.attention_dropout_rate": 0.0,
    "optimizer.name": "adamw",
    "optimizer.schedule": "constant",
    "optimizer.learning_rate": 1e-3,
    "optimizer.warmup_steps": 0,
    "optimizer.beta2": 0.999,
    "optimizer.epsilon": 1e-8,
    "data.batch_size": len(LENGTHS),
    "data.streams": 1,
}


def test_fine_tuning_goes_the_same_way(imported):
    """Fifty steps from the same weights, on the same batches: every loss is the same."""
    one = imported("gpt2")
    model = copy.deepcopy(_perturbed("gpt2")).eval()  # eval: without dropout
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-8, weight_decay=0.0)
    generator, ours, theirs = np.random.default_rng(1), [], []
    with jax.default_matmul_precision("highest"), built(one.config(ADAMW), one.workdir) as run:

        def read(batch):
            return {key: x for key, x in batch.items() if key.startswith("targets")}

        state = run.new_state(read(_batch()))
        params = jax.tree.map(jax.numpy.copy, one.params)  # which the first step consumes
        state = dataclasses.replace(state, params=params)
        step = run.train_step()
        for _ in range(50):
            batch = _batch()
            ids = generator.integers(6, 30, batch["targets"].shape)
            batch["targets"] = ids * batch["targets_segment_ids"]
            state, metrics = step(state, read(batch))
            ours.append(float(metrics["loss"]))
            logits = _forward(model, batch, run.model.config.bos_id)
            targets = torch.tensor(np.asarray(batch["targets"])).long()
            loss = torch.nn.functional.cross_entropy(logits[targets > 0], targets[targets > 0])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            theirs.append(loss.item())
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    assert theirs[-1] < 0.9 * theirs[0]
