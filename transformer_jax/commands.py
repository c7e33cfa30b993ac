"""What each mode of the command line does, from a checked config to an exit status."""

import contextlib
import dataclasses
import functools
import json
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from configs import default
from configs.default import Config
from transformer_jax import inference, overrides, run_log
from transformer_jax.build import Params, Run, build
from transformer_jax.checkpoint.checkpoints import Checkpoints, Restored, restore_parameters_from
from transformer_jax.checkpoint.init_from import InitReport, format_report, init_from
from transformer_jax.data.files import decode_lines
from transformer_jax.data.pipeline import TrainStreams
from transformer_jax.devices import hosts
from transformer_jax.devices import mesh as sharding
from transformer_jax.evaluation.metrics import means
from transformer_jax.inspection import diagnostics
from transformer_jax.inspection import replay as replaying
from transformer_jax.models.transformer.schemes import scheme, stacks
from transformer_jax.preflight import report as preflighting
from transformer_jax.run_log import NoLog, RunLog
from transformer_jax.training import loop as training
from transformer_jax.training import state as train_state
from transformer_jax.training.losses import Batch
from transformer_jax.training.state import State
from transformer_jax.workdir import LOCK, lock, read_results, write_atomically, write_results

_EXIT_CODES = {"finished": 0, "plateaued": 0, "diverged": 1, "preempted": 128 + signal.SIGTERM}


def train(config: Config, workdir: Path) -> int:
    """Trains, or goes on training, in a work directory; then scores the test split.

    A run that has made all its steps ends as "finished", "plateaued" or "diverged" (see
    `training.judge`) and only shows its results again. SIGTERM and SIGINT save and end it as
    "preempted"; what is not finite ends it as "diverged", and a rerun goes on from the last
    checkpoint before.
    """
    _lock(workdir)
    status = hosts.first(lambda: _final_status(config, workdir))
    if status is None:
        with _built(config, workdir) as run:
            status = _train(config, workdir, run)
    if hosts.is_first():
        _show(workdir)
    return _EXIT_CODES[status]


def _train(config: Config, workdir: Path, run: Run) -> str:
    """Trains and scores; returns the status."""
    # All data is read before anything is written, so that a mistake in it comes at once.
    splits = {name: run.data.split(name) for name in ("validation", "test") if run.data.has(name)}
    streams = _train_streams(run)
    checkpoints = _checkpoints(run, workdir)
    state = _start(run, workdir, checkpoints, streams)
    if hosts.is_first():
        _save_vocabularies(run, workdir)
        if run.mesh.size > 1:
            print(_mesh_line(run))

    restored_step, total_steps = int(state.step), run.train.steps
    log = (
        RunLog(workdir, restored_step=restored_step, total_steps=total_steps)
        if hosts.is_first()
        else NoLog()
    )
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    fields = run_log.run_fields(parameters=parameters, steps=restored_step)
    log.results({"status": "running", **fields, "devices": run.mesh.size})
    try:
        # Only now: a kill between a new config and the new status would pass for a finished run.
        _save(workdir / "config.json", overrides.to_json(config))
        with hosts.stop_at_signal() as stop:
            validation = functools.partial(inference.losses, run, split=splits["validation"])
            outcome = _fit(config, run, state, streams, checkpoints, log, validation, stop)
            status, spikes = outcome.status, run_log.read_spikes(workdir)
            bad_step = outcome.step if status == "diverged" else None
            log.results({"steps": outcome.step, "first_bad_step": bad_step, "spikes": spikes})
            if status == "finished" and stop():
                status = "preempted"  # after the last step: the rerun scores
        # From here on a signal ends the process as usual, since the rerun scores too.
        if status == "finished":
            status, grounds = _judge(run, outcome.state)
            log.results(grounds)
            params = _parameters(run, workdir, run.evaluate.checkpoint)
            for name, split in splits.items():
                log.progress(outcome.step, f"scoring the {name} split")
                scores = inference.losses(run, params, split)
                # Translating takes long, so that only what ends the run is translated.
                if name == list(splits)[-1] or run.objective != "translation":
                    found, samples = inference.score(run, params, split)
                    scores |= found
                    _save(workdir / "samples.txt", samples)
                log.results(_named(name, scores))
        log.results({"status": status})
    except Exception:
        with contextlib.suppress(OSError):  # the disk may be full, which is what to tell of
            log.results({"status": "failed"})
        raise
    finally:
        try:
            checkpoints.close()
        finally:
            log.close()
    return status


