"""The baseline with half a cosine in place of the line."""

TRACK = "optimisation"
STEPS = 400
OVERRIDES = {
    "optimizer.schedule": "cosine",
}
