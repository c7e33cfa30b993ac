"""The command line end to end, in one process, on a tiny corpus; mistakes end in one message."""

import fcntl
import functools
import io
import json
import os
import shutil
import signal
import sys

import jax
import numpy as np
import pytest
from absl import flags

from configs import default
from transformer_jax import commands, main, overrides

CONFIG = {
    "seed": 3,
    "data.source": "text",
    "data.train": ("train",),
    "data.validation": ("test",),
    "data.test": ("test",),
    "data.tokenizer.kind": "words",
    "data.max_source_length": 8,
    "data.max_target_length": 8,
    "data.row_source_length": 8,
    "data.row_target_length": 8,
    "data.batch_size": 8,
    "model.residual": "pre_ln",
    "model.num_layers": 1,
    "model.d_model": 8,
    "model.num_heads": 2,
    "model.d_ff": 16,
    "optimizer.schedule": "constant",
    # In six steps more is learnt than how often each word occurs.
    "optimizer.learning_rate": 0.1,
    "optimizer.beta1": 0.5,
    "optimizer.beta2": 0.9,
    "optimizer.warmup_steps": 0,
    "train.steps": 6,
    "train.log_every": 2,
    "checkpoint.every": 2,
    "decode.extra_length": 2,
    "decode.beam_size": 2,
}
# Of the other shapes, under the name of their work directory.
OTHERS = {
    "language_model": {
        "model.architecture": "decoder_only",
        "data.train": ("train.en",),
        "data.validation": ("test.en",),
        "data.test": (),
        "train.ema_decay": 0.9,
        "optimizer.name": "muon",
        "decode.method": "sample",
    },
    "masked": {
        "model.architecture": "encoder_only",
        "data.train": ("train.en",),
        "data.validation": ("test.en",),
        "data.test": ("test.en",),
        "optimizer.name": "lion",
    },
    # Starts from "masked", and stays there.
    "classes": {
        "model.architecture": "encoder_only",
        "task.name": "classification",
        "data.source": "labelled",
        "data.train": ("train.labelled",),
        "data.validation": ("test.labelled",),
        "data.test": ("test.labelled",),
        "optimizer.learning_rate": 0.0,
    },
}


@pytest.fixture(scope="module")
def compiled_once(tmp_path_factory):
    """What one test has compiled, another takes from the disk, as a second process would."""
    settings = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("compiled")),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    before = {name: jax.config.values[name] for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, compiled_once):
    """A corpus, a config file, and a finished run in `run`."""
    folder = tmp_path_factory.mktemp("main")
    for split, count in (("train", 64), ("test", 6)):
        lines = ["abcd"[n % 4] + " " + "efg"[n % 3] for n in range(count)]
        (folder / f"{split}.en").write_text("".join(f"{line}\n" for line in lines))
        (folder / f"{split}.de").write_text("".join(f"{line.upper()}\n" for line in lines))
        labelled = [f"{'yes' if 'a' in line else 'no'} {line}\n" for line in lines]
        (folder / f"{split}.labelled").write_text("".join(labelled))
    folders = {"data.dir": str(folder), "data.cache_dir": str(folder / "cache")}
    config = overrides.load(default.__file__, CONFIG | folders)
    (folder / "config.json").write_text(overrides.to_json(config))
    assert _main(f"--config={folder}/config.json", f"--workdir={folder}/run") == 0
    return folder


@pytest.fixture(scope="module")
def trained(folder):
    """name of `OTHERS` -> its finished work directory."""
    folders = {"data.dir": str(folder), "data.cache_dir": str(folder / "cache")}

    @functools.cache
    def train(name):
        changes = folders | OTHERS[name]
        if name == "classes":
            changes |= {"checkpoint.init_from": str(train("masked"))}
        config = overrides.load(default.__file__, CONFIG | changes)
        (folder / f"{name}.json").write_text(overrides.to_json(config))
        assert _main(f"--config={folder}/{name}.json", f"--workdir={folder}/{name}") == 0
        return folder / name

    return train


class Piped:
    """In the place of standard input or output; notes when it is written to."""

    def __init__(self, data=b""):
        self.buffer = self
        self.read = io.BytesIO(data).read
        self.written = []

    def write(self, data):
        self.written.append(data.decode())

    def flush(self):
        pass


