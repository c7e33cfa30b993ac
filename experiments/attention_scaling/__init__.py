"""Does dot-product attention need 1/sqrt(d_k), from which d_k on, and what does each score cost?"""

SUBJECT = "attention"
