"""The baseline once more, on seeds that have compared nothing."""

TRACK = "optimisation"
STEPS = 400
SEEDS = range(200, 208)
OVERRIDES = {}
