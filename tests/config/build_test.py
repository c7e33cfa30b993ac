"""A config becomes a Run, or one message before anything is read or compiled."""

import dataclasses

import jax
import numpy as np
import pytest
from absl import logging

from tests.data import conftest as data
from tests.data.datasets import SOURCE_OF, TINY
from tests.devices.fakes import devices
from transformer_jax.config.build import build, optimizer_settings
from transformer_jax.config.load import load
from transformer_jax.configs import default
from transformer_jax.models import FAMILIES
from transformer_jax.tasks import TASKS
from transformer_jax.training.update_rules import OPTIMIZERS

folder = data.folder
DEFAULT = default.__file__


def _config(folder, task=None, *texts, **changes):
    """texts: changes as of a command line. The names of others have two underlines for a dot.

    Without a task it is that of the default, and other ones may be among the changes.
    """
    source, name = SOURCE_OF[TASKS[task or "translation"].recipe.reads]
    settings = TINY | {"data.source": source, "data.dir": folder / name}
    settings |= {"data.cache_dir": folder / "cache"}
    if task:
        settings |= {"task.name": task, "model.architecture": next(iter(TASKS[task].heads))}
    settings |= {key.replace("__", "."): value for key, value in changes.items()}
    return load(DEFAULT, [*(f"{key}={value}" for key, value in settings.items()), *texts])


