"""The command line end to end: train, evaluate and generate; and mistakes, which change nothing."""

import fcntl
import json
import re
import shutil

import jax
import numpy as np
import pytest

from tests.checkpoint.states import arrays_of
from tests.whole.command_line import call, files, message_of, piped, records, results
from transformer_jax.config.build import built
from transformer_jax.config.load import difference, load
from transformer_jax.devices.mesh import place
from transformer_jax.evaluation import trained
from transformer_jax.inspection import memory
from transformer_jax.runs.workdir import SCORED, read_metrics, scores

NEW = "--config=@/run.json --workdir=@/new"
RUN = "--workdir=@/run"
FORK = f"{NEW} --config.checkpoint.fork_from=@/run"


def test_training_leaves_results_and_files(folder):
    outcome, logged = results(folder / "run"), records(folder / "run")
    assert outcome["status"] == "finished" and outcome["steps"] == 6
    assert outcome["first_bad_step"] is None and outcome["spikes"] == []
    assert outcome["train/token_loss"] == logged[-1]["train/token_loss"]
    assert outcome["train/token_loss"] < outcome["unigram_entropy"] - 0.1
    assert {"test/bleu", "test/chrf", "test/exact_match", "test/loss"} <= outcome.keys()
    assert np.isfinite(outcome["validation/loss"])
    assert [record["step"] for record in logged] == [2, 4, 6]
    progress = (folder / "run" / "checkpoints" / "6" / "progress.json").read_text()
    assert json.loads(progress)["records"] == 3
    saved = load(str(folder / "run" / "config.json"))
    assert difference(saved, load(str(folder / "run.json"))) == []


def test_a_finished_run_shows_its_results_again(folder, tmp_path, capsys):
    """Without its checkpoints, so without anything to score again."""
    for name in ("config.json", "results.json", "samples.txt"):
        shutil.copy(folder / "run" / name, tmp_path)
    before = files(tmp_path)
    assert call(f"--workdir={tmp_path}") == 0
    output = capsys.readouterr().out
    assert "finished" in output and "bleu" in output and "reference" in output
    assert str(tmp_path) in output
    assert files(tmp_path) == before  # so the folder need not be one that can be written


def test_what_a_run_left_that_was_killed_after_its_last_save_goes(folder, tmp_path):
    """A deletion that had begun, and checkpoints that were still to be deleted."""
    workdir = shutil.copytree(folder / "run", tmp_path / "run")
    (workdir / "results.json").write_text(json.dumps({"status": "running"}))
    (workdir / "checkpoints" / "2.tmp").mkdir()
    shutil.copytree(workdir / "checkpoints" / "4", workdir / "checkpoints" / "5.tmp" / "4")
    flags = ("--config.checkpoint.keep_last=1", "--config.checkpoint.average_last=1")
    assert call(f"--workdir={workdir}", *flags) == 0
    assert results(workdir)["status"] == "finished"
    assert [path.name for path in (workdir / "checkpoints").iterdir()] == ["6"]


def test_evaluate_finds_what_training_found(folder, capsys):
    before = results(folder / "run")
    untested = {name: value for name, value in before.items() if not name.startswith("test/")}
    stale = {"test/of_a_metric_that_is_not_asked_for": 1.0}
    (folder / "run" / "results.json").write_text(json.dumps(untested | stale))
    assert call(f"--workdir={folder}/run", "--mode=evaluate") == 0
    assert "bleu" in capsys.readouterr().out
    after = results(folder / "run")
    assert after.keys() == before.keys()
    for name in ("test/loss", "test/bleu", "test/exact_match"):
        assert after[name] == pytest.approx(before[name], rel=1e-6)


def test_other_scores_than_the_last_checkpoints_own_are_shown_but_not_stored(
    folder, tmp_path, capsys
):
    workdir = shutil.copytree(folder / "run", tmp_path / "run")
    evaluate, before = (f"--workdir={workdir}", "--mode=evaluate"), files(workdir)
    assert call(*evaluate, "--config.evaluate.bleu_tokenizer=none") == 0
    assert call(*evaluate, "--checkpoint=4") == 0
    assert files(workdir) == before
    shutil.rmtree(workdir / "checkpoints" / "6")
    assert call(*evaluate) == 0
    output = capsys.readouterr().out
    assert output.count("exact_match") == 3 and "scores of step 4, not of 6" in output
    assert results(workdir) == results(folder / "run")


