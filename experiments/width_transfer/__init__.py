"""Which parts of muP let a learning rate carry over from a narrow model to a wide one?"""

SUBJECT = "rates"
