"""The Python API answers as the commands do, trains as they do, and fails in their words."""

import contextlib
import dataclasses
import fcntl
import gc
import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax as tj
from tests.defaults import SMALL
from tests.processes import printed
from tests.whole.command_line import records
from transformer_jax.runs.workdir import LOCK

SETTINGS = SMALL | {
    "data.max_source_length": 24,
    "data.max_target_length": 24,
    "data.row_source_length": 24,
    "data.row_target_length": 24,
    "data.batch_size": 8,
    "train.steps": 6,
    "train.log_every": 2,
    "train.evaluate_every": 3,
    "checkpoint.every": 3,
}
LINES = ["The cow is tired .", "The animal didn't cross the street because it was too wide ."]
TARGETS = ["Die Kuh ist müde .", "Das Tier überquerte die Straße nicht , weil sie zu breit war ."]


@pytest.fixture(scope="module")
def config(tmp_path_factory, compiled_once):
    folder = tmp_path_factory.mktemp("data")
    for split, count in {"train": 40, "validation": 20, "test": 4}.items():
        for language, lines in {"en": LINES, "de": TARGETS}.items():
            (folder / f"{split}.{language}").write_text("\n".join(lines * (count // 2)) + "\n")
    data = {"data.source": "text", "data.dir": str(folder), "data.cache_dir": str(folder / "cache")}
    return tj.load_config("configs/default.py", **SETTINGS, **data)


@pytest.fixture(scope="module")
def trained(config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "a"
    assert tj.train(config, folder)["status"] in ("finished", "plateaued")
    return folder


@pytest.fixture(scope="module")
def run(trained):
    return tj.load(trained)


def is_locked(folder) -> bool:
    with (folder / LOCK).open() as file, contextlib.suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    return True


def test_importing_takes_no_more_than_is_asked_for():
    code = (
        "import sys, transformer_jax as tj; dir(tj); print('jax' in sys.modules, 'load' in dir(tj))"
    )
    assert printed(sys.executable, "-c", code) == "False True\n"
    with pytest.raises(AttributeError, match="'loads'"):
        tj.loads  # noqa: B018


def test_a_loop_that_leaves_batches_out_makes_all_steps_and_goes_on_behind_its_last(
    config, tmp_path
):
    order = [jax.device_get(batch) for batch in tj.trainer(config, tmp_path / "order").batches]
    assert len(order) == config.train.steps  # so that a loop that trains on none has an end
    changes = [lambda batch: batch, dict, lambda batch: jax.tree.map(jnp.copy, batch)]
    for number, change in zip((1, 3, 5), changes, strict=True):
        trainer = tj.trainer(config, tmp_path / "a")
        next(trainer.batches)  # which is not trained on
        batch = next(trainer.batches)
        jax.tree.map(np.testing.assert_array_equal, batch, order[number])
        trainer.step(change(batch))
        trainer.save()
    for batch in trainer.batches:
        trainer.step(batch)
    assert int(trainer.state.step) == config.train.steps


def test_a_loop_of_ones_own_is_training_and_either_continues_the_other(config, trained, tmp_path):
    means = {}
    for steps in (2, 3):  # the second goes on where the first was saved
        # The first is left open, as by a cell that runs again.
        trainer = tj.trainer(config, tmp_path / "b")
        gc.collect()
        assert is_locked(tmp_path / "b")
        for batch, _ in zip(trainer.batches, range(steps), strict=False):
            metrics = trainer.step(batch)
            assert {name: float(value) for name, value in metrics.items()}["loss"] > 0
            means[int(trainer.state.step)] = trainer.means()
        trainer.save()
        ruined = jax.tree.map(lambda x: x * np.nan, trainer.state.params)
        trainer.state = dataclasses.replace(trainer.state, params=ruined)
        with pytest.raises(tj.Error, match=f"step {int(trainer.state.step)} is not finite"):
            trainer.save()
    trainer.close()
    assert not is_locked(tmp_path / "b")
    logged = {record["step"]: record for record in records(trained)}
    for step in (2, 4):
        assert means[step] == {name: logged[step][f"train/{name}"] for name in means[step]} != {}
    tj.train(config, tmp_path / "b")
    assert records(tmp_path / "b")[-1] == logged[6]
    equal = jax.tree.map(np.array_equal, tj.load(trained).params, tj.load(tmp_path / "b").params)
    assert all(jax.tree.leaves(equal))


def test_a_loop_of_ones_own_takes_nothing_from_what_is_saved(config, trained, tmp_path):
    workdir = shutil.copytree(trained, tmp_path / "a")
    config = tj.load_config(str(workdir / "config.json"), **{"train.steps": 8})
    scores = (workdir / "checkpoints" / "6" / "metrics.json").read_text()
    with (workdir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "train/loss": 1.0}\n')  # of a process that was killed
    trainer = tj.trainer(config, workdir)
    assert trainer.save() == workdir / "checkpoints" / "6"
    assert (workdir / "checkpoints" / "6" / "metrics.json").read_text() == scores
    assert records(workdir)[-1]["step"] == 6 and tj.load(workdir).results["steps"] == 6

    other = tj.trainer(config, workdir)
    for batch in trainer.batches:
        trainer.step(batch)
        if int(trainer.state.step) == 7:
            trainer.save()
            assert tj.load(workdir).results == {"status": "running", "steps": 7}
    other.step(next(other.batches))
    other.save()
    trainer.save()
    with pytest.raises(tj.Error, match="at step 7, and .* has a checkpoint of step 8"):
        other.save()
    trainer.close()
    with pytest.raises(tj.Error, match="this trainer is closed"):
        trainer.save()


def test_a_run_of_more_steps_is_trained_though_its_config_was_saved(trained, tmp_path):
    workdir = shutil.copytree(trained, tmp_path / "checkpoints" / "a")  # an ancestor of runs, too
    config = tj.load_config(str(workdir / "config.json"), **{"train.steps": 8})
    tj.trainer(config, workdir).save()
    assert tj.train(config, workdir)["steps"] == 8
    progress = json.loads((workdir / "checkpoints" / "8" / "progress.json").read_text())
    assert progress["scored"].keys() == {"validation", "test"}
    ((record,), _) = tj.load_runs(tmp_path / "checkpoints")
    assert record["steps"] == 8


def test_an_update_of_ones_own_moves_the_data_on(config, tmp_path):
    order = [jax.device_get(batch) for batch in tj.trainer(config, tmp_path / "order").batches]
    trainer = tj.trainer(config, tmp_path / "a")
    trainer.step(next(trainer.batches))
    for _ in range(2):
        next(trainer.batches)
        state = trainer.state
        trainer.state = dataclasses.replace(state, step=state.step + 1)
    next(trainer.batches)  # which is not trained on
    trainer.save()
    jax.tree.map(
        np.testing.assert_array_equal, next(tj.trainer(config, tmp_path / "a").batches), order[3]
    )

    trainer = tj.trainer(config, tmp_path / "b")
    for _ in range(2):
        trainer.step(next(trainer.batches))
    trainer.state = dataclasses.replace(trainer.state, step=trainer.state.step - 1)
    assert trainer.save().name == "1"  # as if one had not been made
    jax.tree.map(np.testing.assert_array_equal, next(trainer.batches), order[2])


def test_training_wants_the_main_thread(config, tmp_path):
    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(tj.train, config, tmp_path / "a")
        with pytest.raises(tj.Error, match="main thread alone"):
            training.result()
    assert not (tmp_path / "a").exists()


def test_answers_agree_with_one_another(run):
    batch = run.batch(LINES, TARGETS)
    logits, each, means = run.logits(batch), run.losses(batch, by_token=True), run.losses(batch)
    real = batch["targets_segment_ids"] > 0
    log_z = np.log(np.exp(logits.astype(np.float64)).sum(-1))
    target_logits = np.take_along_axis(logits, batch["targets"][..., None], -1)[..., 0]
    np.testing.assert_allclose(each[real], (log_z - target_logits)[real], rtol=1e-4)
    assert np.isnan(each[~real]).all() and means["token_loss"] == pytest.approx(each[real].mean())
    weights = run.attention(batch)["decoder", "cross_attention"].weights
    padding = batch["inputs_segment_ids"][:, None] == 0
    of_real = weights.sum((0, 2)) * real[..., None]  # one layer of two heads
    np.testing.assert_allclose(of_real.sum(-1), 2 * real, rtol=1e-5)
    assert padding.any() and (of_real * padding == 0).all()
    observed = run.observe(batch)["decoder"]
    assert observed.inputs.shape == (3, *batch["targets"].shape, run.config.model.d_model)


def test_a_split_by_token_has_the_mean_that_training_logs(run, trained):
    each = run.losses("validation", by_token=True)
    mean = run.losses("validation")["token_loss"]
    assert np.nanmean(np.concatenate(each)) == pytest.approx(mean, rel=1e-5)
    assert len(each) == 20 and mean == pytest.approx(records(trained)[-1]["validation/token_loss"])


def test_one_stands_alone_and_many_keep_their_order(run):
    both = run.batch(LINES[::-1], TARGETS[::-1])
    for row, (source, target) in enumerate(zip(LINES[::-1], TARGETS[::-1], strict=True)):
        alone = run.batch(source, target)
        for name, values in alone.items():
            np.testing.assert_array_equal(values[0], both[name][row, : values.shape[1]])
    assert run.batch(LINES).keys() == {"inputs", "inputs_segment_ids", "inputs_positions"}
    assert [run.generate(line) for line in LINES] == run.generate(np.array(LINES))


def test_other_parameters_may_take_the_place_of_the_trained_ones(trained):
    run = tj.load(trained, 3)
    before = run.losses("validation")["token_loss"]
    run.params = jax.tree.map(np.zeros_like, run.params)
    assert run.tokenizer is not None
    uniform = run.losses("validation")["token_loss"]
    assert uniform == pytest.approx(np.log(run.tokenizer.vocab_size), rel=1e-5) != before


def test_parameters_that_are_asked_may_be_held_in_bfloat16(config, run, tmp_path):
    overrides = {"evaluate.parameter_dtype": "bfloat16"}
    halved = tj.load(run.workdir, **overrides)
    rounded = jax.tree.map(lambda x: x.astype("bfloat16"), run.params)
    jax.tree.map(np.testing.assert_array_equal, halved.params, rounded)
    sizes = (sum(leaf.nbytes for leaf in jax.tree.leaves(each.params)) for each in (halved, run))
    assert 2 * next(sizes) == next(sizes)
    run.params, before = jax.tree.map(lambda x: x.astype(np.float32), halved.params), run.params
    assert halved.generate(LINES) == run.generate(LINES)  # they write what these numbers write
    run.params = before
    for train in (tj.train, tj.trainer):
        with pytest.raises(tj.Error, match="'bfloat16' is for a checkpoint that is asked"):
            train(tj.load_config(str(run.workdir / "config.json"), **overrides), tmp_path / "new")


def test_runs_become_records(trained, tmp_path):
    """A folder of Hugging Face beside them is none."""
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_size": 8}')
    results, metrics = tj.load_runs(trained.parent, tmp_path)
    (record,) = results
    assert record["run"] == "a" and record["steps"] == 6 and record["model.d_model"] == 8
    assert record["test/bleu"] == tj.load(trained).results["test/bleu"]
    assert [row["step"] for row in metrics] == [row["step"] for row in records(trained)]


@pytest.mark.parametrize(
    ("mistake", "words"),
    {
        "a folder": (lambda run: tj.load(run.workdir / "x"), "there is no folder"),
        "a checkpoint": (lambda run: tj.load(run.workdir, 4), "whole checkpoints: 3, 6"),
        "a change": (lambda run: tj.load(run.workdir, **{"seed": 3}), "seed: 0 -> 3"),
        "a key": (lambda run: tj.load_config("quickstart.py", modl=3), "no config key modl"),
        "no effect": (
            lambda run: tj.load_config("quickstart.py", **{"decode.top_k": 3}),
            "leave out what has no effect",
        ),
        "a file": (lambda run: tj.load_config("quickstrat.py"), "configs/quickstart.py"),
        "a split": (lambda run: run.losses("tset"), "one of train, validation, test"),
        "no vectors": (lambda run: run.embed("a"), "only a model with"),
        "columns": (lambda run: run.batch(LINES, TARGETS, TARGETS), "reads source, target"),
        "lengths": (lambda run: run.batch(LINES, TARGETS[:1]), "2, 1 examples"),
        "no targets": (lambda run: run.logits(run.batch(LINES)), "give `batch` all of source, t"),
        "train": (lambda run: run.losses("train"), "choose validation or test"),
        "no examples": (lambda run: run.batch([]), "at least one"),
        "another config": (
            lambda run: tj.train(tj.load_config("quickstart.py"), run.workdir),
            "belongs to another config",
        ),
        "no runs": (lambda run: tj.load_runs(run.workdir / "checkpoints"), "no runs in"),
    }.values(),
)
def test_a_mistake_is_one_error_in_the_words_of_the_commands(run, mistake, words):
    with pytest.raises(tj.Error, match=words):
        mistake(run)


def test_a_tokenizer_takes_texts_and_not_the_characters_of_one(run):
    with pytest.raises(TypeError, match="expected texts"):
        run.tokenizer.encode("text")  # pyright: ignore
