"""Pre-training on the texts of SST-2 and UD EWT, then fine-tuning on a share of their labels."""

from typing import Any

from experiments.harness.sweep import Run, grid

_SETS: dict[str, dict[str, Any]] = {
    "sst2": {
        "data.train": ("sst/glue_sst2/train_full.tsv",),
        "data.validation": ("sst/glue_sst2/dev.tsv",),
        "data.test": (),
        "model.num_layers": 2,
        "model.d_model": 128,
        "model.d_ff": 256,
        "model.dropout_rate": 0.3,
        "model.embedding_dropout_rate": 0.3,
    },
    "ewt": {
        "data.train": ("ud_english_ewt/en_ewt-ud-train.conllu",),
        "data.validation": ("ud_english_ewt/en_ewt-ud-dev.conllu",),
        "data.test": ("ud_english_ewt/en_ewt-ud-test.conllu",),
    },
}
# Of fine-tuning, by the share of the labelled examples.
_STEPS = {"sst2": {0.01: 100, 0.1: 300, 1.0: 700}, "ewt": {0.01: 60, 0.1: 150, 1.0: 300}}
_PRETRAINING = {"sst2": 1000, "ewt": 600}
_TASKS = {"masked_lm": "encoder_only", "span_corruption": "encoder_decoder"}


def cpu(quick: bool) -> list[Run]:
    """Two seeds; needs --data_dir, the folder of both sets' folders."""
    seeds = range(1 if quick else 2)
    rows = grid(seed=seeds, set=[*_SETS], pretraining=["none", *_TASKS])
    return [_run(row, quick) for row in rows]


def _run(row: dict[str, Any], quick: bool) -> Run:
    name, task = row["set"], row["pretraining"]
    file, steps = f"configs/{name}.py", 4 if quick else _PRETRAINING[name]
    common = {
        "train.evaluate_every": 0,
        "checkpoint.every": 0,
        "checkpoint.average_last": 1,
        "checkpoint.best_metric": "",
        "seed": row["seed"],
    }
    before: dict[str, Any] = {
        "task.name": task,
        "model.architecture": _TASKS.get(task),
        "task.label_smoothing": 0.0,
        "data.test": (),
        "train.steps": steps,
    }
    if task == "none":  # one step of nearly nothing, so that all begin with one tokenizer
        before |= {"task.name": "masked_lm", "model.architecture": "encoder_only"}
        before |= {"train.steps": 1, "optimizer.learning_rate": 1e-9, "optimizer.warmup_steps": 0}
    if task == "span_corruption":
        before |= {"data.max_target_length": 64, "data.row_target_length": 64}
    return Run(
        config=file,
        overrides={**_SETS[name], **common, **before},
        labels=row,
        measure={
            "file": file,
            "changes": _SETS[name] | common,
            "steps": {str(share): 4 if quick else count for share, count in _STEPS[name].items()},
        },
    )


SWEEPS = {"cpu": cpu}
