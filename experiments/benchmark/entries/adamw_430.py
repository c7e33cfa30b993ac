"""The baseline, as long as its slope says that it needs."""

TRACK = "optimisation"
STEPS = 430
OVERRIDES = {}
