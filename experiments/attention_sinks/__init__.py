"""Do attention sinks and massive activations come together, and does the residual scheme decide?"""

SUBJECT = "attention"
