"""Old and new spellings of a config.json say the same, and what has no counterpart is refused."""

import pytest

from tests.models import tiny
from transformer_jax.tools.convert import FAMILIES
from transformer_jax.tools.convert.family import Settings

SIZES = dict(
    vocab_size=99,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=6,
    num_attention_heads=4,
    max_position_embeddings=64,
)
FULL, NEAR = "full_attention", "sliding_attention"


def ours(kind, **values):
    """The settings of a config.json."""
    values = {"model_type": kind, **SIZES, **values}
    theirs = Settings(values, "config.json", {})
    settings = FAMILIES[kind].settings(theirs)
    theirs.check_known(FAMILIES[kind].idle)
    return settings


def rope(theta, **more):
    return {"rope_type": "default", "rope_theta": theta, **more}


LLAMA_3 = dict(
    factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
)
# A family, and how old and new releases say the same.
SPELLINGS = {
    "theta": ("llama", dict(rope_theta=5e5), dict(rope_parameters=rope(5e5))),
    "theta left out": ("llama", {}, dict(rope_parameters=rope(1e4))),
    "llama3": (
        "llama",
        dict(rope_theta=5e5, rope_scaling=dict(type="llama3", **LLAMA_3)),
        dict(rope_parameters={**rope(5e5), "rope_type": "llama3", **LLAMA_3}),
    ),
    "yarn's factor": (
        "qwen2",
        dict(rope_scaling=dict(type="yarn", original_max_position_embeddings=16)),
        dict(
            rope_parameters={
                **rope(1e4), "rope_type": "yarn", "factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        ),
    ),
    "original length above": (
        "phi3",
        dict(
            rope_scaling=dict(type="su", short_factor=[1.5] * 8, long_factor=[2.0] * 8),
            original_max_position_embeddings=64,
        ),
        dict(
            rope_parameters={
                **rope(1e4), "rope_type": "longrope", "factor": 1.0, "short_factor": [1.5] * 8,
                "long_factor": [2.0] * 8, "original_max_position_embeddings": 64,
            },
        ),
    ),
    "phi3's yarn": (
        "phi3",
        dict(rope_scaling=dict(type="yarn", short_factor=[1.5] * 8, long_factor=[2.0] * 8)),
        dict(rope_scaling=dict(type="longrope", short_factor=[1.5] * 8, long_factor=[2.0] * 8)),
    ),
    "window left out": ("mistral", {}, dict(sliding_window=4096)),
    "no window": ("mistral", dict(sliding_window=None), dict(sliding_window=None)),
    "switched off": ("qwen2", dict(sliding_window=5), dict(layer_types=[FULL] * 6)),
    "last layers": (
        "qwen2",
        dict(use_sliding_window=True, sliding_window=5, max_window_layers=4),
        dict(
            use_sliding_window=True, sliding_window=5, layer_types=[FULL] * 4 + [NEAR] * 2
        ),
    ),
    "one in six": (
        "gemma3_text",
        dict(rope_theta=1e6, rope_local_base_freq=1e4, sliding_window_pattern=6),
        dict(
            rope_parameters={FULL: rope(1e6), NEAR: rope(1e4)}, layer_types=[NEAR] * 5 + [FULL]
        ),
    ),
    "one in two": ("gemma2", {}, dict(layer_types=[NEAR, FULL] * 3)),
    "tanh by its old name": ("gemma", dict(hidden_act="gelu"), dict(hidden_act="gelu_new")),
    "one base for both": (
        "olmo3",
        dict(rope_theta=1e4),
        dict(rope_parameters={FULL: rope(1e4), NEAR: rope(1e4)}),
    ),
    "a quarter": (
        "gpt_neox",
        dict(rotary_pct=0.5, rotary_emb_base=1e3, rope_theta=7.0),
        dict(rope_parameters=rope(1e3, partial_rotary_factor=0.5)),
    ),
    "every fourth unturned": (
        "smollm3", {}, dict(no_rope_layers=[1, 1, 1, 0, 1, 1], rope_theta=2e6)
    ),
    "every third full": (
        "modernbert",
        dict(global_rope_theta=160_000.0, local_rope_theta=1e4, global_attn_every_n_layers=3),
        dict(
            rope_parameters={FULL: rope(160_000.0), NEAR: rope(1e4)},
            layer_types=[FULL, NEAR, NEAR] * 2,
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "old", "new"), SPELLINGS.values(), ids=SPELLINGS)
def test_old_and_new_spellings_say_the_same(kind, old, new):
    assert ours(kind, **old) == ours(kind, **new)


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("mistral", {}, {"layer_pattern": ("window",), "window": 4096}),
        ("qwen2", dict(sliding_window=5), {"layer_pattern": ("full",), "window": None}),
        ("gemma2", {}, {"layer_pattern": ("window", "full"), "attention_softcap": 50.0}),
        ("gemma3_text", {}, {"window_rotary_base": 1e4, "rotary_base": 1e6}),
        ("gemma3_text", dict(sliding_window=512), {"window": 512}),
        (
            "olmo3",
            {},
            {"layer_pattern": ("window", "window", "window", "full")},
        ),
        ("modernbert", dict(local_attention=128), {"window": 65}),
        ("smollm3", {}, {"layer_pattern": ("full", "full", "full", "unturned")}),
        ("llama", dict(attention_bias=True), {"attention_bias": "all", "bias": False}),
        ("llama", dict(mlp_bias=True), {"attention_bias": "none", "bias": True}),
        ("gpt_neox", {}, {"rotary_fraction": 0.25, "residual": "parallel"}),
    ],
)
def test_what_is_left_out_means_what_their_class_takes(kind, values, expected):
    settings = ours(kind, **values)
    assert {name: settings[f"model.{name}"] for name in expected} == expected


REFUSED = [
    ("mistral", dict(layer_types=[FULL] * 6), "layer_types=.* has no counterpart"),
    ("qwen3", dict(attention_bias=True), "attention_bias=True has no counterpart"),
    ("qwen2", dict(layer_types=[NEAR] * 6), "which use_sliding_window denies"),
    ("qwen2", dict(layer_types=[FULL] * 5), "names 5 layers of 6"),
    ("gemma", dict(hidden_activation="silu"), "hidden_activation='silu' has no counterpart"),
    ("gemma", dict(use_bidirectional_attention=True), "use_bidirectional_attention=True has no"),
    ("gemma3_text", dict(attn_logit_softcapping=50.0), "attn_logit_softcapping=50.0 has no"),
    (
        "olmo3",
        dict(rope_parameters={FULL: rope(1e6), NEAR: {"rope_type": "linear", "factor": 2.0}}),
        "rope_type='linear' has no counterpart",
    ),
    ("olmo", dict(clip_qkv=8.0), "clip_qkv=8.0 has no counterpart"),
    ("phi", dict(qk_layernorm=True), "qk_layernorm=True has no counterpart"),
    ("gpt_neo", dict(num_layers=6, num_heads=4, attention_types=[[["global"], 5]]), "names 5"),
    ("opt", dict(ffn_dim=96, word_embed_proj_dim=0), "word_embed_proj_dim=0 is not made of whole"),
    ("opt", dict(ffn_dim=96, layer_norm_elementwise_affine=False), "elementwise_affine=False has"),
    ("electra", dict(embedding_size=16), "embedding_size=16 has no counterpart here, only 64"),
    ("roberta", dict(pad_token_id=0), "pad_token_id=0 has no counterpart"),
    ("roberta", dict(position_embedding_type="relative_key"), "'relative_key' has no counterpart"),
    ("modernbert", dict(norm_bias=True), "norm_bias=True has no counterpart"),
    ("smollm3", dict(use_sliding_window=True), "use_sliding_window=True has no counterpart"),
]


@pytest.mark.parametrize(("kind", "values", "words"), REFUSED)
def test_what_has_no_counterpart_is_refused_by_name(kind, values, words):
    with pytest.raises(ValueError, match=words):
        ours(kind, **values)


BART = dict(
    d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
    decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96,
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        ("bart", dict(normalize_before=True), "normalize_before=True has no counterpart"),
        ("bart", dict(extra_pos_embeddings=0), "extra_pos_embeddings=0 has no counterpart"),
        ("mbart", dict(add_final_layer_norm=False), "add_final_layer_norm=False has no"),
        ("bart", dict(decoder_attention_heads=2), "decoder_attention_heads=2 has no counterpart"),
        ("pegasus", dict(decoder_ffn_dim=32), "decoder_ffn_dim=32 has no counterpart"),
    ],
)
def test_sides_that_differ_and_old_keys_that_contradict_are_refused(kind, values, words):
    sizes = dict.fromkeys(SIZES, None)  # which they have not
    limits = {"vocab_size": 99, "max_position_embeddings": 64}
    with pytest.raises(ValueError, match=words):
        ours(kind, **{**sizes, **limits, **BART, **values})


OWN = {"attention_weights": "sink", "attention_gate": "head", "norm": "dyt", "residual": "x0"}


@pytest.mark.parametrize(("key", "value"), OWN.items())
def test_what_no_family_of_theirs_has_is_no_config_of_theirs(key, value):
    gpt2 = dict(residual="gpt2", architecture="decoder_only", positions="learned")
    gpt2 |= dict(activation="gelu_tanh", embedding_scale=1.0)
    assert FAMILIES["gpt2"].config(tiny.config(**gpt2), 9)
    with pytest.raises(ValueError, match=f"{key}='{value}' has no counterpart there, only "):
        FAMILIES["gpt2"].config(tiny.config(**(gpt2 | {key: value})), 9)