ENCODER, DECODER = "model.architecture=encoder_only", "model.architecture=decoder_only"
LABELLED = f"{ENCODER} task.name=classification data.source=labelled"
DECAYING, NO_PEAK = "optimizer.schedule=warmup_stable_decay", "optimizer.learning_rate=0"
MIXED = "data.mixture=(('text','folder','file',1.0),) data.train=()"
LEARNED, BEST = "model.positions=learned", "evaluate.checkpoint=best"
DYNAMIC = (
    "model.positions=rotary model.rotary_scaling=('dynamic','original_max_position_embeddings=15')"
)
RECURRENT = {"model.family": "recurrent"}
STATEFUL = "model.family=recurrent model.recurrence=lstm model.stateful=True"
RECURRENCES = {"encoder_decoder": "rnnsearch", "encoder_only": "lstm", "decoder_only": "lstmn"}
MEMORY = {"model.memory_length": 7, "model.positions": "relative"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("data.streams=3", "data.batch_size=4 .* data.streams=3"),
        ("train.accumulation_steps=3", "data.batch_size=4 .*accumulation_steps=3"),
        ("data.row_source_length=7", "data.row_source_length=7 .*max_source_length=8"),
        (f"{DECODER} data.row_target_length=7", "row_target_length=7 .*max_target_length=8"),
        ("data.max_target_length=1", "data.max_target_length=1"),
        ("data.train=()", "data.train is empty"),
        ("data.validation=()", "data.validation is empty.*data.validation_size"),
        ("data.test=('',)", r"data.test=\('',\) has an empty name"),
        ("data.validation_size=3", "data.validation_size=3 .*data.validation="),
        (f"{LABELLED} data.text_feature=a data.label_feature=a", "text_feature and .*both 'a'"),
        (f"{DECODER} model.memory_length=7 {MIXED}", "memory_length=7 .* no data.mixture"),
        (f"{STATEFUL} {DECODER} {MIXED}", r"stateful=True .* no data.mixture: .* to False or \(\)"),
        (f"{STATEFUL} {ENCODER}", "stateful=True .*'decoder_only' .*got 'encoder_only' and 'lstm'"),
        (f"{STATEFUL} {DECODER} model.recurrence=lstmn", "stateful=True .*or 'gru', got .*'lstmn'"),
        ("model.family=recurrent model.num_layers=1001", "num_layers=1001 .*more than 1000"),
        ("model.d_model=9", "model.d_model=9 .*model.num_heads=2.*model.head_dim"),
        (f"{LEARNED} model.max_length=15", "data.row_target_length = 16 .*model.max_length=15"),
        (f"{LEARNED} {DECODER} model.max_length=15", "row_target_length = 16 .*max_length=15"),
        (f"{DYNAMIC} {DECODER}", "row_target_length = 16 .* 15 positions of .*'dynamic'"),
        ("train.evaluate_every=3 checkpoint.every=2", "evaluate_every=3 .*checkpoint.every=2"),
        ("checkpoint.best_metric=x", "checkpoint.best_metric='x' .*validation/loss"),
        ("checkpoint.average_last=9", "checkpoint.average_last=9 .*keep_last=5"),
        (f"{BEST} checkpoint.best_metric=", 'checkpoint="best" needs a checkpoint.best_metric'),
        (
            f"{BEST} checkpoint.every=0 train.evaluate_every=2",
            "evaluate.checkpoint='best' .*checkpoint.every=0 .*train.evaluate_every=2",
        ),
        ("optimizer.weight_decay=0.1", "weight_decay=0.1 .*adamw"),
        ("optimizer.groups=(('embedding/*',-1.0,0.0),)", r"-1.0 .*'embedding/\*'"),
        (DECAYING, "1 to 96000 steps.*decay_steps=0"),
        (f"{DECAYING} optimizer.decay_steps=96001", "1 to 96000 steps.*decay_steps=96001"),
        ("optimizer.burn_in_steps=1e5", "burn_in_steps=100000 is not less than train.steps=100000"),
        (f"{NO_PEAK} optimizer.name=adamw_independent", "has none: use 'adamw'"),
        (f"{NO_PEAK} optimizer.weight_decay_power=2", "has none: use 'adamw' with 1"),
        (
            f"{DECAYING} optimizer.decay_shape=exponential",
            "'exponential' .*learning_rate=1.0 .*final_learning_rate=0.0: make that more than 0",
        ),
        (
            "optimizer.name=soap model.parameterization=mup model.base_width=16",
            "'mup' has no powers .* optimizer.name='soap': set it to",
        ),
        ("decode.num_samples=2", "decode.num_samples .*beam.*sample"),
        ("decode.stop=('',)", "decode.stop"),
        ("task.name=tagging", "'tagging' .*'encoder_decoder', .*translation.*'encoder_only'"),
        (f"{ENCODER} task.name=causal_lm", "'causal_lm' .*masked_lm, .*tagging.*'decoder_only'"),
        (
            "model.family=recurrent train.diagnostics_every=5",
            "train.diagnostics_every=5 .* set it to 0, or.*'transf",
        ),
        (
            f"model.family=recurrent {ENCODER} model.recurrence=lstmn",
            "'lstmn' is for .*'decoder_only'; with 'encoder_only' .*'lstm' or '",
        ),
    ],
)
def test_a_config_that_cannot_be_is_refused_before_the_data_is_read(tmp_path, changes, message):
    config = _config(tmp_path / "nowhere", None, *changes.split())
    with pytest.raises(ValueError, match=message):
        build(config)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("data.batch_size=12", "data.batch_size=12 rows .*8 devices .mesh.data=8 "),
        (
            "data.batch_size=16 train.accumulation_steps=4 mesh.fsdp=4",
            "data.batch_size=16 / train.accumulation_steps=4 rows .*mesh.data=2 . mesh.fsdp=4",
        ),
        ("mesh.sequence=8", "data.row_source_length=12 tokens .*mesh.sequence=8"),
        (
            "mesh.sequence=8 data.packing=false data.max_target_length=9",
            "data.max_target_length=9 tokens .*mesh.sequence=8",
        ),
        ("optimizer.name=soap data.batch_size=8", "'soap' steps on one device, and the mesh has 8"),
    ],
)
def test_a_mesh_that_cannot_share_a_batch_is_refused(tmp_path, changes, message):
    config = _config(tmp_path / "nowhere", None, *changes.split())
    with pytest.raises(ValueError, match=message):
        build(config, devices=devices(8))


