"""Which beta2 and which optimizer do small batches need, and up to which size does a batch gain?"""

SUBJECT = "optimizers"
