"""Do gradients grow late in training because weight decay does not follow the schedule?"""

SUBJECT = "optimizers"