def test_devices_have_equal_parts_of_batches_to_score_too(folder):
    run = build(_config(folder, data__batch_size=8, evaluate__batch_size=3), devices=devices(8))
    assert run.mesh.shape["data"] == 8
    (batch, numbers) = run.data.split("test").batches[0]
    assert {rows.shape[0] for rows in batch.values()} == {8}
    assert sorted(numbers) == [-1] * 4 + list(range(4))


def test_text_is_read_in_as_many_parts_on_any_number_of_devices(folder):
    """Each part begins without memory, so more of them would make the loss larger."""
    changes = {"model.memory_length": 4, "model.positions": "relative", "data.packing": False}
    changes |= {"data.batch_size": 8, "evaluate.batch_size": 3}

    def read(count):
        config = _config(folder, "causal_lm", **changes)
        batches = build(config, devices=devices(count)).data.split("test").batches
        parts = [
            batch["targets"][row][batch["targets_segment_ids"][row] > 0]
            for row in range(3)
            for batch, _ in batches
        ]
        assert all(set(numbers[3:]) <= {-1} for _, numbers in batches)
        return [part.tolist() for part in parts]

    assert read(8) == read(1)


def test_sampling_draws_by_a_seed_of_its_own(folder):
    seeds = [
        build(_config(folder, seed=3, model__vocab_size=9, decode__seed=seed)).trained({}).seed
        for seed in (None, 0, 7)
    ]
    assert seeds == [3, 0, 7]


def test_a_vocabulary_larger_than_the_models_is_refused(folder):
    size = build(_config(folder)).data.tokenizer.vocab_size
    assert build(_config(folder, model__vocab_size=size)).data.tokenizer.vocab_size == size
    with pytest.raises(ValueError, match=f"{size} tokens.*model.vocab_size={size - 1}"):
        build(_config(folder, model__vocab_size=size - 1)).data.train_streams()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("jax_enable_x64", True),
        ("jax_default_prng_impl", "rbg"),
        ("jax_random_seed_offset", 7),
        ("jax_threefry_partitionable", False),
        ("jax_numpy_dtype_promotion", "strict"),
    ],
)
def test_settings_of_jax_with_which_a_config_is_another_run_are_refused(folder, name, value):
    before = getattr(jax.config, name)
    try:
        jax.config.update(name, value)
        with pytest.raises(ValueError, match=f"{name.upper()}={value} makes another run.*unset it"):
            build(_config(folder))
    finally:
        jax.config.update(name, before)


def test_a_model_of_a_given_size_needs_no_data_before_it_is_trained(tmp_path):
    run = build(_config(tmp_path / "nowhere", model__vocab_size=9))
    assert run.model.config.vocab_size == 9 and run.abstract_batch()["targets"].shape == (4, 16)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        run.train_streams()


def test_none_takes_its_value_from_another_key(folder):
    model = build(_config(folder, model__num_decoder_layers=3)).model.config
    assert (model.num_encoder_layers, model.num_decoder_layers) == (1, 3)
    assert model.head_dim == 4
    assert model.vocab_size == build(_config(folder)).data.tokenizer.vocab_size
    assert build(_config(folder, model__num_heads=3, model__head_dim=5)).model.config.head_dim == 5


def test_only_the_sides_that_the_model_reads_have_to_fit(folder):
    """A language model has no sources, and an encoder no targets."""
    build(_config(folder, "causal_lm", data__row_source_length=1))
    build(_config(folder, "masked_lm", data__row_target_length=1))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("task", [task for task in TASKS if task != "detection"])
def test_a_model_of_any_family_answers_what_the_task_asks(folder, task, family):
    """Logits of all tokens or labels; sets are told by Transformers alone."""
    changes = {"model.family": family}
    if family == "recurrent":
        changes["model.recurrence"] = RECURRENCES[next(iter(TASKS[task].heads))]
    run = build(_config(folder, task, **changes))
    assert run.task is TASKS[task]

    def logits(params, batch):
        return run.outputs(params, batch, None, ())[0].arrays()

    array = jax.eval_shape(logits, run.abstract_state.params, run.abstract_batch())
    outcomes = len(run.data.labels) if run.data.labels else run.data.tokenizer.vocab_size
    assert array.shape[-1] == outcomes


