"""The three scores with one head of 16 to 1024: trained, looked at before training, and timed.

How large a product of queries and keys is depends on their variance, and so on how they come about:
"Xavier" in a model of 64, "wide" in a model as wide as the head (which gives unit variance, and is
not trained here), "normalised" to unit variance by QK-norm in a model of 64.
"""

from typing import Any

from experiments.harness.sweep import Run, grid

SCORES = ["scaled_dot_product", "dot_product", "additive"]
HEAD_DIMS = [16, 64, 256, 1024]
D_MODEL = 64
# Length of the text, size of the head.
_SHAPES = [[32, 64], [64, 64], [128, 64], [256, 64], [512, 64], [64, 16], [64, 256], [64, 1024]]


def _run(labels: dict[str, Any], quick: bool, **arguments: Any) -> Run:
    return Run(
        config="configs/bigram_copy.py",
        overrides={
            "model.residual": "pre_ln",
            "model.num_layers": 1,
            "model.num_heads": 1,
            "model.d_model": D_MODEL,
            "model.head_dim": labels.get("head_dim", D_MODEL),
            "model.qk_norm": labels.get("queries") == "normalised",
            "model.attention_score": labels.get("score", "scaled_dot_product"),
            "data.batch_size": 16,
            "optimizer.learning_rate": labels.get("learning_rate", 3e-3),
            "optimizer.warmup_steps": 50,
            "train.steps": 400 if quick else 1000,
            "train.log_every": 40,
            "seed": labels.get("seed", 0),
        },
        labels=labels,
        **arguments,
    )


def cpu(quick: bool) -> list[Run]:
    """Three seeds of training (one of heads of 1024), ten draws of the start, times of 9 rounds."""
    shapes = [shape for shape in _SHAPES if not quick or shape[0] * shape[1] <= 8192]
    head_dims = [16, 256] if quick else HEAD_DIMS
    queries = ["normalised"] if quick else ["Xavier", "normalised"]
    trained = [
        _run(row, quick)
        for row in grid(queries=queries, head_dim=head_dims, score=SCORES, seed=range(3))
        if row["seed"] == 0 or not (quick or row["head_dim"] == HEAD_DIMS[-1])
    ]
    start = [
        _run(
            {"queries": name},
            quick,
            train=False,
            measure={
                "what": "start",
                "scores": SCORES,
                "sizes": [[size if name == "wide" else D_MODEL, size] for size in head_dims],
                "draws": 3 if quick else 10,
            },
        )
        for name in (queries if quick else [*queries, "wide"])
    ]
    cost = _run(
        {"measured": "cost"},
        quick,
        train=False,
        measure={"what": "cost", "scores": SCORES, "shapes": shapes, "rounds": 9},
    )
    return [*trained, *start, cost]


def rates(quick: bool) -> list[Run]:
    """Normalised queries and keys by learning rate; additive attention of 1024 would take hours."""
    return [
        _run(row, quick)
        for row in grid(
            queries=["normalised"],
            head_dim=HEAD_DIMS[:1] if quick else HEAD_DIMS,
            score=SCORES,
            learning_rate=[1e-3, 3e-3] if quick else [3e-4, 1e-3, 3e-3, 1e-2, 3e-2],
            seed=range(1 if quick else 2),
        )
        if (row["score"], row["head_dim"]) != ("additive", HEAD_DIMS[-1])
    ]


SWEEPS = {"cpu": cpu, "rates": rates}
