"""Muon once more, on seeds that have compared nothing."""

TRACK = "optimisation"
STEPS = 400
OVERRIDES = {
    "optimizer.name": "muon",
    "optimizer.learning_rate": 0.016,
}
SEEDS = range(200, 208)