def test_generate_keeps_lines_in_order_without_the_data(folder, monkeypatch, caplog):
    (folder / "in.txt").write_text("a e\n\nb f c\r\nd")
    free = f"--config.data.dir={folder}/nowhere"
    arguments = [f"--workdir={folder}/run", "--mode=generate", free]
    call(*arguments, f"--input={folder}/in.txt", f"--output={folder}/out.txt")
    together = (folder / "out.txt").read_bytes().decode()
    lines = together.split("\n")
    assert len(lines) == 5 and lines[1] == lines[4] == ""

    assert "".join(piped(monkeypatch, "d", *arguments)) == f"{lines[3]}\n"
    assert "unknown" not in caplog.text
    piped(monkeypatch, "a cat\ndog\n", *arguments)
    assert caplog.text.count("unknown to this run's tokenizer") == 1
    assert "2 of 3 words, such as 'cat'" in caplog.text


# Mistakes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "changes", "parts"),
    [
        (
            NEW,
            "optimizer.groups=(('nowhere/*',0.1,0.0),)",
            "optimizer.groups | 'nowhere/*' | `inspect`",
        ),
        (f"{NEW} --mode=generate --input=@/t", "", "/new"),
        (f"{NEW} --mode=replay --step=1", "", "/new | train there first"),
        (f"{RUN}/checkpoints/6 --mode=evaluate", "", "its work directory, | /run, and 6 as"),
        (RUN, "seed=4", "seed: 3 -> 4"),
        (f"{RUN} --mode=evaluate --checkpoint=5", "", "5 | 2, 4, 6"),
        (f"{RUN} --mode=replay --step=7", "", "--step=N | 1 to 6 | 7"),
        (FORK, "", "made 6 steps | train.steps=6 leaves none | RUN/checkpoints/STEP"),
        (f"{FORK}where", "", "runwhere' is no work directory"),
        (FORK, "train.steps=9 model.d_ff=8 seed=4", "model.d_ff: 16 -> 8 | seed: 3 -> 4"),
        (FORK, "checkpoint.init_from=@/run", "checkpoint.init_from= | set one of them"),
    ],
)
def test_a_mistake_ends_in_one_message_before_anything_is_compiled_and_touches_nothing(
    folder, capsys, monkeypatch, flags, changes, parts
):
    """changes: of the config. parts: what the message has in it."""
    monkeypatch.setattr(memory, "compiled_step", None)
    (folder / "t").write_text("a\n")
    before = files(folder / "run")
    arguments = [flags, *(f"--config.{change}" for change in changes.split())]
    message = message_of(folder, capsys, " ".join(arguments))
    assert all(part in message for part in parts.split(" | ")), message
    assert len(message) < 1000
    assert files(folder / "run") == before


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (f"{NEW} --config.model.d_ff=2000000000", "training .* model.d_ff=2000000000"),
        (f"{RUN} --mode=generate --input=@/t --config.decode.extra_length=1000000000", "decoding"),
    ],
)
def test_what_cannot_fit_into_memory_is_refused_before_it_is_made(
    folder, capsys, limit, arguments, part
):
    (folder / "t").write_text("a\n")
    limit(2**30)
    assert re.search(part, message_of(folder, capsys, arguments))


def test_a_device_that_is_not_here_is_told_by_what_asks_for_it(folder, capsys, monkeypatch):
    def devices(*_):
        raise RuntimeError("Unable to initialize backend 'rocm': no such thing")

    monkeypatch.setenv("JAX_PLATFORMS", "gpu")
    monkeypatch.setattr(jax, "devices", devices)
    message = message_of(folder, capsys, NEW)
    assert "JAX finds no device of JAX_PLATFORMS='gpu' here; set it to cpu" in message