def evaluate(config: Config, workdir: Path, checkpoint: str | None, name: str) -> int:
    """Scores a checkpoint on the split `name` and shows the scores.

    They go into results.json where they are the run's own: by its config and its checkpoint.
    """
    _check_trained(workdir, checkpoint)
    own = checkpoint is None and not _changes(config, workdir)
    if own:
        _lock(workdir)
    with _built(config, workdir) as run:
        params = _parameters(run, workdir, checkpoint or run.evaluate.checkpoint)
        split = run.data.split(name)
        scores, samples = inference.score(run, params, split)
        results = _named(name, inference.losses(run, params, split) | scores)
    if own and hosts.is_first():
        write_results(workdir, read_results(workdir) | results)
    print(run_log.format_scores(results), samples, sep="\n\n")
    return 0


def generate(
    config: Config, workdir: Path, checkpoint: str | None, source: str, target: str
) -> int:
    """Translates a file's lines, goes on with them, classifies or tags them, in the same order.

    A line has one line of results, or decode.num_samples of them. Continuations that go to standard
    output come as they are made, line breaks and all.
    """
    _check_trained(workdir, checkpoint)
    lines = hosts.first(lambda: _read_lines(source))
    with _built(config, workdir) as run:
        params = _parameters(run, workdir, checkpoint or run.evaluate.checkpoint)
        if target == "-" and run.objective == "causal_lm" and run.decode.method != "beam":
            for number, line in enumerate(lines):
                for piece in inference.stream(run, params, line, number):
                    _write("-", piece)
            return 0
        texts = [text for found in inference.results(run, params, lines) for text in found]
    _write(target, "".join(" ".join(text.splitlines()) + "\n" for text in texts))
    return 0


def embed(config: Config, workdir: Path, checkpoint: str | None, source: str, target: str) -> int:
    """Writes the vector of each of a file's lines as a line of numbers."""
    _check_trained(workdir, checkpoint)
    lines = hosts.first(lambda: _read_lines(source))
    with _built(config, workdir) as run:
        params = _parameters(run, workdir, checkpoint or run.evaluate.checkpoint)
        vectors = inference.embed(run, params, lines) if lines else []
    _write(target, "".join(" ".join(f"{x:.8g}" for x in vector) + "\n" for vector in vectors))
    return 0


def replay(config: Config, workdir: Path, step: int | None) -> int:
    """Trains again up to a step, in float32, and names what became non-finite first.

    Starts from the last checkpoint before the step, or where there is none from the beginning.
    Writes nothing.
    """
    if not (workdir / "config.json").exists():
        raise FileNotFoundError(f"there is no run in {workdir} to replay: train there first")
    with _built(config, workdir) as run:
        if step is None or not 1 <= step <= run.train.steps:
            raise ValueError(
                f"--mode=replay needs a --step=N of 1 to {run.train.steps}, got {step}"
            )
        streams = _train_streams(run)
        checkpoints = _checkpoints(run, workdir)
        before = [saved for saved in checkpoints.steps() if saved < step]
        if before:
            restored = checkpoints.restore(before[-1], run.abstract_state())
            assert restored is not None
            state = _go_on(restored, streams)
        else:
            state, _, _, _ = _begin(run, streams)
        print(f"Replaying from step {int(state.step)} to {step} in float32.")
        bad = replaying.replay(run, state, streams, step)
        if bad is None:
            print("Everything is finite.", _why_finite(run))
            return 0
        print(f"Step {bad.step} is bad: loss {bad.loss}, gradient norm {bad.gradient_norm}.")
        missing = "none, when its parts are computed one by one"
        print(f"Its first tensor that is not finite: {bad.tensor or missing}")
        return 0


