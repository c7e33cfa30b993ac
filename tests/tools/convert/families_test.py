"""Old and new spellings of a config.json say the same, and what has no counterpart is refused."""

import copy
import dataclasses

import pytest

from tests.models import tiny
from transformer_jax.models.layers.attention import biases_of
from transformer_jax.models.transformer.config import TransformerConfig, stacks
from transformer_jax.tools.convert import FAMILIES
from transformer_jax.tools.convert.family import Settings
from transformer_jax.tools.convert.rotary import repeated

FULL, NEAR = "full_attention", "sliding_attention"
# Of every family, under all names that they have for them.
SIZES: dict[str, int] = dict.fromkeys(
    """n_embd n_positions vocab_size max_position_embeddings intermediate_size d_model d_kv d_ff
    encoder_ffn_dim decoder_ffn_dim ffn_dim dim hidden_dim head_dim""".split(),
    8,
)
_LAYERS = "n_layer n_layers num_hidden_layers num_layers encoder_layers decoder_layers".split()
SIZES |= dict.fromkeys(_LAYERS, 2)
_HEADS = """n_head n_heads num_heads num_attention_heads num_key_value_heads
    encoder_attention_heads decoder_attention_heads""".split()
SIZES |= dict.fromkeys(_HEADS, 4) | {"hidden_size": 32}  # of whose heads a quarter turns


def ours(kind, values, idle=()):
    """Our settings of a config.json that says no more than this. idle: keys of other families."""
    theirs = Settings(values, "config.json", {})
    settings = FAMILIES[kind].settings(theirs)
    theirs.check_known((*FAMILIES[kind].idle, *idle))
    return settings


def rope(theta, kind="default", **more):
    return {"rope_type": kind, "rope_theta": theta, **more}


