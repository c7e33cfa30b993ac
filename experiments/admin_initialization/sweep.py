"""Admin's four variants, trained and then folded; and its profile, on batches of several sizes."""

from experiments.harness.sweep import Run, grid

VARIANTS = grid(scheme=["admin", "admin_constant"], omega=["trained", "fixed"])
FREEZE = {"trained": (), "fixed": (("*/omega", 0.0, 0.0),)}  # optimizer.groups


def cpu(quick: bool) -> list[Run]:
    """Synthetic words at 18 layers, over seeds."""
    layers, seeds = (6, range(1)) if quick else (18, range(3))
    trained = [
        Run(
            config="configs/bigram_copy.py",
            overrides={
                "model.residual": variant["scheme"],
                "model.num_layers": layers,
                "optimizer.groups": FREEZE[variant["omega"]],
                "train.steps": 60 if quick else 300,
                "seed": seed,
            },
            labels={"part": "variants", **variant, "layers": layers, "seed": seed},
            measure={"what": "folding"},
        )
        for seed in seeds
        for variant in VARIANTS
    ]
    profiled = [
        Run(
            config="configs/bigram_copy.py",
            overrides={
                "model.residual": "admin",
                "model.num_layers": layers,
                "data.batch_size": 64,
                "seed": seed,
            },
            labels={"part": "profile", "layers": layers, "seed": seed},
            train=False,
            measure={
                "what": "profile",
                "sizes": [1, 64] if quick else [1, 4, 16, 64],
                "batches": 8,
            },
        )
        for seed in seeds
    ]
    return trained + profiled


def gpu(quick: bool) -> list[Run]:
    """The paper's 18-18 layers at d_model 512, on Multi30k; needs --data_dir and a GPU."""
    return [
        Run(
            config="configs/multi30k_18_18.py",
            overrides={
                "model.residual": variant["scheme"],
                "optimizer.groups": FREEZE[variant["omega"]],
                **({"train.steps": 100} if quick else {}),
            },
            labels={"part": "gpu", **variant, "layers": 18, "seed": 0},
        )
        for variant in VARIANTS
    ]


SWEEPS = {"cpu": cpu, "gpu": gpu}
