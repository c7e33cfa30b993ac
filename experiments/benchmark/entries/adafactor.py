"""Adafactor, its rate the best of octaves from 2 to 128e-3 on seed 0."""

TRACK = "optimisation"
STEPS = 400
OVERRIDES = {
    "optimizer.name": "adafactor",
    "optimizer.learning_rate": 0.064,
    "optimizer.beta2": 0.98,  # which it does not read: that of the defaults
}
