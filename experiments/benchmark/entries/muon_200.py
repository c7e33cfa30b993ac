"""Muon for half of the steps, at the rate that was best for all of them."""

TRACK = "optimisation"
STEPS = 200
OVERRIDES = {
    "optimizer.name": "muon",
    "optimizer.learning_rate": 0.016,
}