LINEAR = {"type": "linear", "factor": 4.0}
FACTORS = dict(short_factor=[1.5] * 48, long_factor=[2.0] * 48)
LLAMA_3 = dict(
    factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
)
# By default the table of an electra is narrower than its stream, which is refused.
NEEDED = {"electra": {"embedding_size": 256}}
TYPES = ("rope_type", "type")  # of new releases and of old ones; new ones write old files with both
# What a config.json says in addition to sizes, by old and by new releases.
SAID = [
    *((kind, NEEDED.get(kind, {})) for kind in FAMILIES if FAMILIES[kind].name == kind),
    ("llama", dict(rope_theta=5e5)),
    ("llama", dict(rope_theta=5.0, rope_scaling={"rope_type": "default"})),
    ("llama", dict(rope_theta=5.0, rope_scaling=rope(6.0))),
    ("llama", dict(rope_theta=5.0, rope_parameters=rope(7.0))),
    *(("llama", dict(rope_theta=5e5, rope_scaling={key: "llama3", **LLAMA_3})) for key in TYPES),
    ("llama", dict(attention_bias=True)),
    ("llama", dict(mlp_bias=True)),
    ("mistral", dict(sliding_window=None)),
    ("qwen2", dict(sliding_window=5)),
    ("qwen2", dict(use_sliding_window=True, sliding_window=5, max_window_layers=4)),
    ("gemma3_text", dict(rope_theta=5e5, rope_local_base_freq=1e3, sliding_window_pattern=2)),
    ("gemma", dict(hidden_act="gelu")),
    ("gpt_neox", dict(rotary_pct=0.5, rotary_emb_base=1e3, rope_theta=7.0)),
    ("gpt_neox", dict(rotary_pct=0.5, rotary_emb_base=7.0, rope_scaling=LINEAR)),
    ("qwen2", dict(use_sliding_window=True, sliding_window=None, max_window_layers=1)),
    ("smollm3", dict(no_rope_layer_interval=3)),
    ("modernbert", dict(global_rope_theta=5e5, local_rope_theta=1e3, global_attn_every_n_layers=2)),
]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "values"), SAID)
def test_a_config_json_means_what_their_class_makes_of_it(kind, values):
    """Old spellings too, and what it leaves out; and all that their class writes is known."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoConfig.for_model(kind, **copy.deepcopy(values)).to_dict()
    needed = theirs.keys() & SIZES.keys() - {"num_key_value_heads"}
    assert ours(kind, {name: theirs[name] for name in needed} | values) == ours(kind, theirs)


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        (
            "llama",
            dict(rope_theta=5e5, rope_scaling={"type": "llama3", **LLAMA_3}),
            dict(rope_parameters=rope(5e5, "llama3", **LLAMA_3)),
        ),
        (
            "phi3",
            dict(rope_scaling=dict(type="yarn", **FACTORS)),
            dict(rope_scaling=dict(rope_type="longrope", **FACTORS)),
        ),
        (
            "qwen2",
            dict(rope_scaling=dict(type="yarn", original_max_position_embeddings=2)),
            dict(rope_parameters=rope(1e4, "yarn", factor=4.0, original_max_position_embeddings=2)),
        ),
        (
            "phi3",
            dict(rope_scaling=dict(type="su", **FACTORS), original_max_position_embeddings=8),
            dict(
                rope_parameters=rope(
                    1e4, "longrope", factor=1.0, original_max_position_embeddings=8, **FACTORS
                )
            ),
        ),
        ("olmo3", dict(rope_theta=1e4), dict(rope_parameters={FULL: rope(1e4), NEAR: rope(1e4)})),
        (
            "gemma3_text",
            dict(rope_parameters={FULL: rope(1e6), NEAR: rope(1e4)}),
            dict(rope_parameters={FULL: rope(1e6), NEAR: rope(1e4, type="default")}),
        ),
    ],
    ids="type,phi3's yarn,yarn's factor,original length above,one base,both keys".split(","),
)
def test_what_only_old_releases_write_has_its_old_meaning(kind, old, new):
    assert ours(kind, SIZES | old, SIZES) == ours(kind, SIZES | new, SIZES)


def test_large_whole_numbers_of_a_rotation_stay_whole():
    old = dict(rope_scaling=dict(type="linear", factor=2.0**20 + 1))
    assert ours("llama", SIZES | old, SIZES)["model.rotary_scaling"] == (
        "linear",
        f"factor={2**20 + 1}",
    )


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_dropout_which_is_of_training_alone_keeps_no_model_from_export(kind):
    changes = {} if kind == "gpt2" else dict(norm="rms_norm", bias=False, activation="swiglu")
    positions = "learned" if kind == "gpt2" else "rotary"
    config = tiny.config("pre_ln", architecture="decoder_only", positions=positions, **changes)
    rates = {name: 0.1 for name in vars(config) if name.endswith("dropout_rate")}
    assert len(rates) > 2
    unfit = FAMILIES[kind].unfit(config)
    assert FAMILIES[kind].unfit(dataclasses.replace(config, **rates)) == unfit


@pytest.mark.parametrize("kind", FAMILIES)
def test_settings_that_change_nothing_are_passed_over(kind):
    idle = {"model_type": kind, "pruned_heads": {}, "sliding_window": None, "use_cache": True}
    idle |= {"is_causal": True, "bos_token_id": 3, "_name_or_path": "x", "num_beams": 4}
    ours(kind, SIZES | idle, SIZES)


REFUSED = [
    ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights=False"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
    ("gpt2", {"activation_function": "tanh"}, "activation_function='tanh'"),
    ("bert", {"position_embedding_type": "relative_key"}, "'relative_key' has no counterpart"),
    ("bert", {"hidden_act": "relu"}, "hidden_act='relu'"),
    ("roberta", {"pad_token_id": 0}, "pad_token_id=0 has no counterpart"),
    ("electra", {"embedding_size": 16}, "embedding_size=16 has no counterpart here, only 32"),
    ("modernbert", {"norm_bias": True}, "norm_bias=True has no counterpart"),
    ("t5", {"dense_act_fn": "gelu"}, "dense_act_fn='gelu'"),
    ("t5", {"is_gated_act": True}, "is_gated_act=True"),
    ("t5", {"relative_attention_num_buckets": 64}, "relative_attention_num_buckets=64"),
    ("t5", {"feed_forward_proj": "gated-silu"}, "feed_forward_proj='gated-silu'"),
    ("t5", {"tie_word_embeddings": False, "scale_decoder_outputs": True}, "decoder_outputs=True"),
    ("marian", {"num_hidden_layers": 7}, "num_hidden_layers=7"),
    ("marian", {"decoder_vocab_size": 7}, "decoder_vocab_size=7"),
    ("marian", {"share_encoder_decoder_embeddings": 1.5}, "share_encoder_decoder"),
    ("marian", {"tie_word_embeddings": False}, "tie_word_embeddings=False"),
    ("bart", {"normalize_before": True}, "normalize_before=True has no counterpart"),
    ("bart", {"extra_pos_embeddings": 0}, "extra_pos_embeddings=0 has no counterpart"),
    ("bart", {"decoder_attention_heads": 2}, "decoder_attention_heads=2 has no counterpart"),
    ("mbart", {"add_final_layer_norm": False}, "add_final_layer_norm=False has no"),
    ("pegasus", {"decoder_ffn_dim": 32}, "decoder_ffn_dim=32 has no counterpart"),
    ("mistral", {"layer_types": [FULL] * 2}, "layer_types=.* has no counterpart"),
    ("qwen3", {"attention_bias": True}, "attention_bias=True has no counterpart"),
    ("qwen2", {"layer_types": [NEAR] * 2}, "which use_sliding_window denies"),
    ("qwen2", {"layer_types": [FULL] * 5}, "names 5 layers of 2"),
    ("smollm3", {"use_sliding_window": True}, "use_sliding_window=True has no counterpart"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 has no counterpart"),
    ("qwen3", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5"),
    ("m2m_100", {"pad_token_id": 0}, "pad_token_id=0 has no counterpart"),
    ("modernbert", {"rope_scaling": LINEAR}, "rope_scaling=.* has no"),
    ("detr", {"backbone_kwargs": {"output_stride": 16}}, "output_stride=16 has no counterpart"),
    ("gemma2", {"hidden_activation": "gelu"}, "hidden_activation='gelu' has no counterpart"),
    ("gemma", {"hidden_activation": "silu"}, "hidden_activation='silu' has no counterpart"),
    ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True has no"),
    ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0 has no"),
    *(
        (
            "olmo3",
            {"rope_parameters": {FULL: rope(1e6), NEAR: {key: "linear", "factor": 2.0}}},
            f"{key}='linear' has no counterpart",
        )
        for key in TYPES
    ),
    ("olmo", {"clip_qkv": 8.0}, "clip_qkv=8.0 has no counterpart"),
    ("phi", {"qk_layernorm": True}, "qk_layernorm=True has no counterpart"),
    ("gpt_neo", {"attention_types": [[["global"], 5]]}, "names 5"),
    ("opt", {"word_embed_proj_dim": 0}, "word_embed_proj_dim=0 is not made of whole"),
    ("opt", {"layer_norm_elementwise_affine": False}, "elementwise_affine=False has"),
    ("vit", {"qkv_bias": False}, "qkv_bias=False has no counterpart"),
    ("vit", {"patch_size": [8, 4]}, "patch_size=.* has no counterpart here, only squares"),
    ("vit", {"image_size": "x"}, "image_size='x' is not made of whole numbers"),
    ("detr", {"position_embedding_type": "learned"}, "position_embedding_type='learned'"),
    ("detr", {"num_channels": 1}, "num_channels=1 has no counterpart"),
    ("detr", {"auxiliary_loss": True}, "auxiliary_loss=True has no counterpart"),
    ("detr", {"dilation": True}, "dilation=True has no counterpart"),
    ("detr", {"decoder_ffn_dim": 7}, "decoder_ffn_dim=7 has no counterpart"),
    ("detr", {"backbone": "resnet26"}, "backbone='resnet26' has no counterpart"),
    *(
        ("detr", {"backbone_config": {"model_type": "resnet"} | backbone}, words)
        for backbone, words in (
            ({"hidden_sizes": [64, 128, 256, 1024]}, "backbone_config: hidden_sizes="),
            ({"downsample_in_bottleneck": True}, "downsample_in_bottleneck=True"),
            ({"depths": [3, "x"]}, "depths=.* is not made of whole numbers above 0"),
            ({"depths": []}, "depths=.* is not made of whole numbers above 0"),
            ({"layer_type": "wide"}, "layer_type='wide' has no counterpart"),
            ({"out_features": ["stage3"]}, "out_features=.*only the last stage"),
            ({"out_features": 4}, "out_features=4 .*only the last stage"),
            ({"kernel_size": 5}, "kernel_size=5 is not known here"),
        )
    ),
    *(
        (kind, values, words)
        for kind in FAMILIES
        for values, words in (
            ({"is_decoder": True}, "is_decoder=True has no counterpart"),
            ({"is_causal": False}, "is_causal=False has no counterpart"),
            ({"add_cross_attention": True}, "add_cross_attention=True has no counterpart"),
            ({"attention_temperature": 2.0}, "attention_temperature=2.0 is not known here"),
            ({"pruned_heads": {"0": [1]}}, "pruned_heads=.* is not known here"),
        )
    ),
]


@pytest.mark.parametrize(("kind", "values", "words"), REFUSED)
def test_what_has_no_counterpart_is_refused_by_name(kind, values, words):
    with pytest.raises(ValueError, match=words):
        ours(kind, SIZES | values, SIZES)


OWN = {"attention_weights": "sink", "attention_gate": "head", "norm": "dyt", "residual": "x0"}


@pytest.mark.parametrize(("key", "value"), OWN.items())
def test_what_no_family_of_theirs_has_is_no_config_of_theirs(key, value):
    gpt2 = dict(residual="gpt2", architecture="decoder_only", positions="learned")
    gpt2 |= dict(activation="gelu_tanh", embedding_scale=1.0)
    assert FAMILIES["gpt2"].config(tiny.config(**gpt2), 9)
    with pytest.raises(ValueError, match=f"{key}='{value}' has no counterpart there, only "):
        FAMILIES["gpt2"].config(tiny.config(**(gpt2 | {key: value})), 9)


# Settings of rotation, layers and biases, of which some families have some.
VARIANTS = [
    {},
    {"layer_pattern": ("window",), "window": 4},
    {"layer_pattern": ("window", "full"), "window": 4},
    {"layer_pattern": ("window", "full"), "window": 4, "window_rotary_base": 7.0},
    {"layer_pattern": ("window",), "window": 4, "rotary_scaling": ("linear", "factor=2")},
    {"layer_pattern": ("full", "unturned"), "window": None, "window_rotary_base": None},
    {"rotary_scaling": ("linear", "factor=2")},
    {"rotary_fraction": 0.5},
    {"rotary_base": 7.0},
    *({"attention_bias": name, "bias": bias} for name in (None, "all", "inward", "outward")
      for bias in (False, True)),
]  # fmt: skip
ROTARY = [kind for kind, row in FAMILIES.items() if row.ours.get("positions") == "rotary"]


@pytest.mark.parametrize("kind", ROTARY)
@pytest.mark.parametrize("variant", range(len(VARIANTS)))
def test_what_is_exported_comes_back_as_it_was_or_is_not_exported(kind, variant):
    family = FAMILIES[kind]
    theirs = {"num_key_value_heads": 4, "head_dim": 8} | SIZES
    base = ours(kind, theirs, SIZES)
    model = {key[6:]: value for key, value in base.items() if key.startswith("model.")}
    fields = {field.name for field in dataclasses.fields(TransformerConfig)} | {"residual"}
    plain = {key: value for key, value in model.items() if key in fields}
    config = tiny.config(**plain | VARIANTS[variant])
    assert variant or not family.unfit(config)
    if family.unfit(config):
        return
    back = ours(kind, family.config(config, 8))
    back = {key[6:]: value for key, value in back.items() if key.startswith("model.")}
    again = tiny.config(**plain | {key: value for key, value in back.items() if key in fields})
    for stack in stacks(config):
        layers = getattr(config, f"num_{stack}_layers")
        kinds, kinds_again = (repeated(one.layer_pattern, layers) for one in (config, again))
        assert kinds == kinds_again
    if "window" in kinds:
        assert config.window == again.window
        bases = [one.window_rotary_base or one.rotary_base for one in (config, again)]
        assert bases[0] == bases[1]
    for name in ("rotary_base", "rotary_scaling", "rotary_fraction", "bias"):
        assert getattr(config, name) == getattr(again, name)
    one, other = (biases_of(x.attention_bias, x.bias) for x in (config, again))
    assert (one.inward, one.outward) == (other.inward, other.outward)
