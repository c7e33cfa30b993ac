"""The baseline: AdamW at 4e-3, weight decay 0.1, a line to 0; nothing of it was tuned."""

TRACK = "optimisation"
STEPS = 400
OVERRIDES = {}
