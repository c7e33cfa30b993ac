"""LAMB, its rate the best of 4, 8, 16 and 32e-3 on seed 0."""

TRACK = "optimisation"
STEPS = 400
OVERRIDES = {"optimizer.name": "lamb", "optimizer.learning_rate": 0.008}