def test_memory_is_in_the_state_and_rows_go_on(folder):
    """Of the config's length in training, and of its own in scoring and in writing."""
    run = build(_config(folder, "causal_lm", **MEMORY, evaluate__memory_length=3))
    rows, layers = run.data.settings.batch_size, run.model.config.num_decoder_layers
    memory = run.abstract_state.memory
    assert memory["hidden"].shape == (rows, layers, 7, run.model.config.d_model)
    assert run.trained({}).memory(5)["real"].shape == (5, 3)
    assert run.model.config.context_length == 3 + 1
    streams = run.train_streams()
    _, second = next(streams), next(streams)
    assert np.any(second["targets_positions"][:, 0] > 0)
    assert build(_config(folder, "causal_lm")).abstract_state.memory == ()


def test_states_are_carried_where_the_config_says_so(folder):
    """By the same readers; otherwise a recurrent model begins each row anew, and texts begin."""
    others = RECURRENT | {"model.recurrence": "lstm", "model.memory_length": 7}
    plain = build(_config(folder, "causal_lm", **others))
    streams = plain.train_streams()
    assert not any(np.any(next(streams)["targets_positions"][:, 0]) for _ in range(3))
    assert plain.abstract_state.memory == ()
    others |= {"model.stateful": True, "evaluate.memory_length": 3}  # without effect
    run = build(_config(folder, "causal_lm", **others))
    rows, config = run.data.settings.batch_size, run.model.config
    memory = run.abstract_state.memory
    assert memory["hidden"].shape == (rows, config.num_decoder_layers, 1, 2 * config.d_model)
    assert run.trained({}).memory(5)["hidden"].shape[::2] == (5, 1)
    streams, alike = run.train_streams(), build(_config(folder, "causal_lm", **MEMORY))
    expected = alike.train_streams()
    for _ in range(3):
        jax.tree.map(np.testing.assert_array_equal, next(streams), next(expected))


@pytest.mark.parametrize("name", ["", "checkpoints/6"])
def test_a_run_takes_the_tokenizer_of_the_run_that_it_starts_from(folder, name):
    """Whether it names the other's work directory or a checkpoint in it; its own goes first."""
    other, target = folder / "other", folder / "own"
    for workdir in (other, target):
        workdir.mkdir()
    start = str(other / name)
    theirs = build(_config(folder, data__tokenizer__vocab_size=6)).data.tokenizer
    ours = build(_config(folder)).data.tokenizer
    theirs.save(other / "tokenizer.json")
    data = build(_config(folder, checkpoint__init_from=start), workdir=target).data
    assert data.tokenizer.fingerprint == theirs.fingerprint != ours.fingerprint
    ours.save(target / "tokenizer.json")
    data = build(_config(folder, checkpoint__init_from=start), workdir=target).data
    assert data.tokenizer.fingerprint == ours.fingerprint


def test_masked_language_modelling_needs_a_mask_in_the_tokenizer_that_it_takes_over(folder):
    build(_config(folder, "causal_lm")).data.tokenizer.save(folder / "tokenizer.json")
    message = "'masked_lm' needs a tokenizer with 1 .*< mask >.*checkpoint.init_from"
    with pytest.raises(ValueError, match=message):
        build(_config(folder, "masked_lm", checkpoint__init_from=str(folder)))


