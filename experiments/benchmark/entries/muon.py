"""Muon, its rate the best of 0.002, 0.004, 0.008, 0.016 and 0.032 on seed 0."""

TRACK = "optimisation"
STEPS = 400
OVERRIDES = {
    "optimizer.name": "muon",
    "optimizer.learning_rate": 0.016,
}
