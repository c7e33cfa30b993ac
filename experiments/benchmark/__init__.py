"""In how few steps does a small language model get to a loss, by which rule of training?"""

SUBJECT = "optimizers"
