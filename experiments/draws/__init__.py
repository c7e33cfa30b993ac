"""Do draws of initial weights differ once each has a learning rate of its own?"""

SUBJECT = "initialisation"
