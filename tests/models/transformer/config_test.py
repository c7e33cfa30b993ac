"""A configuration that cannot work is refused when it is made, with a message that helps."""

import dataclasses

import pytest

from tests.models import tiny
from transformer_jax.models.layers.heads import HEADS
from transformer_jax.models.layers.kernels import KERNELS
from transformer_jax.models.transformer.config import ARCHITECTURES


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


def test_it_is_frozen_and_a_key_of_compiled_functions():
    with pytest.raises(dataclasses.FrozenInstanceError):
        tiny.config().d_model = 32  # pyright: ignore[reportAttributeAccessIssue]
    assert tiny.config() == tiny.config() and hash(tiny.config()) == hash(tiny.config())
    assert tiny.config(head_dim=8) == tiny.config()
