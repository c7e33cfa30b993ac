"""What does pre-training on the training text bring, by how many examples have labels?"""

SUBJECT = "data"
