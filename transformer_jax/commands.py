"""What each mode of the command line does, from a checked config to an exit status.

WORKDIR/config.json      the config that the directory belongs to
WORKDIR/tokenizer.json   the tokenizer, so that translating needs no training data
WORKDIR/metrics.jsonl    the numbers of training, a step a line; the same in tensorboard/
WORKDIR/results.json     final scores and status
WORKDIR/samples.txt      a few translations of the test split
WORKDIR/checkpoints/     one folder a step
"""

import contextlib
import functools
import math
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax

from configs import default
from configs.default import Config
from transformer_jax import evaluate as evaluation
from transformer_jax import overrides, run_log, train_state
from transformer_jax import train as training
from transformer_jax.build import Params, Run, Split, build
from transformer_jax.checkpoint import Checkpoints, lock_workdir, restore_parameters_from
from transformer_jax.data.pipeline import TrainStreams
from transformer_jax.data.sources import decode_lines
from transformer_jax.data.tokenizer import BOS_ID, EOS_ID, PAD_ID
from transformer_jax.run_log import RunLog, write_atomically
from transformer_jax.train_state import State

_EXIT_CODES = {"finished": 0, "diverged": 1, "preempted": 128 + signal.SIGTERM}
_SAMPLES = 4  # about so many translations are shown, and the first two


def train(config: Config, workdir: Path) -> int:
    """Trains, or goes on training, in a work directory; then scores the test split.

    A finished run only shows its results again. SIGTERM and SIGINT save and end it as "preempted".
    """
    lock_workdir(workdir)
    if _is_finished(config, workdir):
        _show(workdir)
        return 0
    run = build(config, workdir / "tokenizer.json")
    # All data is read before anything is written, so that a mistake in it comes at once.
    validation, test = run.data.split("validation"), run.data.split("test")
    streams = run.data.train_streams()
    checkpoints = _checkpoints(run, workdir)
    state = _start(run, checkpoints, streams)
    if not (workdir / "tokenizer.json").exists():
        run.data.tokenizer.save(workdir / "tokenizer.json")

    log = RunLog(workdir, restored_step=int(state.step), total_steps=run.train.steps, progress=True)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    log.results(
        status="running", **run_log.run_fields(parameters=parameters, steps=int(state.step))
    )
    losses = _losses(run)
    try:
        # Only now: a kill between a new config and the new status would pass for a finished run.
        write_atomically(workdir / "config.json", overrides.to_json(config))
        with _stop_at_signal() as stop:
            outcome = _fit(config, run, state, streams, checkpoints, log, losses, validation, stop)
            status = outcome.status
            log.results(steps=outcome.step)
            if status == "finished" and stop():
                status = "preempted"  # after the last step: the rerun scores
            if status == "finished":
                log.progress(outcome.step, "translating the test split")
                params = _parameters(run, workdir, run.evaluate.checkpoint)
                log.results(**_named("validation", losses(params, validation)))
                scores, samples = _score(run, params, test)
                write_atomically(workdir / "samples.txt", samples)
                log.results(**_named("test", losses(params, test) | scores))
            log.results(status=status)
    except Exception:
        with contextlib.suppress(OSError):  # the disk may be full, which is what to tell of
            log.results(status="failed")
        raise
    finally:
        try:
            checkpoints.close()
        finally:
            log.close()
    _show(workdir)
    return _EXIT_CODES[status]


def evaluate(config: Config, workdir: Path, checkpoint: str | None, name: str) -> int:
    """Scores a checkpoint on the split `name` and shows the scores.

    They go into results.json where they are the run's own: by its config and its checkpoint.
    """
    _check_trained(workdir, checkpoint)
    own = checkpoint is None and not _changes(config, workdir)
    if own:
        lock_workdir(workdir)
    run = build(config, workdir / "tokenizer.json")
    params = _parameters(run, workdir, checkpoint or run.evaluate.checkpoint)
    split = run.data.split(name)
    scores, samples = _score(run, params, split)
    results = _named(name, _losses(run)(params, split) | scores)
    if own:
        run_log.write_results(workdir, run_log.read_results(workdir) | results)
    print(run_log.format_scores(results), samples, sep="\n\n")
    return 0


