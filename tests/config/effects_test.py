"""No setting is ignored in silence: refused where it was given, told where a file sets it."""

import pytest

from tests.tracked import CONFIGS
from transformer_jax.config import effects
from transformer_jax.config.load import flatten, load
from transformer_jax.configs import default
from transformer_jax.data.read.sources import SOURCES
from transformer_jax.tasks import TASKS

DEFAULT = default.__file__
ENCODER = "model.architecture=encoder_only"
DECODER = "model.architecture=decoder_only"
TEXT_TO_TEXT = "task.name=text_to_text"
MIXED = f"data.mixture=(('text','d','a',1),('json','e','b',2)) {DECODER}"


def check(*overrides):
    effects.check(load(DEFAULT, overrides), overrides)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ("decode.temperature=0.1", "decode.method='beam', only with 'sample'"),
        ("decode.beam_size=5 decode.method=sample", "decode.method='sample', only with 'beam'"),
        ("optimizer.final_learning_rate=1", "only with 'cosine' or 'linear' or 'warmup_"),
        ("optimizer.stable_steps=3 optimizer.schedule=linear", "only with 'halving'"),
        ("optimizer.beta1=0.5 optimizer.name=adafactor", "optimizer.name='adafactor'"),
        ("optimizer.decay_shape=cosine", "'noam', only with 'warmup_stable_decay'"),
        ("optimizer.beta2=0.9 optimizer.beta2_half_life=1e5", "beta2_half_life=True, only with F"),
        ("optimizer.beta2_half_life=1e5 optimizer.name=sgd", "optimizer.name='sgd', only with"),
        ("optimizer.weight_decay_power=2 optimizer.name=adamw", "optimizer.weight_decay=False"),
        ("train.ema_decay=0.9 optimizer.name=schedule_free", "optimizer.name='schedule_free'"),
        ("model.stateful=true", "model.family='transformer', only with 'recurrent'"),
        (
            f"evaluate.memory_length=3 model.stateful=true {DECODER} model.recurrence=lstm "
            "model.family=recurrent",
            "model.memory_length=",
        ),
        ("data.tokenizer.vocab_size=9 data.tokenizer.kind=bytes", "data.tokenizer.kind='bytes'"),
        ("data.tokenizer.kind=words checkpoint.init_from=w", "checkpoint.init_from='w'"),
        ("data.row_target_length=9 data.packing=false", "data.packing=False, only with True"),
        ("data.name=a/de-fr", "data.source='embedded', only with 'tfds'"),
        ("data.dir=d", "data.source='embedded', only with 'text' or 'scan'"),
        (f"evaluate.samples=('a',) {ENCODER}", "task.name='masked_lm', only with"),
        (f"data.text_feature=a data.source=labelled {ENCODER} task.name=classification", "'tsv'"),
        ("data.document_separator=a", "task.name='translation', only with 'masked_lm' or"),
        (f"data.dir=d {MIXED}", "data.source='embedded', only with 'text'"),
        (
            f"data.dir=d data.parts=(('a',1,'data.source=json','data.dir=e'),) {TEXT_TO_TEXT}",
            "data.source='embedded', only with",
        ),
        ("model.max_length=9", "model.positions='sinusoidal', only with 'learned'"),
        ("model.depth_exponent=0.5", "model.residual='post_ln', only with 'depth_scaled'"),
        ("model.norm_epsilon=0.1 model.norm=dyt", "model.norm='dyt', only with 'layer_norm' or"),
        ("model.pooling=first", "model.architecture='encoder_decoder', only with 'encoder_only'"),
        (
            f"model.qk_norm=true model.residual=hybrid_norm {DECODER}",
            "which norms queries and keys itself",
        ),
        (
            "model.embedding_norm=true model.residual=x0 model.encoder_residual=peri_ln",
            "which norms the embedding itself",
        ),
        ("model.norm=rms_norm model.residual=rezero model.encoder_residual=t_fixup", "no norms"),
        (f"model.norm_epsilon=0.1 model.residual=t_fixup {DECODER}", "which has no norms"),
        (f"model.encoder_residual=admin {DECODER}", "model.architecture='decoder_only'"),
        (f"model.num_layers=2 model.num_decoder_layers=3 {DECODER}", "num_decoder_layers=3"),
        (f"model.residual=admin model.encoder_residual=b2t {ENCODER}", "encoder_residual='b2t'"),
        (
            "model.residual=admin model.family=recurrent",
            "model.family='recurrent', only with 'transformer'",
        ),
        (f"model.tied_embeddings=none {ENCODER} task.name=tagging", "task.name='tagging'"),
        ("task.mask_rate=0.5", "task.name='translation', only with 'masked_lm'"),
        (f"data.row_source_length=9 {DECODER}", "task.name='causal_lm'"),
    ],
)
def test_what_is_given_without_effect_is_refused(overrides, reason):
    """The first of what is given; the others have one."""
    first, *others = overrides.split()
    key = first.partition("=")[0]
    with pytest.raises(ValueError) as error:
        check(first, *others)
    message = str(error.value)
    assert message.startswith(f"{key}=") and " has no effect with " in message and reason in message
    assert message.count("=") == 2 and "\n" not in message
    check(*others)


def test_what_each_part_sets_itself_has_no_effect():
    rows = """data.parts=(('a',1,"data.test=('b',)"),('c',1,"data.test=()"))"""
    with pytest.raises(ValueError, match="^data.test=.* no effect with data.parts, each of which"):
        check("data.test=('a',)", rows, TEXT_TO_TEXT)


