"""A config becomes a Run, or one message before anything is read or compiled."""

import flax.linen as nn
import jax
import numpy as np
import pytest

from configs import default
from transformer_jax import overrides
from transformer_jax.build import build
from transformer_jax.data.tokenizer import EOS_ID

DEFAULT = default.__file__
TINY = {
    "data.source": "text",
    "data.train": ("train",),
    "data.validation": ("validation",),
    "data.test": ("test",),
    "data.tokenizer.kind": "words",
    "data.max_source_length": 8,
    "data.max_target_length": 8,
    "data.row_source_length": 12,
    "data.row_target_length": 16,
    "data.batch_size": 4,
    "data.streams": 2,
    "model.num_layers": 1,
    "model.d_model": 8,
    "model.num_heads": 2,
    "model.d_ff": 16,
    "evaluate.batch_size": 3,
}


def _config(folder, **changes):
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    folders = {"data.dir": str(folder), "data.cache_dir": str(folder / "cache")}
    return overrides.load(DEFAULT, TINY | folders | changes)


@pytest.fixture
def folder(tmp_path):
    for split, count in (("train", 20), ("validation", 5), ("test", 4)):
        lines = [f"{split} {' '.join('abcd'[: 1 + n % 4])}" for n in range(count)]
        (tmp_path / f"{split}.en").write_text("".join(f"{line}\n" for line in lines))
        (tmp_path / f"{split}.de").write_text("".join(f"{line.upper()}\n" for line in lines))
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"model__d_model": 9}, ["model.d_model=9", "model.num_heads=2"]),
        ({"model__num_encoder_layers": 0}, ["num_encoder_layers=0"]),
        ({"model__dropout_rate": 1.0}, ["dropout_rate=1.0"]),
        ({"data__streams": 3}, ["data.batch_size=4", "data.streams=3"]),
        ({"train__accumulation_steps": 3}, ["data.batch_size=4", "accumulation_steps=3"]),
        ({"data__row_source_length": 7}, ["data.row_source_length=7", "max_source_length=8"]),
        ({"data__test": ()}, ["data.test is empty"]),
        ({"data__validation": ()}, ["data.validation is empty", "data.validation_size"]),
        ({"data__validation_size": 3}, ["data.validation_size=3", "data.validation="]),
        ({"data__max_target_length": 1}, ["data.max_target_length=1"]),
        (
            {"model__positions": "learned", "model__max_length": 15},
            ["data.row_target_length = 16", "model.max_length=15"],
        ),
        (
            {"model__positions": "learned", "model__max_length": 20},
            ["decode.extra_length = 58", "model.max_length=20"],
        ),
        ({"train__steps": 0}, ["train.steps", "0"]),
        ({"train__log_every": 0}, ["train.log_every", "0"]),
        ({"checkpoint__keep_last": 0}, ["checkpoint.keep_last=0"]),
        ({"checkpoint__average_last": 9}, ["checkpoint.average_last=9", "keep_last=5"]),
        ({"evaluate__batch_size": 0}, ["evaluate.batch_size=0"]),
        (
            {"evaluate__checkpoint": "best", "checkpoint__best_metric": ""},
            ["evaluate.checkpoint", "checkpoint.best_metric"],
        ),
        ({"decode__beam_size": 0}, ["decode.beam_size"]),
        ({"objective__label_smoothing": 1.0}, ["objective.label_smoothing=1.0"]),
        ({"objective__z_loss": -1.0}, ["objective.z_loss=-1.0"]),
        ({"optimizer__warmup_steps": -1}, ["warmup_steps"]),
        ({"optimizer__weight_decay": 0.1}, ["weight_decay=0.1", "adamw"]),
    ],
)
def test_a_config_that_cannot_be_is_refused_before_the_data_is_read(tmp_path, changes, parts):
    config = _config(tmp_path / "nowhere", **changes)
    with pytest.raises(ValueError) as error:
        build(config)
    assert all(part in str(error.value) for part in parts), error.value
    assert not (tmp_path / "nowhere").exists()


def test_missing_data_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        build(_config(tmp_path / "nowhere"))


