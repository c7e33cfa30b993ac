"""Half the rate, ten times the weight decay."""

TRACK = "optimisation"
STEPS = 400
OVERRIDES = {
    "optimizer.learning_rate": 0.002,
    "optimizer.weight_decay": 1.0,
}
