"""A checkpoint is used with the config, tokenizer and labels that it was trained with, or not."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.checkpoint.states import save_powers
from transformer_jax.checkpoint.checkpoints import Checkpoints, Origin
from transformer_jax.commands import restore
from transformer_jax.config.load import identity, load
from transformer_jax.configs import default

CHANGES = {"train.steps": 20, "model.residual": "post_ln", "optimizer.schedule": "constant"}
CONFIG = load(default.__file__, CHANGES)
ORIGIN = Origin(CONFIG.to_dict(), "data-1", "tokenizer-1", ("neg", "pos"))


def save(workdir, origin=ORIGIN):
    """The folder of a checkpoint in the work directory."""
    checkpoints = Checkpoints(workdir / "checkpoints", keep_last=1, best_metric="")
    state = {"params": np.zeros(1)}
    checkpoints.save(20, state, {}, origin, {}, scheduled=True, records=0)
    checkpoints.close()
    return workdir / "checkpoints" / "20"


def check(workdir, folder, changes=(), tokenizer="tokenizer-1", labels=ORIGIN.labels):
    config = load(default.__file__, CHANGES | dict(changes))
    data = SimpleNamespace(tokenizer_fingerprint=tokenizer, labels=labels)
    run: Any = SimpleNamespace(data=data, identity=identity(config))
    restore.check(run, workdir, folder)


@pytest.mark.parametrize(
    ("at_hand", "parts"),
    [
        (
            {"changes": {"model.residual": "b2t"}},
            ["config.json", "@/config.json there\n  model.residual: 'post_ln' -> 'b2t'"],
        ),
        ({"changes": {"train.steps": 10}}, ["config.json", "train.steps: 20 -> 10"]),
        (
            {"tokenizer": "tokenizer-2"},
            ["tokenizer.json", "tokenizer-1 -> tokenizer-2", "its special_ids.json"],
        ),
        (
            {"labels": ("pos", "neg")},
            ["labels.json", "@/labels.json there (label 1: 'neg' -> 'pos')"],
        ),
        ({"labels": ("neg", "pos", "so")}, ["labels.json", "(label 3: None -> 'so')"]),
    ],
)
def test_a_work_directory_that_has_changed_is_named_with_its_remedy(tmp_path, at_hand, parts):
    folder = save(tmp_path)
    with pytest.raises(ValueError) as error:
        check(tmp_path, folder, **at_hand)
    message = str(error.value)
    assert f"{tmp_path}/{parts[0]} is not what the checkpoint {folder} was" in message
    assert all(part.replace("@", str(folder)) in message for part in parts), message


def test_other_examples_than_those_of_earlier_scores_are_told(tmp_path, caplog):
    folder = save(tmp_path, dataclasses.replace(ORIGIN, scored={"validation": "a"}))
    restore.warn_of_scores(folder, {"validation": "a", "test": "b"})
    assert not caplog.messages
    restore.warn_of_scores(folder, {"validation": "b"})
    (line,) = caplog.messages
    assert line.startswith("data.validation has other examples than the scores up to step 20 ")


def test_a_checkpoint_from_elsewhere_may_be_of_another_training_but_of_no_other_model(tmp_path):
    workdir, folder = tmp_path / "own", save(tmp_path / "other")
    check(workdir, folder, {"seed": 5, "optimizer.learning_rate": 0.5})
    other_model = {"changes": {"model.activation": "gelu"}}
    others: list[Any] = [other_model, {"tokenizer": "tokenizer-2"}, {"labels": ("pos", "neg")}]
    for at_hand in others:
        with pytest.raises(ValueError, match="give the --workdir that the checkpoint belongs to"):
            check(workdir, folder, **at_hand)


def test_a_checkpoint_without_labels_is_one_of_a_task_without_labels(tmp_path):
    folder = save(tmp_path, dataclasses.replace(ORIGIN, labels=()))
    check(tmp_path, folder, labels=())
    assert not (folder / "labels.json").exists()


def test_the_checkpoints_that_are_asked_for_are_found(tmp_path):
    name = "validation/loss"
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep_last=3, best_metric=name)
    for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0)):
        save_powers(checkpoints, step, {name: loss})
    checkpoints.close()

    def find(which, default="last"):
        run: Any = SimpleNamespace(
            checkpoints=lambda workdir: checkpoints,
            checkpoint=SimpleNamespace(average_last=2),
            evaluate=SimpleNamespace(checkpoint=default),
        )
        return [folder.name for folder in restore.find(run, tmp_path, which)]

    assert find(None) == find("last", "best") == ["3", "2"]
    assert find("best") == find(None, "best") == ["2"]
    assert find("1") == find(str(tmp_path / "checkpoints" / "1")) == ["1"]
