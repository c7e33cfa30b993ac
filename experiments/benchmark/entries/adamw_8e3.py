"""Twice the baseline's rate."""

TRACK = "optimisation"
STEPS = 400
OVERRIDES = {
    "optimizer.learning_rate": 0.008,
}
