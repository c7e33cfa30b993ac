"""SCAN (Lake and Baroni, 2018): commands such as "jump twice" into sequences of actions.

    ./launch.sh train --config=configs/scan.py --workdir=runs/scan --config.data.dir=FOLDER_OF_SCAN

FOLDER_OF_SCAN holds `simple_split/` and its siblings. `--config=configs/scan.py:length` and
`...:addprim_jump` choose the splits that test systematic generalisation.

Time: 80 min on 2 CPU cores (AMD EPYC, 2026-11-20), more than half of it paused; at full speed it
makes about 6 steps per second.
Score on the simple split's test: exact match 1.0000. On the others' tests the best of 36 runs,
by residual scheme and positions, has 0.085 in 1,000 steps of Muon (experiments/generalization).
"""

from transformer_jax.configs import default

_FOLDERS = {
    "simple": "simple_split",
    "length": "length_split",
    "addprim_jump": "add_prim_split",
}


def get_config(arg: str = "simple") -> default.Config:
    """Returns the config of the split that the argument names; none is the simple one."""
    config = default.get_config()
    split = arg or "simple"
    if split not in _FOLDERS:
        raise ValueError(f"{split!r} is not a split of SCAN: {', '.join(_FOLDERS)}")

    config.data.source = "scan"
    config.data.train = (f"{_FOLDERS[split]}/tasks_train_{split}.txt",)
    config.data.validation = ()
    config.data.validation_size = 500
    config.data.test = (f"{_FOLDERS[split]}/tasks_test_{split}.txt",)
    config.data.tokenizer.kind = "words"
    config.data.max_source_length = 16
    config.data.max_target_length = 64
    config.data.row_source_length = 32
    config.data.row_target_length = 64
    config.data.batch_size = 32

    config.model.residual = "pre_ln"
    config.model.num_layers = 2
    config.model.d_model = 128
    config.model.num_heads = 8
    config.model.d_ff = 256

    config.task.label_smoothing = 0.0
    config.optimizer.schedule = "linear"
    config.optimizer.learning_rate = 2e-3
    config.optimizer.warmup_steps = 300

    config.train.steps = 4000
    config.train.evaluate_every = 500
    config.checkpoint.every = 500
    config.checkpoint.keep_last = 2
    config.evaluate.bleu_tokenizer = "none"
    config.decode.method = "greedy"
    return config
