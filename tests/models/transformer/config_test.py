"""A configuration that cannot work is refused when it is made, with a message that helps."""

import dataclasses

import pytest

from tests.models import tiny
from transformer_jax.models.layers.heads import HEADS
from transformer_jax.models.layers.kernels import KERNELS
from transformer_jax.models.transformer.config import ARCHITECTURES


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


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_head_stands_on_the_last_stack_of_its_kind_alone(architecture, head):
    on_decoder = architecture != "encoder_only"
    if on_decoder == (head == "tokens"):
        assert tiny.config(architecture=architecture, head=head, num_labels=3).head == head
        return
    fitting = "'encoder_decoder' or 'decoder_only'" if head == "tokens" else "'encoder_only'"
    with pytest.raises(ValueError, match=f"'{head}' needs .*={fitting}, got '{architecture}'"):
        tiny.config(architecture=architecture, head=head, num_labels=3)


@pytest.mark.parametrize("head", [name for name, row in HEADS.items() if row.labels])
def test_labels_need_a_number(head):
    with pytest.raises(ValueError, match=f"'{head}' needs at least one label, got 0"):
        tiny.config(architecture="encoder_only", head=head, num_labels=0)
    tiny.config(architecture="encoder_only", head=head, num_labels=1)


def test_a_context_is_at_least_one_token():
    assert tiny.config(context_length=1).context_length == 1
    with pytest.raises(ValueError, match="context of 0 tokens"):
        tiny.config(context_length=0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(parameterization="mup"), "'mup' needs model.base_width"),
        (dict(parameterization="completep", base_width=8), "'completep' needs model.base_depth"),
        (dict(parameterization="mup", base_width=0), "model.base_width=0 must be at least 1"),
        (
            dict(parameterization="ntk", base_width=8),
            "model.tied_embeddings='all' makes one: set it to 'inputs' or 'none'",
        ),
    ],
)
def test_a_parameterisation_has_its_base_and_tables_that_it_can_step(changes, words):
    with pytest.raises(ValueError, match=words):
        tiny.config(**changes)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_refuses_devices_that_it_does_not_run_on(kernel):
    config = tiny.config(attention_kernel=kernel, dtype="bfloat16")
    platforms = KERNELS[kernel].platforms
    for platform in ("cpu", "gpu", "tpu"):
        if platforms is None or platform in platforms:
            config.check_platform(platform)
            continue
        with pytest.raises(ValueError, match=f"'{kernel}' is for .*'{platform}': set it to 'xla'"):
            config.check_platform(platform)


@pytest.mark.parametrize("kernel", [name for name, row in KERNELS.items() if not row.any_score])
def test_a_kernel_of_products_alone_refuses_what_is_added_to_them(kernel):
    with pytest.raises(ValueError, match=f"'{kernel}' .* model.positions='relative' .* 'xla'"):
        tiny.config(attention_kernel=kernel, dtype="bfloat16", positions="relative")


@pytest.mark.parametrize("wrong", [0.0, -1e-6, 1.5, float("nan")])
def test_the_epsilon_of_norms_is_positive_and_small(wrong):
    assert tiny.config(norm_epsilon=1e-12).norm_epsilon == 1e-12
    with pytest.raises(ValueError, match=f"norm_epsilon={wrong}"):
        tiny.config(norm_epsilon=wrong)


def test_it_is_frozen_and_a_key_of_compiled_functions():
    with pytest.raises(dataclasses.FrozenInstanceError):
        tiny.config().d_model = 32  # pyright: ignore[reportAttributeAccessIssue]
    assert tiny.config() == tiny.config() and hash(tiny.config()) == hash(tiny.config())
    assert tiny.config(head_dim=8) == tiny.config()