def _piped(monkeypatch, text, *arguments):
    """What main writes to standard output, in pieces, when `text` is its standard input."""
    output = Piped()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", Piped(text.encode()))
        patch.setattr(sys, "stdout", output)
        assert _main(*arguments) == 0
    return output.written


def _main(*arguments):
    """What the process does, short of ending."""
    argv, changes = overrides.split(["main", *arguments])
    try:
        return main.main(flags.FLAGS(argv), changes)
    finally:
        for name in ("config", "workdir", "mode", "checkpoint", "split", "input", "output", "step"):
            flags.FLAGS[name].unparse()


def _results(folder, name="run"):
    return json.loads((folder / name / "results.json").read_text())


def _records(workdir):
    """metrics.jsonl without the times."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [
        {name: value for name, value in json.loads(line).items() if name[:5] != "time/"}
        for line in lines
    ]


def test_training_leaves_results_and_files(folder):
    results = _results(folder)
    assert results["status"] == "finished" and results["steps"] == 6
    assert results["first_bad_step"] is None and results["spikes"] == []
    assert results["train/token_loss"] == _records(folder / "run")[-1]["train/token_loss"]
    assert results["train/token_loss"] < results["unigram_entropy"] - 0.1
    assert {"test/bleu", "test/chrf", "test/exact_match", "test/loss"} <= results.keys()
    assert np.isfinite(results["validation/loss"])
    assert [record["step"] for record in _records(folder / "run")] == [2, 4, 6]
    saved = overrides.load(str(folder / "run" / "config.json"))
    assert overrides.difference(saved, overrides.load(str(folder / "config.json"))) == []


def test_a_finished_run_shows_its_results_again(folder, capsys, monkeypatch):
    def build(*_):
        raise AssertionError("a finished run is not built")

    monkeypatch.setattr(commands, "build", build)
    before = _results(folder)
    assert _main(f"--workdir={folder}/run") == 0
    shown = capsys.readouterr().out
    assert "finished" in shown and "bleu" in shown and "reference" in shown
    assert str(folder / "run") in shown
    assert _results(folder) == before


def test_evaluate_finds_what_training_found(folder, capsys):
    before = _results(folder)
    path = folder / "run" / "results.json"
    path.write_text(json.dumps({k: v for k, v in before.items() if k[:5] != "test/"}))
    assert _main(f"--workdir={folder}/run", "--mode=evaluate") == 0
    assert "bleu" in capsys.readouterr().out
    after = _results(folder)
    assert after.keys() == before.keys()
    for name in ("test/loss", "test/bleu", "test/exact_match"):
        assert after[name] == pytest.approx(before[name], rel=1e-6)


def test_scores_of_other_settings_are_shown_but_not_the_runs(folder, capsys):
    before = _results(folder)
    evaluate = (f"--workdir={folder}/run", "--mode=evaluate")
    assert _main(*evaluate, "--config.decode.beam_size=1") == 0
    assert _main(*evaluate, "--checkpoint=4") == 0
    assert capsys.readouterr().out.count("exact_match") == 2
    assert _results(folder) == before


def test_a_work_directory_that_lost_its_config_is_refused(folder, tmp_path, capsys):
    (tmp_path / "checkpoints").mkdir()
    assert _main(f"--config={folder}/config.json", f"--workdir={tmp_path}") == 1
    assert "no config.json" in capsys.readouterr().err


def test_generate_keeps_lines_in_order_without_the_data(folder, monkeypatch):
    (folder / "in.txt").write_text("a e\n\nb f c\r\nd")
    free = f"--config.data.dir={folder}/nowhere"
    arguments = [f"--workdir={folder}/run", "--mode=generate", free]
    _main(*arguments, f"--input={folder}/in.txt", f"--output={folder}/out.txt")
    together = (folder / "out.txt").read_bytes().decode()
    lines = together.split("\n")
    assert len(lines) == 5 and lines[1] == lines[4] == ""

    alone = ["".join(_piped(monkeypatch, text, *arguments)) for text in ("d", "a e")]
    assert alone == [f"{lines[3]}\n", f"{lines[0]}\n"]


def test_inspect_shows_config_parameters_and_cost(folder, capsys):
    arguments = (f"--config={folder}/config.json", "--mode=inspect")
    assert _main(*arguments, "--config.model.num_layers", "1") == 0
    one = capsys.readouterr().out
    assert "model.d_model: 512 -> 8" in one and '"d_model": 8' in one
    assert "decoder/self_attention/query" in one and "layers 1, embed 8, heads 2" in one
    assert _main(*arguments, "--config.model.num_layers=3") == 0
    three = capsys.readouterr().out

    def last_number(text, start):
        (line,) = [line for line in text.splitlines() if line.strip().startswith(start)]
        return float(line.replace(",", "").replace("FLOPs", "").split()[-1])

    # Layers alone are repeated, so going from one to three adds twice what a layer costs.
    assert last_number(three, "total") > last_number(one, "total")
    assert last_number(three, "Matrix products") > 1.5 * last_number(one, "Matrix products")


def test_a_stopped_run_goes_on_to_the_same_numbers(folder, monkeypatch):
    """SIGTERM after two steps: saved, "preempted", and the rerun ends as the unbroken run did."""
    workdir = folder / "stopped"
    arguments = (f"--config={folder}/config.json", f"--workdir={workdir}")
    write = commands.RunLog.write

    def write_and_stop(self, step, scalars):
        write(self, step, scalars)
        os.kill(os.getpid(), signal.SIGTERM)

    handler = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        patch.setattr(commands.RunLog, "write", write_and_stop)
        assert _main(*arguments) == 143
    assert signal.getsignal(signal.SIGTERM) is handler
    stopped = json.loads((workdir / "results.json").read_text())
    assert stopped["status"] == "preempted" and 0 < stopped["steps"] < 6
    assert _main(*arguments) == 0

    def scores(path):
        results = json.loads((path / "results.json").read_text())
        return {name: value for name, value in results.items() if name[:5] != "time/"}

    assert _records(workdir) == _records(folder / "run")
    assert scores(workdir) == scores(folder / "run")


def test_a_language_model_without_a_test_split_ends_with_scores_of_validation(
    folder, trained, capsys
):
    workdir = trained("language_model")
    before = _results(folder, "language_model")
    assert before["status"] in ("finished", "plateaued")
    assert before["validation/word_perplexity"] > 1
    assert not [name for name in before if name.startswith("test/")]
    assert "a" in (workdir / "samples.txt").read_text()
    (workdir / "results.json").write_text(json.dumps({"status": "finished"}))
    assert _main(f"--workdir={workdir}", "--mode=evaluate", "--split=validation") == 0
    assert "word_perplexity" in capsys.readouterr().out
    after = _results(folder, "language_model")
    assert after.items() <= before.items() and "validation/word_perplexity" in after
    (workdir / "results.json").write_text(json.dumps(before))


def test_a_language_model_goes_on_with_lines_as_they_come_and_in_a_file(
    folder, trained, monkeypatch
):
    arguments = [f"--workdir={trained('language_model')}", "--mode=generate"]
    arguments += [f"--config.data.dir={folder}/nowhere", "--config.decode.num_samples=2"]
    arguments += ["--config.decode.extra_length=6"]
    pieces = _piped(monkeypatch, "a e\n\na e\n", *arguments)
    lines = "".join(pieces).splitlines()
    prompts = ["a e", "a e", "", "", "a e", "a e"]
    assert len(lines) == 6
    assert all(line.startswith(prompt) for line, prompt in zip(lines, prompts, strict=True))
    assert len(set(lines)) > 2 and len(pieces) > len(lines)
    (folder / "prompts").write_text("a e\n\na e\n")
    _main(*arguments, f"--input={folder}/prompts", f"--output={folder}/continued")
    assert (folder / "continued").read_text() == "".join(pieces)
    # A stop text, which is not shown.
    (word,) = {line.split()[2] for line in lines[:1]}
    stopped = _piped(monkeypatch, "a e\n", *arguments, f"--config.decode.stop=(' {word}',)")
    assert "".join(stopped).splitlines()[0] == lines[0].partition(f" {word}")[0]


def test_an_encoder_writes_the_vector_of_each_line(folder, trained, monkeypatch):
    arguments = [f"--workdir={trained('masked')}", "--mode=embed"]
    arguments += [f"--config.data.dir={folder}/nowhere"]
    lines = "".join(_piped(monkeypatch, "a e\n\nb f\na e\n", *arguments)).splitlines()
    vectors = np.array([[float(number) for number in line.split()] for line in lines])
    assert vectors.shape == (4, 8) and np.isfinite(vectors).all()
    assert lines[0] == lines[3] != lines[2]
    (folder / "lines").write_text("a e\n\nb f\na e\n")
    _main(*arguments, f"--input={folder}/lines", f"--output={folder}/vectors")
    assert (folder / "vectors").read_text().splitlines() == lines
    assert _piped(monkeypatch, "", *arguments) == [""]


def test_a_classifier_starts_from_the_encoder_of_a_masked_language_model(
    folder, trained, monkeypatch
):
    """With its tokenizer; what was taken, is new and was left is told. A rate of 0 keeps it."""
    masked, classes = trained("masked"), trained("classes")
    assert (classes / "tokenizer.json").read_text() == (masked / "tokenizer.json").read_text()
    report = json.loads((classes / "init_from.json").read_text())
    assert report["checkpoint"] == str(masked / "checkpoints" / "6")
    assert {"embedding/table", "encoder/self_attention/query"} <= set(report["taken"])
    assert report["new"] and all(path.startswith("label_head/") for path in report["new"])
    assert report["left"]
    assert {why for why in report["left"].values()} == {"no such parameter"}
    assert all(path.startswith("token_head/") for path in report["left"])
    vectors = [
        _piped(monkeypatch, "a e\nb f\n", f"--workdir={workdir}", "--mode=embed")
        for workdir in (masked, classes)
    ]
    assert vectors[0] == vectors[1]


def test_a_classifier_says_the_class_of_each_line_without_the_data(folder, trained, monkeypatch):
    workdir = trained("classes")
    results = _results(folder, "classes")
    assert {"test/accuracy", "test/f1", "test/matthews", "test/loss"} <= results.keys()
    assert json.loads((workdir / "labels.json").read_text()) == ["no", "yes"]
    texts = (folder / "test.en").read_text()
    found = "".join(
        _piped(
            *(monkeypatch, f"{texts}\n", f"--workdir={workdir}", "--mode=generate"),
            f"--config.data.dir={folder}/nowhere",
        )
    ).split("\n")
    assert found[6:] == ["", ""]
    expected = [line.split()[0] for line in (folder / "test.labelled").read_text().splitlines()]
    right = np.mean([a == b for a, b in zip(found[:6], expected, strict=True)])
    assert results["test/accuracy"] == pytest.approx(right)
    assert _main(f"--workdir={workdir}", "--mode=evaluate") == 0
    assert _results(folder, "classes")["test/accuracy"] == results["test/accuracy"]


@pytest.mark.parametrize(
    ("name", "arguments", "parts"),
    [
        (
            "masked",
            ["--workdir={0}/masked", "--mode=generate", "--input={0}/t"],
            ["masked tokens", "--mode=embed"],
        ),
        (
            "language_model",
            ["--workdir={0}/language_model", "--mode=embed", "--input={0}/t"],
            ["encoder_only", "decoder_only"],
        ),
        (
            "language_model",
            ["--workdir={0}/language_model", "--mode=evaluate"],
            ["data.test is empty", "--split"],
        ),
        (
            "classes",
            [
                *("--config={0}/classes.json", "--workdir={0}/new", "--config.data.source=tsv"),
                "--config.data.train=('table.tsv',)",
                *("--config.data.text_feature=text", "--config.data.label_feature=colour"),
            ],
            ["data.label_feature='colour'", "'text', 'label'"],
        ),
        (
            "classes",
            ["--config={0}/classes.json", "--workdir={0}/new", "--config.data.source=text"],
            ["data.source='text'", "'classification'", "embedded, tfds, tsv, labelled"],
        ),
        (
            "classes",
            [
                *("--config={0}/classes.json", "--workdir={0}/new", "--config.model.d_model=6"),
                "--config.model.d_ff=4",
            ],
            ["{0}/masked", "embedding/table", "8", "6"],
        ),
    ],
)
def test_a_mistake_with_another_shape_ends_in_one_message(
    folder, trained, capsys, name, arguments, parts
):
    trained(name)
    (folder / "t").write_text("a\n")
    (folder / "table.tsv").write_text("text\tlabel\na e\tyes\n")
    capsys.readouterr()
    assert _main(*(argument.format(folder) for argument in arguments)) == 1
    message = capsys.readouterr().err
    assert message.count("error: ") == 1 and "Traceback" not in message
    assert all(part.format(folder) in message for part in parts), message
    assert not (folder / "new" / "config.json").exists()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--config=nowhere.py"], ["nowhere.py"]),
        ([], ["--config"]),
        (["--config={0}/config.json"], ["--workdir"]),
        (["--config={0}/config.json", "--workdir={0}/new", "train"], ["'train'"]),
        (["--workdir={0}/run", "--config.seed=4"], ["seed: 3 -> 4"]),
        (["--workdir={0}/run", "--config.modle.d_model=4"], ["modle.d_model", "model.d_model"]),
        (["--workdir={0}/run", "--config.train.steps=few"], ["train.steps", "'few'"]),
        (["--workdir={0}/run", "--mode=generate", "--input={0}/none.txt"], ["none.txt"]),
        (
            ["--workdir={0}/run", "--mode=generate", "--input={0}/latin.txt"],
            ["latin.txt:2: not UTF-8"],
        ),
        (["--workdir={0}/run", "--mode=evaluate", "--checkpoint=5"], ["5", "2, 4, 6"]),
        (["--workdir={0}/run", "--mode=evaluate", "--checkpoint={0}/x"], ["/x"]),
        (
            ["--config={0}/config.json", "--workdir={0}/new", "--mode=generate", "--input={0}/t"],
            ["/new"],
        ),
        (
            ["--config={0}/config.json", "--workdir={0}/new", "--config.data.train=('none',)"],
            ["none.en"],
        ),
        (
            ["--config={0}/config.json", "--workdir={0}/new", "--config.data.test=('none',)"],
            ["none.en"],
        ),
        (
            ["--config={0}/config.json", "--workdir={0}/new", "--config.optimizer.clip_norm=-1"],
            ["optimizer.clip_norm=-1"],
        ),
        (
            ["--config={0}/config.json", "--workdir={0}/new", "--config.checkpoint.every=-1"],
            ["checkpoint.every=-1"],
        ),
        (
            ["--config={0}/config.json", "--workdir={0}/new", "--config.checkpoint.best_metric=x"],
            ["checkpoint.best_metric='x'", "validation/loss"],
        ),
        (
            [
                *("--config={0}/config.json", "--workdir={0}/new"),
                *("--config.train.evaluate_every=3", "--config.checkpoint.every=2"),
            ],
            ["train.evaluate_every=3", "checkpoint.every=2"],
        ),
        (["--workdir={0}/run", "--checkpoint=best"], ["--mode=train", "--checkpoint"]),
        (["--workdir={0}/run", "--step=4"], ["--mode=train", "--step"]),
        (["--workdir={0}/run", "--mode=replay"], ["--step=N", "1 to 6"]),
        (["--workdir={0}/run", "--mode=replay", "--step=7"], ["--step=N", "1 to 6", "7"]),
        (
            ["--config={0}/config.json", "--workdir={0}/new", "--mode=replay", "--step=1"],
            ["/new", "train there first"],
        ),
        (
            [
                "--config={0}/config.json",
                "--workdir={0}/new",
                "--config.train.diagnostics_every=-1",
            ],
            ["train.diagnostics_every=-1"],
        ),
        (
            ["--config={0}/config.json", "--workdir={0}/new", "--config.model.d_model=9"],
            ["model.d_model=9"],
        ),
        (
            ["--config={0}/config.json", "--workdir={0}/new", "--config.model.vocab_size=5"],
            ["model.vocab_size=5"],
        ),
        (
            ["--config={0}/config.json", "--workdir={0}/new", "--config.task.name=tagging"],
            ["task.name='tagging'", "'encoder_decoder'", "to 'encoder_only'", "None"],
        ),
        (
            [
                *("--workdir={0}/run", "--mode=generate", "--input={0}/t"),
                "--config.decode.num_samples=2",
            ],
            ["decode.num_samples", "2", 'decode.method="sample"'],
        ),
        (
            [
                *("--config={0}/config.json", "--workdir={0}/new"),
                "--config.checkpoint.init_from={0}/nowhere",
            ],
            ["checkpoint.init_from", "/nowhere"],
        ),
        (
            [
                *("--config={0}/config.json", "--workdir={0}/new"),
                "--config.optimizer.groups=(('nowhere/*', 0.1, 0.0),)",
            ],
            ["optimizer.groups", "'nowhere/*'", "--mode=inspect"],
        ),
    ],
)
def test_a_mistake_ends_in_one_message_and_touches_nothing(folder, capsys, arguments, parts):
    (folder / "latin.txt").write_bytes(b"a\n\xe4\n")
    (folder / "t").write_text("a\n")
    before = {path: path.stat().st_mtime_ns for path in (folder / "run").rglob("*")}
    assert _main(*(argument.format(folder) for argument in arguments)) == 1
    message = capsys.readouterr().err
    assert message.count("error: ") == 1 and "Traceback" not in message
    assert all(part in message for part in parts), message
    assert {path: path.stat().st_mtime_ns for path in (folder / "run").rglob("*")} == before
    assert not (folder / "new" / "config.json").exists()


def test_other_data_is_refused_and_the_run_is_left_as_it_was(folder, tmp_path, capsys):
    for path in folder.glob("*.??"):
        (tmp_path / path.name).write_text(path.read_text().replace("a e", "e a"))
    results = (folder / "run" / "results.json").read_text()
    arguments = (f"--workdir={folder}/run", f"--config.data.dir={tmp_path}")
    assert _main(*arguments, "--config.train.steps=8") == 1
    assert "other data" in capsys.readouterr().err
    assert (folder / "run" / "results.json").read_text() == results


def test_a_work_directory_in_use_is_refused(folder, tmp_path, capsys):
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert _main(f"--config={folder}/config.json", f"--workdir={tmp_path}") == 1
    message = capsys.readouterr().err
    assert message.count("error: ") == 1 and f"{tmp_path} is in use" in message
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_failure_in_training_is_told_and_noted(folder, tmp_path, capsys, monkeypatch):
    def save(*_, **__):
        raise OSError(28, "no space left")

    monkeypatch.setattr(commands.Checkpoints, "save", save)
    assert _main(f"--config={folder}/config.json", f"--workdir={tmp_path}/run") == 1
    assert capsys.readouterr().err.count("error: ") == 1
    assert _results(tmp_path)["status"] == "failed"


# What became of a run


def _train(folder, workdir, **changes):
    """The exit status of a run of the module's config with changes, and its results."""
    arguments = [f"--config.{name}={value}" for name, value in changes.items()]
    status = _main(f"--config={folder}/config.json", f"--workdir={workdir}", *arguments)
    return status, json.loads((workdir / "results.json").read_text())


