"""Which residual schemes train as the model gets deeper?"""

SUBJECT = "norms"