def _why_finite(run: Run) -> str:
    dtype = run.model.config.dtype
    if dtype == "float32":
        return "If training was not, at these steps, then it ran on another machine or version."
    return (
        f"If training was not, at these steps, then range or rounding of {dtype} may be to blame."
    )


def inspect(config: Config, workdir: Path | None) -> int:
    """Prints the config, its difference from the default, the parameters and a step's cost."""
    with _built(config, workdir) as run:
        changes = overrides.difference(default.get_config(), config)
        print(overrides.to_json(config))
        print("Changes from the default:", *(changes or ["none"]), sep="\n  ")

        key, batch = jax.random.key(run.seed), run.abstract_batch()
        table = train_state.parameter_table(run.init, key, batch)
        width = max(len(row.path) for row in table)
        print("\nParameters:")
        for row in table:
            print(f"  {row.path:{width}}  {row.count:>13,}  {_dimensions(run, row)}")
        print(f"  {'total':{width}}  {sum(row.count for row in table):>13,}")

        flops = preflighting.product_flops(run.train_step(), run.abstract_state(), batch)
        print(f"\nMatrix products of one training step: {flops:.3e} FLOPs")
        return 0


def preflight(config: Config, workdir: Path | None, search: bool) -> int:
    """Prints what the run needs of the devices of mesh.topology, without having or using them.

    search: instead which meshes and remat policies fit, fastest first.
    """
    target = preflighting.target(config.mesh.topology)

    def make(changes: dict[str, Any]) -> Run:
        return build(overrides.replace(config, changes), workdir, target.devices)

    for text in (preflighting.search if search else preflighting.report)(make, target):
        print(text, flush=True)
    return 0


def _dimensions(run: Run, row: train_state.Parameter) -> str:
    """The axes and sizes of a parameter, over what each is cut, and what should be and cannot."""
    dimensions = []
    cuts = sharding.spec(run.mesh, row.axes, row.shape)
    for axis, size, cut in zip(row.axes, row.shape, cuts, strict=True):
        names = (cut,) if isinstance(cut, str) else cut or ()  # one alone stands without a tuple
        over = "".join(f" / {name} {run.mesh.shape[name]}" for name in names)
        dimensions.append(f"{axis} {size}{over}")
    text = ", ".join(dimensions)
    whole = sharding.undivided(run.mesh, row.axes, row.shape)
    return f"{text} (whole: {', '.join(whole)})" if whole else text


def _mesh_line(run: Run) -> str:
    """How the devices are laid out, and which parameters they cannot share."""
    sizes = [f"{name} {size}" for name, size in run.mesh.shape.items() if size > 1]
    kind = run.mesh.devices.flat[0].device_kind
    line = f"{run.mesh.size} devices ({kind}) as {' * '.join(sizes)}."
    table = train_state.parameter_table(run.init, jax.random.key(0), run.abstract_batch())
    rows = [(row.path, sharding.undivided(run.mesh, row.axes, row.shape)) for row in table]
    whole = [f"{path} ({', '.join(dimensions)})" for path, dimensions in rows if dimensions]
    if not whole:
        return line
    more = f" and {len(whole) - 3} more" if len(whole) > 3 else ""
    return f"{line} Not divided as they should be: {'; '.join(whole[:3])}{more}."


@contextlib.contextmanager
def _built(config: Config, workdir: Path | None) -> Iterator[Run]:
    """The run of a config, with its mesh in use."""
    run = build(config, workdir)
    with sharding.use(run.mesh):
        yield run


def _save_vocabularies(run: Run, workdir: Path) -> None:
    """What makes the work directory enough to predict with, without the data."""
    if not (workdir / "tokenizer.json").exists():
        run.data.tokenizer.save(workdir / "tokenizer.json")
    if run.data.labels and not (workdir / "labels.json").exists():
        text = json.dumps(run.data.labels, ensure_ascii=False, indent=1)
        write_atomically(workdir / "labels.json", text)