@pytest.mark.parametrize(
    ("status", "learning_rate", "code"), [("plateaued", 0.0, 0), ("diverged", 3.0, 1)]
)
def test_a_run_that_learns_nothing_is_scored_and_shown_again_as_what_it_is(
    folder, tmp_path, capsys, monkeypatch, status, learning_rate, code
):
    changes = {"model.residual": "post_ln", "optimizer.learning_rate": learning_rate}
    found, results = _train(folder, tmp_path, **changes)
    assert (found, results["status"], results["steps"]) == (code, status, 6)
    assert results["first_bad_step"] is None and "test/bleu" in results
    vocab_size = len(json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"])
    bound = {
        "plateaued": results["unigram_entropy"] - 0.1,
        "diverged": np.log(vocab_size) + 1,
    }
    assert results["train/token_loss"] > bound[status]
    assert (results["train/token_loss"] > bound["diverged"]) == (status == "diverged")
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(commands, "build", lambda *_: pytest.fail("it is not built again"))
        assert _main(f"--workdir={tmp_path}") == code
    shown = capsys.readouterr().out
    assert status in shown and "reference" in shown and "--mode=replay" not in shown
    if status == "plateaued":  # with more steps it goes on
        found, results = _train(folder, tmp_path, **changes, **{"train.steps": 8})
        assert (found, results["status"], results["steps"]) == (code, status, 8)
        assert [record["step"] for record in _records(tmp_path)] == [2, 4, 6, 8]


@pytest.mark.parametrize("every", [1, 0])
def test_a_run_that_overflows_ends_before_it_saves_and_replay_names_the_first_tensor(
    folder, tmp_path, capsys, every
):
    """Adam's first step moves every parameter by the learning rate: queries by keys are 1e50."""
    changes = {"optimizer.learning_rate": 1e25, "checkpoint.every": every}
    changes |= {"model.residual": "post_ln"}
    status, results = _train(folder, tmp_path, **changes)
    assert (status, results["status"], results["first_bad_step"]) == (1, "diverged", 2)
    assert not [name for name in results if name.startswith("test/")]
    saved = [path.name for path in tmp_path.glob("checkpoints/*")]
    assert saved == (["1"] if every else [])
    shown = capsys.readouterr().out
    (command,) = [line for line in shown.splitlines() if "--mode=replay" in line]
    _, _, *arguments = command.split()
    assert arguments[0] == "transformer_jax.main"

    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert _main(*arguments[1:]) == 0
    shown = capsys.readouterr().out
    assert f"from step {1 if every else 0} to 2" in shown and "Step 2 is bad" in shown
    assert "encoder/layer 1/self_attention/largest attention logits" in shown
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before

    # A rerun comes to the same end.
    assert _train(folder, tmp_path, **changes)[1]["first_bad_step"] == 2


def test_replay_says_where_everything_is_finite(folder, capsys):
    assert _main(f"--workdir={folder}/run", "--mode=replay", "--step=4") == 0
    shown = capsys.readouterr().out
    assert "from step 2 to 4" in shown and "Everything is finite" in shown


def test_a_spike_is_among_the_results_with_its_batch(folder, tmp_path, monkeypatch):
    """Every loss passes for one that has any before it."""
    monkeypatch.setattr(commands.training, "FEWEST_RECENT", 1)
    monkeypatch.setattr(commands.training, "SPIKE_DEVIATIONS", -1e9)
    _, results = _train(folder, tmp_path)
    assert [spike["step"] for spike in results["spikes"]] == [2, 3, 4, 5, 6]
    assert all(
        spike.keys() == {"step", "loss", "median", "deviation"} for spike in results["spikes"]
    )
    streams = commands.build(overrides.load(str(tmp_path / "config.json")), tmp_path)
    streams = streams.data.train_streams()
    batches = {step: next(streams) for step in range(1, 7)}
    for step in (2, 3, 4, 5, 6):
        kept = np.load(tmp_path / "spikes" / f"{step}.npz")
        assert kept.files == list(batches[step])
        for name in kept.files:
            np.testing.assert_array_equal(kept[name], batches[step][name])


def test_the_profile_of_admin_and_diagnoses_are_among_the_files(folder, tmp_path):
    _, _ = _train(folder, tmp_path, **{"model.residual": "admin", "train.diagnostics_every": 3})
    profile = json.loads((tmp_path / "profile.json").read_text())
    assert [len(profile[stack]) for stack in ("encoder", "decoder")] == [2, 3]
    for rows in profile.values():
        # Only under the very dropout that the omegas were measured with is this so.
        omegas = [1.0] + [(r["shortcut_variance"] + r["branch_variance"]) ** 0.5 for r in rows]
        np.testing.assert_allclose([row["omega"] for row in rows], omegas[:-1], rtol=1e-5)
    diagnoses = {
        record["step"]: {name for name in record if name.startswith("diagnostics/")}
        for record in _records(tmp_path)
    }
    assert list(diagnoses) == [2, 3, 4, 6] and diagnoses[3] == diagnoses[6]
    assert not diagnoses[2] | diagnoses[4]
    assert {"diagnostics/decoder/branch_variance"} <= diagnoses[3]
    record = _records(tmp_path)[-1]
    assert len(record["diagnostics/decoder/branch_variance"]) == 3 and "train/loss" in record


def test_checkpoints_without_recent_losses_serve_for_scoring_but_not_to_go_on(
    folder, tmp_path, capsys
):
    """Those of older versions."""
    shutil.copytree(folder / "run", tmp_path, dirs_exist_ok=True)
    run = commands.build(overrides.load(str(tmp_path / "config.json")), tmp_path)
    checkpoints = commands._checkpoints(run, tmp_path)
    restored = checkpoints.restore(6, run.abstract_state())
    assert restored is not None
    older = {name: value for name, value in vars(restored.state).items() if name != "recent"}
    document = json.loads((tmp_path / "checkpoints" / "6" / "config.json").read_text())
    checkpoints.save(
        *(6, older, restored.streams, document, restored.fingerprint, {}), scheduled=True
    )
    checkpoints.close()
    assert _main(f"--workdir={tmp_path}", "--mode=evaluate") == 0
    assert _main(f"--workdir={tmp_path}", "--config.train.steps=8") == 1
    message = capsys.readouterr().err
    assert message.count("error: ") == 1 and "recent: saved nothing" in message
