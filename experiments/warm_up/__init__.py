"""Why does warm-up help: gradients, noise in second moments, curvature, or the size of updates?"""

SUBJECT = "rates"
