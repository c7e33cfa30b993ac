"""A configuration that cannot work is refused when it is made, with a message that helps."""

import dataclasses

import pytest

from tests.models import tiny
from transformer_jax.models.layers.kernels import KERNELS

ROTARY = dict(positions="rotary")
LONGROPE = ("longrope", "short_factor=1,2", "original_max_position_embeddings=9")
OF_ONE = ("longrope", "short_factor=1,2,3,4", "original_max_position_embeddings=1", "factor=2")
BASE = dict(positions="rotary", window_rotary_base=5.0)
WINDOWS = dict(layer_pattern=("window",), window=5)
MUP = dict(parameterization="mup", base_width=8, tied_embeddings="none")
CUDNN = dict(attention_kernel="cudnn", dtype="bfloat16")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(parameterization="mup"), "'mup' needs model.base_width"),
        (dict(parameterization="completep", base_width=8), "'completep' needs model.base_depth"),
        (MUP | dict(init="gpt2"), "init='gpt2' says itself .*'mup'.*'xavier'"),
        (
            dict(parameterization="ntk", base_width=8),
            "model.tied_embeddings='all' makes one: set it to 'inputs' or 'none'",
        ),
        *(
            (dict(init=name), f"model.init='{name}' .* set it to 'inputs' or 'none'")
            for name in ("llama", "llama_depth", "speedrun")
        ),
        (dict(attention_kernel="cudnn"), "model.dtype='float32': set it to 'bfloat16'"),
        *((CUDNN | dict(head_dim=n), f"={n} .* multiple of 8 from 8 to 128") for n in (4, 20, 136)),
        (dict(num_kv_heads=3), "num_kv_heads=3 does not divide model.num_heads=2"),
        (dict(memory_length=5), "'decoder_only', got 'encoder_decoder'"),
        (
            dict(memory_length=5, architecture="decoder_only", positions="sinusoidal"),
            "'relative' or 'relative_by_layer' or 'distance', got 'sinusoidal'",
        ),
        (dict(positions="distance", attention_score="additive"), "attention_score='additive'"),
        (dict(positions="relative", attention_softcap=9.0), "leave it out, or .*'relative'"),
        (dict(attention_score="additive", attention_softcap=9.0), "leave it out, or .*'additive'"),
        (CUDNN | dict(attention_softcap=9.0), "'cudnn', which caps .*to 'xla' or 'splash'"),
        (ROTARY | dict(rotary_fraction=0.4), "rotary_fraction=0.4 of model.head_dim=8 turns 3"),
        (ROTARY | dict(rotary_fraction=0.1), "turns 0 channels: .* at least 2"),
        (ROTARY | dict(rotary_scaling=("ntk",)), "begins with 'ntk': .* 'linear', 'llama3'"),
        (
            ROTARY | dict(rotary_scaling=("linear", "factr=8")),
            "'factr=8' is not a number, .*are factor",
        ),
        (ROTARY | dict(rotary_scaling=("linear", "factor=a")), "'factor=a' is not a number"),
        (ROTARY | dict(rotary_scaling=("yarn",)), "lacks factor, original_max_position_embeddin"),
        (ROTARY | dict(rotary_scaling=OF_ONE), "'short_factor=1,2,3,4', .* divides by 0"),
        (ROTARY | dict(rotary_scaling=LONGROPE), "2 numbers short_factor, and 4 pairs"),
        (dict(layer_pattern=()), r"=\(\) names no layer: expected some of full, window"),
        (dict(layer_pattern=("full", "window")), "and model.window=None: set it to the number"),
        (dict(window=5), r"'full',\) has no layer with a window, so that model.window=5 has no"),
        (WINDOWS | dict(architecture="encoder_set"), "'encoder_set' tells stands in no order"),
        (dict(layer_pattern=("unturned",)), "'sinusoidal' turn none: set it to 'rotary'"),
        (WINDOWS | BASE | dict(positions="sinusoidal"), "base=5.0 has no effect"),
        (WINDOWS | BASE | dict(layer_pattern=("window_unturned",)), "base=5.0 has no effect"),
    ],
)
def test_what_does_not_go_together_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        tiny.config(**changes)


def test_what_goes_together_is_not_refused():
    for changes in (dict(context_length=1), *(CUDNN | dict(head_dim=n) for n in (8, 32, 128))):
        assert changes.items() <= dataclasses.asdict(tiny.config(**changes)).items()


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


@pytest.mark.parametrize(
    "change",
    [
        dict(positions="relative"),
        dict(attention_score="additive"),
        dict(attention_weights="relu"),
        dict(attention_dropout_rate=0.1),
    ],
)
@pytest.mark.parametrize("kernel", [name for name, row in KERNELS.items() if not row.plain])
def test_a_kernel_without_attention_weights_refuses_what_changes_them(kernel, change):
    ((key, value),) = change.items()
    with pytest.raises(ValueError, match=f"{key}={value!r} .*'{kernel}' .* the kernel to 'xla'"):
        tiny.config(attention_kernel=kernel, dtype="bfloat16", **change)
