"""A configuration that cannot work is refused when it is made, with a message that helps."""

import dataclasses

import pytest

from tests.models import tiny


@pytest.mark.parametrize(
    ("key", "wrong", "near"),
    [
        ("architecture", "decoder_onl", "decoder_only"),
        ("encoder_residual", "post_nl", "post_ln"),
        ("decoder_residual", "deep_norm", "deepnorm"),
        ("attention_score", "dot_prod", "dot_product"),
        ("activation", "swigl", "swiglu"),
        ("norm", "layernorm", "layer_norm"),
        ("positions", "rotry", "rotary"),
        ("head", "class", "classes"),
        ("pooling", "firs", "first"),
        ("tied_embeddings", "decode", "decoder"),
        ("dtype", "bfloat", "bfloat16"),
    ],
)
def test_an_unknown_choice_names_the_key_the_value_and_a_near_one(key, wrong, near):
    with pytest.raises(ValueError, match=rf"model\.{key}='{wrong}'.*did you mean {near}\?"):
        tiny.config(**{key: wrong})


def test_an_unknown_choice_without_a_near_one_lists_them_all():
    with pytest.raises(ValueError, match="float32, bfloat16$"):
        tiny.config(dtype="zzz")


@pytest.mark.parametrize(
    "key",
    [
        "vocab_size", "num_encoder_layers", "num_decoder_layers", "d_model", "num_heads",
        "head_dim", "d_ff", "max_length",
    ],
)  # fmt: skip
def test_sizes_are_positive(key):
    for wrong in (0, -2):
        with pytest.raises(ValueError, match=rf"{key}={wrong}\b"):
            tiny.config(**{key: wrong})


@pytest.mark.parametrize(
    "key",
    [
        "dropout_rate", "embedding_dropout_rate", "attention_dropout_rate",
        "feed_forward_dropout_rate",
    ],
)  # fmt: skip
def test_rates_are_at_least_0_and_less_than_1(key):
    assert getattr(tiny.config(**{key: 0.0}), key) == 0.0
    for wrong in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match=f"{key}={wrong}"):
            tiny.config(**{key: wrong})


@pytest.mark.parametrize("wrong", [-0.1, 2.1, float("nan")])
def test_the_exponent_of_depth_lies_in_0_to_2(wrong):
    for right in (0.0, 2.0):
        assert tiny.config(depth_exponent=right).depth_exponent == right
    with pytest.raises(ValueError, match=f"depth_exponent={wrong}"):
        tiny.config(depth_exponent=wrong)


@pytest.mark.parametrize("wrong", [0.0, -1.0, 10.1, float("nan")])
def test_the_attention_gain_is_positive(wrong):
    for right in (0.5**0.5, 10.0):
        assert tiny.config(attention_gain=right).attention_gain == right
    with pytest.raises(ValueError, match=f"attention_gain={wrong}"):
        tiny.config(attention_gain=wrong)


def test_sinusoids_come_in_pairs():
    with pytest.raises(ValueError, match="even.*15"):
        tiny.config(d_model=15, num_heads=3)
    tiny.config(d_model=15, num_heads=3, positions="learned")


def test_rotary_channels_come_in_pairs():
    with pytest.raises(ValueError, match="even head size, got 5.*model.head_dim"):
        tiny.config(head_dim=5, positions="rotary")
    tiny.config(head_dim=6, d_model=15, positions="rotary")
    tiny.config(head_dim=5)


@pytest.mark.parametrize("head", ["classes", "tags"])
def test_labels_need_an_encoder_alone_and_a_number(head):
    for architecture in ("encoder_decoder", "decoder_only"):
        with pytest.raises(ValueError, match=f"{head}.*'encoder_only'.*got '{architecture}' and 3"):
            tiny.config(architecture=architecture, head=head, num_labels=3)
    with pytest.raises(ValueError, match="at least one label.* and 0"):
        tiny.config(architecture="encoder_only", head=head, num_labels=0)
    tiny.config(architecture="encoder_only", head=head, num_labels=1)


def test_it_is_frozen_and_a_key_of_compiled_functions():
    with pytest.raises(dataclasses.FrozenInstanceError):
        tiny.config().d_model = 32  # pyright: ignore[reportAttributeAccessIssue]
    assert tiny.config() == tiny.config() and hash(tiny.config()) == hash(tiny.config())
    assert tiny.config(head_dim=8) == tiny.config()
