"""Up to which learning rate does each residual scheme train?"""

SUBJECT = "norms"
