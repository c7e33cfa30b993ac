"""Peri-LN: a norm before and after each branch, and on the embedding."""

TRACK = "architecture"
OVERRIDES = {
    "model.residual": "peri_ln",
}