def test_other_data_is_refused_and_the_run_is_left_as_it_was(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(memory, "compiled_step", lambda run, begins: None)  # no step is made
    for path in (*folder.glob("*.en"), *folder.glob("*.de")):
        (tmp_path / path.name).write_text(path.read_text().replace("a e", "e a"))
    before = (folder / "run" / "results.json").read_text()
    changes = f"--config.data.dir={tmp_path} --config.train.steps=8"
    assert "other data" in message_of(folder, capsys, f"{RUN} {changes}")
    assert (folder / "run" / "results.json").read_text() == before


def test_a_work_directory_in_use_is_refused(folder, tmp_path, capsys):
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        message = message_of(folder, capsys, f"--config=@/run.json --workdir={tmp_path}")
    assert f"{tmp_path} is in use" in message
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_failure_in_training_is_reported_and_noted(folder, tmp_path, capsys, monkeypatch):
    def step(*_):
        raise OSError(28, "no space left")

    monkeypatch.setattr(memory, "compiled_step", lambda run, begins: step)
    message = message_of(folder, capsys, f"--config=@/run.json --workdir={tmp_path}/run")
    assert "no space left" in message
    assert results(tmp_path / "run")["status"] == "failed"


# Forks -------------------------------------------------------------------------------------------


def test_a_fork_that_changes_nothing_is_the_run_that_was_not_broken(folder, tmp_path, monkeypatch):
    """Also where it is broken in turn, and what it comes from is gone by then."""
    shutil.copytree(folder / "run", tmp_path / "trunk")
    monkeypatch.chdir(tmp_path)
    branch = tmp_path / "branch"
    fork = f"--config={folder}/run.json", "--config.checkpoint.fork_from=trunk/checkpoints/2"
    listed = "--config.checkpoint.at=(5,)", "--config.checkpoint.keep_last=1"
    assert call(*fork, *listed, f"--workdir={branch}") == 0
    shutil.rmtree(tmp_path / "trunk")
    for _ in range(2):
        assert results(branch)["fork"] == {"run": str(tmp_path / "trunk"), "step": 2}
        assert sorted(path.name for path in (branch / "checkpoints").iterdir()) == ["5", "6"]
        assert records(branch) == records(folder / "run")[1:]
        ends = (arrays_of(run / "checkpoints" / "6") for run in (branch, folder / "run"))
        assert next(ends) == next(ends)
        assert scores(results(branch)) == scores(results(folder / "run"))
        shutil.rmtree(branch / "checkpoints" / "6")
        (branch / "results.json").unlink()
        assert call(f"--workdir={branch}") == 0


def test_a_fork_without_its_first_checkpoint_is_not_replayed_from_new_draws(
    folder, tmp_path, capsys
):
    fork = f"--config.checkpoint.fork_from={folder}/run/checkpoints/2"
    few = "--config.checkpoint.keep_last=1"
    assert call(f"--config={folder}/run.json", fork, few, f"--workdir={tmp_path}") == 0
    assert call("--mode=replay", f"--workdir={tmp_path}", "--step=4") == 1
    assert "is a fork, of step 2 of " in capsys.readouterr().err


def test_branches_have_their_own_schedules_and_the_parameters_of_the_trunk(folder, tmp_path):
    trunk = folder / "run" / "checkpoints" / "4"
    changes = "schedule=linear", "learning_rate=0", "clip_norm=1"
    flags = [f"--config.optimizer.{change}" for change in changes]
    flags += [f"--config.checkpoint.fork_from={trunk}", "--config.train.steps=7"]
    assert call(f"--config={folder}/run.json", *flags, f"--workdir={tmp_path}") == 0
    assert results(tmp_path)["steps"] == 7 and records(tmp_path)[-1]["train/learning_rate"] == 0
    before, after = arrays_of(trunk), arrays_of(tmp_path / "checkpoints" / "7")
    names = [name for name in before if name.startswith("params/")]
    assert names and all(before[name] == after[name] for name in names)


def test_all_checkpoints_are_scored_by_one_program(folder, tmp_path, monkeypatch):
    workdir = shutil.copytree(folder / "run", tmp_path / "run")
    evaluate, traced = (f"--workdir={workdir}", "--mode=evaluate", "--checkpoint=all"), []
    plain = trained.with_memory
    monkeypatch.setattr(trained, "with_memory", lambda *a: traced.append(a) or plain(*a))
    assert call(*evaluate, "--config.evaluate.batch_size=3") == 0  # no test has asked for it
    assert len(traced) == 1 and not (workdir / SCORED).exists()
    assert call(*evaluate) == 0 and call(*evaluate, "--split=validation") == 0
    scored = list(read_metrics(workdir, SCORED))
    assert [record["step"] for record in scored] == [2, 4, 6]
    assert all(scored[-1][n] == v for n, v in results(workdir).items() if n.startswith("test/"))
    assert len({record["validation/loss"] for record in scored}) == 3


def test_the_seed_of_the_data_decides_batches_and_the_other_parameters(folder):
    def first(**seeds):
        changes = {name.replace("_", "."): value for name, value in seeds.items()}
        with built(load(str(folder / "run.json"), changes), folder / "run") as run:
            batch = place(run.mesh, next(run.train_streams()))
            params = run.with_seed(run.seed).new_state(batch).params
            assert run.with_seed(9).data.settings.seed == seeds.get("data_seed", 9)
            return [jax.tree.map(np.asarray, part) for part in (batch, params)]

    def same(one, other):
        return jax.tree.all(jax.tree.map(np.array_equal, one, other))

    plain, other, ours = first(seed=1), first(seed=2, data_seed=1), first(seed=1, data_seed=2)
    assert same(plain[0], other[0]) and not same(plain[1], other[1])
    assert same(plain[1], ours[1]) and not same(plain[0], ours[0])
