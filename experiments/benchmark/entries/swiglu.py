"""SwiGLU with a hidden layer of two thirds, so that the parameters are as many."""

TRACK = "architecture"
OVERRIDES = {
    "model.activation": "swiglu",
    "model.d_ff": 341,
}
