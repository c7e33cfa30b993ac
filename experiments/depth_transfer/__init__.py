"""Does a learning rate carry over from a shallow model to a deep one, and by which rule?"""

SUBJECT = "rates"
