"""The baseline with ten times the weight decay."""

TRACK = "optimisation"
STEPS = 400
OVERRIDES = {
    "optimizer.weight_decay": 1.0,
}
