"""The baseline without warm-up."""

TRACK = "optimisation"
STEPS = 400
OVERRIDES = {
    "optimizer.warmup_steps": 0,
}