def test_settings_without_effect_for_the_same_reason_are_named_together():
    message = "^decode.seed=1 and decode.top_k=5 have no effect with dec"
    with pytest.raises(ValueError, match=message):
        check("decode.top_k=5", "decode.seed=1")


@pytest.mark.parametrize(
    "overrides",
    [
        "decode.top_k=0",
        "decode.seed=None",
        "decode.top_k=5 decode.method=sample",
        "decode.method=greedy",
        "model.num_layers=2 model.num_encoder_layers=3",
        "model.depth_exponent=0.5 model.decoder_residual=depth_scaled",
        "model.embedding_norm=true model.encoder_residual=x0",
        f"model.norm_epsilon=0.1 model.residual=rezero model.qk_norm=true {DECODER}",
        f"model.norm=rms_norm model.residual=rezero {ENCODER}",
        f"model.qk_norm_over=heads model.residual=hybrid_norm {DECODER}",
        "model.qk_norm=true model.encoder_residual=hybrid_norm",
        "optimizer.decay_steps=3 optimizer.schedule=warmup_stable_decay",
        "optimizer.weight_decay_power=2 optimizer.groups=(('encoder/*',1.0,0.1),)",
        # An encoder embeds, whatever it is trained for.
        f"model.pooling=first {ENCODER} task.name=tagging",
        # What sets of a mixture and parts read.
        f"data.source=text data.text_feature=a {MIXED}",
        f"data.skip_bad_lines=true {MIXED}",
        f"data.document_separator= {MIXED}",
        f"data.dir=d data.parts=(('a',1,'data.source=json'),) {TEXT_TO_TEXT}",
        rf"data.skip_bad_lines=true data.parts=(('a',1,'data.source=\'json\''),) {TEXT_TO_TEXT}",
        f"data.name=a data.parts=(('a',1),('b',1,'data.source=tfds')) {TEXT_TO_TEXT}",
        f"data.prefix=a data.parts=(('a',1,'data.prefix=b'),('c',1)) {TEXT_TO_TEXT}",
        # Refused where it is looked for.
        "data.source=conll",
    ],
)
def test_the_default_and_what_has_an_effect_are_not_refused(overrides):
    check(*overrides.split())


def test_what_a_file_sets_is_told_and_not_refused():
    assert effects.notes(load(DEFAULT, {"decode.beam_size": 5})) == []
    config = load(DEFAULT, {"decode.beam_size": 5, "decode.method": "greedy"})
    effects.check(config, ["decode.method=greedy"])  # which alone was given
    (line,) = effects.notes(config)
    assert line == "decode.beam_size=5 has no effect with decode.method='greedy', only with 'beam'"


def test_a_slow_momentum_that_is_the_faster_is_told():
    """2.7 % of 243 steps are less than 6.58, log 0.5 / log 0.9, and those of 244 are not."""
    overrides = {"optimizer.name": "ademamix", "optimizer.warmup_steps": 0}
    assert effects.notes(load(DEFAULT, overrides | {"train.steps": 244})) == []
    (line,) = effects.notes(load(DEFAULT, overrides | {"train.steps": 243}))
    assert "half-life of 6.56 steps at train.steps=243" in line


def test_sources_that_are_their_targets_are_told():
    (line,) = effects.notes(load(DEFAULT, ["data.source_language=de"]))
    assert line.endswith("language are 'de': the input holds the answer")
    part = "data.parts=(('a',1),('b',1,'data.source_language=de'))"
    assert effects.notes(load(DEFAULT, [TEXT_TO_TEXT, part])) == [line]


def test_a_warmup_as_long_as_the_training_is_told():
    def lines(steps):
        return effects.notes(load(DEFAULT, {"train.steps": steps}))

    assert lines(4001) == []
    (line,) = lines(4000)
    assert "optimizer.warmup_steps=4000 is not less than train.steps=4000" in line


def test_rows_of_embeddings_that_a_draws_code_does_not_multiply_are_told():
    def lines(**model):
        return effects.notes(load(DEFAULT, {f"model.{key}": x for key, x in model.items()}))

    assert not lines(init="fan_in") and not lines(init="gpt2", embedding_scale=1.0)
    (line,) = lines(init="gpt2", d_model=64)
    assert (
        line.startswith("model.init='gpt2' ")
        and "embedding_scale=None multiplies them by 8" in line
    )


@pytest.mark.parametrize("kind", ["bpe", "words"])
def test_another_runs_tokenizer_is_told_whatever_the_config_says(kind):
    changes = {"checkpoint.init_from": "runs/w", "data.tokenizer.kind": kind}
    (line,) = effects.notes(load(DEFAULT, changes))
    assert "data.tokenizer" in line and "checkpoint.init_from='runs/w'" in line


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_of_the_repository_sets_nothing_without_effect(path):
    assert effects.notes(load(str(path))) == []


@pytest.mark.parametrize("task", TASKS)
def test_rows_name_keys_that_there_are(task):
    keys = flatten(default.get_config()).keys()
    source = next(name for name, rows in SOURCES.items() if TASKS[task].recipe.reads in rows)
    for architecture in TASKS[task].heads:
        settings = {"task.name": task, "model.architecture": architecture, "data.source": source}
        for name, (value, readers) in effects._choices(load(DEFAULT, settings)).items():
            assert value in readers
            assert set().union(*readers.values()) <= keys, name