def _train_streams(run: Run) -> TrainStreams:
    """Training batches: of each the rows that this host's devices hold.

    Raises RuntimeError where the hosts have made different batches, since each holds a part of all.
    """
    streams = run.data.train_streams(sharding.local_rows(run.mesh, run.data.settings.batch_size))
    found = hosts.gather("fingerprint", streams.fingerprint)
    if others := [host for host, fingerprint in enumerate(found) if fingerprint != found[0]]:
        raise RuntimeError(
            f"the hosts {others} have made other training data of the same config than host 0: "
            "give all hosts the same files, tokenizer and versions of the libraries"
        )
    return streams


def _start(run: Run, workdir: Path, checkpoints: Checkpoints, streams: TrainStreams) -> State:
    """The state of the newest checkpoint, or a new one; the streams stand where it left them."""
    restored = checkpoints.restore("last", run.abstract_state())
    if restored is not None:
        return _go_on(restored, streams)
    state, drawn, report, first_batch = _begin(run, streams)
    if report is not None:
        print(format_report(report))
        _save(workdir / "init_from.json", json.dumps(report._asdict(), indent=1))
    config = run.model.config
    if any(scheme(config, stack).profiled for stack in stacks(config)):
        # Of the draws, with their key: so of what the omegas were measured on.
        key, _ = train_state.split_key(jax.random.key(run.seed))
        profile = diagnostics.profile(run.model, drawn, first_batch, key)
        _save(workdir / "profile.json", json.dumps(profile, indent=1))
    return state


def _begin(run: Run, streams: TrainStreams) -> tuple[State, Params, InitReport | None, Batch]:
    """A new state, the parameters as drawn, which of its own are another run's, and a batch.

    That is the first one, before which the streams stand.
    """
    beginning = streams.get_state()
    first_batch = sharding.place(run.mesh, next(streams))
    streams.set_state(beginning)
    state = run.new_state(first_batch)
    if not run.checkpoint.init_from:
        return state, state.params, None, first_batch
    drawn = state.params
    table = train_state.parameter_table(run.init, jax.random.key(run.seed), run.abstract_batch())
    label_paths = {row.path for row in table if "labels" in row.axes}
    params, report = init_from(
        run.checkpoint.init_from, drawn, labels=run.data.labels, label_paths=label_paths
    )
    # A copy for the moving average: the training step donates both.
    ema_params = None if state.ema_params is None else jax.tree.map(jnp.copy, params)
    state = dataclasses.replace(state, params=params, ema_params=ema_params)
    return state, drawn, report, first_batch


def _go_on(restored: Restored, streams: TrainStreams) -> State:
    """The state of a checkpoint, with the streams set to where it left them."""
    if restored.fingerprint != streams.fingerprint:
        raise ValueError(
            f"the checkpoint of step {restored.step} was trained on other data, or on batches that "
            f"another version of this code made: its fingerprint is {restored.fingerprint[:12]}, "
            f"that of the files and tokenizer at hand {streams.fingerprint[:12]}; restore the "
            "data, or choose another --workdir"
        )
    streams.set_state(restored.streams)
    return restored.state


def _fit(
    config: Config,
    run: Run,
    state: State,
    streams: TrainStreams,
    checkpoints: Checkpoints,
    log: RunLog | NoLog,
    validation: Callable[[Params], dict[str, float]],
    stop: Callable[[], bool],
) -> training.Outcome:
    origin = {"config": config.to_dict(), "fingerprint": streams.fingerprint}
    outcome = training.fit(
        state,
        streams,
        settings=run.train,
        mesh=run.mesh,
        train_step=run.train_step(),
        evaluate=validation,
        diagnose=diagnostics.make_diagnose(run.model, run.loss),
        save=functools.partial(checkpoints.save, **origin),
        log=log,
        stop=stop,
    )
    checkpoints.wait()
    return outcome