@pytest.mark.parametrize(
    ("changes", "width"),
    [
        ({"model.parameterization": "standard", "model.base_width": None}, 32),
        ({"model.parameterization": "standard_by_layer"}, 8),
        ({"model.parameterization": "mup"}, 8),
        ({"model.parameterization": "completep", "model.base_depth": 1}, 8),
        # It reads no base.
        (RECURRENT | {"model.parameterization": "mup"}, 32),
    ],
)
def test_noams_factor_is_of_the_base_where_the_parameterisation_does_the_rest(
    folder, changes, width
):
    wide = {"model.d_model": 32, "model.num_heads": 8, "model.base_width": 8}
    wide |= {"model.tied_embeddings": "none", "optimizer.warmup_steps": 4}
    # Vaswani et al. 2017, equation 3, at the end of warm-up.
    run = build(_config(folder, **(wide | changes)))
    np.testing.assert_allclose(run.schedule(3), (width * 4) ** -0.5, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ({"model.head_dim": 8}, []),
        ({"model.base_width": 32}, []),  # which is the width: nothing has grown
        ({"model.parameterization": "standard"}, []),
        # Heads of 8 at any width, or four of them, which are of 2 at the base?
        ({}, ["model.head_dim=None", "set it to the size that heads have at model.base_width=8"]),
        (
            {"model.head_dim": 8, "model.num_heads": 2},
            ["model.num_heads=2", "a multiple of", "= 4"],
        ),
        ({"model.head_dim": 8, "model.d_ff": 30}, ["model.d_ff=30", "= 4"]),
    ],
)
def test_sizes_that_cannot_have_come_from_the_base_are_told(folder, changes, warned, monkeypatch):
    warnings = []
    monkeypatch.setattr(logging, "warning", warnings.append)
    wide = {"model.d_model": 32, "model.num_heads": 4, "model.d_ff": 32, "model.base_width": 8}
    build(_config(folder, **(wide | {"model.parameterization": "mup"} | changes)))
    assert len(warnings) == bool(warned) and all(text in warnings[0] for text in warned)


def test_an_independent_decay_is_a_share_of_noams_own_peak(folder):
    changes = {"name": "adamw_independent", "schedule": "noam", "warmup_steps": 1}
    changes |= {"learning_rate": 5.0, "weight_decay": 0.3}
    config = _config(folder, **{f"optimizer__{key}": value for key, value in changes.items()})
    run = build(config)
    params = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), run.abstract_state.params)
    nothing = jax.tree.map(np.zeros_like, params)
    update = jax.jit(run.transform.update)
    updates, _ = update(nothing, run.transform.init(params), params)
    np.testing.assert_allclose(updates["decoder"]["feed_forward"]["up"], -0.3, rtol=1e-5)


@pytest.mark.parametrize("changes", [{}, {"batch_size": 4}, {"packing": False}])
def test_moments_have_halved_after_the_tokens_of_the_half_life(folder, changes):
    settings = {"batch_size": 8, "row_target_length": 32, "max_target_length": 16} | changes
    overrides = {f"data__{name}": value for name, value in settings.items()}
    config = _config(folder, optimizer__beta2_half_life=2048.0, **overrides)
    tokens = settings["batch_size"] * (16 if "packing" in changes else 32)
    assert optimizer_settings(config).beta2 ** (2048 / tokens) == pytest.approx(0.5)


@pytest.mark.parametrize("key", ["beta2", "beta2_half_life"])
def test_second_moments_too_long_for_float32_are_refused(folder, key):
    """The longest that are not give a step of one size on a gradient that never changes."""

    def settings(value):
        return optimizer_settings(_config(folder, **{f"optimizer__{key}": value}))

    with pytest.raises(ValueError, match="beta2=0.99999.*expected at most") as refusal:
        settings(1 - 9e-6 if key == "beta2" else 1e9)
    longest = settings(float(str(refusal.value).split()[-1]))
    rule = OPTIMIZERS["adam"].scale(
        dataclasses.replace(longest, beta1=0.0, epsilon=0.0), lambda: {}
    )
    state = rule.init({"w": np.float32(0)})
    for _ in range(3):
        update, state = rule.update({"w": np.float32(0.1)}, state)
        np.testing.assert_allclose(jax.tree.leaves(update), 1, rtol=2e-3)
