"""Which norms keep a Vision Transformer trainable at high learning rates?"""

SUBJECT = "norms"
