"""How much does a small step of the weights change the output, as the model gets deeper?"""

SUBJECT = "norms"
