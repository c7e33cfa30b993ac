"""Does Adam's curvature rise to (2 + 2 beta1) / ((1 - beta1) learning rate) and stay there?"""

SUBJECT = "rates"