def _judge(run: Run, state: State) -> tuple[str, dict[str, float]]:
    """The status of a run that has made all its steps, and what it rests on."""
    token_loss = means(state.window)["token_loss"]
    grounds = {"train/token_loss": token_loss}
    if run.model.config.head != "tokens":
        return "finished", grounds
    entropy = run.data.unigram_entropy
    vocab_size = run.model.config.vocab_size
    status = training.judge(token_loss, unigram_entropy=entropy, vocab_size=vocab_size)
    return status, grounds | {"unigram_entropy": entropy}


def _checkpoints(run: Run, workdir: Path) -> Checkpoints:
    return Checkpoints(
        workdir / "checkpoints",
        keep_last=run.checkpoint.keep_last,
        best_metric=run.checkpoint.best_metric,
    )


def _parameters(run: Run, workdir: Path, which: str) -> Params:
    """Those of "last" (the mean of checkpoint.average_last), "best", a step, or a folder."""
    checkpoints, abstract = _checkpoints(run, workdir), run.abstract_state().params
    if which == "last":
        found = checkpoints.average(run.checkpoint.average_last, abstract)
    elif which == "best" or which.isdecimal():
        found = checkpoints.restore_parameters(which if which == "best" else int(which), abstract)
    else:
        found = restore_parameters_from(which, abstract)
    if found is None:
        raise FileNotFoundError(f"there is no checkpoint in {workdir}: train there first")
    return found[1]


def _final_status(config: Config, workdir: Path) -> str | None:
    """The status with which exactly this config has been trained and scored here, if it has."""
    results = read_results(workdir)
    done = _is_scored(results) and (workdir / "config.json").exists()
    return results["status"] if done and not _changes(config, workdir) else None


def _is_scored(results: dict[str, Any]) -> bool:
    """Whether these are the results of a run that has made all its steps."""
    status, whole = results.get("status"), results.get("first_bad_step", 0) is None
    return status in ("finished", "plateaued") or (status == "diverged" and whole)


def _changes(config: Config, workdir: Path) -> list[str]:
    """How the config differs from the one that the work directory was last trained with."""
    return overrides.difference(overrides.load(str(workdir / "config.json")), config)


def _check_trained(workdir: Path, checkpoint: str | None) -> None:
    """Says at once where there is nothing to score or translate with."""
    own = checkpoint in (None, "last", "best") or checkpoint.isdecimal()
    if own and not (workdir / "checkpoints").is_dir():
        raise FileNotFoundError(f"there is no checkpoint in {workdir}: train there first")


def _show(workdir: Path) -> None:
    results = read_results(workdir)
    print(run_log.format_scores(results))
    if _is_scored(results):
        print(f"\n{(workdir / 'samples.txt').read_text('utf-8')}")
    elif results["status"] == "diverged":
        where = f"--workdir={shlex.quote(str(workdir))} --step={results['first_bad_step']}"
        print("\nWhat became non-finite first is found by")
        print(f"  python -m transformer_jax.main --mode=replay {where}")
    print(f"\nThe files of this run are in {workdir}")


def _lock(workdir: Path) -> None:
    """Keeps other jobs out of the work directory, which the hosts must share, until this one ends.

    The first host holds the lock.
    """
    hosts.first(lambda: lock(workdir))
    hosts.check_shared(workdir / LOCK)


def _save(path: Path, text: str) -> None:
    """Replaces a file of the work directory; from the first host alone."""
    if hosts.is_first():
        write_atomically(path, text)


def _named(split: str, scores: dict[str, Any]) -> dict[str, Any]:
    return {f"{split}/{name}": value for name, value in scores.items()}


def _write(target: str, text: str) -> None:
    """Into a file, or to standard output ("-") at once; from the first host alone."""
    if not hosts.is_first():
        return
    if target != "-":
        Path(target).write_text(text, "utf-8", newline="\n")
        return
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


def _read_lines(source: str) -> list[str]:
    """Lines of a file or of standard input; they end at line feeds alone."""
    data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    return decode_lines(data, source) if data else []