def test_a_vocabulary_larger_than_the_models_is_refused(folder):
    size = build(_config(folder)).data.tokenizer.vocab_size
    assert build(_config(folder, model__vocab_size=size)).data.tokenizer.vocab_size == size
    with pytest.raises(ValueError, match=f"{size} tokens.*model.vocab_size={size - 1}"):
        build(_config(folder, model__vocab_size=size - 1)).data.train_streams()


def test_a_model_of_a_given_size_needs_no_data(tmp_path):
    assert build(_config(tmp_path / "nowhere", model__vocab_size=9)).model.config.vocab_size == 9


def test_none_takes_its_value_from_another_key(folder):
    model = build(_config(folder, model__num_decoder_layers=3)).model.config
    assert (model.num_encoder_layers, model.num_decoder_layers) == (1, 3)
    assert model.head_dim == 4
    assert model.vocab_size == build(_config(folder)).data.tokenizer.vocab_size


def test_d_model_must_divide_unless_head_dim_is_given(folder):
    with pytest.raises(ValueError, match=r"d_model=8.*num_heads=3.*head_dim"):
        build(_config(folder, model__num_heads=3))
    assert build(_config(folder, model__num_heads=3, model__head_dim=5)).model.config.head_dim == 5


def test_training_batches_have_the_announced_shapes(folder):
    for packing in (True, False):
        data = build(_config(folder, data__packing=packing)).data
        batch, announced = next(data.train_streams()), data.abstract_batch()
        assert {k: (v.shape, v.dtype) for k, v in batch.items()} == {
            k: (v.shape, v.dtype) for k, v in announced.items()
        }


def test_held_out_examples_are_the_last_of_train_and_not_trained_on(folder):
    whole = build(_config(folder)).data._train_and_held_out[0]
    data = build(_config(folder, data__validation=(), data__validation_size=6)).data
    train, held_out = data._train_and_held_out
    assert {k: train[k] + held_out[k] for k in whole} == whole
    assert len(held_out["source"]) == 6
    assert data.split("validation").examples == held_out


def test_a_split_numbers_its_examples(folder):
    split = build(_config(folder)).data.split("test")
    numbers = np.concatenate([number for _, number in split.batches])
    assert sorted(numbers[numbers >= 0]) == list(range(len(split.examples["source"])))


def test_sources_are_cut_and_end_with_eos(folder):
    data = build(_config(folder)).data
    batches = data.source_batches(["train a", "train" + " a" * 50])
    rows = {
        int(number): row[row_segments > 0]
        for batch, numbers in batches
        for number, row, row_segments in zip(
            numbers, batch["inputs"], batch["inputs_segment_ids"], strict=True
        )
    }
    assert len(rows[0]) == 3 and len(rows[1]) == 8
    assert rows[0][-1] == rows[1][-1] == EOS_ID


def test_a_saved_tokenizer_serves_without_the_training_data(folder):
    run = build(_config(folder))
    run.data.tokenizer.save(folder / "tokenizer.json")
    elsewhere = _config(folder / "nowhere")
    again = build(elsewhere, folder / "tokenizer.json")
    assert again.data.tokenizer.fingerprint == run.data.tokenizer.fingerprint
    assert again.model == run.model


def test_dropout_follows_the_key_and_none_is_deterministic(folder):
    run = build(_config(folder, model__dropout_rate=0.5))
    batch = jax.device_put(next(run.data.train_streams()))
    params = nn.meta.unbox(run.init(jax.random.key(0), batch))
    plain, first, second = (
        np.asarray(run.apply(params, batch, key))
        for key in (None, jax.random.key(1), jax.random.key(2))
    )
    np.testing.assert_array_equal(plain, run.apply(params, batch, None))
    np.testing.assert_array_equal(first, run.apply(params, batch, jax.random.key(1)))
    assert not np.allclose(plain, first) and not np.allclose(first, second)


def test_decoding_functions_agree_with_the_model(folder):
    """The first step's logits are those that `apply` gives for the first target."""
    run = build(_config(folder))
    batch, _ = run.data.split("test").batches[0]
    batch = jax.device_put(batch)
    params = nn.meta.unbox(run.init(jax.random.key(0), batch))
    context, cache = run.start(params, batch, 4)
    bos = np.full((3,), run.model.config.bos_id, np.int32)
    logits, _ = run.step(params, context, cache, bos, np.int32(0))
    np.testing.assert_allclose(logits, run.apply(params, batch, None)[:, 0], atol=1e-5)