def generate(
    config: Config, workdir: Path, checkpoint: str | None, source: str, target: str
) -> int:
    """Translates a file's lines ("-": standard input) into as many lines, in the same order."""
    _check_trained(workdir, checkpoint)
    lines = _read_lines(source)
    run = build(config, workdir / "tokenizer.json")
    params = _parameters(run, workdir, checkpoint or run.evaluate.checkpoint)
    numbers = [number for number, line in enumerate(lines) if line.strip()]
    translations = [""] * len(lines)
    if numbers:
        batches = run.data.source_batches([lines[number] for number in numbers])
        for number, text in zip(numbers, _translate(run, params, batches), strict=True):
            translations[number] = " ".join(text.splitlines())
    output = "".join(f"{line}\n" for line in translations).encode()
    if target == "-":
        sys.stdout.buffer.write(output)
        sys.stdout.buffer.flush()
    else:
        Path(target).write_bytes(output)
    return 0


def inspect(config: Config, workdir: Path | None) -> int:
    """Prints the config, its difference from the default, the parameters and a step's cost."""
    run = build(config, workdir / "tokenizer.json" if workdir else None)
    changes = overrides.difference(default.get_config(), config)
    print(overrides.to_json(config))
    print("Changes from the default:", *(changes or ["none"]), sep="\n  ")

    key, batch = jax.random.key(run.seed), run.data.abstract_batch()
    table = train_state.parameter_table(run.init, key, batch)
    width = max(len(row.path) for row in table)
    print("\nParameters:")
    for path, shape, axes, count in table:
        named = ", ".join(f"{axis} {size}" for axis, size in zip(axes, shape, strict=True))
        print(f"  {path:{width}}  {count:>13,}  {named}")
    print(f"  {'total':{width}}  {sum(row.count for row in table):>13,}")

    jaxpr = jax.make_jaxpr(_make_train_step(run))(_abstract_state(run), batch)
    print(f"\nMatrix products of one training step: {_product_flops(jaxpr.jaxpr):.3e} FLOPs")
    return 0


def _start(run: Run, checkpoints: Checkpoints, streams: TrainStreams) -> State:
    """The state of the newest checkpoint, or a new one; the streams stand where it left them."""
    restored = checkpoints.restore("last", _abstract_state(run))
    if restored is None:
        beginning = streams.get_state()
        first_batch = jax.device_put(next(streams))
        streams.set_state(beginning)
        key = jax.random.key(run.seed)
        return train_state.create(
            run.init, run.optimizer, key, first_batch, training.WINDOW_METRICS
        )
    if restored.fingerprint != streams.fingerprint:
        raise ValueError(
            f"the checkpoint of step {restored.step} was trained on other data: its fingerprint is "
            f"{restored.fingerprint[:12]}, that of the files and tokenizer at hand "
            f"{streams.fingerprint[:12]}; restore the data, or choose another --workdir"
        )
    streams.set_state(restored.streams)
    return restored.state


def _fit(
    config: Config,
    run: Run,
    state: State,
    streams: TrainStreams,
    checkpoints: Checkpoints,
    log: RunLog,
    losses: Callable[[Params, Split], dict[str, float]],
    validation: Split,
    stop: Callable[[], bool],
) -> training.Outcome:
    origin = {"config": config.to_dict(), "fingerprint": streams.fingerprint}
    outcome = training.fit(
        state,
        streams,
        settings=run.train,
        train_step=_make_train_step(run),
        evaluate=lambda params: losses(params, validation),
        save=functools.partial(checkpoints.save, **origin),
        log=log,
        stop=stop,
    )
    checkpoints.wait()
    return outcome


@contextlib.contextmanager
def _stop_at_signal() -> Iterator[Callable[[], bool]]:
    """Yields whether SIGTERM or SIGINT has come; the second one ends the process as usual."""
    stopped = threading.Event()

    def stop(number, frame):
        stopped.set()
        signal.signal(number, previous[number])

    previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopped.is_set
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _make_train_step(run: Run) -> training.StepFn:
    return training.make_train_step(
        run.train,
        objective=run.objective,
        apply_fn=run.apply,
        optimizer=run.optimizer,
        schedule=run.schedule,
    )


def _abstract_state(run: Run) -> State:
    key, batch = jax.random.key(run.seed), run.data.abstract_batch()
    return train_state.abstract(run.init, run.optimizer, key, batch, training.WINDOW_METRICS)


def _checkpoints(run: Run, workdir: Path) -> Checkpoints:
    return Checkpoints(
        workdir / "checkpoints",
        keep_last=run.checkpoint.keep_last,
        best_metric=run.checkpoint.best_metric,
    )


