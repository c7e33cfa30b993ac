"""What is each layer's output made of: its own branch, or what came before?"""

SUBJECT = "norms"
