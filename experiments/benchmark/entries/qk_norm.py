"""Queries and keys are normalised before they meet."""

TRACK = "architecture"
OVERRIDES = {
    "model.qk_norm": True,
}