def _parameters(run: Run, workdir: Path, which: str) -> Params:
    """Those of "last" (the mean of checkpoint.average_last), "best", a step, or a folder."""
    checkpoints, abstract = _checkpoints(run, workdir), _abstract_state(run).params
    if which == "last":
        found = checkpoints.average(run.checkpoint.average_last, abstract)
    elif which == "best" or which.isdecimal():
        found = checkpoints.restore_parameters(which if which == "best" else int(which), abstract)
    else:
        found = restore_parameters_from(which, abstract)
    if found is None:
        raise FileNotFoundError(f"there is no checkpoint in {workdir}: train there first")
    return found[1]


def _losses(run: Run) -> Callable[[Params, Split], dict[str, float]]:
    """(params, split) -> means of what the objective reports."""
    eval_step = evaluation.make_eval_step(run.objective, run.apply)
    return lambda params, split: evaluation.evaluate(params, split.batches, eval_step=eval_step)


def _score(run: Run, params: Params, split: Split) -> tuple[dict[str, Any], str]:
    """Translates a split; returns the scores with their signatures, and a few translations."""
    sources, references = split.examples["source"], split.examples["target"]
    hypotheses = _translate(run, params, split.batches)
    scores, signatures = evaluation.score_translations(
        *(hypotheses, references, split.examples.get("pronoun")),
        bleu_tokenizer=run.evaluate.bleu_tokenizer,
    )
    signatures = {f"{name}_signature": text for name, text in signatures.items()}
    triples = list(zip(sources, references, hypotheses, strict=True))
    # The first two (of the embedded corpus: the street's), and others from all over the split.
    samples = triples[:2] + triples[2 :: math.ceil(len(triples) / _SAMPLES)]
    return scores | signatures, run_log.format_translations(samples)


def _translate(run: Run, params: Params, batches: Iterable[evaluation.NumberedBatch]) -> list[str]:
    ids = evaluation.translate(
        params,
        batches,
        start=run.start,
        step=run.step,
        settings=run.decode,
        bos_id=BOS_ID,
        eos_id=EOS_ID,
        pad_id=PAD_ID,
        key=jax.random.key(run.seed),
    )
    return [run.data.tokenizer.decode(sentence) for sentence in ids]


def _product_flops(jaxpr: Any) -> int:
    """Multiplications and additions of all matrix products. XLA's own count leaves out loops."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            summed = math.prod(left[axis] for axis in contracted)
            total += 2 * summed * equation.outvars[0].aval.size
        # A Jaxpr has equations; a ClosedJaxpr has one.
        parameters = jax.tree.leaves(list(equation.params.values()))
        inner = [getattr(parameter, "jaxpr", parameter) for parameter in parameters]
        repeats = equation.params["length"] if equation.primitive.name == "scan" else 1
        total += repeats * sum(_product_flops(part) for part in inner if hasattr(part, "eqns"))
    return total


def _is_finished(config: Config, workdir: Path) -> bool:
    """Whether exactly this config has been trained and scored here."""
    finished = run_log.read_results(workdir).get("status") == "finished"
    return finished and (workdir / "config.json").exists() and not _changes(config, workdir)


def _changes(config: Config, workdir: Path) -> list[str]:
    """How the config differs from the one that the work directory was last trained with."""
    return overrides.difference(overrides.load(str(workdir / "config.json")), config)


def _check_trained(workdir: Path, checkpoint: str | None) -> None:
    """Says at once where there is nothing to score or translate with."""
    own = checkpoint in (None, "last", "best") or checkpoint.isdecimal()
    if own and not (workdir / "checkpoints").is_dir():
        raise FileNotFoundError(f"there is no checkpoint in {workdir}: train there first")


def _show(workdir: Path) -> None:
    results = run_log.read_results(workdir)
    print(run_log.format_scores(results))
    if results["status"] == "finished":
        print(f"\n{(workdir / 'samples.txt').read_text('utf-8')}")
    print(f"\nThe files of this run are in {workdir}")


def _named(split: str, scores: dict[str, Any]) -> dict[str, Any]:
    return {f"{split}/{name}": value for name, value in scores.items()}


def _read_lines(source: str) -> list[str]:
    """Lines of a file or of standard input; they end at line feeds alone."""
    data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    return decode_lines(data, source) if data else []
