"""Lion with ten times the decay, its rate the best of 4, 8 and 16e-4 on seed 0."""

TRACK = "optimisation"
STEPS = 400
OVERRIDES = {
    "optimizer.name": "lion",
    "optimizer.learning_rate": 0.0008,
    "optimizer.weight_decay": 1.0,
    "optimizer.beta2": 0.98,
    "optimizer.epsilon": 1e-09,
}
